"""Scoring of batches in several processes, for engines such as Dask, Ray or Spark.

A :class:`BatchScorer` holds the path and the checksum of a detector; its pickle has a few hundred bytes. Each process
reads the detector once, and compares the checksum. Scores are equal to the last bit in every process and for every
split into batches.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from .._validation import FileError, count
from ..io import checksum_of, kind_of
from ..tables.frame import Frame, is_missing
from .base import MAX_BYTES, FittedDetector
from .fitted import FittedEnsemble

#: The file of a run of ``fvnce fit`` that holds its detector.
MODEL = "model.safetensors"
#: Names and types of the scores.
SCORES = {"score": np.float64, "probability": np.float64, "outlier": np.bool_}

#: Kind of the files of latent detectors, whose class is imported, with torch, only when one is read.
LATENT = "latent detector"
_lock = threading.Lock()


class BatchScorer:
    """Picklable scorer of batches, which reads its detector from a file once in each process.

    ==========================================  =====================================================
    batch                                       result
    ==========================================  =====================================================
    NumPy array                                 structured array, of :attr:`dtype`
    pandas, polars or Arrow table               the same kind of table; of pandas, with the same index
    Arrow record batch                          record batch
    dict of arrays by column, or of one matrix  dict of arrays
    ==========================================  =====================================================

    The result holds ``score``, the anomaly score; ``probability``, P(outlier | x), except for a
    :class:`~fvnce.detection.LatentDetector`; and ``outlier``, True where ``predict`` gives −1. Columns are matched by
    name, in any order; other columns of a batch are ignored. An empty batch gives an empty result.

    Args:
        path: file that ``save`` wrote, or folder that ``fvnce fit --out`` wrote, readable by every worker at this path.
        columns: names in the batch of the columns of training, in their order; by default the names in training.
            Needed for batches with names if the detector was trained on a matrix without names.
        keep: columns of the batch to copy into the result before the scores, such as an identifier.
        max_bytes: largest file size that is read.

    Raises:
        FileError: when a batch is scored, if the file has changed since the scorer was made.

    >>> import tempfile
    >>> from fvnce import NoiseContrastiveDetector
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = NoiseContrastiveDetector(n_trees=20).fit(X).save(f"{folder}/detector.safetensors")
    ...     scorer = BatchScorer(path, columns=["length", "width"], keep=["id"])
    ...     scored = scorer({"id": np.array([7, 8]), "width": np.array([0.1, 9.0]), "length": np.array([0.0, 9.0])})
    >>> list(scored), scored["outlier"]
    (['id', 'score', 'probability', 'outlier'], array([False,  True]))
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        columns: Sequence[str] | None = None,
        keep: Sequence[str] = (),
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.path = str(Path(path).absolute())
        self.columns = None if columns is None else _distinct("columns", columns)
        self.keep = _distinct("keep", keep)
        self.max_bytes = count("max_bytes", max_bytes)
        for name in self.keep:
            if name in SCORES:
                raise ValueError(f"keep must not name a column of the result, found {name!r}; rename it in the batch")
        self.kind = kind_of(file_of(self.path))
        if self.kind not in (FittedEnsemble.KIND, LATENT):
            raise FileError(f"{self.path} must hold what a detector's save wrote, found a {self.kind[:100]}")
        self.checksum = checksum_of(file_of(self.path))

    @property
    def detector(self) -> FittedDetector:
        """The detector, which the first access in a process reads from the file."""
        with _lock:
            return _loaded(self.path, self.kind, self.checksum, self.max_bytes)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Structured dtype of the scores: their names and types."""
        has_probability = self.kind == FittedEnsemble.KIND
        return np.dtype([(name, kind) for name, kind in SCORES.items() if has_probability or name != "probability"])

    def __call__(self, batch: Any) -> Any:
        """Score a batch; return the same kind of container."""
        names = self.dtype.names or ()
        if isinstance(batch, np.ndarray):
            if self.keep:
                raise ValueError(f"keep must be empty for an array, whose columns have no names, found {self.keep}")
            return self._scores(batch)
        if isinstance(batch, Mapping):
            arrays = {str(name): np.asarray(values) for name, values in batch.items()}
            kept = {name: arrays[name] for name in _present(self.keep, arrays)}
            others = [values for name, values in arrays.items() if name not in kept]
            if len(others) == 1 and others[0].ndim > 1:
                scores = self._scores(others[0])
            else:
                chosen = self._chosen(arrays)
                scores = self._scores(Frame({new: _column(name, arrays[name]) for name, new in chosen.items()}))
            return kept | {name: scores[name] for name in names}
        arrow = sys.modules.get("pyarrow")  # imported by the caller if the batch is from Arrow
        if arrow is not None and isinstance(batch, arrow.RecordBatch):
            table = self(arrow.Table.from_batches([batch])).combine_chunks()
            # A table without rows contains no batch.
            return next(iter(table.to_batches()), arrow.RecordBatch.from_pylist([], schema=table.schema))
        try:
            frame = nw.from_native(batch, eager_only=True)
        except TypeError:
            raise TypeError(
                "a batch must be a NumPy array, a pandas, polars or Arrow table or a dict of arrays, found "
                f"{type(batch).__name__}; convert it, or pass its parts"
            ) from None
        _present(self.keep, frame.columns)
        rows = frame.to_native()
        if any(isinstance(name, str) for name in frame.columns):  # columns with numbers as names are taken in order
            chosen = self._chosen(frame.columns)
            rows = frame.select(list(chosen)).rename(chosen).to_native()
            rows = Frame.of(rows) if len(frame) else rows
        scores, backend = self._scores(rows), nw.get_native_namespace(frame)
        series = [nw.new_series(name, np.ascontiguousarray(scores[name]), backend=backend) for name in names]
        return frame.with_columns(*series).select([*self.keep, *names]).to_native()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"

    def _scores(self, rows: Any) -> NDArray[Any]:
        """Score rows that have the form that the detector takes."""
        detector, scores = self.detector, np.empty(len(rows), dtype=self.dtype)
        if len(rows):
            of_rows = detector.scores(rows)
            scores["score"], scores["outlier"] = of_rows.anomaly, of_rows.flagged
            if isinstance(detector, FittedEnsemble):
                scores["probability"] = detector.probability_of(of_rows)
        return scores

    def _chosen(self, there: Iterable[str]) -> dict[str, str]:
        """Map the names of columns in a batch to the names in training, in the order of training."""
        trained = getattr(self.detector, "feature_names_in_", None)
        names, width = self.columns or trained, self.detector.n_features_in_
        if names is None:
            raise ValueError(
                f"columns must name the {width} columns of training in their order, since the detector was trained on "
                f"rows without names, found none; as in BatchScorer(path, columns={list(there)[:width]})"
            )
        if len(names) != width:
            raise ValueError(f"columns must name the {width} columns of training, found {len(names)} names")
        present = _present([str(name) for name in names], there)
        return dict(zip(present, present if trained is None else map(str, trained), strict=True))


def _class_of(kind: str) -> type[FittedDetector]:
    if kind == FittedEnsemble.KIND:
        return FittedEnsemble
    from .latent import LatentDetector

    return LatentDetector


@lru_cache(maxsize=4)
def _loaded(path: str, kind: str, checksum: str, max_bytes: int) -> FittedDetector:
    detector = _class_of(kind).load(file_of(path), max_bytes=max_bytes)
    if (
        now := checksum_of(file_of(path))
    ) != checksum:  # compared after reading, so that a change while reading is noticed
        raise FileError(
            f"{path} must be the detector that this scorer was made for, of SHA-256 {checksum[:12]}…, found one of "
            f"{now[:12]}…; make a new BatchScorer, or put the file back"
        )
    return detector


def file_of(path: str) -> Path:
    """Return the file of a detector, given its path or the folder of a run."""
    place = Path(path)
    return place / MODEL if place.is_dir() else place


def _distinct(argument: str, names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{argument} must be a list of names, found {names!r}; pass [{names!r}] if it is one")
    if len(set(names)) < len(names):
        raise ValueError(f"{argument} must name each column once, found {list(names)}")
    return tuple(names)


def _present(names: Sequence[str], there: Iterable[str]) -> list[str]:
    there = list(there)
    missing = [name for name in names if name not in there]
    if missing:
        raise ValueError(
            f"a batch must have the column {missing[0]!r}, found {', '.join(map(repr, there[:12]))}"
            f"{', …' if len(there) > 12 else ''}; {len(missing)} of {len(names)} are missing"
        )
    return list(names)


def _column(name: str, values: NDArray[Any]) -> NDArray[Any]:
    """Return an array of any type as a column of a frame."""
    if values.ndim != 1:
        raise ValueError(f"column {name!r} must have one value for each row, found an array of shape {values.shape}")
    if values.dtype.kind in "biufmM":
        return values
    objects = np.empty(len(values), dtype=object)
    objects[:] = [None if is_missing(value) else value for value in values.tolist()]
    return objects
