"""Base class of fitted detectors: validation and encoding of rows, scores, p-values, explanations, loading.

The module imports neither torch nor scikit-learn, so that programs that only score start fast; ``contract`` adds the
estimator interface. Subclasses compute the anomaly of encoded rows and its explanation, and restore their state.

Names follow other libraries: ``decision_scores_``, ``labels_`` and ``threshold_`` are those of PyOD, and
``feature_importances_`` is that of scikit-learn. The sign of ``decision_function`` is that of scikit-learn, which is
opposite to that of PyOD.
"""

from __future__ import annotations

import logging
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from .._validation import Check, FileError, count, fields, listed, number, reading, require, text
from ..io import read_record
from ..tables.frame import Frame, is_frame
from ..tables.parsing import ColumnType
from ..tables.schema import frame_to_matrix
from .explanation import Explanation, plot_scores
from .gaps import Gaps, score_rows
from .members.base import part_of
from .preprocessing import ImagePreprocessor, Preprocessor, cut, preprocessor_from_state
from .reasons import said, value_text
from .rows import Array, check_images, in_parts, release, rows_at_once
from .scorers import roc_auc, warn_if_scored
from .trust.conformal import Conformal, check_budget, flag_by
from .trust.drift import MIN_ROWS, Batch, UnlikeTrainingWarning
from .trust.evidence import Evidence, Findings
from .trust.monitor import Cells, Changes, Watch

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Prefix of the tensors of the findings in a file.
FINDINGS = "findings"
#: The largest file that is read by default.
MAX_BYTES = 4 * 2**30
#: The most rows of a batch, evenly spaced, whose missing values are counted for the comparison with training.
EXAMINED = 8192


@dataclass(frozen=True)
class Scores:
    """Scores of rows, each of shape (n,).

    Attributes:
        anomaly: anomaly score for ranking; higher is more anomalous.
        line: score compared with the threshold: the anomaly, raised where novelty is above its own threshold.
        like_known: similarity to the known outliers; NaN without any.
        novelty: dissimilarity to the training rows, independent of known outliers; NaN if no member measures it.
        threshold: rows with ``line`` above it are flagged.
        chosen: mask of rows that are flagged instead, if a budget was given.

    >>> nan = np.full(2, np.nan)
    >>> scores = Scores(np.array([0.3, 2.0]), np.array([0.3, 2.5]), np.array([0.1, 0.2]), nan, threshold=2.1)
    >>> scores.flagged, scores.kind
    (array([False,  True]), array(['', 'novel'], dtype='<U5'))
    """

    anomaly: Array
    line: Array
    like_known: Array
    novelty: Array
    threshold: float
    chosen: NDArray[np.bool_] | None = None

    @property
    def flagged(self) -> NDArray[np.bool_]:
        """Mask of the rows that are flagged as outliers, shape (n,)."""
        return self.line > self.threshold if self.chosen is None else self.chosen

    @property
    def kind(self) -> NDArray[np.str_]:
        """Kind of each row, shape (n,): "known" if flagged as like the known outliers, "novel" if flagged, else ""."""
        by_known = (self.line <= self.anomaly) & ~np.isnan(self.like_known)
        kind = np.where(by_known | (self.like_known > self.threshold), "known", "novel")
        return np.where(self.flagged, kind, "")

    @property
    def review_lists(self) -> Array:
        """Three lists of what makes a row worth a review, shape (n, 3): score, novelty, nearness to the threshold."""
        novelty = np.where(np.isnan(self.like_known) | np.isnan(self.novelty), self.anomaly, self.novelty)
        return np.stack([self.anomaly, novelty, -np.abs(self.line - self.threshold)], 1)


def in_turn(lists: Array) -> NDArray[np.int64]:
    """Return the order of rows that takes the highest remaining row of each list in turn.

    Args:
        lists: a column for each list, shape (n, lists).

    >>> in_turn(np.array([[3.0, 0.0], [2.0, 1.0], [1.0, 9.0]]))
    array([0, 2, 1])
    """
    places = np.argsort(np.argsort(-lists, 0, kind="stable"), 0)
    return np.argsort((places * lists.shape[1] + np.arange(lists.shape[1])).min(1))


