r"""What a fit finds out about itself: evidence, p-values, the training rows' scores, how much each column matters.

It is told by names that people know from elsewhere: ``decision_scores_``, ``labels_`` and ``threshold_`` are PyOD's,
``feature_importances_`` is scikit-learn's. What cannot be had as well is PyOD's sign of ``decision_function``, which is
the opposite of scikit-learn's. What is not there has a reason, a sentence for people.

The importance of column j is its share of the variance of the score over the training rows,

    Cov(contribution_j, anomaly) / Var(anomaly),

which is exact because contributions sum to the score: the shares, with that of what belongs to no column, sum to one.
Strange rows vary most and so count most. A column that lowers the score of strange rows has a share below zero, and one
that no member looks at has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..serialization import fields
from .calibration import FENCE, UPPER
from .conformal import FEWEST, Conformal
from .evidence import Evidence
from .explanation import Explanation
from .plan import Array, TrainingRows
from .stored import part_of, require, require_array, require_count

if TYPE_CHECKING:
    from .estimator import NoiseContrastiveDetector

#: Rows of each kind, at most, on which importance is computed, and numbers in them.
EXPLAINED, NUMBERS = 256, 2**20
#: Reads well on light pages and on dark ones.
BOX = "border-left:3px solid #2c6fad;padding:.2em .8em;margin:.4em 0"


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


class FittedMixin:
    """Attributes of a detector that has findings, and a threshold at ``−offset_``."""

    findings_: Findings
    offset_: float

    @property
    def evidence_(self) -> Evidence:
        """How good the detector is, as far as held-out rows can tell."""
        return self.findings_.evidence

    @property
    def conformal_(self) -> Conformal | None:
        """What makes p-values."""
        return self.findings_.conformal

    @property
    def feature_importances_(self) -> Array:
        """The share of each column in the variance of the score over the training rows, shape (n_features_in_,)."""
        return self.findings_.importances

    @property
    def threshold_(self) -> float:
        """The anomaly score above which a row is called an outlier, ``−offset_``."""
        return -self.offset_

    @property
    def decision_scores_(self) -> Array:
        """Anomaly scores of the training rows, in their order, shape (n,); high for outliers, as in PyOD."""
        scores = self.findings_.scores
        if scores is None:
            raise AttributeError(f"there are no decision_scores_: {self.findings_.no_scores}")
        return scores

    @property
    def labels_(self) -> NDArray[np.int64]:
        """1 for training rows above the threshold and 0 for others, as in PyOD, shape (n,)."""
        return (self.decision_scores_ > self.threshold_).astype(np.int64)

    @property
    def _repr_html_(self) -> Callable[[], str]:
        # A property that scikit-learn has, and leaves out where its display is text.
        settings = super()._repr_html_  # type: ignore[misc]
        return lambda: str(settings()) + self._evidence_as_html()

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        bundle: dict[str, str] = super()._repr_mimebundle_(**options)  # type: ignore[misc]
        if "text/html" in bundle:
            bundle["text/html"] = self._repr_html_()
        return bundle

    def _evidence_as_html(self) -> str:
        if not hasattr(self, "findings_"):
            return ""
        lines = str(self.evidence_).splitlines()
        shown = "".join(f'<p style="margin:.2em 0">{escape(line)}</p>' for line in lines)
        return f'<div style="{BOX}">{shown}</div>'


def importances_of(explanation: Explanation, weights: Array) -> Array:
    """The share of each column in the variance of the score over weighted rows, shape (D,).

    >>> parts = np.array([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]])
    >>> importances_of(Explanation(parts, np.zeros((3, 2)), np.zeros(3), 0.0), np.ones(3))
    array([1., 0.])
    """
    share = weights / weights.sum()
    parts = explanation.total.reshape(len(weights), -1)
    parts = parts - share @ parts
    score = explanation.anomaly - share @ explanation.anomaly
    variance = float(share @ score**2)
    return np.asarray((share * score) @ parts / variance) if variance > 1e-24 else np.zeros(parts.shape[1])


def importances_over(rows: TrainingRows, explain: Callable[[Array], Explanation], seed: int) -> Array:
    """Importances over some of the rows of each kind, at most :data:`EXPLAINED`, which stand for all of that kind."""
    rng = np.random.default_rng([seed, 81])
    most = max(2, min(EXPLAINED, NUMBERS // rows.X.shape[1]))
    chosen, shares = [], []
    for X, weights in ((rows.X, rows.weights), (rows.outliers, rows.outlier_weights)):
        some = np.sort(rng.permutation(len(X))[:most])
        if len(some):
            chosen.append(X[some])
            shares.append(weights[some] * (weights.sum() / weights[some].sum()))
    return importances_of(explain(np.concatenate(chosen)), np.concatenate(shares))


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
