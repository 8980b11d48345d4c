"""Laws of missing values: a row that loses values does not look more normal, and usual gaps make no row strange."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fvnce._validation import FileError
from fvnce.detection import LatentDetector, NoiseContrastiveDetector
from fvnce.detection.gaps import Gaps
from fvnce.detection.preprocessing import TablePreprocessor
from fvnce.tables.parsing import ColumnType

Array = NDArray[np.float64]
QUICK: dict[str, Any] = {"n_trees": 30, "n_networks": 1, "steps": 60, "calibration_folds": 0}


def table(n: int, width: int, share: float, seed: int = 0) -> Array:
    """Correlated columns, a fraction of whose values are missing at random."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, width)) + rng.normal(size=(n, 1))
    X[rng.uniform(size=X.shape) < share] = np.nan
    return X


def losing_values(X: Array, counts: list[int], seed: int = 1) -> list[Array]:
    """The same rows, each with more and more of its values removed in a random order of columns."""
    rng = np.random.default_rng(seed)
    orders, rows = np.stack([rng.permutation(X.shape[1]) for _ in X]), np.arange(len(X))[:, None]
    versions = []
    for count in counts:
        versions.append(X.copy())
        versions[-1][rows, orders[:, :count]] = np.nan
    return versions


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("known", [0, 3, 40])
@pytest.mark.parametrize("clean", [False, True])
def test_scores_of_new_rows_do_not_fall_as_they_lose_values(share: float, known: int, *, clean: bool) -> None:
    X, y = table(500, 10, share), np.repeat([1, 0], [known, 500 - known])
    X[:known, :3] += 4
    detector = NoiseContrastiveDetector(**QUICK, clean=clean).fit(X, y if known else None)
    scores = [detector.anomaly_score(rows) for rows in losing_values(table(300, 10, share, seed=9), [0, 2, 5, 8, 10])]
    for fewer, more in pairwise(scores):
        assert np.median(more) >= np.median(fewer)
        assert more.mean() >= fewer.mean() - 0.02
        assert (more >= fewer).mean() >= 0.6


@pytest.mark.parametrize("width", [1, 3, 40])
def test_they_do_not_in_narrow_and_wide_tables(width: int) -> None:
    detector = NoiseContrastiveDetector(**QUICK).fit(table(300, width, 0.0))
    none, half, every = losing_values(table(200, width, 0.0, seed=9), [0, (width + 1) // 2, width])
    medians = [float(np.median(detector.anomaly_score(rows))) for rows in (none, half, every)]
    assert medians == sorted(medians)
    assert (detector.anomaly_score(every) > detector.threshold_).all()  # no training row was without values


def test_they_do_not_with_a_latent_variable_model() -> None:
    detector = LatentDetector(latent=2, hidden=(8,), epochs=5).fit(table(300, 6, 0.1))
    versions = losing_values(table(200, 6, 0.1, seed=9), [0, 2, 4, 6])
    medians = [float(np.median(detector.anomaly_score(rows))) for rows in versions]
    assert medians == sorted(medians)


def test_they_do_not_where_columns_are_texts_and_dates() -> None:
    pd = pytest.importorskip("pandas")

    def frame(n: int, seed: int) -> Any:
        rng = np.random.default_rng(seed)
        days = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, n), unit="D")
        towns = rng.choice(["Bern", "Oslo", "Rome"], n, p=[0.6, 0.3, 0.1]).astype(object)
        return pd.DataFrame({"a": rng.normal(size=n), "town": towns, "day": days, "b": rng.normal(size=n)})

    detector, rows = NoiseContrastiveDetector(**QUICK).fit(frame(400, 0)), frame(200, 1)
    medians = [float(np.median(detector.anomaly_score(rows)))]
    for column in ("town", "a", "day", "b"):
        rows[column] = None if column == "town" else np.nan
        rows[column] = rows[column].astype("datetime64[ns]" if column == "day" else rows[column].dtype)
        medians.append(float(np.median(detector.anomaly_score(rows))))
    assert medians == sorted(medians)


def test_a_row_without_values_is_not_the_most_normal_one_even_if_it_is_common() -> None:
    X = table(600, 4, 0.1)
    X[::10] = np.nan
    detector = NoiseContrastiveDetector(**QUICK).fit(X)
    scores = detector.decision_scores_
    assert scores[0] >= np.median(scores)
    assert detector.predict(X[:1]) == 1  # nor is it strange


def test_known_outliers_that_are_gaps_are_found() -> None:
    X, y = table(500, 10, 0.0), np.repeat([1, 0], [20, 480])
    X[:20] = np.nan
    detector = NoiseContrastiveDetector(**QUICK).fit(X, y)
    assert (detector.anomaly_score(X[:20]) > detector.threshold_).all()
    assert (detector.predict(X[20:]) == -1).mean() < 0.05


def test_known_outliers_with_one_gap_are_told_from_other_gaps() -> None:
    X, y = table(500, 5, 0.0), np.repeat([1, 0], [40, 460])
    X[:40, 2] = np.nan
    detector = NoiseContrastiveDetector(**QUICK).fit(X, y)
    other, gap = table(2, 5, 0.0, seed=9)
    gap[2], other[0] = np.nan, np.nan
    assert detector.anomaly_score([gap])[0] > detector.anomaly_score([other])[0]


