"""p-values are super-uniform on rows like those of training, and alarms keep their false discovery rate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fvnce.detection import Conformal, LatentDetector, NoiseContrastiveDetector
from fvnce.detection.conformal import reject
from fvnce.training import RecordError

Array = NDArray[np.float64]

QUICK: dict[str, Any] = {"n_trees": 6, "n_networks": 1, "steps": 10, "batch_size": 32, "hidden": (8,)}
#: One tree for the p-values' model, one member: a detector that takes a few milliseconds.
TINY: dict[str, Any] = {"n_trees": 3, "members": "broad_forest"}


def problem(seed: int = 0, rows: int = 400, hidden: int = 10, known: int = 10) -> tuple[Array, NDArray[np.int64]]:
    """Gaussian rows and a cluster of outliers, of which the last are known."""
    rng = np.random.default_rng(seed)
    X = np.concatenate([rng.normal(size=(rows, 3)), rng.normal(4, 0.5, size=(hidden + known, 3))])
    return X, np.repeat([0, 1], [rows + hidden, known])


@pytest.mark.parametrize("scores", [np.arange(20.0), np.array([0.0] * 7 + [1.0] * 10 + [2.0] * 3)])
def test_each_of_exchangeable_rows_may_be_the_new_one(scores: Array) -> None:
    # Exact, by going through all of them: the share with p ≤ t is at most t, and is t where no scores are equal.
    p = [Conformal.of(np.delete(scores, i), np.ones(19)).p_value(scores[i : i + 1])[0] for i in range(20)]
    for t in np.linspace(0, 1, 41):
        assert np.mean(p <= t + 1e-12) <= t + 1e-12
    if len(set(scores)) == 20:
        np.testing.assert_allclose(np.sort(p), np.arange(1, 21) / 20)


def test_a_weight_is_a_count_of_rows_and_a_discounted_row_counts_less() -> None:
    scores, new = np.array([3.0, 1.0, 2.0]), np.array([0.0, 1.0, 2.5, 4.0])
    counted = Conformal.of(scores, np.array([2.0, 1.0, 1.0]), np.array([0.0, 1.0, 1.0]))
    repeated = Conformal.of(np.array([3.0, 3.0, 1.0, 2.0]), np.ones(4))
    np.testing.assert_allclose(counted.p_value(new), repeated.p_value(new))
    np.testing.assert_allclose(counted.p_value(new), [1, 1, 3 / 5, 1 / 5])
    np.testing.assert_allclose(counted.p_value(new, discount=True), [1, 1, 1 / 3, 1 / 3])
    # Weights that are no counts: only their ratios matter.
    for factor in (0.3, 7.7):
        found = Conformal.of(scores, factor * np.array([1.0, 1.0, 0.5])).p_value(new)
        np.testing.assert_allclose(found, Conformal.of(scores, np.array([0.4, 0.4, 0.2])).p_value(new))


def _rates(contamination: float, strange: float, how: str, repetitions: int = 200) -> tuple[Array, Array]:
    """False discovery proportion and power of each repetition at fdr = 0.2: N(0, 1) rows and N(4, 1) outliers."""
    rates = []
    for seed in range(repetitions):
        rng = np.random.default_rng(seed)
        hidden = rng.random(1000) < contamination
        scores = rng.normal(size=1000) + 4 * hidden
        odds = contamination / (1 - contamination) * np.exp(4 * scores - 8)
        conformal = Conformal.of(scores, np.ones(1000), 1 / (1 + odds))
        outlier = np.arange(200) < 200 * strange
        p = conformal.p_value(rng.normal(size=200) + 4 * outlier, discount=how == "discount")
        flagged = reject(p, 0.2)
        rates.append(((flagged & ~outlier).sum() / max(1, flagged.sum()), flagged[outlier].mean()))
    false, power = np.array(rates).T
    return false, power


def test_the_false_discovery_rate_holds_over_200_repetitions() -> None:
    false, power = _rates(0.0, 0.1, "count")
    # Proved: E ≤ 0.2 · 0.9. One-sided at 4 standard errors of the mean, a false alarm in 30,000 sets of repetitions.
    assert false.mean() <= 0.18 + 4 * false.std() / np.sqrt(200)
    assert power.mean() > 0.9
    assert false.mean() > 0.1  # and is not idle


def test_what_hidden_outliers_do_to_it() -> None:
    clean, few, same = (_rates(share, 0.1, "count") for share in (0.0, 0.01, 0.1))
    # Fewer false alarms, and less is found: nothing at all where new rows hold what the training rows held.
    assert few[0].mean() < clean[0].mean()
    assert few[1].mean() > 0.75
    assert same[1].mean() < 0.02
    # Counted with the probability of being none, they are found again, at about the rate asked for.
    false, power = _rates(0.1, 0.1, "discount")
    assert power.mean() > 0.9
    assert false.mean() < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("how", ["floats", "counts", "known"])
def test_a_fitted_detector_is_super_uniform_on_rows_like_its_own(how: str) -> None:
    options = TINY if how != "known" else {"n_trees": 3, "members": "outlier_forest", "calibration_folds": 1}
    below: list[list[float]] = []
    levels = np.array([0.05, 0.1, 0.25, 0.5])
    for seed in range(200):
        rng = np.random.default_rng(seed)
        # Skewed rows; those of the second kind have many equals, which a split of whole groups would treat unequally.
        rows = rng.gamma(1.0, size=(90, 2)) if how != "counts" else rng.poisson(0.7, size=(90, 2)).astype(float)
        X, new = rows[:60], rows[60:]
        y = None
        if how == "known":
            X, y = np.concatenate([X, rng.normal(5, 1, size=(4, 2))]), np.repeat([0, 1], [60, 4])
        p = NoiseContrastiveDetector(**options, random_state=seed).fit(X, y).p_value(new)
        below.append((p[:, None] <= levels + 1e-12).mean(0).tolist())
    mean, error = np.mean(below, 0), np.std(below, 0) / np.sqrt(200)
    # Each one-sided at 4 standard errors over independent repetitions: for all twelve, a false alarm in 2,500.
    assert (mean <= levels + 4 * error).all()


@pytest.mark.slow
@pytest.mark.parametrize("known", [0, 6])
def test_alarms_of_a_fitted_detector_keep_their_rate(known: int) -> None:
    options = {**TINY, "n_trees": 30}
    if known:
        options = {"n_trees": 9, "members": "outlier_forest", "calibration_folds": 1}
    rates = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        X = np.concatenate([rng.normal(size=(300, 2)), rng.normal(6, 1, size=(known, 2))])
        new = np.concatenate([rng.normal(size=(80, 2)), rng.normal(6, 1, size=(20, 2))])
        detector = NoiseContrastiveDetector(**options, random_state=seed).fit(X, np.repeat([0, 1], [300, known]))
        flagged = detector.predict(new, fdr=0.2) == -1
        rates.append((flagged[:80].sum() / max(1, flagged.sum()), flagged[80:].mean()))
    false, power = np.array(rates).T
    # E ≤ 0.2 · 0.8, one-sided at 4 standard errors.
    assert false.mean() <= 0.16 + 4 * false.std() / np.sqrt(60)
    assert power.mean() > (0.5 if known else 0.1)  # beyond all rows, one cell of a broad forest is like another


def test_hidden_outliers_are_discounted_with_known_ones() -> None:
    X, y = problem(rows=1000, hidden=40, known=40)
    detector = NoiseContrastiveDetector(n_trees=60, members="mixture_forest").fit(X, y)
    new, fresh = problem(seed=1, hidden=40, known=0)[0], np.random.default_rng(2).normal(size=(400, 3))
    # As many of the new rows are outliers as would do for an alarm if the held-out rows held none.
    assert (detector.predict(new, fdr=0.3)[400:] == -1).mean() < 0.1
    assert (detector.predict(new, fdr=0.3, discount=True)[400:] == -1).mean() > 0.9
    assert (detector.predict(fresh, fdr=0.3, discount=True) == -1).mean() < 0.02


def test_rows_in_another_order_and_weights_give_the_same_bits() -> None:
    X, y = problem()
    counts = np.random.default_rng(3).integers(0, 3, len(X))
    weighted = NoiseContrastiveDetector(**QUICK).fit(X, y, sample_weight=counts)
    order = np.random.default_rng(4).permutation(int(counts.sum()))
    repeated = NoiseContrastiveDetector(**QUICK).fit(X.repeat(counts, 0)[order], y.repeat(counts)[order])
    for discount in (False, True):
        np.testing.assert_array_equal(weighted.p_value(X, discount=discount), repeated.p_value(X, discount=discount))
    assert weighted.evidence_ == repeated.evidence_
    np.testing.assert_array_equal(weighted.decision_scores_.repeat(counts)[order], repeated.decision_scores_)
    # What is no count is a weight all the same.
    assert np.isfinite(NoiseContrastiveDetector(**QUICK).fit(X, y, sample_weight=counts / 3).p_value(X)).all()


def test_rows_that_are_left_over_measure_the_detector_itself() -> None:
    X, y = problem()
    detector = NoiseContrastiveDetector(**QUICK, max_rows=150).fit(X, y)
    assert detector.conformal_ is not None
    assert detector.conformal_.model is None
    assert len(detector.conformal_.scores) == 150
    anomaly, p = detector.anomaly_score(X), detector.p_value(X)
    assert (np.diff(p[np.argsort(anomaly)]) <= 0).all()
    with pytest.raises(AttributeError, match="max_rows = 150"):
        _ = detector.decision_scores_
    assert not hasattr(detector, "labels_")


@pytest.mark.parametrize("kind", ["known", "none", "left over", "latent", "images"])
def test_a_saved_detector_finds_the_same(kind: str, tmp_path: Path) -> None:
    X, y = problem()
    detector: Any = NoiseContrastiveDetector(**QUICK, max_rows=150 if kind == "left over" else 20_000)
    if kind == "latent":
        detector = LatentDetector(epochs=1, hidden=(4,), latent=1)
    if kind == "images":
        X = np.random.default_rng(0).random((40, 6, 7))
        y = np.repeat([0, 1], [36, 4])
        detector = NoiseContrastiveDetector(n_trees=3, members="mixture_forest")
    detector.fit(X, None if kind == "none" else y)
    loaded = type(detector).load(detector.save(tmp_path / "detector.safetensors"))
    np.testing.assert_array_equal(loaded.p_value(X), detector.p_value(X))
    np.testing.assert_array_equal(loaded.predict(X, fdr=0.3), detector.predict(X, fdr=0.3))
    np.testing.assert_array_equal(loaded.feature_importances_, detector.feature_importances_)
    assert loaded.evidence_ == detector.evidence_
    assert hasattr(loaded, "decision_scores_") == (kind != "left over")
    if kind != "left over":
        np.testing.assert_array_equal(loaded.decision_scores_, detector.decision_scores_)
    shown = str(detector.evidence_).splitlines()[0]
    assert all(shown in found for found in (loaded._repr_html_(), detector._repr_html_()))


def _conformal(**changes: Callable[[Conformal], Any]) -> Callable[[Any], Any]:
    def forge(findings: Any) -> Any:
        made = {name: change(findings.conformal) for name, change in changes.items()}
        return replace(findings, conformal=replace(findings.conformal, **made))

    return forge


FORGED: dict[str, Callable[[Any], Any]] = {
    "scores in disorder": _conformal(scores=lambda c: c.scores[::-1].copy()),
    "NaN": _conformal(scores=lambda c: np.full_like(c.scores, np.nan)),
    "weights below 0": _conformal(weights=lambda c: -c.weights),
    "too few weights": _conformal(weights=lambda c: c.weights[1:]),
    "probabilities of 2": _conformal(inlier=lambda c: np.full_like(c.scores, 2.0)),
    "another model": _conformal(model=lambda c: replace(c.model, ensemble=replace(c.model.ensemble, scales=[0.0] * 3))),
    "p-values and why none": lambda f: replace(f, no_p_value="none"),
    "no p-values": lambda f: replace(f, conformal=None),
    "importances": lambda f: replace(f, importances=f.importances[:2]),
    "no scores": lambda f: replace(f, scores=None),
    "scores of NaN": lambda f: replace(f, scores=f.scores * np.nan),
    "AUROC of 3": lambda f: replace(f, evidence=replace(f.evidence, auroc=replace(f.evidence.auroc, value=3.0))),
    "AUROC of nobody": lambda f: replace(f, evidence=replace(f.evidence, auroc=None)),
    "a number as reason": lambda f: replace(f, evidence=replace(f.evidence, threshold_reason=3)),
    "NaN flagged": lambda f: replace(f, evidence=replace(f.evidence, flagged=float("nan"))),
}


@pytest.fixture(scope="module")
def fitted() -> NoiseContrastiveDetector:
    return NoiseContrastiveDetector(**QUICK).fit(*problem())


@pytest.mark.parametrize("case", FORGED)
def test_forged_findings_are_refused(case: str, fitted: NoiseContrastiveDetector, tmp_path: Path) -> None:
    path = tmp_path / "forged.safetensors"
    findings = fitted.findings_
    try:
        fitted.findings_ = FORGED[case](findings)
        fitted.save(path)
    finally:
        fitted.findings_ = findings
    with pytest.raises(RecordError, match="no detector that fvnce wrote"):
        NoiseContrastiveDetector.load(path)


def test_what_cannot_be_had_is_said(fitted: NoiseContrastiveDetector) -> None:
    X, y = problem()
    for wrong in (0.0, 1.5, float("nan")):
        with pytest.raises(ValueError, match="fdr must be"):
            fitted.predict(X, fdr=wrong)
    with pytest.raises(ValueError, match="discount must be False without fdr"):
        fitted.predict(X, discount=True)
    with pytest.raises(ValueError, match="discount must be False without known outliers"):
        NoiseContrastiveDetector(**TINY).fit(X).p_value(X, discount=True)
    with pytest.raises(ValueError, match="calibration_folds = 0"):
        NoiseContrastiveDetector(**QUICK, calibration_folds=0).fit(X, y).p_value(X)
    with pytest.raises(ValueError, match="fewer than 8"):
        NoiseContrastiveDetector(**TINY).fit(X[:7]).p_value(X)
    with pytest.raises(ValueError, match="validation = 0"):
        LatentDetector(epochs=1, hidden=(4,), validation=0.0).fit(X, y).p_value(X)


@pytest.mark.slow
def test_a_latent_detector_is_super_uniform_too() -> None:
    levels, below = np.array([0.1, 0.25, 0.5]), []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        rows = rng.gamma(1.0, size=(160, 2))
        detector = LatentDetector(epochs=1, hidden=(4,), latent=1, validation=0.3, random_state=seed).fit(rows[:100])
        below.append((detector.p_value(rows[100:])[:, None] <= levels + 1e-12).mean(0))
    mean, error = np.mean(below, 0), np.std(below, 0) / np.sqrt(40)
    # One-sided at 4 standard errors over independent repetitions.
    assert (mean <= levels + 4 * error).all()
