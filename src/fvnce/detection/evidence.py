r"""How good is it? What the scores of held-out rows say, and what they cannot say.

Folds are left out in training, so that every row and every known outlier has a score by models that had not seen it.
From these scores, without another model:

*AUROC*, the probability A_u that a known outlier is stranger than an unlabelled row, and *average precision* P_u, with
known outliers as the only outliers. A share π of the unlabelled rows may be outliers too, and there both count as
mistakes what is none:

    A_u = (1 − π) A + π P(known stranger than hidden),

with A the AUROC against clean rows. Known outliers are no better told from hidden outliers than from clean rows, hence
A_u ≤ A: a **lower bound**. If known and hidden outliers are alike, the last probability is ½ and
A = (A_u − π/2)/(1 − π). For average precision let c = m/(m + π n) be the share of all outliers that is known, m of them
among n unlabelled rows. If they are alike, every threshold finds the same share of both, so that its precision with
only the known ones counted is c times the true one: a lower bound again. P_u / c is not reported: a known outlier
always counts itself, whole and not by the share c, and the estimate of π is rough, so with 20 known outliers the
quotient is easily 1 where the truth is ½. In the same way *y of the n other rows are flagged* is an upper bound on
false alarms, since hidden outliers are among the y.

Three things remain: a held-out score averages fewer models than the detector's, which makes the numbers cautious; the
threshold's two parameters were fitted to the same held-out scores, which makes *found* and *flagged* slightly hopeful;
and outliers of a kind that nobody knows are in none of these numbers.

Beside it stands whatever else a fit finds out about itself. What is not there has a reason, a sentence for people.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from ..serialization import fields
from .calibration import FENCE, UPPER
from .conformal import FEWEST, Conformal
from .intervals import Interval, auroc_and_precision, into_bins, with_intervals
from .members.base import part_of, require, require_array, require_count, require_number
from .plan import Array, TrainingRows
from .rows import as_counts, effective_counts

if TYPE_CHECKING:
    from .estimator import NoiseContrastiveDetector


@dataclass(frozen=True)
class HeldOut:
    """Scores by models that had not seen the row, with weights.

    Attributes:
        scores: of unlabelled rows, shape (n,).
        weights: how often each counts.
        known: scores of known outliers, shape (m,).
        known_weights: how often each counts.
        weighted: whether the user gave weights, so that a weight of k is not k independent rows.
    """

    scores: Array
    weights: Array
    known: Array
    known_weights: Array
    weighted: bool = False


@dataclass(frozen=True)
class Evidence:
    """What held-out rows say about a detector; the module's docstring says what follows from it.

    Attributes:
        rows: unlabelled rows, by weight.
        known: known outliers, by weight.
        auroc: of known outliers against unlabelled rows when both are held out, or None.
        average_precision: likewise.
        found: how many known outliers lie above the threshold when they are held out, or None.
        flagged: how many unlabelled rows lie above it: held out if ``held_out``, else with their training scores.
        held_out: whether ``flagged`` comes from held-out scores.
        threshold: the anomaly score above which a row is called an outlier.
        threshold_reason: why it is where it is.
        prior: π as the detector estimates it or was told, or None if it has no such estimate.
        reason: why there is no auroc, average_precision and found; None if there are.

    >>> evidence = Evidence(1963, 37, Interval(0.98, 0.96, 0.99), Interval(0.7, 0.6, 0.8), 34, 60, True, 1.5,
    ...     "P(outlier | x) = 1/2 there", 0.02, None)
    >>> print(evidence)  # doctest: +NORMALIZE_WHITESPACE
    34 of 37 known outliers are found when held out, 60 of 1,963 other rows are flagged.
    AUROC 0.980 (0.960 to 0.990), average precision 0.700 (0.600 to 0.800): lower bounds if outliers hide among the
    other rows.
    The threshold is 1.5: P(outlier | x) = 1/2 there.
    """

    rows: float
    known: float
    auroc: Interval | None
    average_precision: Interval | None
    found: float | None
    flagged: float
    held_out: bool
    threshold: float
    threshold_reason: str
    prior: float | None
    reason: str | None

    def if_alike(self) -> float | None:
        """AUROC against clean rows, if a share ``prior`` is hidden and like the known outliers.

        At most 1; None without held-out numbers or without a prior.
        """
        if self.auroc is None or self.prior is None:
            return None
        return min(1.0, (self.auroc.value - self.prior / 2) / (1 - self.prior))

    def __str__(self) -> str:
        flagged = f"{count_told(self.flagged)} of {count_told(self.rows)} other rows are flagged"
        if self.reason is None:
            lines = [
                f"{count_told(self.found or 0)} of {count_told(self.known)} known outliers are found when held out, "
                f"{flagged}.",
                f"AUROC {self.auroc}, average precision {self.average_precision}: lower bounds if outliers hide among "
                "the other rows.",
            ]
        else:
            lines = [f"How good it is cannot be said: {self.reason}.", f"{flagged[0].upper()}{flagged[1:]}."]
        return "\n".join([*lines, f"The threshold is {self.threshold:.4g}: {self.threshold_reason}."])

    def as_dict(self) -> dict[str, Any]:
        """What JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """From what :meth:`as_dict` gave, which may be a stranger's."""
        names = list(cls.__dataclass_fields__)
        given = dict(zip(names, fields(content, "the evidence", *names), strict=True))
        for name in ("auroc", "average_precision"):
            given[name] = None if given[name] is None else _interval(name, given[name])
        for name in ("rows", "known", "flagged", "threshold"):
            require_number(f"{name} of the evidence", given[name])
        for name in ("found", "prior"):
            if given[name] is not None:
                require_number(f"{name} of the evidence", given[name])
        for name in ("threshold_reason", "reason"):
            good = isinstance(given[name], str) or (name == "reason" and given[name] is None)
            require(good, f"have text as {name} of the evidence", given[name])
        require(isinstance(given["held_out"], bool), "say whether rows were held out", given["held_out"])
        there = [given[name] is not None for name in ("auroc", "average_precision", "found")]
        complete = all(there) if given["reason"] is None else not any(there)
        require(complete, "have the numbers of held-out rows or the reason why there are none", there)
        return cls(**given)


