"""What is taken without labels, with few, and with rows known to be clean; thresholds that nobody guessed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

from fvnce import NoiseContrastiveDetector
from fvnce.detection.ensemble import AUTO, member_weights
from fvnce.detection.noise import Support
from fvnce.detection.rows import TrainingRows
from fvnce.detection.trust.calibration import calibrate_with_outliers
from fvnce.detection.trust.drift import UnlikeTrainingWarning
from fvnce.io import FileError

QUICK: dict[str, Any] = {"n_trees": 20, "n_networks": 1, "steps": 40, "expert": {"batch_size": 64}}


def test_the_neighbors_count_less_the_more_outliers_are_known() -> None:
    names = ("outlier_forest", "mixture_forest", "network", "neighbors")
    shares = [member_weights(names, known, image=False)[-1] for known in (1, 3, 10, 100)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 0.5
    for known in (1, 3, 10, 100):
        weights = member_weights(names, known, image=False)
        assert sum(weights) == pytest.approx(1)
        assert weights[0] == weights[1] == weights[2]
    # Without a member that learns from known outliers there is no K, and the score is N.
    assert member_weights(("neighbors",), 0, image=False) == [0.0]
    assert member_weights(("neighbors", "isolation_forest"), 9, image=False) == [0.0, 0.0]


def test_on_images_the_neighbors_keep_their_share_however_many_are_known() -> None:
    names = ("neighbors", "outlier_forest", "mixture_forest", "network")
    weights = [member_weights(names, known, image=True) for known in (1, 10, 1000)]
    assert weights[0] == weights[1] == weights[2]
    assert sum(weights[0]) == pytest.approx(1)
    assert weights[0][0] > 0.9
    assert weights[0][1] == weights[0][2] == weights[0][3] > 0


def test_an_outlier_unlike_the_one_that_is_known_is_still_found() -> None:
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(size=(300, 3)), rng.normal([5, 0, 0], 0.3, size=(3, 3))])
    detector = NoiseContrastiveDetector(**QUICK).fit(X, np.repeat([0, 1], [300, 3]))
    other = rng.normal([0, -7, 0], 0.3, size=(40, 3))
    truth = np.repeat([0, 1], [300, 40])
    assert roc_auc_score(truth, detector.anomaly_score(np.concatenate([rng.normal(size=(300, 3)), other]))) > 0.95
    assert set(detector.ensemble_.names) == set(AUTO)


@pytest.mark.parametrize("columns", [2, 6, 30])
def test_hardly_any_gaussian_row_is_flagged_and_scattered_outliers_are(columns: int) -> None:
    rng = np.random.default_rng(1)
    good, bad = rng.normal(size=(500, columns)), rng.uniform(-6, 6, size=(50, columns))
    assert (NoiseContrastiveDetector().fit_predict(good) == -1).mean() < 0.05
    flagged = NoiseContrastiveDetector().fit_predict(np.concatenate([good, bad])) == -1
    assert flagged[500:].mean() > (0.5 if columns == 2 else 0.9)
    assert flagged[:500].mean() < 0.02


def test_of_clean_rows_one_in_a_hundred_is_flagged() -> None:
    rng = np.random.default_rng(2)
    detector = NoiseContrastiveDetector(clean=True).fit(rng.normal(size=(2000, 5)))
    # 4,000 new rows: a deviation of .0016 for these and .0022 for the quantile; a false alarm once in 10⁴ seeds.
    assert (detector.predict(rng.normal(size=(4000, 5))) == -1).mean() == pytest.approx(0.01, abs=0.011)
    assert detector.prior_ == 0.01


def test_clean_rows_that_lie_apart_are_normal_and_nothing_between_them_is() -> None:
    rng = np.random.default_rng(3)
    X = np.concatenate([rng.normal(-4, 0.5, size=(300, 2)), rng.normal(4, 0.1, size=(20, 2))])
    rare, between = rng.normal(4, 0.1, size=(200, 2)), np.zeros((1, 2))
    clean, careful = (NoiseContrastiveDetector(clean=clean).fit(X) for clean in (True, False))
    assert (clean.predict(rare) == 1).mean() > 0.9
    with pytest.warns(UnlikeTrainingWarning, match="above the threshold"):
        assert (careful.predict(rare) == -1).all()
    assert clean.predict(between)[0] == careful.predict(between)[0] == -1


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"clean": "yes"}, "clean.*yes"), ({"n_neighbors": 0}, "n_neighbors.*0")],
)
def test_settings_are_checked(settings: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        NoiseContrastiveDetector(**settings).fit(np.zeros((5, 2)))


def test_images_without_labels_are_explained_saved_and_flagged(tmp_path: Any) -> None:
    content = load_digits()
    normal, strange = content.images[content.target == 3], content.images[content.target == 6]
    detector = NoiseContrastiveDetector(clean=True, n_neighbors=8).fit(normal[:120])
    both = np.concatenate([normal[120:], strange])
    truth = np.repeat([0, 1], [len(normal) - 120, len(strange)])
    assert detector.score(both, truth) > 0.99
    parts = detector.explain(strange[:4])
    assert parts.total.shape == (4, 8, 8)
    np.testing.assert_allclose(parts.anomaly, detector.anomaly_score(strange[:4]), atol=1e-9)
    loaded = NoiseContrastiveDetector.load(detector.save(tmp_path / "images.safetensors"))
    np.testing.assert_array_equal(loaded.anomaly_score(both), detector.anomaly_score(both))
    # A score follows from the image alone, to the last bit.
    np.testing.assert_array_equal(detector.anomaly_score(both[5:8]), detector.anomaly_score(both)[5:8])


@pytest.mark.slow
@pytest.mark.parametrize(("one", "other"), [(8, 9), (4, 7)])
def test_digits_unlike_the_known_ones_are_still_found(one: int, other: int) -> None:
    content = load_digits()
    normal, known = content.images[content.target == one], content.images[content.target == other]
    X = np.concatenate([normal[:110], known[:20]])
    labelled = NoiseContrastiveDetector(clean=True, n_trees=50).fit(X, np.repeat([0, 1], [110, 20]))
    blind = NoiseContrastiveDetector(clean=True).fit(X[:110])
    others = content.images[(content.target != one) & (content.target != other)]
    both = np.concatenate([normal[110:], known[20:], others])
    truth = np.repeat([0, 1], [len(normal) - 110, len(known) - 20 + len(others)])
    # Twenty known images of one kind may cost the eight other kinds a thousandth; alone they would cost a tenth.
    assert labelled.score(both, truth) > blind.score(both, truth) - 0.001


def test_a_file_with_weights_that_do_not_sum_to_one_is_refused() -> None:
    detector = NoiseContrastiveDetector().fit(np.random.default_rng(0).normal(size=(30, 2)))
    content, arrays = detector.ensemble_.state()
    for weights in ([2.0], [-1.0], ["x"], []):
        with pytest.raises(FileError):
            type(detector.ensemble_).from_state({**content, "weights": weights}, arrays, 2, None)


def test_draws_keep_to_the_values_of_a_column() -> None:
    import torch

    rng = np.random.default_rng(4)
    X = np.column_stack([rng.integers(0, 4, 200), rng.normal(size=200), np.maximum(rng.normal(-1, 1, 200), 0)])
    support = Support.learn(TrainingRows(X, np.ones(200), X[:0], np.empty(0)))
    moved = torch.from_numpy(X).float() + 0.8 * torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    snapped = support.nearest(moved).numpy()
    assert set(np.unique(snapped[:, 0])) <= {0.0, 1.0, 2.0, 3.0}
    np.testing.assert_array_equal(snapped[:, 1], moved[:, 1].numpy())
    assert np.isin(snapped[:, 2], X[:, 2].astype(np.float32)).all()
    assert (np.abs(snapped[:, 0] - moved[:, 0].numpy()) <= 0.5 + (np.abs(moved[:, 0].numpy() - 1.5) > 2) * 9).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("known", "share", "prior", "error"),
    [
        (3, 0.0, 0.032, 0.034),
        (3, 0.05, 0.051, 0.017),
        (3, 0.15, 0.066, 0.087),
        (5, 0.0, 0.029, 0.030),
        (5, 0.05, 0.051, 0.017),
        (5, 0.15, 0.076, 0.076),
        (20, 0.0, 0.022, 0.023),
        (20, 0.05, 0.051, 0.016),
        (20, 0.15, 0.097, 0.054),
    ],
)
def test_how_far_the_prior_and_probabilities_can_be_trusted(
    known: int, share: float, prior: float, error: float
) -> None:
    """Mean of π and expected calibration error as measured on 120 data sets of normal scores that are 2.5 apart.

    This records how far both are off, not how far they should be; ``experiments/coverage/detector.py`` measures the
    same with the default detector.
    """
    rng = np.random.default_rng(0)
    found, held = [], []
    for _ in range(40):
        scores = rng.normal(size=300) + 2.5 * (rng.random(300) < share)
        made = calibrate_with_outliers(scores, np.ones(300), rng.normal(2.5, 1, size=known), np.ones(known), None)[0]
        outlier = rng.random(2000) < share
        claimed = made.probability(rng.normal(size=2000) + 2.5 * outlier)
        bins = np.minimum((10 * claimed).astype(int), 9)
        found.append([made.prior, np.abs(np.bincount(bins, claimed - outlier)).sum() / 2000])
        held.append(made.low <= share <= made.high)
    assert np.mean(held) >= 0.85  # 90 %, and two standard errors of 40 data sets
    # Four standard errors of the difference of 40 and 120 data sets.
    apart = 4 * np.std(found, axis=0) * (1 / 40 + 1 / 120) ** 0.5
    assert (np.abs(np.mean(found, axis=0) - [prior, error]) < apart).all()
    if share:  # no bound: the estimate is often below π
        assert np.mean(np.array(found)[:, 0] < share) > 0.1
