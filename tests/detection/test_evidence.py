"""What a detector says about how good it is: held-out numbers, their spread, and what hidden outliers do to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.stats import norm
from sklearn.metrics import average_precision_score, roc_auc_score

from fvnce.detection import Evidence, LatentDetector, NoiseContrastiveDetector
from fvnce.detection.trust.calibration import calibrate_with_outliers, calibrate_without
from fvnce.detection.trust.evidence import REASONS, RowScores, intervals, make_evidence

Array = NDArray[np.float64]
Draw = Callable[[Generator, int], Array]

QUICK: dict[str, Any] = {"n_trees": 20, "members": "mixture_forest"}


def problem(known: int = 8) -> tuple[Array, NDArray[np.int64]]:
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(size=(240, 3)), rng.normal(3, 0.5, size=(24, 3))])
    return X, np.repeat([0, 1], [264 - known, known])


def held_out(rows: Array, known: Array) -> RowScores:
    return RowScores(rows, np.ones(len(rows)), known, np.ones(len(known)))


def evidence_of(rows: Array, known: Array, prior: float, threshold: float = 2.0) -> Evidence:
    return make_evidence(
        held_out(rows, known),
        held_out(rows, known),
        0,
        threshold=threshold,
        threshold_reason="a test put it there",
        prior=prior,
        reason=None,
    )


def test_numbers_are_those_of_scikit_learn_with_weights_and_equal_scores() -> None:
    rng = np.random.default_rng(0)
    rows, known = np.round(rng.normal(size=300), 1), np.round(rng.normal(1, 1, size=40), 1)
    weights, known_weights = rng.integers(1, 4, 300).astype(float), rng.integers(1, 4, 40).astype(float)
    auroc, precision = intervals(RowScores(rows, weights, known, known_weights), 0)
    truth, score = np.repeat([0, 1], [300, 40]), np.r_[rows, known]
    share = np.r_[weights, known_weights]
    assert auroc.value == pytest.approx(roc_auc_score(truth, score, sample_weight=share), abs=1e-12)
    assert precision.value == pytest.approx(average_precision_score(truth, score, sample_weight=share), abs=1e-12)
    for interval in (auroc, precision):
        assert 0 <= interval.low < interval.value < interval.high <= 1


def binormal(area: float) -> tuple[Draw, Draw]:
    return lambda rng, n: rng.normal(2**0.5 * norm.ppf(area), 1, size=n), lambda rng, n: rng.normal(size=n)


def partly_hidden(area: float) -> tuple[Draw, Draw]:
    """Outliers far above all other rows, but for a share that scores like these."""

    def outliers(rng: Generator, n: int) -> Array:
        return rng.normal(size=n) + 9 * (rng.random(n) > 2 * (1 - area))

    return outliers, lambda rng, n: rng.normal(size=n)


def binary(area: float) -> tuple[Draw, Draw]:
    return (lambda rng, n: (rng.random(n) < area) * 1.0), (lambda rng, n: (rng.random(n) > area) * 1.0)


def truth_of(outliers: Draw, others: Draw, known: int, rows: int) -> tuple[float, float]:
    """AUROC and average precision of the distributions, from 30,000 rows of each."""
    rng, size = np.random.default_rng(99), 30_000
    truth, score = np.repeat([0, 1], size), np.r_[others(rng, size), outliers(rng, size)]
    share = np.repeat([rows / size, known / size], size)
    return float(roc_auc_score(truth, score)), float(average_precision_score(truth, score, sample_weight=share))


@pytest.mark.slow
@pytest.mark.parametrize("scores", [binormal, partly_hidden, binary])
@pytest.mark.parametrize("known", [3, 5, 20, 100])
def test_intervals_cover_a_known_truth(known: int, scores: Callable[[float], tuple[Draw, Draw]]) -> None:
    """At least 93 % of intervals hold the truth, by default settings and at the default seed."""
    data_sets = 100 if known < 50 else 40
    for area in (0.7, 0.9, 0.98):
        outliers, others = scores(area)
        truth = truth_of(outliers, others, known, 300)
        rng = np.random.default_rng(int(1000 * area))
        covered = np.zeros(2)
        for _ in range(data_sets):
            found = intervals(held_out(others(rng, 300), outliers(rng, known)), 0)
            covered += [number.low <= true <= number.high for number, true in zip(found, truth, strict=True)]
        assert (covered >= 0.93 * data_sets).all(), (area, covered / data_sets)


def test_perfect_scores_of_few_known_outliers_promise_little() -> None:
    # All m outliers above 100,000 rows: the lower end is that of Clopper and Pearson, 0.025^(1/m).
    rows = np.random.default_rng(0).normal(size=100_000)
    for known in (1, 2, 3, 5, 20, 72):
        auroc, precision = intervals(held_out(rows, np.full(known, 9.0) + np.arange(known)), 0)
        assert auroc.value == auroc.high == precision.value == precision.high == 1
        assert auroc.low == pytest.approx(0.025 ** (1 / known), abs=0.05)
        assert precision.low < auroc.low


@pytest.mark.parametrize("hidden", [0.02, 0.2])
def test_hidden_outliers_lower_the_numbers_as_derived(hidden: float) -> None:
    rng = np.random.default_rng(1)
    n, m = 200_000, 20_000
    secret = rng.random(n) < hidden
    rows, known = rng.normal(size=n) + 2 * secret, rng.normal(2, 1, size=m)
    found = evidence_of(rows, known, float(secret.mean()))
    assert found.auroc is not None
    assert found.average_precision is not None
    truth, score = np.r_[secret, np.ones(m, bool)], np.r_[rows, known]
    clean = roc_auc_score(np.r_[np.zeros(int((~secret).sum())), np.ones(m)], np.r_[rows[~secret], known])
    precision = average_precision_score(truth, score)
    # Lower bounds, and AUROC equal to the truth once freed of the hidden part: 5 standard errors of these sample sizes.
    assert found.auroc.value < clean - 0.004
    assert found.average_precision.value < precision - 0.004
    alike = found.if_alike()
    assert alike is not None
    assert alike == pytest.approx(clean, abs=0.005)
    # Of so many known outliers none counts for itself, and average precision is too low by their share of all.
    assert found.average_precision.value / (m / (m + secret.sum())) == pytest.approx(precision, abs=0.01)
    # Flagged rows are no fewer than false alarms.
    assert found.flagged >= (rows[~secret] > 2).sum()


def test_a_fit_says_what_its_folds_found() -> None:
    X, y = problem()
    detector = NoiseContrastiveDetector(**QUICK).fit(X, y)
    found = detector.evidence_
    assert (found.rows, found.known, found.reason, found.held_out) == (256, 8, None, True)
    assert found.auroc is not None
    assert 0.8 < found.auroc.value <= 1
    assert found.found is not None
    assert 0 < found.found <= 8
    assert 0 < found.flagged < 60
    assert found.threshold == detector.threshold_ == -detector.offset_
    assert found.prior == detector.prior_
    assert "1/2" in found.threshold_reason
    assert str(found).startswith(f"{found.found} of 8 known outliers are found when held out, {found.flagged} of 256")
    assert Evidence.from_dict(found.as_dict()) == found
    # A held-out number: rows and labels that have nothing to do with one another are told apart by luck alone, while
    # the detector has learnt them by heart.
    X = np.random.default_rng(2).normal(size=(300, 3))
    heart = {"n_trees": 20, "min_samples_leaf": 1, "members": "outlier_forest"}
    lost = NoiseContrastiveDetector(**heart).fit(X, np.arange(300) < 20)
    assert lost.score(X, (np.arange(300) < 20).astype(int)) > 0.85
    assert lost.evidence_.auroc is not None
    assert 0.3 < lost.evidence_.auroc.value < 0.7


def test_rows_count_as_often_as_they_occur() -> None:
    X, y = problem()
    found = NoiseContrastiveDetector(**QUICK).fit(np.repeat(X, 2, 0), np.repeat(y, 2)).evidence_
    assert (found.rows, found.known) == (512, 16)
    assert found.found is not None
    assert found.found % 2 == 0
    assert isinstance(found.flagged, int)


def test_intervals_of_repeated_rows_are_those_of_as_many_rows() -> None:
    # Columns of few values leave few different rows, each of which occurs many times.
    scores, known = np.array([0.0, 1.0, 2.0]), np.array([1.0, 2.0])
    weights, known_weights = np.array([150.0, 40.0, 10.0]), np.array([10.0, 20.0])
    repeated = [np.repeat(s, w.astype(int)) for s, w in ((scores, weights), (known, known_weights))]
    found = intervals(RowScores(scores, weights, known, known_weights), 0)
    expected = intervals(RowScores(repeated[0], np.ones(200), repeated[1], np.ones(30)), 0)
    for one, other in zip(found, expected, strict=True):
        assert one.value == pytest.approx(other.value)
        assert one.low < one.value < one.high
        np.testing.assert_allclose([one.low, one.high], [other.low, other.high], atol=1e-12)
    # Only the proportion of both kinds of weights matters where they are no counts.
    half = intervals(RowScores(scores, weights / 400, known, known_weights / 400), 0)
    assert all(one.low < one.value < one.high for one in half)


def test_a_repeated_row_counts_as_often_as_it_occurs_in_the_prior() -> None:
    rng = np.random.default_rng(0)
    scores, counts = np.array([0.0, 0.5, 1.0, 6.0]), np.array([90, 60, 40, 2])
    known, known_counts = np.array([2.0, 5.0, 7.0]), np.array([4, 6, 5])
    once, often = (scores, counts.astype(float)), (np.repeat(scores, counts), np.ones(counts.sum()))
    known_once, known_often = (known, known_counts.astype(float)), (np.repeat(known, known_counts), np.ones(15))
    assert calibrate_without(*once, None).prior == pytest.approx(calibrate_without(*often, None).prior) == 2 / 192
    found, expected = (calibrate_with_outliers(*a, *b, None)[0] for a, b in ((once, known_once), (often, known_often)))
    np.testing.assert_allclose(
        [found.slope, found.intercept, found.prior], [expected.slope, expected.intercept, expected.prior]
    )
    # Four different rows, none of them strange: no share of a seventh is outliers.
    flags = rng.integers(0, 2, size=(300, 2)).astype(float)
    assert NoiseContrastiveDetector(**QUICK).fit(flags).prior_ < 0.01


def test_known_outliers_that_are_one_row_are_not_called_one_outlier() -> None:
    X, y = problem()
    X[y == 1] = 6.0
    found = NoiseContrastiveDetector(**QUICK).fit(X, y).evidence_
    assert found.known == 8
    assert found.reason == REASONS["one row"].format(known=8)


@pytest.mark.parametrize(
    ("known", "options", "reason", "threshold"),
    [
        (0, {"members": "isolation_forest"}, "no outlier is known", "deviations above"),
        (0, {"members": "auto", "clean": True}, "no outlier is known", "0.01 of the rows"),
        (0, {}, "no outlier is known", "deviations above"),
        (0, {"prior": 0.1}, "no outlier is known", "a share prior = 0.1 "),
        (1, {}, "one known outlier", "deviations above"),
        (8, {"calibration_folds": 0}, "calibration_folds = 0", "deviations above"),
        (8, {"contamination": 0.1}, None, "contamination = 0.1"),
        (8, {"prior": 0.1}, None, "a share prior = 0.1 "),
    ],
)
def test_what_is_not_known_has_a_reason(known: int, options: Any, reason: str | None, threshold: str) -> None:
    X, y = problem(known)
    detector = NoiseContrastiveDetector(**{**QUICK, **options}).fit(X, y)
    found = detector.evidence_
    assert threshold in found.threshold_reason
    if reason is None:
        assert found.reason is None
        assert found.auroc is not None
        return
    assert found.reason is not None
    assert reason in found.reason
    assert (found.auroc, found.average_precision, found.found, found.if_alike()) == (None, None, None, None)
    assert found.flagged == (detector.predict(X[y == 0]) == -1).sum()
    assert str(found.reason) in str(found)


def test_a_latent_detector_says_why_it_cannot_know() -> None:
    X, y = problem()
    found = LatentDetector(epochs=1, hidden=(4,), contamination=0.1).fit(X, y).evidence_
    assert found.reason is not None
    assert found.reason == REASONS["no outlier held out"]
    assert found.flagged == 25  # the whole rows of a tenth of 256
    assert "contamination = 0.1" in found.threshold_reason


def test_weighted_known_outliers_are_not_as_many_independent_ones() -> None:
    """Three known outliers of weight 20: their interval covers as that of three does."""
    covered = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        held = RowScores(rng.normal(size=100), np.ones(100), rng.normal(1.466, 1, size=3), np.full(3, 20.0), True)
        auroc, _ = intervals(held, 0)
        covered += auroc.low <= 0.85 <= auroc.high
    assert covered >= 93
