r"""What a fit finds out about itself: evidence, p-values, the training rows' scores, how much each column matters.

The importance of column j is its share of the variance of the score over the training rows,

    Cov(contribution_j, anomaly) / Var(anomaly),

which is exact because contributions sum to the score: the shares, with that of what belongs to no column, sum to one.
Strange rows vary most and so count most. A column that lowers the score of strange rows has a share below zero, and one
that no member looks at has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ..serialization import fields
from .conformal import Conformal
from .evidence import Evidence
from .explanation import Explanation
from .plan import Array, TrainingRows
from .stored import require, require_array, require_count

#: Rows of each kind, at most, on which importance is computed, and numbers in them.
EXPLAINED, NUMBERS = 256, 2**20


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
            prefix = "conformal."
            own = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
            made = Conformal.from_state(conformal, own, features)
        return cls(Evidence.from_dict(evidence), made, no_p_value, importances, scores, no_scores)


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
