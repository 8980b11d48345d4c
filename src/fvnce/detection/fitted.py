"""The fitted detector: scores, probabilities and explanations of an ensemble, without torch and scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from .._validation import count, listed, optional, require
from .._validation import fields as entries
from .base import FittedDetector, Scores
from .ensemble import Ensemble
from .explanation import Explanation
from .gaps import Gaps
from .preprocessing import TablePreprocessor
from .rows import Array
from .trust.calibration import Calibration


class FittedEnsemble(FittedDetector):
    """A :class:`fvnce.NoiseContrastiveDetector` as its file holds it: it scores to the same bits, and cannot be fitted.

    Its methods and learned attributes are those of the estimator, except that it has no ``history_``. The settings of
    the estimator are in ``settings``.

    >>> import tempfile
    >>> from fvnce import NoiseContrastiveDetector
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = NoiseContrastiveDetector(n_trees=20).fit(X).save(f"{folder}/detector.safetensors")
    ...     detector = FittedEnsemble.load(path)
    >>> detector.predict([[0.0, 0.0], [9.0, 9.0]]), detector.settings["n_trees"]
    (array([ 1, -1]), 20)
    """

    KIND: ClassVar[str] = "detector"

    settings: dict[str, Any]

    # Learned by fit.
    ensemble_: Ensemble
    calibration_: Calibration
    novelty_calibration_: Calibration | None = None
    novelty_gaps_: Gaps | None = None
    prior_: float
    doubtful_labels_: NDArray[np.int64]

    @classmethod
    def _with_settings(cls, saved: Mapping[str, Any], place: Path) -> Self:
        detector = cls()
        detector.settings = dict(saved)
        detector.n_jobs = optional(partial(count, low=-(2**15)))("n_jobs", saved.get("n_jobs"))
        return detector

    def outlier_probability(self, X: Any) -> Array:
        """Return P(outlier | x) = π p_out / (π p_out + (1 − π) p_θ), with π = ``prior_``, shape (n,).

        With few known outliers it is too high: use it as a ranking (measured in docs/howto/reliability.md).
        """
        return self.probability_of(self._compared_scores(X))  # raises if the detector is not fitted

    def probability_of(self, scores: Scores) -> Array:
        """Return P(outlier | x) of rows whose scores are known, shape (n,)."""
        probability = self.calibration_.probability(scores.anomaly)
        if self.novelty_calibration_ is None:
            return probability
        return np.maximum(probability, self.novelty_calibration_.probability(scores.novelty))

    @property
    def prior_interval_(self) -> tuple[float, float] | None:
        """The 90 % interval of π; None where π is given or no known outliers were held out."""
        low, high = self.calibration_.low, self.calibration_.high
        return (low, high) if low <= high else None

    @property
    def novelty_threshold_(self) -> float | None:
        """The novelty above which a row is flagged, whatever outliers are known; None where the score alone decides."""
        return None if self.novelty_calibration_ is None else self.novelty_calibration_.threshold

    def predict_proba(self, X: Any) -> Array:
        """Return [1 − P(outlier | x), P(outlier | x)] for each row, shape (n, 2)."""
        probability = self.outlier_probability(X)
        return np.stack([1 - probability, probability], 1)

    def _line(self, scores: Array, novelty: Array, threshold: float) -> Array:
        """Return what is compared with the threshold: the score, raised above it where novelty is above its own."""
        if self.novelty_calibration_ is None:
            return scores
        beyond = novelty - self.novelty_calibration_.threshold
        # A row that is beyond by less than the rounding of the threshold is above it as well.
        raised = np.maximum(threshold + beyond, np.nextafter(threshold, np.inf))
        return np.where(beyond > 0, np.maximum(scores, raised), scores)

    def _anomaly(self, encoded: Array) -> Array:
        return self.ensemble_.anomaly(encoded)

    def _columns(self, rows: Any) -> Array:
        """Return s, K and N of rows as the preprocessor takes them, with what their gaps add, shape (n, 3)."""
        columns = self.ensemble_.scores(self.preprocessor_.encode(rows))
        if isinstance(self.preprocessor_, TablePreprocessor):
            self._add_gaps(columns, self.preprocessor_.gaps(rows))
        return columns

    def _add_gaps(self, columns: Array, gone: NDArray[np.bool_]) -> None:
        """Add to s, K and N what gaps add; K is compared with the threshold of s, and so has the gaps of s."""
        if self.gaps_ is not None and self.novelty_gaps_ is not None and gone.any():
            columns[:, :2] += self.gaps_.parts(gone).sum(1)[:, None]
            columns[:, 2] += self.novelty_gaps_.parts(gone).sum(1)

    def _score_rows(self, rows: Any) -> Array:
        anomaly, like_known, novelty = self._columns(rows).T
        if not self.n_known_:  # version 0.2 had this score without known outliers, too
            like_known = np.full(len(anomaly), np.nan)
        return np.stack([anomaly, self._line(anomaly, novelty, self.threshold_), like_known, novelty], 1)

    def _explain(self, encoded: Array) -> Explanation:
        return self.ensemble_.explain(encoded, self.preprocessor_.fold)

    def _take_state(self, content: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        names = ("calibration", "novelty", "novelty_gaps", "ensemble", "histories", "doubtful")
        added: dict[str, Any] = {"novelty": None, "novelty_gaps": None, "doubtful": []}  # version 0.2 had none of them
        calibration, novelty, gaps, ensemble, _, doubtful = entries({**added, **content}, "a detector", *names)
        places = listed(partial(count, low=0))("the labels that look wrong", doubtful)
        self.doubtful_labels_ = np.array(places, dtype=np.int64)
        self.novelty_gaps_ = Gaps.from_state(gaps, self.preprocessor_)
        require((gaps is None) == (self.gaps_ is None), "have gaps of the score and of novelty or neither", gaps)
        self.calibration_ = Calibration.from_state(calibration)
        self.novelty_calibration_ = None if novelty is None else Calibration.from_state(novelty)
        self.prior_ = self.calibration_.prior
        self.ensemble_ = Ensemble.from_state(ensemble, arrays, self.preprocessor_.width, self.preprocessor_.image)
        require(novelty is None or self.ensemble_.known is not None, "calibrate novelty beside K only", novelty)
