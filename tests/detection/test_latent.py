"""The latent-variable detector keeps scikit-learn's contract, says what its score is, and survives a file."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import check_estimator

from fvnce.detection import LatentDetector, NoiseContrastiveDetector
from fvnce.io import FileError

QUICK: dict[str, Any] = {"epochs": 3, "hidden": (8,), "batch_size": 32, "latent": 2}
#: Checks of scikit-learn whose data are too few for any model.
IMPOSSIBLE = {"check_fit2d_1feature": "its labels mark 7 of 10 rows as known outliers, and a model needs 4 others"}
CASES: dict[str, dict[str, Any]] = {
    "auto": {},
    "autoencoder": {"noise": "none", "encoder": "point"},
    "vae": {"noise": "none"},
    "learned log Z": {"partition": "learned", "noise": "gaussian", "encoder": "point"},
    "density": {"anomaly": "density", "validation": 0.0, "partition": "fixed"},
}


def problem() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(size=(120, 4)), rng.normal(4, 0.5, size=(8, 4))])
    return X, np.repeat([0, 1], [120, 8])


class OfClasses(LatentDetector):
    """The detector for scikit-learn's checks, which hand over classes 0, 1, 2, …: class 1 are the known outliers."""

    def fit(self, X: Any, y: Any = None) -> Any:
        return super().fit(X, None if y is None else self._known(y), mostly_outliers=True)

    def score(self, X: Any, y: Any) -> float:
        return super().score(X, self._known(y))

    def _known(self, y: Any) -> Any:
        return (np.asarray(y) == 1).astype(int)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"noise": "none", "encoder": "point"}])
def test_keeps_the_contract_of_scikit_learn(options: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Skipping|.*was skipped")
        results = check_estimator(
            OfClasses(epochs=1, hidden=(4,), **options), on_skip=None, expected_failed_checks=IMPOSSIBLE
        )
    assert len(results) > 40
    assert {r["status"] for r in results if r["check_name"] not in IMPOSSIBLE} <= {"passed", "skipped"}


@pytest.mark.parametrize("case", CASES)
def test_a_saved_detector_scores_and_explains_to_the_same_bits(case: str, tmp_path: Path) -> None:
    X, y = problem()
    detector = LatentDetector(**QUICK, **CASES[case]).fit(X, y)
    loaded = LatentDetector.load(detector.save(tmp_path / "latent.safetensors"))
    np.testing.assert_array_equal(loaded.score_samples(X), detector.score_samples(X))
    np.testing.assert_array_equal(loaded.predict(X), detector.predict(X))
    np.testing.assert_array_equal(loaded.explain(X).total, detector.explain(X).total)
    np.testing.assert_array_equal(loaded.codes(X), detector.codes(X))
    assert (loaded.settings_, loaded.get_params()) == (detector.settings_, detector.get_params())
    assert loaded.history_["loss"] == detector.history_["loss"]
    with pytest.raises(FileError, match="latent detector"):
        NoiseContrastiveDetector.load(tmp_path / "latent.safetensors")


@pytest.mark.parametrize("case", CASES)
def test_the_score_is_what_the_model_and_the_noise_say(case: str) -> None:
    X, y = problem()
    detector = LatentDetector(**QUICK, **CASES[case]).fit(X, y)
    x = torch.from_numpy(detector.preprocess(X))
    z = torch.from_numpy(detector.codes(X))
    with torch.no_grad():
        anomaly = -detector.objective_.model.log_joint(x, z)
        if detector.settings_.score == "ratio":
            anomaly = anomaly + detector.objective_.noise.log_prob(x)
    np.testing.assert_allclose(detector.anomaly_score(X), anomaly.numpy(), rtol=1e-12)
    found = detector.explain(X)
    np.testing.assert_allclose(found.anomaly, anomaly.numpy(), atol=1e-9)
    scale = detector.objective_.model.decoder.scale.detach().numpy()
    errors = (detector.preprocess(X) - detector.reconstruction(X)) ** 2 / (2 * scale**2)
    np.testing.assert_allclose(found.reconstruction, errors, rtol=1e-12)
    # What belongs to no column: the size of the code, and the density of the noise.
    rest = (z**2).sum(1).numpy() / 2
    if detector.settings_.score == "ratio":
        rest = rest + detector.objective_.noise.log_prob(x).detach().numpy()
    np.testing.assert_allclose(found.rest, rest, atol=1e-9)


def test_the_threshold_leaves_the_share_asked_for_above_it() -> None:
    X, y = problem()
    detector = LatentDetector(**QUICK, contamination=0.1).fit(X, y)
    assert abs((detector.predict(X[y == 0]) == -1).mean() - 0.1) <= 1 / 120
    np.testing.assert_array_equal(LatentDetector(**QUICK, contamination=0.1).fit_predict(X, y), detector.predict(X))
    assert detector.score(X, y) > 0.95
    assert detector.n_known_ == 8


def test_a_share_that_is_no_whole_number_of_rows_is_rounded_down_by_every_detector() -> None:
    X = problem()[0][:115]
    others: dict[str, Any] = {"members": "neighbors", "calibration_folds": 0}
    for detector in (
        LatentDetector(**QUICK, contamination=0.05),
        NoiseContrastiveDetector(**others, contamination=0.05),
    ):
        assert (detector.fit(X).predict(X) == -1).sum() == 5


def test_training_rows_have_the_scores_that_they_would_have_later() -> None:
    # Columns of few values have rows at the threshold, and held-out rows that are as strange as others: ties count.
    X = np.random.default_rng(3).integers(0, 3, size=(90, 3)) / 3
    detector = LatentDetector(**QUICK, contamination=0.1).fit(X)
    np.testing.assert_array_equal(detector.decision_scores_, detector.anomaly_score(X))
    np.testing.assert_array_equal(detector.labels_, detector.predict(X) == -1)
    assert detector.evidence_.flagged == (detector.predict(X) == -1).sum()
    assert detector.conformal_ is not None
    assert np.isin(detector.conformal_.scores, detector.anomaly_score(X)).all()


def test_codes_and_explanations_do_not_depend_on_the_rows_beside() -> None:
    X, _ = problem()
    detector = LatentDetector(**QUICK).fit(X)
    for method in (detector.codes, detector.reconstruction, lambda rows: detector.explain(rows).reconstruction):
        np.testing.assert_array_equal(np.concatenate([method(row[None]) for row in X]), method(X))


def test_a_fit_keeps_to_its_seed_in_threads_and_leaves_global_generators_alone() -> None:
    X, y = problem()
    alone = LatentDetector(**QUICK).fit(X, y).score_samples(X)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: LatentDetector(**QUICK).fit(X, y).score_samples(X), range(4)))
    assert torch.equal(torch.get_rng_state(), before)
    for scores in found:
        np.testing.assert_array_equal(scores, alone)
    assert not np.array_equal(LatentDetector(**QUICK, random_state=1).fit(X, y).score_samples(X), alone)


