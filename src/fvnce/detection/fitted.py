"""Fitted detector: scores, probabilities and explanations of an ensemble, without torch and scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from .._validation import count, flag, listed, optional, require
from .._validation import fields as entries
from .base import FittedDetector, Scores, in_turn
from .ensemble import Ensemble
from .explanation import Explanation
from .gaps import Gaps
from .preprocessing import TablePreprocessor
from .rows import Array, check_mask
from .trust.calibration import Calibration, Finds


class FittedEnsemble(FittedDetector):
    """Saved :class:`fvnce.NoiseContrastiveDetector`, with scores equal to the last bit, which cannot be fitted.

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
    clean: bool
    max_rows: int

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
        detector.clean = flag("clean", saved.get("clean", False))
        detector.max_rows = count("max_rows", saved.get("max_rows", 20_000))
        detector.n_jobs = optional(partial(count, low=-(2**15)))("n_jobs", saved.get("n_jobs"))
        return detector

    def review(self, X: Any, n: int = 20, *, reviewed: Any = None) -> NDArray[np.int64]:
        """Return the indices of the rows to review, the most useful first, at most n.

        They are taken in turn from three lists: the highest scores, the most novel rows, and those nearest to the
        threshold. Inspect these rows, set their labels in y, and fit again with these rows marked in ``checked``.

        Args:
            X: rows.
            n: number of rows.
            reviewed: True for rows that were reviewed before, which are left out.

        >>> from fvnce import NoiseContrastiveDetector
        >>> X = np.arange(40.0).reshape(20, 2) ** 2
        >>> detector = NoiseContrastiveDetector(n_trees=9).fit(X)
        >>> first = detector.review(X, 3)
        >>> set(first) & set(detector.review(X, 3, reviewed=np.isin(np.arange(20), first)))
        set()
        """
        lists = self.scores(X).review_lists
        left = np.flatnonzero(~check_mask("reviewed", reviewed, len(lists)))
        return left[in_turn(lists[left])][: count("n", n)]

    def outlier_probability(self, X: Any) -> Array:
        """Return P(outlier | x) = π p_out / (π p_out + (1 − π) p_in), with π = ``prior_``, shape (n,).

        With few known outliers it is too high on average, so use it for ranking only (measured in
        results/coverage/README.md).
        """
        return self.probability_of(self._compared_scores(X))  # raises if the detector is not fitted

    def probability_of(self, scores: Scores) -> Array:
        """Return P(outlier | x) of rows from their scores, shape (n,).

        Where rows are flagged by a convention, for their novelty or without known outliers, the probability is a
        fraction of what the convention assumes: a sixth and a third of such rows were outliers on labeled tables.
        """
        probability = self.calibration_.probability(scores.anomaly)
        if self.novelty_calibration_ is None:
            return probability
        novel = self.novelty_calibration_.probability(scores.novelty)
        above = scores.novelty > self.novelty_calibration_.threshold
        return np.where(above, np.maximum(probability, novel), probability)

    def expected_finds(self, scores: Scores) -> dict[str, Finds]:
        """Estimate the number of outliers among the highest rows of each list, for any number of alarms.

        The list "known" ranks rows by the anomaly score, and "novel" by novelty; without known outliers there is only
        "novel". A flagged row is in one of them, any other row in both. For "known", expected numbers are sums of
        P(outlier | x), and their intervals follow from that of π, for new rows like those of training. For "novel",
        the number of outliers cannot be estimated without labels: the upper end is the number that the threshold
        assumes, and the expected number is a sixth of it (a third without known outliers), as on average on other
        tables.

        Args:
            scores: scores of the rows from ``detector.scores(X)``.

        Returns:
            A :class:`~fvnce.detection.Finds` for each list by name, "known" first.

        >>> from fvnce import NoiseContrastiveDetector
        >>> rng = np.random.default_rng(0)
        >>> X, y = rng.normal(size=(300, 2)), np.repeat([0, 1], [295, 5])
        >>> X[280:] += 6                                       # 20 outliers, 5 of them known
        >>> detector = NoiseContrastiveDetector(n_trees=30, n_networks=1, steps=50).fit(X, y)
        >>> known = detector.expected_finds(detector.scores(X))["known"]
        >>> known.flagged, bool(15 < known.finds[known.flagged - 1] <= known.flagged)
        (20, True)
        """
        kind, rank, claims = scores.kind, scores.anomaly, self.calibration_.claims(scores.anomaly)
        lists = {} if not self.n_known_ else {"known": Finds.of(kind, "known", rank, *claims)}
        if self.novelty_calibration_ is not None:
            rank, novel = scores.novelty, self.novelty_calibration_.claims(scores.novelty)
            claims = np.maximum(claims[0], novel[0]), claims[1], np.maximum(claims[2], novel[2])
        return {**lists, "novel": Finds.of(kind, "novel", rank, *claims)}

    @property
    def prior_interval_(self) -> tuple[float, float] | None:
        """The 90 % interval of π; None where π is given or no known outliers were held out."""
        low, high = self.calibration_.low, self.calibration_.high
        return (low, high) if low <= high else None

    @property
    def novelty_threshold_(self) -> float | None:
        """Novelty above which a row is flagged, independent of known outliers; None if only the score is used."""
        return None if self.novelty_calibration_ is None else self.novelty_calibration_.threshold

    @property
    def discounts(self) -> bool:
        """Whether ``predict(X, fdr=q)`` discounts hidden outliers by default: if known outliers score higher."""
        return self.calibration_.known

    def predict_proba(self, X: Any) -> Array:
        """Return [1 − P(outlier | x), P(outlier | x)] for each row, shape (n, 2)."""
        probability = self.outlier_probability(X)
        return np.stack([1 - probability, probability], 1)

    def _line(self, scores: Array, novelty: Array, threshold: float) -> Array:
        """Return the score compared with the threshold, raised above it where novelty is above its own threshold."""
        if self.novelty_calibration_ is None:
            return scores
        beyond = novelty - self.novelty_calibration_.threshold
        # Also raise rows whose novelty exceeds its threshold by less than the rounding error.
        raised = np.maximum(threshold + beyond, np.nextafter(threshold, np.inf))
        return np.where(beyond > 0, np.maximum(scores, raised), scores)

    def _anomaly(self, encoded: Array) -> Array:
        return self.ensemble_.anomaly(encoded)

    def _columns(self, rows: Any) -> Array:
        """Return s, K and N of rows in the form that the preprocessor takes, with the terms of gaps, shape (n, 3)."""
        columns = self.ensemble_.scores(self.preprocessor_.encode(rows))
        if isinstance(self.preprocessor_, TablePreprocessor):
            self._add_gaps(columns, self.preprocessor_.gaps(rows))
        return columns

    def _add_gaps(self, columns: Array, gone: NDArray[np.bool_]) -> None:
        """Add the terms of gaps to s, K and N; K gets those of s, since it is compared with the threshold of s."""
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

    def _cause(self, rows: Any, of_novelty: Array, of_score: Array) -> Array:
        if isinstance(self.preprocessor_, TablePreprocessor) and self.novelty_gaps_ is not None:
            of_novelty = of_novelty + self.novelty_gaps_.parts(self.preprocessor_.gaps(rows))
        novel = self._scores_of(rows).kind == "novel"
        return np.where(novel.reshape(-1, *[1] * (of_score.ndim - 1)), of_novelty, of_score)

    def _take_state(self, content: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        names, places = ("calibration", "novelty", "novelty_gaps", "ensemble"), listed(partial(count, low=0))
        added: dict[str, Any] = {"novelty": None, "novelty_gaps": None, "doubtful": []}  # version 0.2 had none of them
        content = {**added, **content}
        _, calibration, novelty, gaps, ensemble, doubtful = entries(
            content, "a detector", "histories", *names, doubtful=places
        )
        self.doubtful_labels_ = np.array(doubtful, dtype=np.int64)
        self.novelty_gaps_ = Gaps.from_state(gaps, self.preprocessor_)
        require((gaps is None) == (self.gaps_ is None), "have gaps of the score and of novelty or neither", gaps)
        self.calibration_ = Calibration.from_state(calibration)
        self.novelty_calibration_ = None if novelty is None else Calibration.from_state(novelty)
        self.prior_ = self.calibration_.prior
        self.ensemble_ = Ensemble.from_state(ensemble, arrays, self.preprocessor_.width, self.preprocessor_.image)
        require(novelty is None or self.ensemble_.known is not None, "calibrate novelty beside K only", novelty)
