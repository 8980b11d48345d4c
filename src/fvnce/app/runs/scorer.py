"""What scores rows, whichever kind of run it is: one face for the detector and for a latent-variable model."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...detection import NoiseContrastiveDetector
from ...serialization import RecordError, fields, read_document, reading
from ..readers.frame import DataError, Frame
from ..readers.sources import Rows
from ..report.run.shape import check_record
from .latent import LatentDetector
from .material import Layout, to_frame
from .settings import RunSettings, read_config

Array = NDArray[np.float64]

MODEL = "model.safetensors"
RECORD = "run.json"


class RunError(ValueError):
    """A folder that is no run, or not a whole one."""


class Scorer(Protocol):
    """Scores raw rows."""

    threshold: float

    def anomaly(self, rows: Any) -> Array:
        """Higher for stranger rows."""

    def probability(self, anomaly: Array) -> Array | None:
        """P(outlier | score), if the run has one."""

    def contributions(self, rows: Any) -> Array:
        """Parts of the anomaly by column or pixel."""


class OfDetector:
    """A detector."""

    def __init__(self, detector: NoiseContrastiveDetector) -> None:
        self.detector = detector
        self.threshold = -float(detector.offset_)

    def anomaly(self, rows: Any) -> Array:
        """Higher for stranger rows."""
        return self.detector.anomaly_score(rows)

    def probability(self, anomaly: Array) -> Array:
        """P(outlier | score)."""
        return self.detector.calibration_.probability(anomaly)

    def contributions(self, rows: Any) -> Array:
        """Parts of the anomaly."""
        return self.detector.explain(rows).total


class OfLatent:
    """A latent-variable model."""

    def __init__(self, detector: LatentDetector) -> None:
        self.detector = detector
        self.threshold = detector.threshold

    def anomaly(self, rows: Any) -> Array:
        """Higher for stranger rows."""
        return self.detector.anomaly(rows)

    def probability(self, anomaly: Array) -> None:
        """There is none: the threshold is a quantile."""
        return None

    def contributions(self, rows: Any) -> Array:
        """Squared errors."""
        return self.detector.contributions(rows)


@dataclass(frozen=True)
class LoadedRun:
    """A run read from its folder."""

    folder: Path
    settings: RunSettings
    record: dict[str, Any]
    layout: Layout
    scorer: OfDetector | OfLatent

    def prepare(self, rows: Rows, start: int = 0) -> Rows:
        """Rows as the model takes them, whatever file they came in."""
        if self.layout.kinds is None:
            assert self.layout.shape is not None
            if isinstance(rows, Frame):
                rows = _matrix(rows, self.layout.shape)
            if rows.ndim == 2 and rows.dtype.kind == "f":
                bad = ~np.isfinite(rows).all(1)
                if bad.any():
                    if self.record["frame"] and not np.isinf(rows).any():
                        return to_frame(rows)
                    row = start + int(np.flatnonzero(bad)[0]) + 1
                    raise DataError(
                        f"row {row} holds a missing or infinite value, and no training row did; "
                        "leave it out, or train with rows that have some"
                    )
            return rows
        return rows if isinstance(rows, Frame) else to_frame(rows, self.layout.columns)


def load_run(folder: Path) -> LoadedRun:
    """Read the folder of a run; what is missing or damaged is named."""
    if not folder.is_dir():
        raise RunError(
            f"{folder} is no run folder: it does not exist or is a file; make one with fvnce fit DATA --out {folder}"
        )
    for name in (RECORD, "config.toml", MODEL):
        if not (folder / name).is_file():
            raise RunError(f"{folder} is no whole run: {name} is missing; make it again with fvnce fit")
    settings = read_config(folder / "config.toml")
    record = read_record_file(folder / RECORD)
    check_config(folder, record)
    shape = record["layout"]["shape"]
    layout = Layout(record["layout"]["kinds"], None if shape is None else tuple(shape))
    path = folder / MODEL
    scorer: OfDetector | OfLatent
    try:
        if settings.kind == "detector":
            scorer = OfDetector(NoiseContrastiveDetector.load(path))
        else:
            scorer = OfLatent(LatentDetector.load(path))
    except ValueError as error:
        raise RunError(f"{error}; make the run again with fvnce fit") from None
    except (LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise RunError(
            f"{path} is damaged ({type(error).__name__}: {' '.join(str(error).split())[:200]}); make the run again "
            "with fvnce fit"
        ) from error
    return LoadedRun(folder, settings, record, layout, scorer)


def damaged(path: Path, error: Exception) -> RunError:
    """The error for a file of a run that is not what a run writes."""
    said = "its lists are nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
    return RunError(f"{path} is damaged; make the run again with fvnce fit ({said[:200]})")


def read_record_file(path: Path) -> dict[str, Any]:
    """The JSON of a run."""
    try:
        record = read_document(path, "run")
        check_record(record)
        with reading(path):
            kinds, shape = fields(record["layout"], f"the layout of {path}", "kinds", "shape")
            Layout(None if kinds is None else dict(kinds), None if shape is None else tuple(map(int, shape)))
            _ = str(record["config_sha256"]), bool(record["frame"]), int(record["rows"]), int(record["known"])
        return record
    except RecordError as error:
        raise RunError(f"{error}; make the run again with fvnce fit") from None
    except ValueError as error:
        raise damaged(path, error) from None


def check_config(folder: Path, record: dict[str, Any]) -> None:
    """Refuse a config that was edited after the run was made: it would be told as if it had made the run."""
    path = folder / "config.toml"
    if hashlib.sha256(path.read_bytes()).hexdigest() != record["config_sha256"]:
        raise RunError(
            f"{path} is not the config that the run was made with; put that back, or make another run with "
            f"fvnce fit --config {path} --out FOLDER"
        )


def _matrix(frame: Frame, shape: tuple[int, ...]) -> NDArray[Any]:
    if shape != (frame.shape[1],) or any(dtype.kind == "O" for dtype in frame.dtypes):
        raise DataError(
            f"rows must have shape {shape} of numbers as in training, found a table of {frame.shape[1]} columns"
        )
    return np.column_stack([frame[name] for name in frame.columns])