class FittedDetector(ABC):
    """Base class of detectors that score rows of tables, data frames and images."""

    #: Kind of its files.
    KIND: ClassVar[str]

    #: Settings that only some detectors have.
    n_jobs: int | None = None
    verbose: int | None = 0

    # Learned by fit; offset_ comes last, and marks a fitted detector.
    offset_: float
    findings_: Findings
    preprocessor_: Preprocessor
    gaps_: Gaps | None = None  # of tables
    n_known_: int
    n_features_in_: int
    feature_names_in_: NDArray[np.object_]

    @abstractmethod
    def _anomaly(self, encoded: Array) -> Array:
        """Return the anomaly of encoded rows, shape (n,)."""

    @abstractmethod
    def _explain(self, encoded: Array) -> Explanation:
        """Return what each original column adds to the anomaly."""

    @abstractmethod
    def _take_state(self, content: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore the result of :meth:`_state`; raise FileError if ``fit`` could not have made it."""

    @property
    def classes_(self) -> NDArray[np.int64]:
        """Classes in the order of the columns of ``predict_proba``: 0 for inliers, 1 for outliers."""
        check_fitted(self)
        return np.array([0, 1])

    @property
    def evidence_(self) -> Evidence:
        """Quality of the detector, measured on held-out rows."""
        return self.findings_.evidence

    @property
    def conformal_(self) -> Conformal | None:
        """Held-out scores for p-values, or None."""
        return self.findings_.conformal

    @property
    def feature_importances_(self) -> Array:
        """Importance of each column: its fraction of the standard deviations of parts, shape (n_features_in_,)."""
        return self.findings_.importances

    @property
    def threshold_(self) -> float:
        """Threshold ``−offset_``: rows with ``−score_samples`` above it are outliers."""
        return -self.offset_

    @property
    def decision_scores_(self) -> Array:
        """``−score_samples`` of the training rows, in their order, shape (n,); high for outliers, as in PyOD."""
        if self.findings_.scores is None:
            raise AttributeError(f"there are no decision_scores_: {self.findings_.no_scores}")
        return self.findings_.scores

    @property
    def labels_(self) -> NDArray[np.int64]:
        """1 for training rows above the threshold and 0 for others, as in PyOD, shape (n,)."""
        return (self.decision_scores_ > self.threshold_).astype(np.int64)

    def scores(self, X: Any) -> Scores:
        """Return all scores of rows: anomaly, novelty, similarity to known outliers, and flags."""
        check_fitted(self)
        return self._scores_of(self._checked(X))

    def _scores_of(self, rows: Any) -> Scores:
        progress = None if self.verbose is None else self.verbose > 0
        columns = in_parts(rows, self._score_rows, n_jobs=self.n_jobs, progress=progress)
        anomaly, line, like_known, novelty = np.ascontiguousarray(columns.T)
        return Scores(anomaly, line, like_known, novelty, self.threshold_)

    def anomaly_score(self, X: Any) -> Array:
        """Return anomaly scores for ranking, higher for more anomalous rows, shape (n,)."""
        return self.scores(X).anomaly

    def score_samples(self, X: Any) -> Array:
        """Return scores that are lower for more anomalous rows, shape (n,): ``predict`` flags those below ``offset_``.

        They are ``−anomaly_score``, except that with known outliers, rows flagged for their novelty alone are also
        below ``offset_`` (:class:`Scores`).
        """
        return -self.scores(X).line

    def decision_function(self, X: Any) -> Array:
        """Return ``score_samples − offset_``: negative for outliers, shape (n,).

        Warns, as :meth:`predict` does, if the rows are far from those of training.
        """
        warn_if_scored("decision_function")
        return -self._compared_scores(X).line - self.offset_

    def predict(
        self,
        X: Any,
        *,
        alarms: int | None = None,
        threshold: float | None = None,
        fdr: float | None = None,
        discount: bool | None = None,
    ) -> NDArray[np.int64]:
        """Return +1 for inliers and −1 for outliers.

        Warns (:class:`~fvnce.detection.UnlikeTrainingWarning`) if the rows are 20 or more and far from
        those of training in how many are flagged, in how much is missing, or in their scores.

        Args:
            X: rows.
            alarms: flag this many rows, those with the highest ``anomaly_score``; all if there are fewer.
            threshold: flag rows whose ``anomaly_score`` is above it, and no others: none for its novelty alone.
            fdr: false discovery rate, such as 0.1, on average over training sets and rows, instead of a threshold: the
                procedure of Benjamini and Hochberg on :meth:`p_value`. Which
                rows are flagged depends on those given together. If none is, though some are above ``threshold_``, a
                warning says why.
            discount: discount outliers hidden among the training rows, as in :meth:`p_value`; by default if known
                outliers score higher than other rows.

        Raises:
            ValueError: if more than one of ``alarms``, ``threshold`` and ``fdr`` is given.
        """
        warn_if_scored("predict")
        check_fitted(self)
        check_budget(alarms, threshold, fdr)
        if fdr is None and discount is not None:
            raise ValueError(f"discount must be None without fdr, found {discount}: the threshold uses no p-values")
        if fdr is None:
            scores = self._compared_scores(X)
            return np.where(flag_by(scores.anomaly, scores.flagged, None, alarms=alarms, threshold=threshold), -1, 1)
        discounted = self.discounts if discount is None else discount
        p, scores = self.p_value(X, discount=discounted), self._scores_of(self._checked(X))
        least = self._p_values.least(discount=discounted)
        flagged = flag_by(scores.anomaly, scores.flagged, p, fdr=fdr, least=least, discount=discounted)
        return np.where(flagged, -1, 1)

    @property
    def discounts(self) -> bool:
        """Whether :meth:`predict` discounts hidden outliers by default when ``fdr`` is given."""
        return False

    def p_value(self, X: Any, *, discount: bool = False) -> Array:
        """Return the conformal p-value of each row, shape (n,): P(p ≤ t) ≤ t for a row like the training rows.

        A p-value is the fraction of held-out training rows that score at least as high, by a model trained without
        them. The probability is over the training rows and the new row (Eq. p_value).

        Args:
            X: rows.
            discount: if more held-out rows score high than a tail like that of Student's t allows, take the excess
                for hidden outliers and do not count it. The guarantee then depends on that assumption (Eq. tail).
        """
        check_fitted(self)
        return self._p_values.p_value(self._unseen_scores(X, self._checked(X)), discount=discount)

    def _unseen_scores(self, X: Any, rows: Any, anomaly: Array | None = None) -> Array:
        """Return the scores that p-values compare; ``rows`` is X in the form that the preprocessor takes."""
        model = self._p_values.model
        if model is None:
            return self._scores_of(rows).anomaly if anomaly is None else anomaly
        if model.preprocessor.readings is not None and is_frame(X):  # read in the same way as the held-out rows
            rows = frame_to_matrix(self._aligned(X)[0], model.preprocessor.readings, strict=False)
        return in_parts(rows, model.anomaly, n_jobs=self.n_jobs)

    def monitor(self, X: Any, *, alpha: float = 0.01) -> Changes:
        """Test whether rows have changed since training: missing values, columns, scores, p-values, fraction flagged.

        Args:
            X: new rows, such as those of a day.
            alpha: largest probability of an alarm for a batch from the same source as the training rows: at 0.01, one
                of 100 unchanged batches causes an alarm on average.

        Returns:
            :class:`~fvnce.detection.Changes`, with ``alarm``, a summary by ``print``, and ``as_dict()`` for JSON.

        Raises:
            ValueError: if the detector was saved by a version without the data for this comparison.

        >>> from fvnce import NoiseContrastiveDetector
        >>> rng = np.random.default_rng(0)
        >>> detector = NoiseContrastiveDetector(n_trees=20).fit(rng.normal(size=(400, 2)))
        >>> detector.monitor(rng.normal(size=(300, 2))).alarm
        False
        >>> changes = detector.monitor(rng.normal(size=(300, 2)) + [1, 0])
        >>> print(changes.sentences[0])
        25.7% of 'column 1' are at most 0.331116, 65.0% were (p = 7.4e-23)
        """
        watch = self.new_watch()
        self.watch(watch, X)
        changes = watch.changes(alpha)
        logging.getLogger("fvnce").info("monitored %s", "; ".join(str(changes).splitlines()))
        return changes

    def new_watch(self) -> Watch:
        """Return empty counts for :meth:`watch`, to monitor rows that come in parts."""
        check_fitted(self)
        findings, how = self.findings_, self.preprocessor_
        if findings.baseline is None or (findings.cells is None and how.image is None):
            raise ValueError("the detector must be of this version to monitor rows, found an earlier one; fit it again")
        names = getattr(self, "feature_names_in_", [f"column {i + 1}" for i in range(self.n_features_in_)])
        texts = [reading.codes for reading in how.readings or [ColumnType()] * self.n_features_in_]
        cells = findings.cells or Cells([], [], [])  # none for images
        return Watch(findings.baseline, cells, findings.conformal, list(map(str, names)), texts)

    def watch(self, watch: Watch, X: Any) -> None:
        """Add rows to the counts of :meth:`new_watch`."""
        rows = self._checked(X)
        scores = self._scores_of(rows)
        unseen = None if self.findings_.conformal is None else self._unseen_scores(X, rows, scores.anomaly)
        watch.add(rows, scores.flagged, unseen)

    @property
    def _p_values(self) -> Conformal:
        conformal = self.findings_.conformal
        if conformal is None:
            raise ValueError(f"p-values need held-out rows, found none: {self.findings_.no_p_value}")
        return conformal

    def score(self, X: Any, y: Any) -> float:
        """Return the AUROC of the anomaly score for outliers y = 1."""
        return roc_auc(self, X, y)

    def explain(self, X: Any) -> Explanation:
        """Explain how each column raises or lowers the score of each row, relative to the mean score of training rows.

        For images, the parts are a heat map.
        """
        check_fitted(self)
        rows, how = self._checked(X), self.preprocessor_
        explanation, names = self._explain(how.encode(rows)), getattr(self, "feature_names_in_", None)
        ratio, base = explanation.ratio, explanation.base
        if self.gaps_ is not None:
            ratio = ratio + self.gaps_.parts(how.gaps(rows))
        if (mean := self.findings_.mean_parts) is not None:
            ratio, base = ratio - mean.reshape(ratio.shape[1:]), base + float(mean.sum())
        cause = None if explanation.cause is None else self._cause(rows, explanation.cause, ratio)
        names = None if names is None else tuple(map(str, names))
        return replace(explanation, ratio=ratio, base=base, names=names, cause=cause)

    def _cause(self, rows: Any, of_novelty: Array, of_score: Array) -> Array:
        """Return the parts that reasons are chosen by, from the parts of novelty and of the score."""
        return of_score

    def reasons(self, X: Any, top: int = 3) -> list[list[str]]:
        """Explain the score of each row in sentences, one for each of the columns that add most to it.

        For rows flagged for their novelty alone, the columns that add most to the novelty.

        Args:
            X: rows.
            top: largest number of sentences for a row; there are fewer if fewer columns add to the score.

        Returns:
            The sentences of each row, such as "amount $78,110: higher than 99.9 % of rows; usual $20 to $450", by
            decreasing contribution. For images, the names of pixels.
        """
        explanation = self.explain(X)
        return self.in_words(X, explanation, [explanation.reasons(i, top) for i in range(len(explanation))])

    def in_words(self, X: Any, explanation: Explanation, reasons: Sequence[Sequence[int]]) -> list[list[str]]:
        """Return sentences for the columns that are the reasons for each score."""
        how, names, usual = self.preprocessor_, explanation.columns, self.findings_.usual
        if isinstance(how, ImagePreprocessor) or usual is None:
            return [[said("name", shown=names[j]) for j in of_row] for of_row in reasons]
        rows, readings = self._checked(X), how.readings or [ColumnType()] * len(names)
        frame = self._aligned(X)[0] if is_frame(X) else None
        given = rows.T if frame is None else [frame[name] for name in frame.columns]

        def sentence(i: int, j: int) -> str:
            cycles = [part for part, _, _ in how.columns[j].times or ()]
            shown = value_text(given[j][i], readings[j])
            return usual.sentence(j, names[j], float(rows[i, j]), shown, readings[j], cycles)

        return [[sentence(i, j) for j in of_row] for i, of_row in enumerate(reasons)]

    def preprocess(self, X: Any) -> Array:
        """Encode rows as the columns that models see, shape (n, ``preprocessor_.width``)."""
        check_fitted(self)
        return cut(self.preprocessor_.encode(self._checked(X)))

    def plot_scores(self, X: Any, y: Any = None, ax: Axes | None = None) -> Axes:
        """Plot a histogram of anomaly scores with the threshold; with y, one histogram for each class."""
        return plot_scores(self.scores(X).line, self.threshold_, y, ax)

    def odd_values(self, X: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Count the values of each column of X, and those unlike any value in training; empty for images."""
        check_fitted(self)
        there, odd = self.preprocessor_.count_odd(self._checked(X))
        return there, odd

    def count_gaps(self, X: Any) -> NDArray[np.int64]:
        """Count the missing values of each row in columns that models see, shape (n,); zeros for images."""
        check_fitted(self)
        return np.asarray(self.preprocessor_.gaps(self._checked(X)).sum(1))

    def _gappy(self, rows: Any) -> NDArray[np.bool_]:
        """Return a mask of rows with more gaps than usual, shape (n,)."""
        return np.asarray(self.preprocessor_.gaps(rows).sum(1) > (0 if self.gaps_ is None else self.gaps_.usual))

    def new_batch(self) -> Batch | None:
        """Return empty counts for :meth:`count_batch`; None if the detector is of version 0.2."""
        baseline = self.findings_.baseline
        return None if baseline is None else Batch(baseline, self.threshold_)

    def count_batch(self, batch: Batch, X: Any, scores: Scores) -> None:
        """Add rows of a batch to counts of scores and of missing values."""
        self._count_batch(batch, self._checked(X), scores)

    def _count_batch(self, batch: Batch, rows: Any, scores: Scores) -> None:
        batch.add(scores.line, self._gappy(rows[:: -(-len(rows) // EXAMINED)]))

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> Self:
        """Load a detector that :meth:`save` wrote; its scores are equal to the last bit.

        Loading executes no code from the file, and checks all of its contents.

        Args:
            path: the file.
            max_bytes: largest file size that is read, by default 4 GiB.

        Raises:
            FileError: if the file is damaged, too large, of another version, or not a detector that ``fit`` can make.
        """
        place = Path(path)
        if place.is_file() and place.stat().st_size > count("max_bytes", max_bytes):
            size = f"{place} must have at most {max_bytes:,} bytes, found {place.stat().st_size:,}"
            raise FileError(f"{size}; if you trust it, raise max_bytes")
        content, arrays = read_record(place, cls.KIND, arrays=True)
        with reading(place):
            saved, fitted, learned, findings = fields(content, str(place), "parameters", "fitted", "learnt", "findings")
            detector = cls._with_settings(saved, place)
            try:
                detector._take_fitted(fitted)
                detector._take_state(learned, {n: x for n, x in arrays.items() if not n.startswith(f"{FINDINGS}.")})
                which = detector.n_features_in_, detector.preprocessor_
                detector.findings_ = Findings.from_state(findings, part_of(arrays, FINDINGS), *which)
            except FileError as error:
                raise FileError(f"{place} is not a detector that fvnce wrote: {error}") from None
        logging.getLogger("fvnce").info("read a %s with %d columns from %s", cls.KIND, detector.n_features_in_, place)
        return detector

    @classmethod
    @abstractmethod
    def _with_settings(cls, saved: Mapping[str, Any], place: Path) -> Self:
        """Return an unfitted detector with the settings of a file."""

    def _take_fitted(self, fitted: Mapping[str, Any]) -> None:
        fitted = {"gaps_": None, **fitted}  # version 0.2 had none
        checks: dict[str, Check] = {"n_features_in_": count, "offset_": number, "n_known_": partial(count, low=0)}
        preprocessor, gaps, names, features, self.offset_, self.n_known_ = fields(
            fitted, "a detector", "preprocessor_", "gaps_", "feature_names_in_", **checks
        )
        self.n_features_in_ = features
        if names is not None:
            require(len(set(listed(text, features)("names of columns", names))) == features, "name columns once", names)
            self.feature_names_in_ = np.array(names, dtype=object)
        self.preprocessor_ = preprocessor_from_state(preprocessor, features)
        self.gaps_ = Gaps.from_state(gaps, self.preprocessor_)

    def _score_rows(self, rows: Any) -> Array:
        """Return the columns of :class:`Scores` for rows in the form that the preprocessor takes, shape (n, 4)."""
        anomaly = score_rows(self._anomaly, self.preprocessor_, self.gaps_, rows)
        missing = np.full(len(anomaly), np.nan)
        return np.stack([anomaly, anomaly, missing, missing], 1)

    def _compared_scores(self, X: Any) -> Scores:
        """Return scores; warn, at the caller's caller, if the rows are far from those of training."""
        check_fitted(self)
        rows = self._checked(X)
        scores = self._scores_of(rows)
        if (batch := self.new_batch()) is not None and len(scores.line) >= MIN_ROWS:
            self._count_batch(batch, rows, scores)
            if sentences := batch.sentences():
                far = f"X is far from the training rows, so scores may be unreliable: {'; '.join(sentences)}"
                warnings.warn(far, UnlikeTrainingWarning, stacklevel=3)
        return scores

    def _checked(self, X: Any) -> Any:
        """Check that rows have the layout of training; return them in the form that the preprocessor takes."""
        how = self.preprocessor_
        if isinstance(how, ImagePreprocessor):
            return check_images(X, how.shape)
        if not isinstance(X, np.ndarray) and is_frame(X):
            frame, notice = self._aligned(X)
            matrix = frame_to_matrix(frame, how.readings or [ColumnType()] * frame.shape[1])
            if notice:
                warnings.warn(notice, stacklevel=4)
            return matrix
        if any(column.kind != "number" for column in how.readings or ()):
            name = type(X).__name__
            raise ValueError(f"X must be a data frame as in training, where it had texts or dates, found {name}")
        return self._matrix(X)

    def _matrix(self, X: Any) -> Any:
        """Check a matrix of numbers part by part, without converting it."""
        if isinstance(X, np.ma.MaskedArray) and np.ma.getmaskarray(X).any():
            raise ValueError("X must not be masked, found masked values; fill them with NaN")
        if not isinstance(X, np.ndarray) or X.dtype.kind not in "biuf":
            try:
                X = np.asarray(X).astype(np.float64, casting="unsafe" if np.isrealobj(X) else "safe")
            except (TypeError, ValueError) as error:
                raise ValueError(f"X must be a matrix of numbers, found {type(X).__name__}: {error}") from None
        if X.ndim != 2 or X.shape[1] != self.n_features_in_ or not len(X):
            raise ValueError(f"X must have shape (n, {self.n_features_in_}) with n >= 1, found {X.shape}")
        step = rows_at_once(X)
        for start in range(0, len(X), step):
            if (infinite := np.isinf(X[start : start + step]).any(1)).any():
                raise ValueError(f"X must be finite or NaN, found infinity in row {start + int(infinite.argmax())}")
            release(X)
        return X

    def _aligned(self, X: Any) -> tuple[Frame, str]:
        """Return the columns of training from a data frame, in their order, and warnings."""
        names = getattr(self, "feature_names_in_", ())
        frame, notice = Frame.of(X).aligned(list(names), self.n_features_in_)
        # A Frame has its columns in order already, for example from BatchScorer.
        return frame, "" if isinstance(X, Frame) and not len(names) else notice


def check_fitted(detector: FittedDetector) -> None:
    """Raise scikit-learn's NotFittedError if a detector is not fitted."""
    if not hasattr(detector, "offset_"):
        from sklearn.exceptions import NotFittedError

        raise NotFittedError(f"{type(detector).__name__} must be fitted before it scores, found it unfitted; call fit")
