"""Why the threshold is where it is, and why a number is not there: sentences for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .calibration import FENCE, UPPER
from .conformal import FEWEST
from .plan import TrainingRows

if TYPE_CHECKING:
    from .estimator import NoiseContrastiveDetector


def why_this_threshold(detector: NoiseContrastiveDetector, *, above_all: bool) -> str:
    """From what its calibration was made, or what it was told; ``above_all`` if no training row lies above it."""
    if detector.contamination != "auto":
        return f"contamination = {detector.contamination:g}, and this share of the training rows lies above"
    told = detector.prior is not None
    share = f"a share {'prior' if told else 'π'} = {detector.prior_:.3g} of outliers among unlabelled rows"
    if detector.calibration_.known:
        return f"P(outlier | x) = 1/2 there, by held-out scores of known outliers and other rows and {share}"
    if told:
        return f"{share} lies above it"
    if tuple(detector.ensemble_.names) == ("broad_forest",):
        return "above it, noise spread evenly over the range of the data outweighs the data"
    if detector.clean:
        return f"a share {detector.prior_:.3g} of the rows, which are known to be clean, lies above it"
    if above_all:
        return f"it lies just above the strangest training row, within {FENCE:g} deviations above the median score"
    how = f"by the scores from there to the quantile {UPPER:g}"
    return f"it lies {FENCE:g} deviations above the median score, {how}: {share}"


def why_no_evidence(detector: NoiseContrastiveDetector, rows: TrainingRows) -> str:
    """Where no folds were held out."""
    if len(rows.outliers) == 0:
        return "no outlier is known (y = 1)"
    if len(rows.outliers) < 2:
        return "one known outlier cannot be learnt from and held out at once, and two can"
    if detector.calibration_folds < 2:
        return f"no folds were held out, since calibration_folds = {detector.calibration_folds}"
    return "there are too few rows to hold some out"


def why_no_p_value(detector: NoiseContrastiveDetector) -> str:
    """Where no rows were left for it."""
    if not detector.calibration_folds:
        return "calibration_folds = 0 trains no model beside the detector"
    return f"there were fewer than {FEWEST} unlabelled rows"
