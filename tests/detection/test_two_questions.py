"""Two questions, two scores: labels hide no row, far groups are found, and all numbers of a row agree."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sklearn.ensemble import IsolationForest as TheirForest
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from fvnce.detection import NoiseContrastiveDetector, UnlikeTrainingWarning, scorers
from fvnce.detection.bulk import Bulk
from fvnce.detection.members.base import MemberSettings
from fvnce.detection.members.forest import IsolationForest, OutlierForest
from fvnce.detection.rows import TrainingRows
from fvnce.detection.trust.calibration import HELD_ALONE, HELD_BESIDE
from fvnce.io import FileError
from member_settings import member_settings

Array = NDArray[np.float64]
QUICK: dict[str, Any] = {"n_trees": 30, "n_networks": 1, "steps": 60, "expert": {"batch_size": 64}}
SHAPES = ("normal", "skewed", "uniform")


def bulk(shape: str, rng: np.random.Generator, n: int, width: int) -> Array:
    """Draw normal rows of one of three shapes."""
    if shape == "skewed":
        return rng.lognormal(0, 0.7, size=(n, width))
    return rng.normal(size=(n, width)) if shape == "normal" else rng.uniform(-1.7, 1.7, size=(n, width))


def kinds(shape: str, gaps: bool = False) -> tuple[Array, NDArray[np.int64], NDArray[np.int64]]:
    """Return rows, the kind of each (0 for normal ones), and labels for half of the first kind."""
    rng = np.random.default_rng(5)
    X = bulk(shape, rng, 660, 5)
    kind = np.repeat([0, 1, 2, 3], [600, 20, 20, 20])
    spread = X.std(0)
    X[kind == 1, 0] = X.mean(0)[0] - 3 * spread[0] + 0.2 * spread[0] * rng.normal(size=20)
    X[kind == 2, 2] *= 100
    X[kind == 3] = X.mean(0) + 7 * spread + 0.1 * spread * rng.normal(size=(20, 5))
    if gaps:
        X[rng.random(X.shape) < 0.1] = np.nan
    labels = np.zeros(660, dtype=np.int64)
    labels[np.flatnonzero(kind == 1)[:10]] = 1
    return X, kind, labels


@pytest.mark.parametrize(
    ("shape", "gaps"), [("normal", False), ("skewed", False), ("uniform", False), ("normal", True)]
)
def test_a_label_never_hides_a_row(shape: str, gaps: bool) -> None:
    X, kind, y = kinds(shape, gaps)
    labelled = NoiseContrastiveDetector(**QUICK).fit(X, y)
    # Novelty is learned from the rows without a label alone: to the bit, as if the others were not there.
    rest = NoiseContrastiveDetector(**QUICK).fit(X[y == 0])
    with_labels, without = labelled.scores(X), rest.scores(X)
    np.testing.assert_array_equal(with_labels.novelty, without.novelty)
    np.testing.assert_array_equal(without.novelty, without.anomaly)
    assert labelled.novelty_threshold_ == rest.threshold_
    assert rest.novelty_threshold_ is None
    beyond = with_labels.novelty > labelled.novelty_threshold_
    np.testing.assert_array_equal(beyond, without.flagged)
    assert with_labels.flagged[beyond].all()
    # Against the same rows without labels, known outliers among them, the novelty may differ a little.
    nothing = NoiseContrastiveDetector(**QUICK).fit(X).scores(X).flagged
    assert nothing[kind == 3].all()
    assert with_labels.flagged[nothing].mean() >= 0.8
    # A row whose gaps hide most of what is novel may be closer to the known ones.
    assert (with_labels.kind[kind == 3] == "novel").mean() >= (0.75 if gaps else 1.0)
    # The other question is free: hidden outliers of the known kind rank as they do by K alone.
    own = (kind < 2) & (y == 0)
    both, alone = (
        average_precision_score(kind[own] == 1, scores[own]) for scores in (with_labels.anomaly, with_labels.like_known)
    )
    assert both > alone - 0.01


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("gaps", [False, True])
def test_all_numbers_of_a_row_agree(labels: bool, gaps: bool, tmp_path: Path) -> None:
    X, _, y = kinds("normal", gaps)
    detector = NoiseContrastiveDetector(**QUICK).fit(X, y if labels else None)
    scores = detector.scores(X)
    np.testing.assert_array_equal(detector.predict(X) == -1, scores.flagged)
    np.testing.assert_array_equal(detector.decision_function(X) < 0, scores.flagged)
    assert detector.calibration_.held == (1 if labels else HELD_ALONE)
    half = 0.5 * detector.calibration_.held
    np.testing.assert_array_equal(detector.outlier_probability(X) > half, scores.anomaly > scores.threshold)
    assert (detector.outlier_probability(X)[scores.flagged] > 0.5 * HELD_BESIDE).all()
    np.testing.assert_array_equal(detector.labels_ == 1, scores.flagged)
    np.testing.assert_array_equal(detector.decision_scores_, -detector.score_samples(X))
    np.testing.assert_array_equal(scores.kind != "", scores.flagged)
    np.testing.assert_array_equal(scores.line[~scores.flagged], scores.anomaly[~scores.flagged])
    np.testing.assert_allclose(detector.explain(X).anomaly, detector.anomaly_score(X), atol=1e-8)
    if labels:
        assert detector.novelty_threshold_ is not None
        union = (scores.anomaly > scores.threshold) | (scores.novelty > detector.novelty_threshold_)
        np.testing.assert_array_equal(scores.flagged, union)
        assert set(scores.kind) == {"", "known", "novel"}
    else:
        assert np.isnan(scores.like_known).all()
        assert set(scores.kind) == {"", "novel"}
    again = NoiseContrastiveDetector.load(detector.save(tmp_path / "detector.safetensors")).scores(X)
    for name in ("anomaly", "line", "like_known", "novelty", "kind"):
        np.testing.assert_array_equal(getattr(again, name), getattr(scores, name))


def test_scorers_rank_rows_as_the_column_score_does() -> None:
    X, kind, y = kinds("normal")
    X[kind == 3, 0] = -30  # novel rows that nobody calls outliers: flagged, but not ranked above the known kind
    detector = NoiseContrastiveDetector(**QUICK).fit(X, y)
    truth, scores = kind == 1, detector.scores(X)
    assert not np.array_equal(scores.line, scores.anomaly)
    piped = make_pipeline(FunctionTransformer(), detector)
    search = GridSearchCV(make_pipeline(detector), {})
    search.best_estimator_ = make_pipeline(detector)
    for estimator in (detector, piped, search):
        assert scorers.roc_auc(estimator, X, truth) == roc_auc_score(truth, detector.anomaly_score(X))
        assert scorers.average_precision(estimator, X, truth) == average_precision_score(truth, scores.anomaly)
        assert scorers.precision_at_k(estimator, X, truth, k=20) == truth[np.argsort(-scores.anomaly)[:20]].mean()
    assert detector.score(X, truth) == roc_auc_score(truth, scores.anomaly)


def test_a_row_beyond_the_novelty_threshold_by_a_rounding_is_flagged() -> None:
    X, _, y = kinds("normal")
    detector = NoiseContrastiveDetector(**QUICK).fit(X, y)
    assert detector.novelty_threshold_ is not None
    novelty = np.array([detector.novelty_threshold_, np.nextafter(detector.novelty_threshold_, np.inf)])
    line = detector._line(np.zeros(2), novelty, 1e6)
    assert (line > 1e6).tolist() == [False, True]


def test_a_second_fit_without_labels_forgets_the_first() -> None:
    X, _, y = kinds("normal")
    detector = NoiseContrastiveDetector(**QUICK).fit(X, y).fit(X)
    assert detector.novelty_threshold_ is None
    fresh = NoiseContrastiveDetector(**QUICK).fit(X)
    np.testing.assert_array_equal(detector.outlier_probability(X), fresh.outlier_probability(X))


def test_a_contamination_switches_the_line_of_novelty_off() -> None:
    X, _, y = kinds("normal")
    detector = NoiseContrastiveDetector(**QUICK, contamination=0.05).fit(X, y)
    assert detector.novelty_threshold_ is None
    assert detector.labels_.sum() == 33


@pytest.mark.parametrize("n", [1000, pytest.param(4000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("width", [2, 5, 20])
@pytest.mark.parametrize("shape", SHAPES)
def test_far_groups_are_found_without_labels(shape: str, width: int, n: int) -> None:
    for share in (0.01, 0.03, 0.1):
        for spread in (0.0, 0.05):
            rng = np.random.default_rng([n, width])
            m = round(n * share)
            X = bulk(shape, rng, n - m, width)
            # Eight deviations in each of two columns, or as far in all of them together as in four.
            away = 8 * X.std(0) * rng.choice([-1, 1], width) / np.sqrt(max(1, width / 4))
            group = X.mean(0) + away + spread * X.std(0) * rng.normal(size=(m, width))
            y = np.repeat([0, 1], [n - m, m])
            scores = (
                NoiseContrastiveDetector(calibration_folds=0)
                .fit(np.concatenate([X, group]))
                .scores(np.concatenate([X, group]))
            )
            assert roc_auc_score(y, scores.anomaly) >= 0.99, (share, spread)
            assert scores.flagged[y == 1].all(), (share, spread)
            assert scores.flagged[y == 0].mean() < 0.08, (share, spread)


@pytest.mark.parametrize("away", [8.0, 1000.0])
def test_a_far_group_is_found_beside_rare_categories(away: float) -> None:
    # A tenth of the rows sets the deviation of a number, and so lies no farther away than a rare category does.
    rng = np.random.default_rng(0)
    categories = np.eye(4)[rng.choice(4, 2000, p=[0.5, 0.3, 0.15, 0.05])]
    X = np.concatenate([rng.normal(size=(2000, 2)), categories], 1)
    X[:200] = [away, -away, 1, 0, 0, 0]
    flagged = NoiseContrastiveDetector(calibration_folds=0).fit_predict(X) == -1
    assert flagged[:200].all()
    assert flagged[200:].mean() < 0.08


@pytest.mark.parametrize("texts", [False, True])
@pytest.mark.parametrize("shape", ["normal", "skewed", "whole"])
def test_far_groups_are_found_in_a_single_column_of_numbers(shape: str, *, texts: bool) -> None:
    # In one column the density of usual rows varies most, and a tenth of the rows sets the column's deviation.
    for share in (0.02, 0.05, 0.1):
        for spread in (0.0, 0.05):
            rng = np.random.default_rng(7)
            m = round(1000 * share)
            x = rng.poisson(4, 1000).astype(float) if shape == "whole" else bulk(shape, rng, 1000, 1)[:, 0]
            x[:m] = x[m:].mean() + 8 * x[m:].std() * (1 + spread * rng.normal(size=m) / 8)
            frame = {"x": np.round(x) if shape == "whole" else x}
            if texts:
                frame["town"] = rng.choice(["Bern", "Oslo", "Rome"], 1000)
            rows, y = pa.table(frame), np.repeat([1, 0], [m, 1000 - m])
            scores = NoiseContrastiveDetector(calibration_folds=0).fit(rows).scores(rows)
            assert roc_auc_score(y, scores.anomaly) >= 0.99, (share, spread)
            assert scores.flagged[y == 1].all(), (share, spread)
            assert scores.flagged[y == 0].mean() < 0.06, (share, spread)


@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("shape", ["normal", "skewed", "heavy", "rare texts"])
def test_few_rows_of_one_bulk_are_flagged(shape: str, width: int) -> None:
    rng = np.random.default_rng(11)
    if shape == "rare texts":
        X = pa.table(
            {f"c{i}": rng.choice(list("abcdef"), 1000, p=[0.5, 0.2, 0.1, 0.1, 0.05, 0.05]) for i in range(width)}
        )
        fit = NoiseContrastiveDetector(calibration_folds=0).fit(X)
        assert fit.ensemble_.bulk is not None
        assert (fit.ensemble_.bulk.excess(fit.preprocess(X)) == 0).all() or width > 1
        return
    X = rng.standard_t(3, size=(1000, width)) if shape == "heavy" else bulk(shape, rng, 1000, width)
    assert (NoiseContrastiveDetector(calibration_folds=0).fit_predict(X) == -1).mean() < 0.08


@pytest.mark.parametrize("width", [2, 5, 20])
@pytest.mark.parametrize("n_groups", [2, 3, 5])
def test_equal_groups_are_all_normal(n_groups: int, width: int) -> None:
    rng = np.random.default_rng(n_groups)
    centers = 8 * rng.normal(size=(n_groups, width))
    group = np.arange(1000) % n_groups
    flagged = NoiseContrastiveDetector().fit_predict(centers[group] + rng.normal(size=(1000, width))) == -1
    assert max(flagged[group == each].mean() for each in range(n_groups)) < 0.1
    assert flagged.mean() < 0.05


def rows_of(X: Array, weights: Array | None = None) -> TrainingRows:
    return TrainingRows(X, np.ones(len(X)) if weights is None else weights, np.empty((0, X.shape[1])), np.empty(0))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("width", [2, 10])
def test_the_isolation_forest_ranks_as_that_of_scikit_learn(shape: str, width: int) -> None:
    rng = np.random.default_rng(1)
    X = np.concatenate([bulk(shape, rng, 1900, width), rng.uniform(-6, 6, size=(100, width))])
    # Two forests of 100 trees agree by .9 only, whoever grew them; so 1,000 trees of each.
    forests = [IsolationForest.fit(rows_of(X), member_settings(n_trees=100), seed)[0] for seed in range(10)]
    theirs = -TheirForest(n_estimators=1000, random_state=0).fit(X).score_samples(X)
    assert spearmanr(np.mean([forest.anomaly(X) for forest in forests], axis=0), theirs).statistic > 0.95
    ours = forests[0]
    np.testing.assert_allclose(ours.base + ours.contributions(X).sum(1), ours.anomaly(X), atol=1e-12)


def test_weights_of_the_isolation_forest_are_repeated_rows() -> None:
    rng = np.random.default_rng(2)
    X, weights = rng.normal(size=(300, 3)), rng.integers(1, 4, 300)
    weighted = NoiseContrastiveDetector(members="isolation_forest").fit(X, sample_weight=weights)
    repeated = NoiseContrastiveDetector(members="isolation_forest").fit(np.repeat(X, weights, axis=0))
    np.testing.assert_array_equal(weighted.anomaly_score(X), repeated.anomaly_score(X))
    # A row that occurs often is in more samples, and so less isolated.
    often = np.where(np.arange(300) == np.abs(X).sum(1).argmax(), 100.0, 1.0)
    heavy, plain = (IsolationForest.fit(rows_of(X, w), member_settings(), 0)[0] for w in (often, None))
    assert heavy.anomaly(X)[often > 1] < plain.anomaly(X)[often > 1]


def test_the_old_name_of_the_isolation_forest_warns() -> None:
    with pytest.warns(DeprecationWarning, match="isolation_forest"):
        detector = NoiseContrastiveDetector(members="broad_forest", n_trees=5).fit(np.eye(9))
    assert detector.ensemble_.names == ["isolation_forest"]


@pytest.mark.parametrize(
    "change",
    [{"points": np.empty((0, 3))}, {"spreads": np.zeros(3)}, {"limits": np.array([1.0, 0.5])}, {"more": np.ones(1)}],
)
def test_a_forged_bulk_is_refused(change: dict[str, Array]) -> None:
    made = Bulk.learn(np.random.default_rng(0).normal(size=(50, 3)), np.ones(50), np.random.default_rng(0))
    np.testing.assert_array_equal(Bulk.from_state(vars(made), 3).excess(9 * np.eye(3)), made.excess(9 * np.eye(3)))
    with pytest.raises(FileError):
        Bulk.from_state({**vars(made), **change}, 3)


@pytest.mark.parametrize("change", [{"share": 1.5}, {"feature": 99}, {"right": 0}])
def test_a_forged_isolation_forest_is_refused(change: dict[str, float]) -> None:
    made, _ = IsolationForest.fit(rows_of(np.random.default_rng(0).normal(size=(50, 3))), member_settings(n_trees=3), 0)
    content, arrays = made.state()
    np.testing.assert_array_equal(
        IsolationForest.from_state(content, arrays, 3, None).anomaly(np.eye(3)), made.anomaly(np.eye(3))
    )
    ((name, value),) = change.items()
    forged = arrays[name].copy()
    forged[:2] = value
    with pytest.raises(FileError, match="a forest"):
        IsolationForest.from_state(content, {**arrays, name: forged}, 3, None)


def test_the_members_that_score_have_seen_every_known_outlier(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, bool]] = []
    noise = OutlierForest._noise

    def spy(rows: TrainingRows, settings: MemberSettings, seed: int, folds: Any) -> Any:
        seen.append((len(rows.outliers), folds is None))
        return noise(rows, settings, seed, folds)

    monkeypatch.setattr(OutlierForest, "_noise", spy)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 3))  # few, so that eight levels separate all rows
    X[:3] = 5 * np.eye(3)  # one known outlier in each column
    settings: dict[str, Any] = {"members": ("outlier_forest",), "n_trees": 40, "min_samples_leaf": 1}
    detector = NoiseContrastiveDetector(**settings).fit(X, np.arange(30) < 3)
    assert seen[0] == (3, True)
    # Cells of one sample remember what they saw: μ is 1 at each of the three, in nearly every tree.
    (member,) = detector.ensemble_.members
    assert (member.anomaly(detector.preprocess(X[:3])) > 0.95).all()


@pytest.mark.parametrize("known", [1, 3, 20])
@pytest.mark.parametrize("width", [3, 100])
def test_rows_like_those_of_training_and_these_themselves_are_not_called_far(width: int, known: int) -> None:
    rng = np.random.default_rng(known)
    X = np.concatenate([rng.normal(size=(150, width)), rng.normal(1.0, 0.5, size=(known, width))])
    detector = NoiseContrastiveDetector(**QUICK).fit(X, np.repeat([0, 1], [150, known]))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnlikeTrainingWarning)
        detector.predict(X)
        detector.predict(rng.normal(size=(400, width)))