def test_usual_gaps_flag_no_row_more_often() -> None:
    X = table(1000, 8, 0.25)
    detector = NoiseContrastiveDetector(**QUICK).fit(X)
    new = table(1000, 8, 0.25, seed=9)
    flagged, many = detector.predict(new) == -1, np.isnan(new).sum(1) >= 3
    assert flagged[many].mean() < 0.06


def test_a_value_in_a_column_that_is_seldom_filled_stays_what_makes_a_row_strange() -> None:
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(0)
    X, truth = rng.normal(size=(800, 6)), np.repeat([0, 1], [760, 40])
    X[truth == 0, 0] = np.nan
    assert roc_auc_score(truth, NoiseContrastiveDetector(**QUICK).fit(X).anomaly_score(X)) > 0.9


@pytest.mark.parametrize("seed", range(5))
def test_what_gaps_add_never_falls_for_any_row(seed: int) -> None:
    gaps = NoiseContrastiveDetector(**QUICK).fit(table(100, 6, 0.1 * seed, seed)).gaps_
    assert gaps is not None
    rng = np.random.default_rng(seed)
    gone = rng.uniform(size=(50, 6)) < 0.5
    more = gone | (rng.uniform(size=(50, 6)) < 0.3)
    assert (gaps.parts(more).sum(1) >= gaps.parts(gone).sum(1) - 1e-12).all()
    assert (gaps.parts(np.zeros((1, 6), bool)) == 0).all()


def test_explanations_sum_to_the_score_of_rows_with_gaps() -> None:
    detector = NoiseContrastiveDetector(**QUICK).fit(table(200, 5, 0.1))
    rows = table(20, 5, 0.4, seed=9)
    np.testing.assert_allclose(detector.explain(rows).anomaly, detector.anomaly_score(rows), atol=1e-9)


@pytest.mark.parametrize("kind", [NoiseContrastiveDetector, LatentDetector])
def test_what_gaps_add_is_saved(kind: Any, tmp_path: Path) -> None:
    detector = kind(**(QUICK | {"calibration_folds": 2} if kind is NoiseContrastiveDetector else {"epochs": 1}))
    detector.fit(table(100, 4, 0.1))
    loaded = kind.load(detector.save(tmp_path / "detector.safetensors"))
    rows = table(20, 4, 0.4, seed=9)
    np.testing.assert_array_equal(loaded.anomaly_score(rows), detector.anomaly_score(rows))
    np.testing.assert_array_equal(loaded.p_value(rows), detector.p_value(rows))


@pytest.mark.parametrize(
    "forge",
    [
        lambda g: replace(g, lift=g.lift - 10),
        lambda g: replace(g, lift=g.lift[:-1]),
        lambda g: replace(g, floor=g.floor[::-1] + np.arange(len(g.floor))[::-1]),
        lambda g: replace(g, usual=len(g.floor)),
        lambda g: replace(g, unusual=float("nan")),
    ],
)
def test_a_forged_state_is_refused(forge: Any, tmp_path: Path) -> None:
    detector = NoiseContrastiveDetector(**QUICK).fit(table(60, 3, 0.1))
    detector.gaps_ = forge(detector.gaps_)
    with pytest.raises((FileError, ValueError)):
        NoiseContrastiveDetector.load(detector.save(tmp_path / "forged.safetensors"))


def test_weights_count_rows_with_gaps() -> None:
    X = table(60, 3, 0.2)
    counts = np.random.default_rng(3).integers(1, 4, 60)
    weighted = NoiseContrastiveDetector(**QUICK).fit(X, sample_weight=counts)
    repeated = NoiseContrastiveDetector(**QUICK).fit(np.repeat(X, counts, axis=0))
    np.testing.assert_array_equal(weighted.anomaly_score(X), repeated.anomaly_score(X))


def test_gaps_of_no_column_add_nothing() -> None:
    assert Gaps(np.zeros(2), np.zeros(3), 0, 0.0).parts(np.ones((1, 2), bool)).sum() == 0


def test_filled_rows_are_encoded_gaps_without_their_marks() -> None:
    X = np.column_stack([np.resize([0.0, 1.0, -1.0], 30), table(30, 2, 0.2)])
    how = TablePreprocessor.learn(X, np.ones(30), [ColumnType("text"), ColumnType(), ColumnType()])
    gone = ~how.gaps(X) & (np.random.default_rng(5).uniform(size=X.shape) < 0.4)
    removed = X.copy()
    how.remove(removed, *np.nonzero(gone))
    found, expected = how.filled(how.encode(X), gone), how.encode(removed)
    marks = [4, 6]  # a, b, other; a number and its mark, twice
    np.testing.assert_array_equal(np.delete(found, marks, 1), np.delete(expected, marks, 1))
    np.testing.assert_array_equal(found[:, marks], how.encode(X)[:, marks])
