"""The detector keeps scikit-learn's contract, and its own: labels, weights, order, files, scorers."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import fvnce
from fvnce.detection import (
    MEMBERS,
    InvertedScoreWarning,
    NoiseContrastiveDetector,
    outlier_auroc,
    outlier_average_precision,
)
from fvnce.io import FileError

Array = NDArray[np.float64]

QUICK: dict[str, Any] = {"n_trees": 20, "n_networks": 1, "steps": 40, "expert": {"batch_size": 64}}


def problem(seed: int = 0, known: int = 8) -> tuple[Array, NDArray[np.int64], NDArray[np.int64]]:
    """A Gaussian in 4 dimensions with a cluster of outliers: X, labels of the known ones, truth."""
    rng = np.random.default_rng(seed)
    X = np.concatenate([rng.normal(size=(240, 4)), rng.normal(2.5, 0.4, size=(24, 4))])
    truth = np.repeat([0, 1], [240, 24])
    y = np.zeros(264, dtype=np.int64)
    y[240 : 240 + known] = 1
    return X, y, truth


class OfClasses(NoiseContrastiveDetector):
    """The detector for scikit-learn's checks, which hand over classes 0, 1, 2, …: class 1 are the known outliers."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        return super().fit(X, None if y is None else self._known(y), sample_weight, mostly_outliers=True)

    def score(self, X: Any, y: Any) -> float:
        return super().score(X, self._known(y))

    def _known(self, y: Any) -> Any:
        return (np.asarray(y) == 1).astype(int)


@pytest.mark.slow
@pytest.mark.parametrize(("members", "folds"), [("auto", 2), (("network", "broad_forest"), 0)])
def test_keeps_the_contract_of_scikit_learn(members: Any, folds: int) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Skipping|.*was skipped")
        results = check_estimator(
            OfClasses(
                members=members,
                n_trees=3,
                n_networks=1,
                steps=4,
                calibration_folds=folds,
                expert={"batch_size": 32, "hidden": (8,)},
            ),
            on_skip=None,
        )
    assert len(results) > 40
    assert {result["status"] for result in results} <= {"passed", "skipped"}


def test_is_a_lazy_public_name() -> None:
    assert fvnce.NoiseContrastiveDetector is NoiseContrastiveDetector


@pytest.mark.slow
def test_same_seed_same_bits_and_other_seed_other_scores() -> None:
    X, y, _ = problem()
    first = NoiseContrastiveDetector(**QUICK).fit(X, y)
    second = NoiseContrastiveDetector(**QUICK).fit(X, y)
    np.testing.assert_array_equal(first.score_samples(X), second.score_samples(X))
    np.testing.assert_array_equal(first.score_samples(X), first.score_samples(X))
    assert first.offset_ == second.offset_
    other = NoiseContrastiveDetector(**QUICK, random_state=1).fit(X, y)
    assert not np.array_equal(first.score_samples(X), other.score_samples(X))


def test_fit_leaves_the_random_states_of_the_caller_alone() -> None:
    import torch

    X, y, _ = problem()
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    NoiseContrastiveDetector(**QUICK).fit(X, y)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.slow
def test_order_of_rows_does_not_matter_and_a_weight_is_a_count() -> None:
    X, y, _ = problem()
    reference = NoiseContrastiveDetector(**QUICK).fit(X, y).score_samples(X)
    order = np.random.default_rng(1).permutation(len(X))
    shuffled = NoiseContrastiveDetector(**QUICK).fit(X[order], y[order]).score_samples(X)
    np.testing.assert_array_equal(reference, shuffled)
    counts = np.random.default_rng(2).integers(0, 3, len(X))
    weighted = NoiseContrastiveDetector(**QUICK).fit(X, y, sample_weight=counts).score_samples(X)
    repeated = NoiseContrastiveDetector(**QUICK).fit(X.repeat(counts, 0), y.repeat(counts)).score_samples(X)
    np.testing.assert_array_equal(weighted, repeated)
    assert not np.array_equal(weighted, reference)