def test_images_keep_their_shape() -> None:
    images = np.random.default_rng(0).random((30, 6, 7))
    detector = LatentDetector(**QUICK).fit(images)
    assert detector.explain(images).total.shape == images.shape
    assert detector.codes(images).shape == (30, 2)
    with pytest.raises(ValueError, match="as in training"):
        detector.predict(images[:, :5])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"noise": "pink"}, "noise.*pink"),
        ({"anomaly": "loud"}, "anomaly.*loud"),
        ({"noise": "none", "anomaly": "ratio"}, "anomaly.*ratio"),
        ({"epochs": 0}, "epochs.*0"),
        ({"contamination": 0.7}, r"contamination.*0\.7"),
    ],
)
def test_settings_that_make_no_model_are_refused(options: dict[str, Any], match: str) -> None:
    X, y = problem()
    detector = LatentDetector(**{**QUICK, **options})
    assert clone(detector).get_params() == detector.get_params()
    with pytest.raises(ValueError, match=match):
        detector.fit(X, y)
    with pytest.raises(NotFittedError):
        detector.predict(X)


def test_without_known_outliers_their_noise_is_refused() -> None:
    with pytest.raises(ValueError, match=r"noise.*outliers"):
        LatentDetector(**QUICK, noise="outliers").fit(problem()[0])
    with pytest.raises(ValueError, match=r"X.*4.*found 3"):
        LatentDetector(**QUICK).fit(problem()[0][:3])


def _wider(detector: LatentDetector) -> None:
    detector.objective_.encoder.network = torch.nn.Sequential(torch.nn.Linear(9, 4).double())


def _poisoned(detector: LatentDetector) -> None:
    with torch.no_grad():
        next(detector.objective_.model.decoder.parameters()).fill_(float("nan"))


def _other(detector: LatentDetector) -> None:
    detector.objective_ = LatentDetector(**QUICK, noise="none").fit(*problem()).objective_


def _scale(detector: LatentDetector) -> None:
    detector.offset_ = float("nan")


@pytest.mark.parametrize("forge", [_wider, _poisoned, _other, _scale])
def test_a_forged_file_is_refused(forge: Any, tmp_path: Path) -> None:
    detector = LatentDetector(**QUICK).fit(*problem())
    forge(detector)
    path = detector.save(tmp_path / "forged.safetensors")
    with pytest.raises(FileError, match="not a detector that fvnce wrote"):
        LatentDetector.load(path)


@pytest.mark.parametrize(
    ("setting", "wanted"),
    [
        ({"epochs": "5"}, "epochs.*'5'"),
        ({"latent": 1.5}, r"latent.*1\.5"),
        ({"bandwidth": "x"}, "bandwidth.*'x'"),
        ({"learning_rate": None}, "learning_rate.*None"),
        ({"hidden": 5}, "hidden.*5"),
        ({"hidden": "ab"}, "hidden.*'ab'"),
        ({"verbose": "loud"}, "verbose.*'loud'"),
        ({"hidden": (2.5,)}, r"hidden.*2\.5"),
    ],
)
def test_a_setting_of_another_type_is_named(setting: dict[str, Any], wanted: str) -> None:
    with pytest.raises(TypeError, match=wanted):
        LatentDetector(**setting).fit(np.zeros((9, 2)))
