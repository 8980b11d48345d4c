"""What every detector does alike, on scikit-learn's contract: rows checked and preprocessed, scores, files.

A detector adds ``fit``, the anomaly of preprocessed rows and its explanation, and the state of what it learnt.

Names are those of other libraries: ``decision_scores_``, ``labels_`` and ``threshold_`` are PyOD's,
``feature_importances_`` is scikit-learn's, and so is the sign of ``decision_function``, which PyOD has the other way.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from .. import _checks
from ..serialization import RecordError, fields, flatten, read_record, reading, unflatten, write_record
from ..training import History
from .conformal import Conformal, reject
from .evidence import Evidence, Findings
from .explanation import Explanation, plot_scores
from .frame import Frame, Readings, frame_to_matrix, is_frame, learn_readings
from .members.base import MAX_BYTES, check_size, part_of, require, require_count, require_lengths, require_number
from .plan import Array
from .preprocessing import ImagePreprocessor, Preprocessor, TablePreprocessor, cut, preprocessor_from_state
from .reading import Reading
from .rows import as_images, check_images, in_parts, release, require_values, rows_at_once
from .scorers import roc_auc, warn_if_scored

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: What the tensors of the findings are called in a file.
FINDINGS = "findings."
#: Reads well on light pages and on dark ones.
BOX = "border-left:3px solid #2c6fad;padding:.2em .8em;margin:.4em 0"


class Detector(OutlierMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """A scikit-learn outlier detector over tables, data frames and images."""

    #: What its files are called.
    KIND: ClassVar[str]

    #: Settings that some detectors have.
    n_jobs: int | None = None
    verbose: int | None = 0

    # Learnt by fit; offset_ comes last, and says that there is a detector.
    offset_: float
    findings_: Findings
    preprocessor_: Preprocessor
    n_known_: int
    n_features_in_: int
    feature_names_in_: NDArray[np.object_]

    @abstractmethod
    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from rows, of which y marks the known outliers."""

    @abstractmethod
    def _anomaly(self, encoded: Array) -> Array:
        """The anomaly of preprocessed rows, shape (n,)."""

    @abstractmethod
    def _explain(self, encoded: Array) -> Explanation:
        """What each original column adds to it."""

    @abstractmethod
    def _state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What was learnt beside the attributes above."""

    @abstractmethod
    def _take_state(self, content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Set what :meth:`_state` gave, or refuse what ``fit`` could not have made."""

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

    def anomaly_score(self, X: Any) -> Array:
        """Higher for stranger rows, shape (n,)."""
        check_is_fitted(self)
        return in_parts(
            self._checked(X),
            lambda part: self._anomaly(self.preprocessor_.encode(part)),
            jobs=self.n_jobs,
            progress=None if self.verbose is None else self.verbose > 0,
        )

    def score_samples(self, X: Any) -> Array:
        """Lower for stranger rows, shape (n,)."""
        return -self.anomaly_score(X)

    def decision_function(self, X: Any) -> Array:
        """``score_samples − offset_``: negative for outliers, shape (n,)."""
        warn_if_scored("decision_function")
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any, *, fdr: float | None = None, discount: bool = False) -> NDArray[np.int64]:
        """+1 for inliers, −1 for outliers.

        Args:
            X: rows.
            fdr: instead of the threshold, the share of false alarms among all alarms that is allowed on average over
                training sets and rows, such as 0.1: the procedure of Benjamini and Hochberg on :meth:`p_value`. Which
                rows are flagged depends on those given together. If no p-value can be as small, a warning says so.
            discount: for ``fdr``, as in :meth:`p_value`.
        """
        warn_if_scored("predict")
        if fdr is not None:
            flagged = reject(self.p_value(X, discount=discount), fdr)
            self._p_values.warn_if_silent(fdr, discount=discount)
            return np.where(flagged, -1, 1)
        if discount:
            raise ValueError("discount must be False without fdr, found True: the threshold uses no p-values")
        return np.where(self.score_samples(X) - self.offset_ < 0, -1, 1)

    def p_value(self, X: Any, *, discount: bool = False) -> Array:
        """Return the conformal p-value of each row, shape (n,): P(p ≤ t) ≤ t for a row like the training rows.

        It is the share of held-out training rows that score at least as high by a model that has not seen them. The
        probability is over training rows and new row; :mod:`fvnce.detection.conformal` derives it and its limits.

        Args:
            X: rows.
            discount: count each held-out row with its probability of being no outlier. For training rows among which
                outliers hide; it needs known outliers, and makes the guarantee an estimate.
        """
        check_is_fitted(self)
        conformal = self._p_values
        if conformal.model is None:
            return conformal.p_value(self.anomaly_score(X), discount=discount)
        rows, how = self._checked(X), conformal.model.preprocessor
        if isinstance(how, TablePreprocessor) and how.readings is not None and is_frame(X):
            rows = frame_to_matrix(Frame.of(X), how.readings, strict=False)  # as the held-out rows were read
        anomaly = in_parts(rows, conformal.model.anomaly, jobs=self.n_jobs)
        return conformal.p_value(anomaly, discount=discount)

    @property
    def _p_values(self) -> Conformal:
        conformal = self.findings_.conformal
        if conformal is None:
            raise ValueError(
                f"p-values need rows that no model was trained on, found none: {self.findings_.no_p_value}"
            )
        return conformal

    def score(self, X: Any, y: Any) -> float:
        """AUROC of y = 1 under the anomaly score."""
        return roc_auc(self, X, y)

    def explain(self, X: Any) -> Explanation:
        """What each column adds to the anomaly score of each row; for images, a heat map."""
        check_is_fitted(self)
        found = self._explain(self.preprocessor_.encode(self._checked(X)))
        names = getattr(self, "feature_names_in_", None)
        return found if names is None else replace(found, names=tuple(map(str, names)))

    def preprocess(self, X: Any) -> Array:
        """Rows in the columns that models see, shape (n, ``preprocessor_.width``)."""
        check_is_fitted(self)
        return cut(self.preprocessor_.encode(self._checked(X)))

    def plot_scores(self, X: Any, y: Any = None, ax: Axes | None = None) -> Axes:
        """Histogram of anomaly scores with the threshold; with y, one for each kind of row."""
        return plot_scores(self.anomaly_score(X), -self.offset_, y, ax)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the fitted detector to one file, atomically and without pickle."""
        check_is_fitted(self)
        parameters = {name: _plain(value) for name, value in self.get_params(deep=False).items()}
        if not isinstance(parameters["random_state"], int | None):
            parameters["random_state"] = None  # a generator's state is no setting
        names = getattr(self, "feature_names_in_", None)
        learnt, tensors = self._state()
        findings, own = self.findings_.state()
        tensors = tensors | {f"{FINDINGS}{name}": value for name, value in own.items()}
        fitted = {
            "n_features_in_": int(self.n_features_in_),
            "feature_names_in_": None if names is None else [str(name) for name in names],
            "offset_": float(self.offset_),
            "n_known_": int(self.n_known_),
            "preprocessor_": self.preprocessor_.state(),
        }
        content = {"parameters": parameters, "fitted": fitted, "learnt": learnt, "findings": findings}
        write_record(Path(path), self.KIND, content, tensors)
        return Path(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> Self:
        """The detector that :meth:`save` wrote; it scores to the same bits.

        The file may be a stranger's: it runs no code, and what it holds is checked to be a detector, part by part.

        Args:
            path: the file.
            max_bytes: the largest file that is read, 4 GiB by default.
        """
        place = Path(path)
        check_size(place, _checks.count("max_bytes", max_bytes))
        content, tensors = read_record(place, cls.KIND)
        with reading(place):
            parameters, fitted, learnt, findings = fields(
                content, str(place), "parameters", "fitted", "learnt", "findings"
            )
            known = set(cls._get_param_names())
            if set(parameters) != known:
                raise RecordError(
                    f"{place} was written by another version: its settings are {sorted(set(parameters) ^ known)}"
                )
            detector = cls(
                **{key: tuple(value) if isinstance(value, list) else value for key, value in parameters.items()}
            )
            try:
                detector._take(fitted)
                own = {name: value for name, value in tensors.items() if not name.startswith(FINDINGS)}
                detector._take_state(learnt, own)
                found = part_of(tensors, FINDINGS)
                detector.findings_ = Findings.from_state(findings, found, detector.n_features_in_)
            except RecordError as error:
                raise RecordError(f"{place} is no detector that fvnce wrote: {error}") from None
            return detector

    def _take(self, fitted: Mapping[str, Any]) -> None:
        features, names, offset, known, preprocessor = fields(
            fitted, "a detector", "n_features_in_", "feature_names_in_", "offset_", "n_known_", "preprocessor_"
        )
        require_number("offset_", offset)
        require_count("n_features_in_", features, 1)
        require_count("n_known_", known, 0)
        self.offset_, self.n_features_in_, self.n_known_ = offset, features, known
        if names is not None:
            require_lengths("names of columns", features, names)
            require(all(isinstance(name, str) for name in names), "have names of columns that are text", names)
            self.feature_names_in_ = np.array(names, dtype=object)
        self.preprocessor_ = preprocessor_from_state(preprocessor, features)

    def _forget(self) -> None:
        """A fit that fails leaves no detector, rather than one that is half of another."""
        for name in ("offset_", "findings_", "feature_names_in_"):
            self.__dict__.pop(name, None)

    def odd_values(self, X: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """How many values each column of X has, and how many of them are unlike any of training; images have none."""
        check_is_fitted(self)
        if isinstance(self.preprocessor_, ImagePreprocessor):
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        return self.preprocessor_.count_odd(np.asarray(self._checked(X), dtype=np.float64))

    def _training_rows(self, X: Any) -> tuple[Any, Readings | None, Frame | None]:
        """Training rows, checked and still as they were given, with how to read a data frame, and that frame."""
        if is_frame(X):
            frame = Frame.of(X)
            self._check_names(X, frame, reset=True)
            if len(frame) < 2:
                raise ValueError(f"X must hold at least 2 rows, found n_samples = {len(frame)}")
            readings = learn_readings(frame)
            return require_values(frame_to_matrix(frame, readings)), readings, frame
        if getattr(X, "ndim", 0) in (3, 4):
            images = check_images(as_images(X))
            if len(images) < 2:
                raise ValueError(f"X must hold at least 2 images, found n_samples = {len(images)}")
            self.n_features_in_ = int(np.prod(images.shape[1:]))
            return images, None, None
        return require_values(self._matrix(X, reset=True)), None, None

    def _checked(self, X: Any) -> Any:
        """Rows that look like those of training, as the preprocessor takes them."""
        how = self.preprocessor_
        if isinstance(how, ImagePreprocessor):
            return check_images(as_images(X), how.shape)
        if is_frame(X):
            frame = Frame.of(X)
            if how.readings is None:  # what is no number is told before that there were no names
                matrix = frame_to_matrix(frame, [Reading()] * frame.shape[1])
                self._check_names(X, frame, reset=False)
                return matrix
            self._check_names(X, frame, reset=False)
            return frame_to_matrix(frame, how.readings)
        if any(reading.kind != "number" for reading in how.readings or ()):
            raise ValueError(
                f"X must be a data frame as in training, where it had texts or dates, found {type(X).__name__}"
            )
        return self._matrix(X, reset=False)

    def _check_names(self, X: Any, frame: Frame, *, reset: bool) -> None:
        """Learn the names of the columns, or compare them: those of other frames are scikit-learn's to look at."""
        if not isinstance(X, Frame):
            validate_data(self, X, reset=reset, skip_check_array=True)
        elif reset:
            self.n_features_in_, self.feature_names_in_ = frame.shape[1], frame.columns
        elif frame.columns.tolist() != getattr(self, "feature_names_in_", frame.columns).tolist():
            raise ValueError(
                f"X must have the columns of training in their order, {', '.join(self.feature_names_in_[:9])}, found "
                f"{', '.join(map(str, frame.columns[:9]))}; the feature names should match"
            )
        elif frame.shape[1] != self.n_features_in_:
            raise ValueError(f"X must have the {self.n_features_in_} features of training, found {frame.shape[1]}")

    def _matrix(self, X: Any, *, reset: bool) -> Any:
        """A matrix of numbers that scikit-learn has checked; a large one in parts, and it stays as it is stored."""
        if isinstance(X, np.ma.MaskedArray) and np.ma.getmaskarray(X).any():
            raise ValueError("X must not be masked, found masked values; fill them with NaN")
        how: dict[str, Any] = {"dtype": [np.float64, np.float32], "ensure_all_finite": "allow-nan"}
        is_matrix = isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "biuf"
        step = max(2, rows_at_once(X)) if is_matrix else 0
        whole = not is_matrix or len(X) <= step
        first = X if whole else X[:step]
        # Whether all are finite is asked of their sum, and that of huge numbers has none.
        with np.errstate(over="ignore", invalid="ignore"):
            checked = validate_data(self, first, reset=reset, ensure_min_samples=2 if reset else 1, **how)
            for start in () if whole else range(step, len(X), step):
                check_array(X[start : start + step], input_name="X", **how)
                release(X)
        return checked if whole else X

    @property
    def _repr_html_(self) -> Callable[[], str]:
        # A property that scikit-learn has, and leaves out where its display is text.
        settings = super()._repr_html_
        if not hasattr(self, "findings_"):
            return lambda: str(settings())
        lines = [f'<p style="margin:.2em 0">{escape(line)}</p>' for line in str(self.evidence_).splitlines()]
        return lambda: f'{settings()}<div style="{BOX}">{"".join(lines)}</div>'

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        bundle: dict[str, str] = super()._repr_mimebundle_(**options)
        if "text/html" in bundle:
            bundle["text/html"] = self._repr_html_()
        return bundle

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "offset_")


def histories_state(histories: Sequence[History]) -> tuple[Any, dict[str, Tensor]]:
    """Histories of training, for a file."""
    return flatten([history.state_dict() for history in histories], "history")


def histories_from_state(content: Any, tensors: Mapping[str, Tensor]) -> list[History]:
    """The histories of a file."""
    found = []
    for state in unflatten(content, tensors):
        history = History()
        history.load_state_dict(state)
        found.append(history)
    return found


def _plain(value: Any) -> Any:
    """A setting without numpy's own numbers, which JSON does not know."""
    if isinstance(value, list | tuple):
        return type(value)(_plain(item) for item in value)
    return value.item() if isinstance(value, np.generic) else value