def test_weights_move_what_counts_as_normal() -> None:
    # Two clusters, and almost all weight on one: rows of the other become strange.
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(-3, 0.5, (150, 2)), rng.normal(3, 0.5, (150, 2))])
    weights = np.repeat([1.0, 0.002], 150)
    anomaly = NoiseContrastiveDetector(**QUICK).fit(X, sample_weight=weights).anomaly_score(X)
    assert roc_auc_score(np.repeat([0, 1], 150), anomaly) > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1000.0, 1e-3])
def test_units_and_order_of_columns_hardly_matter(factor: float) -> None:
    X, y, _ = problem()
    averaged = QUICK | {"n_trees": 60}
    reference = NoiseContrastiveDetector(**averaged).fit(X, y).anomaly_score(X)
    moved = X * np.array([factor, 1, 1, 1]) + np.array([0, 5.0, 0, 0])
    rescaled = NoiseContrastiveDetector(**averaged).fit(moved, y).anomaly_score(moved)
    # Thresholds and noise are drawn on the scaled columns, so only rounding differs; a tree may send a row elsewhere.
    assert np.quantile(np.abs(reference - rescaled), 0.95) < 0.05
    flipped = NoiseContrastiveDetector(**averaged).fit(X[:, ::-1], y).anomaly_score(X[:, ::-1])
    # Another draw of everything: as different as two seeds are, rank correlation at least 0.9.
    ranks = [np.argsort(np.argsort(values)) for values in (reference, flipped)]
    assert np.asarray(np.corrcoef(ranks))[0, 1] > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("known", [0, 1, 3, 24])
def test_more_known_outliers_never_break_it(known: int) -> None:
    X, y, truth = problem(known=known)
    fresh, _, fresh_truth = problem(seed=9)
    detector = NoiseContrastiveDetector(**QUICK).fit(X, y)
    assert detector.n_known_ == known
    if known:  # without, a dense cluster is no outlier
        assert detector.score(fresh, fresh_truth) > 0.95
    assert np.isfinite(detector.anomaly_score(fresh)).all()
    assert ((detector.outlier_probability(fresh) >= 0) & (detector.outlier_probability(fresh) <= 1)).all()
    np.testing.assert_allclose(detector.decision_function(X), detector.score_samples(X) - detector.offset_)
    np.testing.assert_array_equal(detector.predict(X) == -1, detector.decision_function(X) < 0)
    np.testing.assert_array_equal(NoiseContrastiveDetector(**QUICK).fit_predict(X, y), detector.predict(X))
    assert truth.sum() == 24


def test_scattered_outliers_are_found_without_labels() -> None:
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(size=(400, 4)), rng.uniform(-7, 7, size=(40, 4))])
    detector = NoiseContrastiveDetector(n_trees=50).fit(X)
    assert detector.score(X, np.repeat([0, 1], [400, 40])) > 0.95
    flagged = detector.predict(X) == -1
    assert flagged[400:].mean() > 0.6
    assert flagged[:400].mean() < 0.1


def test_a_number_as_contamination_is_the_share_of_rows_flagged() -> None:
    X, y, _ = problem()
    for share in (0.05, 0.25):
        detector = NoiseContrastiveDetector(**QUICK, contamination=share).fit(X, y)
        assert abs((detector.predict(X) == -1).mean() - share) < 1 / len(X) + 1e-9


def test_labels_that_mix_up_conventions_are_refused() -> None:
    X, y, _ = problem()
    with pytest.raises(ValueError, match="found -1"):
        NoiseContrastiveDetector(**QUICK).fit(X, np.where(y == 1, -1, 1))
    with pytest.raises(ValueError, match=r"y .* all 264"):
        NoiseContrastiveDetector(**QUICK).fit(X, np.ones(len(X)))
    with pytest.raises(ValueError, match=r"y .* 264 .*found 263"):
        NoiseContrastiveDetector(**QUICK).fit(X, y[:-1])
    with pytest.raises(ValueError, match="found 2"):
        NoiseContrastiveDetector(**QUICK).fit(X, np.where(y == 1, 2, 0))