def make_evidence(
    held: HeldOut | None,
    own: Array,
    weights: Array,
    known: float,
    *,
    threshold: float,
    threshold_reason: str,
    prior: float | None,
    reason: str,
    seed: int,
) -> Evidence:
    """Evidence from held-out scores, or from none.

    Args:
        held: held-out scores, or None.
        own: training scores of the unlabelled rows, for where there are none.
        weights: how often each of these counts.
        known: known outliers, by weight.
        threshold: of the detector.
        threshold_reason: why it is there.
        prior: π.
        reason: why there are no held-out scores, if there are none.
        seed: of the intervals.
    """
    scores, weights = (own, weights) if held is None else (held.scores, held.weights)
    auroc, precision = (None, None) if held is None else intervals(held, seed)
    return Evidence(
        rows=_plain(weights.sum()),
        known=_plain(known),
        auroc=auroc,
        average_precision=precision,
        found=None if held is None else _plain(held.known_weights[held.known > threshold].sum()),
        flagged=_plain(weights[scores > threshold].sum()),
        held_out=held is not None,
        threshold=threshold,
        threshold_reason=threshold_reason,
        prior=prior,
        reason=reason if held is None else None,
    )


def intervals(held: HeldOut, seed: int) -> tuple[Interval, Interval]:
    """AUROC and average precision with their intervals (:mod:`fvnce.detection.intervals`)."""
    levels = np.unique(held.known)
    counts = effective_counts if held.weighted else as_counts
    positive = into_bins(levels, held.known, counts(held.known_weights))
    negative = into_bins(levels, held.scores, counts(held.weights))
    totals = float(held.known_weights.sum()), float(held.weights.sum())
    rng = np.random.default_rng([seed, 80])
    auroc, precision = with_intervals(positive, negative, totals, auroc_and_precision, rng)
    return auroc, precision


