"""Base class of detectors as scikit-learn estimators: training rows, settings, files and display.

Scoring (:mod:`fvnce.detection.base`) is separate, since it needs neither scikit-learn nor torch.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from .._validation import FileError
from ..io import write_record
from ..tables.frame import Frame, is_frame
from ..tables.schema import ColumnTypes, frame_to_matrix, learn_types
from .base import FINDINGS, FittedDetector, check_fitted
from .explanation import average_parts
from .members.base import prefixed
from .preprocessing import TablePreprocessor
from .reasons import Usual
from .rows import Array, TrainingRows, check_images, require_values, rows_at_once
from .trust.monitor import Cells

if TYPE_CHECKING:
    from ..training.history import History

#: Style that is readable on light and dark pages.
BOX = "border-left:3px solid #2c6fad;padding:.2em .8em;margin:.4em 0"


class OutlierDetector(FittedDetector, OutlierMixin, BaseEstimator):  # type: ignore[misc]
    """Base class of scikit-learn outlier detectors for tables, data frames and images."""

    @abstractmethod
    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the detector to rows, of which y marks the known outliers."""

    @abstractmethod
    def _state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the fitted state that is not in the attributes of the base class."""

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the fitted detector to one file, atomically and without pickle."""
        check_fitted(self)
        parameters = plain(self.get_params(deep=False))
        if not isinstance(parameters["random_state"], int | None):
            parameters["random_state"] = None  # the state of a generator is not stored
        names = getattr(self, "feature_names_in_", None)
        learned, arrays = self._state()
        findings, found = self.findings_.state()
        fitted = {
            "n_features_in_": int(self.n_features_in_),
            "feature_names_in_": None if names is None else [str(name) for name in names],
            "offset_": float(self.offset_),
            "n_known_": int(self.n_known_),
            "preprocessor_": self.preprocessor_.state(),
            "gaps_": None if self.gaps_ is None else self.gaps_.state(),
        }
        content = {"parameters": parameters, "fitted": fitted, "learnt": learned, "findings": findings}
        write_record(Path(path), self.KIND, content, arrays | prefixed(FINDINGS, found))
        return Path(path)

    @classmethod
    def _with_settings(cls, saved: Mapping[str, Any], place: Path) -> Self:
        parameters = {name: _tupled(value) for name, value in saved.items()}
        if different := sorted(set(parameters) ^ set(cls._get_param_names())):
            raise FileError(f"{place} must have the settings of this version, found a difference in {different}")
        detector = cls(**parameters)
        try:
            detector._validate_params()
        except ValueError as error:
            raise FileError(f"{place} must have settings that fit accepts: {str(error)[:300]}") from None
        return detector

    def _of_columns(
        self, rows: TrainingRows, raw: Any, known: NDArray[np.bool_], weights: Array, seed: int
    ) -> dict[str, Any]:
        """Return the findings about columns, from encoded training rows and the same rows ``raw``."""
        how, (importances, mean_parts) = self.preprocessor_, average_parts(rows, self._explain, seed)
        if self.gaps_ is not None:
            mean_parts += np.average(self.gaps_.parts(how.gaps(raw)), 0, weights)
        found = {"importances": importances, "mean_parts": mean_parts}
        if not isinstance(how, TablePreprocessor):
            return found
        cells = Cells.learn(how, raw[~known], rows.weights, raw[known], rows.outlier_weights, seed)
        return {**found, "usual": Usual.learn(how, raw[~known], rows.weights), "cells": cells}

    def _training_rows(self, X: Any) -> tuple[Any, ColumnTypes | None, Frame | None]:
        """Forget an earlier fit, and check training rows.

        Returns:
            The rows, and for a data frame the column types and the frame.
        """
        # A failed fit must not leave a mixture of two detectors.
        for name in ("offset_", "findings_", "feature_names_in_", "gaps_", "novelty_gaps_", "novelty_calibration_"):
            self.__dict__.pop(name, None)
        if is_frame(X):
            frame = Frame.of(X)
            self.n_features_in_, names = frame.shape[1], frame.columns
            if names.tolist() != list(range(len(names))):  # consecutive numbers are no names
                self.feature_names_in_ = np.array([str(name) for name in names], dtype=object)
            if len(frame) < 2:
                raise ValueError(f"X must hold at least 2 rows, found n_samples = {len(frame)}")
            readings = learn_types(frame)
            return require_values(frame_to_matrix(frame, readings)), readings, frame
        if getattr(X, "ndim", 0) in (3, 4):
            images = check_images(X)
            if len(images) < 2:
                raise ValueError(f"X must hold at least 2 images, found n_samples = {len(images)}")
            self.n_features_in_ = int(np.prod(images.shape[1:]))
            return images, None, None
        return require_values(self._matrix(X, reset=True)), None, None

    def _matrix(self, X: Any, *, reset: bool = False) -> Any:
        """Check a matrix of numbers by scikit-learn; a large one part by part, without converting it."""
        if isinstance(X, np.ma.MaskedArray) and np.ma.getmaskarray(X).any():
            raise ValueError("X must not be masked, found masked values; fill them with NaN")
        is_matrix = isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "biuf"
        first = X[: max(2, rows_at_once(X))] if is_matrix else X
        how: dict[str, Any] = {"dtype": [np.float64, np.float32], "ensure_all_finite": "allow-nan"}
        # scikit-learn checks for infinity by a sum, which overflows for huge numbers.
        with np.errstate(over="ignore", invalid="ignore"):
            checked = validate_data(self, first, reset=reset, ensure_min_samples=2 if reset else 1, **how)
        return super()._matrix(X) if is_matrix and len(first) < len(X) else checked

    @property
    def _repr_html_(self) -> Callable[[], str]:
        # scikit-learn omits this property where estimators are displayed as text.
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


def seed_of(random_state: Any) -> int:
    """Draw a seed from a ``random_state``; None asks the operating system, not numpy's global generator."""
    if random_state is None:
        random_state = np.random.RandomState(np.random.MT19937())
    return int(check_random_state(random_state).randint(2**31 - 1))


def histories_state(histories: Sequence[History]) -> tuple[Any, dict[str, NDArray[Any]]]:
    """Convert training histories to JSON content and arrays."""
    from ..io import flatten

    content, tensors = flatten([history.state_dict() for history in histories], "history")
    return content, {name: value.numpy() for name, value in tensors.items()}


def histories_from_state(content: Any, arrays: Mapping[str, NDArray[Any]]) -> list[History]:
    """Restore training histories from JSON content and arrays."""
    import torch

    from ..io import unflatten
    from ..training.history import History

    histories = []
    for state in unflatten(content, {name: torch.tensor(value) for name, value in arrays.items()}):
        histories.append(History())
        histories[-1].load_state_dict(state)
    return histories


def plain(value: Any) -> Any:
    """Convert numpy numbers in a setting to Python numbers for JSON."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(plain(item) for item in value)
    return value.item() if isinstance(value, np.generic) else value


def _tupled(value: Any) -> Any:
    """Convert lists in a setting from JSON back to tuples."""
    if isinstance(value, dict):
        return {name: _tupled(item) for name, item in value.items()}
    return tuple(map(_tupled, value)) if isinstance(value, list) else value