def test_unknown_settings_name_the_argument() -> None:
    X, y, _ = problem()
    wrong: dict[str, Any] = {
        "members": ("forest",),
        "contamination": 0.7,
        "alpha": -1.0,
        "steps": 0,
        "outlier_share": 2.0,
        "prior": 0.0,
        "n_trees": 0,
        "expert": {"deviation": 1},
    }
    for name, value in wrong.items():
        with pytest.raises((ValueError, TypeError), match=name):
            NoiseContrastiveDetector(**{name: value}).fit(X, y)
    for name, value in {"hidden": (0,), "batch_size": 1, "learning_rate": 0.0, "device": "abacus"}.items():
        with pytest.raises((ValueError, TypeError), match=name):
            NoiseContrastiveDetector(expert={name: value}).fit(X, y)
    with pytest.raises(ValueError, match="outlier_forest"):
        NoiseContrastiveDetector(members=("outlier_forest",)).fit(X)
    with pytest.raises(NotFittedError):
        NoiseContrastiveDetector().predict(X)


@pytest.mark.slow
def test_works_in_searches_and_pipelines_with_the_right_sign() -> None:
    X, _, truth = problem()
    detector = NoiseContrastiveDetector(**QUICK, calibration_folds=0)
    assert clone(detector).get_params() == detector.get_params()
    folds = StratifiedKFold(2, shuffle=True, random_state=0)
    own = cross_val_score(detector, X, truth, cv=folds)
    named = cross_val_score(detector, X, truth, cv=folds, scoring=outlier_auroc)
    with pytest.warns(InvertedScoreWarning, match="decision_function"):
        trap = cross_val_score(detector, X, truth, cv=folds, scoring="roc_auc")
    np.testing.assert_allclose(own, named)
    np.testing.assert_allclose(own, 1 - trap, atol=1e-12)  # the trap: scikit-learn's scorer has the other sign
    assert own.min() > 0.9
    piped = make_pipeline(StandardScaler(), detector).fit(X, truth)
    assert outlier_average_precision(piped, X, truth) > 0.8
    search = GridSearchCV(
        NoiseContrastiveDetector(**QUICK, calibration_folds=0), {"members": ["outlier_forest", "network"]}, cv=folds
    ).fit(X, truth)
    assert search.best_score_ > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("members", [(name,) for name in MEMBERS])
def test_a_saved_detector_scores_to_the_same_bits(members: tuple[str, ...], tmp_path: Path) -> None:
    X, y, _ = problem()
    detector = NoiseContrastiveDetector(**QUICK, members=members, calibration_folds=2).fit(X, y)
    loaded = NoiseContrastiveDetector.load(detector.save(tmp_path / "detector.safetensors"))
    np.testing.assert_array_equal(detector.score_samples(X), loaded.score_samples(X))
    np.testing.assert_array_equal(detector.outlier_probability(X), loaded.outlier_probability(X))
    np.testing.assert_array_equal(detector.predict(X), loaded.predict(X))
    assert loaded.get_params() == detector.get_params()
    assert len(loaded.history_) == len(detector.history_)
    for ours, theirs in zip(loaded.history_, detector.history_, strict=True):
        assert ours["loss"] == theirs["loss"]


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    X, y, _ = problem()
    path = NoiseContrastiveDetector(**QUICK).fit(X, y).save(tmp_path / "detector.safetensors")
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(FileError, match="damaged"):
        NoiseContrastiveDetector.load(path)


def test_memory_maps_and_batches_give_the_scores_of_arrays(tmp_path: Path) -> None:
    X, y, _ = problem()
    many = np.tile(X, (40, 1)) + np.linspace(0, 1, 40 * len(X))[:, None]
    mapped = np.memmap(tmp_path / "rows.bin", dtype=np.float32, mode="w+", shape=many.shape)
    mapped[:] = many
    mapped.flush()
    detector = NoiseContrastiveDetector(**QUICK).fit(X, y)
    whole = detector.score_samples(np.asarray(mapped))
    np.testing.assert_array_equal(detector.score_samples(mapped), whole)
    np.testing.assert_allclose(detector.score_samples(mapped[5000:5003]), whole[5000:5003], rtol=1e-9)
    limited = NoiseContrastiveDetector(**QUICK, max_rows=500).fit(mapped)
    assert np.isfinite(limited.score_samples(mapped)).all()
