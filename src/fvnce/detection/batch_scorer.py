"""Scores of batches, in whatever process: what an engine such as Dask, Ray or Spark calls on its workers.

A :class:`BatchScorer` is where a detector lies and which one it is, no more: its pickle has a few hundred bytes.
The detector is read in the process that scores, once, and compared with the one the scorer was made for. Rows get the
same bits in every process, however they are split into batches, or not at all.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from .. import _checks
from ..serialization import RecordError, checksum_of, kind_of
from .base import Detector
from .estimator import NoiseContrastiveDetector
from .frame import Frame, is_missing
from .latent import LatentDetector
from .members.base import MAX_BYTES

SCORE, PROBABILITY, OUTLIER = "score", "probability", "outlier"
#: Detectors that a process keeps, the last ones that it used.
KEPT = 4
#: The file of a run of ``fvnce fit`` that holds its detector.
MODEL = "model.safetensors"

_CLASSES: dict[str, type[NoiseContrastiveDetector] | type[LatentDetector]] = {
    detector.KIND: detector for detector in (NoiseContrastiveDetector, LatentDetector)
}
_loaded: OrderedDict[tuple[str, str], Detector] = OrderedDict()
_lock = threading.Lock()


class BatchScorer:
    """Scores batches of rows with a detector from a file: picklable, and read once in each process.

    ==========================================  =====================================================
    batch                                       result
    ==========================================  =====================================================
    NumPy array                                 structured array, of :attr:`dtype`
    pandas, polars or Arrow table               the same kind of table; of pandas, with the same index
    Arrow record batch                          record batch
    dict of arrays by column, or of one matrix  dict of arrays
    ==========================================  =====================================================

    In each, ``score`` is the anomaly score, ``probability`` P(outlier | x), ``outlier`` whether ``predict`` gives −1. A
    :class:`LatentDetector` has no probability to give. Columns are found by their names, in whatever order; what else a
    batch holds is ignored. A batch without rows has a result without rows.

    Args:
        path: what ``save`` wrote, or the folder that ``fvnce fit --out`` wrote; every worker must see it there.
        columns: what the batch calls the columns of training, in their order; by default as in training. Needed for
            batches with names if the detector was trained on a matrix without.
        keep: columns of the batch that go before the scores in the result, such as an identifier.
        max_bytes: the largest file that is read.

    Raises:
        RecordError: where a batch is scored, if the file is no longer the one that the scorer was made for.

    >>> import tempfile
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
        self.columns = None if columns is None else _names("columns", columns)
        self.keep = _names("keep", keep)
        self.max_bytes = _checks.count("max_bytes", max_bytes)
        taken = [name for name in self.keep if name in (SCORE, PROBABILITY, OUTLIER)]
        if taken:
            raise ValueError(f"keep must not name a column of the result, found {taken[0]!r}; rename it in the batch")
        self.kind = kind_of(self._file)
        if self.kind not in _CLASSES:
            raise RecordError(
                f"{self.path} must hold a detector, found a {self.kind[:100]}; give what a detector's save wrote"
            )
        self.checksum = checksum_of(self._file)

    @property
    def detector(self) -> Detector:
        """The detector, read by the first call in a process; threads wait for it."""
        key = (self.path, self.checksum)
        with _lock:
            if key not in _loaded:
                _loaded[key] = self._load()
                while len(_loaded) > KEPT:
                    _loaded.popitem(last=False)
            _loaded.move_to_end(key)
            return _loaded[key]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Names and types of the scores, in their order."""
        probability = [] if _CLASSES[self.kind] is LatentDetector else [(PROBABILITY, np.float64)]
        return np.dtype([(SCORE, np.float64), *probability, (OUTLIER, np.bool_)])

    def __call__(self, batch: Any) -> Any:
        """The scores of a batch, in the kind of container that it came in."""
        if isinstance(batch, np.ndarray):
            if self.keep:
                raise ValueError(f"keep must be empty for an array, whose columns have no names, found {self.keep}")
            scores = self._scores(batch)
            result = np.empty(len(batch), dtype=self.dtype)
            for name, value in scores.items():
                result[name] = value
            return result
        if isinstance(batch, Mapping):
            return self._of_dict({str(name): np.asarray(values) for name, values in batch.items()})
        if _is_record_batch(batch):
            arrow = sys.modules["pyarrow"]
            table = self(arrow.Table.from_batches([batch])).combine_chunks()
            # A table without rows has no batch to give.
            return next(iter(table.to_batches()), arrow.RecordBatch.from_pylist([], schema=table.schema))
        try:
            frame = nw.from_native(batch, eager_only=True)
        except TypeError:
            raise TypeError(
                "a batch must be a NumPy array, a pandas, polars or Arrow table or a dict of arrays, found "
                f"{type(batch).__name__}; convert it, or give the parts that it is made of"
            ) from None
        return self._of_frame(frame)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"

    @property
    def _file(self) -> Path:
        place = Path(self.path)
        return place / MODEL if place.is_dir() else place

    def _load(self) -> Detector:
        detector = _CLASSES[self.kind].load(self._file, max_bytes=self.max_bytes)
        found = checksum_of(self._file)
        if found != self.checksum:  # compared after reading, so that no moment is left for a change
            raise RecordError(
                f"{self.path} must be the detector that this scorer was made for, of SHA-256 {self.checksum[:12]}…, "
                f"found one of {found[:12]}…; make a new BatchScorer, or put the file back"
            )
        return detector

    def _scores(self, rows: Any) -> dict[str, NDArray[Any]]:
        """The scores of rows in the form that the detector takes."""
        detector = self.detector
        if len(rows) == 0:
            return {name: np.empty(0, dtype=kind) for name, (kind, *_) in (self.dtype.fields or {}).items()}
        anomaly = detector.anomaly_score(rows)
        found: dict[str, NDArray[Any]] = {SCORE: anomaly}
        if isinstance(detector, NoiseContrastiveDetector):
            found[PROBABILITY] = detector.calibration_.probability(anomaly)
        found[OUTLIER] = anomaly > -detector.offset_
        return found

    def _of_dict(self, batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        others = [name for name in batch if name not in self.keep]
        kept = {name: batch[name] for name in _present(self.keep, list(batch))}
        if len(others) == 1 and batch[others[0]].ndim > 1:
            return kept | self._scores(batch[others[0]])
        columns = {name: batch[name] for name in self._names(list(batch))}
        if self._trained_names is None:
            return kept | self._scores(_matrix(columns))
        found = zip(self._trained_names, (_column(*column) for column in columns.items()), strict=True)
        return kept | self._scores(Frame(dict(found)))

    def _of_frame(self, frame: nw.DataFrame[Any]) -> Any:
        _present(self.keep, frame.columns)
        trained = self._trained_names
        rows: Any
        if not any(isinstance(name, str) for name in frame.columns):  # numbered columns are in their order
            rows = frame.to_native()
        elif trained is None:
            rows = _matrix({name: frame[name].to_numpy() for name in self._names(frame.columns)})
        else:
            chosen = frame.select(self._names(frame.columns))
            rows = chosen.rename(dict(zip(chosen.columns, trained, strict=True))).to_native()
            rows = Frame.of(rows) if len(frame) else rows
        backend = nw.get_native_namespace(frame)
        scores = [nw.new_series(name, values, backend=backend) for name, values in self._scores(rows).items()]
        names = [*self.keep, *(series.name for series in scores)]
        return frame.with_columns(*scores).select(names).to_native()

    @property
    def _trained_names(self) -> tuple[str, ...] | None:
        """The names of the columns of training, if it was on a data frame."""
        names = getattr(self.detector, "feature_names_in_", None)
        return None if names is None else tuple(str(name) for name in names)

    def _names(self, there: list[str]) -> list[str]:
        """The columns of training among those of a batch, in the order of training."""
        wanted, count = self.columns or self._trained_names, self.detector.n_features_in_
        if wanted is None:
            raise ValueError(
                f"columns must name the {count} columns of training in their order, since the detector was trained on "
                "rows without names and the batch has names, found none; as in BatchScorer(path, columns="
                f"{there[:count]})"
            )
        if len(wanted) != count:
            raise ValueError(f"columns must name the {count} columns of training, found {len(wanted)} names")
        return _present(wanted, there)


def _names(what: str, names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{what} must be a list of names, found {names!r}; give [{names!r}] if it is one")
    if len(set(names)) < len(names):
        raise ValueError(f"{what} must name each column once, found {list(names)}")
    return tuple(names)


def _present(wanted: Sequence[str], there: Sequence[str]) -> list[str]:
    missing = [name for name in wanted if name not in there]
    if missing:
        raise ValueError(
            f"a batch must have the column {missing[0]!r}, found {', '.join(map(repr, there[:12]))}"
            f"{', …' if len(there) > 12 else ''}; {len(missing)} of {len(wanted)} are missing"
        )
    return list(wanted)


def _matrix(columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    for name, values in columns.items():
        if values.ndim != 1 or values.dtype.kind not in "biuf":
            raise ValueError(
                f"column {name!r} must hold numbers as in training, found {values.dtype} of shape {values.shape}"
            )
    return np.column_stack([values.astype(np.float64) for values in columns.values()])


def _column(name: str, values: NDArray[Any]) -> NDArray[Any]:
    """An array of whatever it holds as a column of a frame."""
    if values.ndim != 1:
        raise ValueError(f"column {name!r} must have one value for each row, found an array of shape {values.shape}")
    if values.dtype.kind in "biufmM":
        return values
    found = np.empty(len(values), dtype=object)
    found[:] = [None if is_missing(value) else value for value in values.tolist()]
    return found


def _is_record_batch(batch: Any) -> bool:
    arrow = sys.modules.get("pyarrow")  # whoever has a batch of Arrow has imported it
    return arrow is not None and isinstance(batch, arrow.RecordBatch)