def _interval(name: str, content: Any) -> Interval:
    made = Interval(*fields(content, name, "value", "low", "high"))
    for value in (made.value, made.low, made.high):
        require_number(f"{name} of the evidence", value)
        require(0 <= value <= 1, f"have {name} in [0, 1]", value)
    return made


def _plain(count: float) -> float:
    """A count of whole rows as an integer."""
    return int(count) if count.is_integer() else float(count)


def count_told(count: float) -> str:
    """A number of rows as people read it; by weight, it need not be whole.

    >>> count_told(1963), count_told(0.5)
    ('1,963', '0.5')
    """
    return f"{count:,}" if isinstance(count, int) else f"{count:,.1f}"


@dataclass(frozen=True)
class Findings:
    """What a fit found out.

    Attributes:
        evidence: how good the detector is, as far as it can know.
        conformal: what makes p-values, or None.
        no_p_value: why there is none; None if there is.
        importances: of each column, shape (D,).
        scores: anomaly scores of the training rows as they were given, shape (n,), or None.
        no_scores: why there are none; None if there are.
    """

    evidence: Evidence
    conformal: Conformal | None
    no_p_value: str | None
    importances: Array
    scores: Array | None
    no_scores: str | None

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """For a file."""
        tensors = {"importances": torch.from_numpy(np.ascontiguousarray(self.importances))}
        if self.scores is not None:
            tensors["scores"] = torch.from_numpy(np.ascontiguousarray(self.scores))
        conformal = None
        if self.conformal is not None:
            conformal, own = self.conformal.state()
            tensors |= {f"conformal.{name}": value for name, value in own.items()}
        return {
            "evidence": self.evidence.as_dict(),
            "conformal": conformal,
            "no_p_value": self.no_p_value,
            "rows": None if self.scores is None else len(self.scores),
            "no_scores": self.no_scores,
        }, tensors

    @classmethod
    def from_state(cls, content: Mapping[str, Any], tensors: Mapping[str, Tensor], features: int) -> Self:
        """From what may be a stranger's, for rows with so many columns."""
        evidence, conformal, no_p_value, rows, no_scores = fields(
            content, "the findings", "evidence", "conformal", "no_p_value", "rows", "no_scores"
        )
        for there, reason in ((conformal is not None, no_p_value), (rows is not None, no_scores)):
            good = reason is None if there else isinstance(reason, str)
            require(good, "give the reason for what is not there, and no other", reason)
        importances = tensors["importances"].numpy()
        require_array("importances of columns", importances, np.float64, (features,))
        scores = None
        if rows is not None:
            require_count("training rows", rows, 1)
            scores = tensors["scores"].numpy()
            require_array("scores of the training rows", scores, np.float64, (rows,))
        made = None
        if conformal is not None:
            made = Conformal.from_state(conformal, part_of(tensors, "conformal."), features)
        return cls(Evidence.from_dict(evidence), made, no_p_value, importances, scores, no_scores)


def why_this_threshold(detector: NoiseContrastiveDetector, *, above_all: bool, in_vain: bool) -> str:
    """From what its calibration was made, or what it was told.

    Args:
        detector: fitted, but for its findings.
        above_all: whether no training row lies above the threshold.
        in_vain: whether known outliers were held out, and told nothing.
    """
    if in_vain and detector.contamination == "auto":
        how = why_this_threshold(detector, above_all=above_all, in_vain=False)
        return f"known outliers score like other rows when held out, so labels have no say in it; {how}"
    if detector.contamination != "auto":
        return f"contamination = {detector.contamination:g}, and this share of the training rows lies above"
    name = "an estimated share π" if detector.prior is None else "a share prior"
    share = f"{name} = {detector.prior_:.3g} of outliers among unlabelled rows"
    if detector.calibration_.known:
        return f"P(outlier | x) = 1/2 there, by held-out scores of known outliers and other rows and {share}"
    if detector.prior is not None:
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
    if len(rows.outliers) < 2 and detector.n_known_ > 1:
        known = detector.n_known_
        return f"all {known} known outliers are the same row, which cannot be learnt from and held out at once"
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
