"""Real and unreal tables and images: a clear error or a sensible result, never a crash deep inside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from fvnce.detection import NoiseContrastiveDetector
from fvnce.detection.preprocessing import ColumnEncoding, TablePreprocessor
from fvnce.models import convolutional_pair
from fvnce.tables.parsing import ColumnType

QUICK: dict[str, Any] = {"n_trees": 10, "n_networks": 1, "steps": 20, "expert": {"batch_size": 32}}
Array = NDArray[np.float64]


@pytest.mark.parametrize("bad", [np.inf, -np.inf])
def test_values_that_are_no_numbers_are_refused(bad: float) -> None:
    X = np.random.default_rng(0).normal(size=(30, 3))
    detector = NoiseContrastiveDetector(**QUICK).fit(X)
    X[3, 1] = bad
    with pytest.raises(ValueError, match="infinity"):
        NoiseContrastiveDetector(**QUICK).fit(X)
    with pytest.raises(ValueError, match="infinity"):
        detector.score_samples(X)


def test_text_one_row_and_wrong_shapes_are_refused() -> None:
    X = np.random.default_rng(0).normal(size=(30, 3))
    with pytest.raises(ValueError, match=r"could not convert|float"):
        NoiseContrastiveDetector(**QUICK).fit([["a", "b"], ["c", "d"]])
    with pytest.raises(ValueError, match=r"1 sample|n_samples"):
        NoiseContrastiveDetector(**QUICK).fit(X[:1])
    with pytest.raises(ValueError, match="features"):
        NoiseContrastiveDetector(**QUICK).fit(X).predict(X[:, :2])
    with pytest.raises(ValueError, match=r"[Ss]ample.weight"):
        NoiseContrastiveDetector(**QUICK).fit(X, sample_weight=np.zeros(30))


@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize(
    "table",
    [
        np.zeros((20, 3)),
        np.repeat(np.arange(2.0), 10)[:, None],
        np.random.default_rng(0).normal(size=(20, 1000)),
        np.random.default_rng(0).normal(size=(2, 2)),
        np.random.default_rng(0).normal(size=(30, 1)) * 1e300,
        np.random.default_rng(0).normal(size=(30, 2)) * 1e-300,
        np.random.default_rng(0).standard_cauchy(size=(200, 3)) ** 3,
        np.tile(np.random.default_rng(0).normal(size=(4, 2)), (25, 1)),
        np.c_[np.zeros(60), np.r_[np.zeros(59), 1.0], np.arange(60)],
    ],
    ids=["constant", "two values", "1,000 columns", "two rows", "huge", "tiny", "heavy tails", "duplicates", "rare"],
)
def test_odd_tables_give_finite_scores(table: Array, labelled: bool) -> None:
    y = np.zeros(len(table), dtype=int)
    y[0] = labelled
    detector = NoiseContrastiveDetector(**QUICK).fit(table, y)
    assert np.isfinite(detector.decision_function(table)).all()
    assert set(detector.predict(table)) <= {-1, 1}
    assert np.isfinite(detector.explain(table[:2]).total).all()


@settings(max_examples=8, deadline=None)
@given(st.integers(2, 40), st.integers(1, 6), st.integers(0, 2**31), st.sampled_from(["normal", "discrete", "cauchy"]))
def test_any_table_gives_finite_scores(rows: int, columns: int, seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    made = {
        "normal": rng.normal(size=(rows, columns)),
        "discrete": rng.integers(0, 3, size=(rows, columns)).astype(float),
        "cauchy": rng.standard_cauchy(size=(rows, columns)),
    }[kind]
    y = (rng.random(rows) < 0.2).astype(int)
    y[0] = 0
    detector = NoiseContrastiveDetector(n_trees=3, n_networks=1, steps=10, expert={"batch_size": 16}).fit(made, y)
    assert np.isfinite(detector.decision_function(made)).all()


def test_scaling_survives_heavy_tails_and_rare_values() -> None:
    rng = np.random.default_rng(0)
    normal = rng.normal(5.0, 2.0, 1000)
    broken = np.r_[normal[:-2], 1e12, -1e12]
    rare = np.r_[np.zeros(999), 1.0]
    table = np.stack([normal, broken, rare, np.full(1000, 7.0)], 1)
    first, second, third, constant = TablePreprocessor.learn(table, np.ones(1000), None).columns
    assert first.scale == pytest.approx(2.0, rel=0.1)
    assert second.scale == pytest.approx(first.scale, rel=0.02)
    assert second.center == pytest.approx(first.center, rel=0.02)
    assert third.scale == pytest.approx(np.sqrt(0.001 * 0.999), rel=1e-6)
    assert constant == ColumnEncoding(7.0, 1.0, unused=True)


def test_categories_and_missing_values_are_encoded_and_gathered() -> None:
    X = np.array([[0.0, 1.0], [1.0, np.nan], [1.0, 3.0], [-1.0, 5.0]])
    preprocessor = TablePreprocessor.learn(X, np.ones(4), [ColumnType("text"), ColumnType()])
    assert preprocessor.columns[0].categories == [0, 1]
    assert preprocessor.columns[1].missing
    encoded = preprocessor.encode(X)
    np.testing.assert_array_equal(encoded[:, :3], [[1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1]])
    np.testing.assert_array_equal(encoded[:, 4], [0, 1, 0, 0])
    np.testing.assert_allclose(preprocessor.fold(encoded)[:, 0], 1.0)


def test_data_frames_with_categories_and_missing_values() -> None:
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    n = 300
    frame = pd.DataFrame(
        {
            "amount": rng.normal(size=n),
            "colour": pd.Categorical(rng.choice(["red", "green"], n)),
            "place": np.array(["a", "b", None], dtype=object)[rng.integers(0, 3, n)],
            "flag": rng.random(n) < 0.5,
        }
    )
    frame.loc[::7, "amount"] = np.nan
    strange = np.arange(n) >= n - 30
    frame["colour"] = frame["colour"].astype(object).where(~strange, "blue")
    y = (np.arange(n) >= n - 10).astype(int)
    detector = NoiseContrastiveDetector(**QUICK).fit(frame, y)
    assert list(detector.feature_names_in_) == ["amount", "colour", "place", "flag"]
    assert roc_auc_score(strange, detector.anomaly_score(frame)) > 0.95
    assert detector.explain(frame[-20:]).total.argmax(1).tolist().count(1) >= 18
    unseen = frame.head(3).assign(colour="violet")
    assert np.isfinite(detector.score_samples(unseen)).all()
    turned = frame[["colour", "amount", "place", "flag"]]
    np.testing.assert_array_equal(detector.score_samples(turned), detector.score_samples(frame))
    with pytest.raises(ValueError, match=r"amount.*feature names"):
        detector.score_samples(frame[["colour", "place", "flag"]])
    with pytest.raises(ValueError, match="data frame"):
        detector.score_samples(frame.to_numpy())
    with pytest.raises(ValueError, match="infinity"):
        detector.score_samples(frame.assign(amount=np.inf))


def test_blanks_around_a_category_make_no_difference() -> None:
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"amount": rng.normal(size=60), "hue": rng.choice(["red", "blue"], 60)})
    blank = frame.assign(hue=" " + frame["hue"] + " ")
    plain, other = (NoiseContrastiveDetector(**QUICK).fit(table) for table in (frame, blank))
    assert plain.preprocessor_ == other.preprocessor_
    np.testing.assert_array_equal(plain.score_samples(frame), other.score_samples(blank))
    np.testing.assert_array_equal(plain.score_samples(frame), plain.score_samples(blank))


def test_a_frame_of_numbers_scores_as_its_array() -> None:
    pd = pytest.importorskip("pandas")
    X = np.random.default_rng(0).normal(size=(80, 2))
    framed = NoiseContrastiveDetector(**QUICK).fit(pd.DataFrame(X, columns=["a", "b"]))
    plain = NoiseContrastiveDetector(**QUICK).fit(X)
    np.testing.assert_array_equal(framed.score_samples(pd.DataFrame(X, columns=["a", "b"])), plain.score_samples(X))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(10, 9), (2, 8, 8)])
def test_images_with_known_outliers(shape: tuple[int, ...], tmp_path: Any) -> None:
    rng = np.random.default_rng(0)
    images = (rng.random((140, *shape)) * 60).astype(np.uint8)
    images[:, ..., 3:5, :] += 150  # every image has a horizontal bar
    images[120:] = np.swapaxes(images[120:, ..., :8, :8], -1, -2).copy() if shape[-1] == 8 else images[120:, ::-1]
    y = np.zeros(140, dtype=int)
    y[120:130] = 1
    detector = NoiseContrastiveDetector(n_networks=1, steps=60, calibration_folds=0).fit(images, y)
    truth = np.arange(140) >= 120
    held_out = np.r_[0:120, 130:140]
    assert roc_auc_score(truth[held_out], detector.anomaly_score(images[held_out])) > 0.95
    found = detector.explain(images[:3])
    assert found.total.shape == (3, *shape)
    loaded = NoiseContrastiveDetector.load(detector.save(tmp_path / "images.safetensors"))
    np.testing.assert_array_equal(loaded.score_samples(images), detector.score_samples(images))
    with pytest.raises(ValueError, match="as in training"):
        detector.score_samples(images[..., :-1])
    with pytest.raises(ValueError, match="NaN"):
        detector.score_samples(np.full((2, *shape), np.nan))


@pytest.mark.slow
def test_images_are_seen_by_members_of_their_principal_components() -> None:
    rng = np.random.default_rng(0)
    base = rng.random((1, 12, 12))
    images = base * rng.uniform(0.7, 1.0, size=(200, 1, 1)) + 0.02 * rng.random((200, 12, 12))
    strange = rng.random((20, 12, 12))
    members = ("mixture_forest", "network")
    detector = NoiseContrastiveDetector(steps=150, members=members).fit(images)
    assert detector.ensemble_.names == list(members)
    scores = np.r_[detector.anomaly_score(images), detector.anomaly_score(strange)]
    assert roc_auc_score(np.repeat([0, 1], [200, 20]), scores) > 0.99


def test_the_convolutional_pair_fits_any_multiple_of_four() -> None:
    import torch

    encoder, decoder = convolutional_pair(3, channels=2, width=4, size=(8, 16))
    assert decoder(encoder(torch.zeros(2, 2, 8, 16))).shape == (2, 2, 8, 16)
    with pytest.raises(ValueError, match="multiples of 4"):
        convolutional_pair(3, size=(9, 8))


def test_training_has_a_record() -> None:
    X = np.random.default_rng(0).normal(size=(200, 3))
    y = (np.arange(200) < 5).astype(int)
    detector = NoiseContrastiveDetector(members=("network",), n_networks=1, steps=200, calibration_folds=0).fit(X, y)
    (history,) = detector.history_
    assert len(history.steps) == 200
    assert history["epoch"] == list(range(1, 11))
    assert history["loss"][-1] < history["loss"][0]


def test_plot_of_scores_shows_both_kinds_and_the_threshold() -> None:
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = (np.arange(60) < 5).astype(int)
    detector = NoiseContrastiveDetector(**QUICK).fit(X, y)
    axes = detector.plot_scores(X, y)
    heights = sum(patch.get_height() for patch in axes.patches)  # type: ignore[attr-defined]
    assert heights == 60
    (line,) = axes.lines
    assert line.get_xdata()[0] == pytest.approx(-detector.offset_)  # type: ignore[index]
    with pytest.raises(ValueError, match="one label"):
        detector.plot_scores(X, y[:3])


@pytest.mark.parametrize("value", ["5 kg", "5%", "1j", 1j])
def test_a_unit_that_training_did_not_have_is_refused(value: Any) -> None:
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame({"length": np.random.default_rng(0).normal(size=40), "width": np.arange(40.0)})
    detector = NoiseContrastiveDetector(**QUICK).fit(table)
    with pytest.raises(ValueError, match="'length' must hold numbers"):
        detector.score_samples(table.assign(length=value))


@pytest.mark.parametrize("missing", [None, np.nan, "NA"], ids=["None", "NaN", "NA"])
def test_a_dict_of_columns_may_miss_texts(missing: Any) -> None:
    pd = pytest.importorskip("pandas")
    town = np.array([pd.NA if missing == "NA" else missing, *["Rome", "Oslo"] * 20], dtype=object)
    columns = {"amount": np.arange(41.0), "town": town}
    detector = NoiseContrastiveDetector(**QUICK).fit(columns)
    np.testing.assert_array_equal(detector.anomaly_score(columns), detector.anomaly_score(pd.DataFrame(columns)))


@pytest.mark.parametrize("town", [1, ["Rome"], np.array([["Rome"]] * 2), [1.5, "Rome"]])
def test_a_dict_of_other_things_than_columns_is_refused(town: Any) -> None:
    with pytest.raises(ValueError, match="X must hold an array of one type and length for each name"):
        NoiseContrastiveDetector(**QUICK).fit({"amount": [1.0, 2.0], "town": town})
