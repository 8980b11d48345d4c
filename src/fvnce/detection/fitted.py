"""What a fitted detector tells of its training, by the names that people know from elsewhere, and to a notebook.

``decision_scores_``, ``labels_`` and ``threshold_`` are PyOD's, ``feature_importances_`` is scikit-learn's. What cannot
be had as well is PyOD's sign of ``decision_function``, which is the opposite of scikit-learn's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .conformal import Conformal
from .evidence import Evidence
from .findings import Findings
from .plan import Array

#: Reads well on light pages and on dark ones.
BOX = "border-left:3px solid #2c6fad;padding:.2em .8em;margin:.4em 0"


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

    def _fitted_lines(self) -> list[str]:
        """What a notebook tells of the fit."""
        findings = getattr(self, "findings_", None)
        return [] if findings is None else str(findings.evidence).splitlines()

    @property
    def _repr_html_(self) -> Callable[[], str]:
        # A property that scikit-learn has, and leaves out where its display is text.
        settings = super()._repr_html_  # type: ignore[misc]
        return lambda: str(settings()) + _as_html(self._fitted_lines())

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        bundle: dict[str, str] = super()._repr_mimebundle_(**options)  # type: ignore[misc]
        if "text/html" in bundle:
            bundle["text/html"] = self._repr_html_()
        return bundle


def _as_html(lines: Sequence[str]) -> str:
    shown = "".join(f'<p style="margin:.2em 0">{escape(line)}</p>' for line in lines)
    return f'<div style="{BOX}">{shown}</div>' if lines else ""
