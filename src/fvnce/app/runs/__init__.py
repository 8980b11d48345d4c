"""Runs: what training left behind in a folder, whichever way it was trained.

``fvnce fit --out`` writes a detector with its settings, its history and a page; ``fvnce.fit(checkpoint_dir=…)`` writes
an objective and checkpoints. :func:`load` opens both.

==================  ===============================================================
``settings``        what a run is made from; ``config.toml``
``training_data``   files as training rows and known outliers, and columns that a person names
``fitting``         fit: from settings to a folder
``scoring``         score: from a file to scores, in parts
``evaluation``      evaluate: how well labelled outliers are found
==================  ===============================================================
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ... import training
from ...detection import LatentDetector, NoiseContrastiveDetector
from ...detection.batch_scorer import MODEL
from ...detection.reading import KINDS, Reading
from ...serialization import RecordError, fields, kind_of, read_document, reading
from ...training import History
from ...training.checkpoint import Checkpoints, read_checkpoint
from .. import shapes
from .settings import RunSettings, read_config
from .training_data import Layout

Array = NDArray[np.float64]
Detector = NoiseContrastiveDetector | LatentDetector
RECORD = "run.json"
HISTORY = "history.json"
ANALYSIS = "analysis.json"


class RunError(ValueError):
    """A folder that is no run, or not a whole one.

    >>> from pathlib import Path
    >>> load_run(Path("nowhere"))
    Traceback (most recent call last):
        ...
    fvnce.app.runs.RunError: nowhere is no run folder: it does not exist or is a file; ...
    """


class Run:
    """What a folder holds.

    Attributes:
        folder: where it is.
        config: the settings of the training: of ``fvnce fit`` those of ``config.toml``, of ``fvnce.fit`` by name those
            that decide its bits.
        detector: a :class:`fvnce.NoiseContrastiveDetector` or a latent-variable detector, if ``fvnce fit`` trained it.
        objective: in evaluation mode, the best weights if the training was validated, else the newest; None for a
            detector, which is made of several models.

    >>> import tempfile, torch, fvnce
    >>> noise = fvnce.fit_gaussian(torch.eye(4))
    >>> objective = fvnce.SNCE(fvnce.EnergyModel(fvnce.mlp([4, 1]), reference=noise), noise, fvnce.PowerRule(alpha=0))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = fvnce.fit(objective, torch.eye(4), epochs=1, checkpoint_dir=folder)
    ...     run = load(folder)
    >>> type(run.objective).__name__, run.detector, run.history["epoch"]
    ('SNCE', None, [1.0])
    """

    def __init__(
        self,
        folder: Path,
        config: Any,
        *,
        objective: nn.Module | None = None,
        detector: Detector | None = None,
        history: History | list[History] | None = None,
    ) -> None:
        self.folder, self.config = folder, config
        self.objective, self.detector = objective, detector
        self._history = history

    @property
    def history(self) -> History | list[History]:
        """The record of the training; of a detector a list, with one for each of its networks."""
        if self._history is None:
            self._history = _read_history(self.folder / HISTORY)
        return self._history

    def __repr__(self) -> str:
        held = self.detector if self.detector is not None else self.objective
        return f"{type(self).__name__}({str(self.folder)!r}, {type(held).__name__})"


class FittedRun(Run):
    """A run of ``fvnce fit``, which scores rows.

    Attributes:
        layout: what rows look like.
        threshold: the score above which a row is called an outlier.

    >>> import contextlib, io, tempfile
    >>> import numpy as np
    >>> from fvnce.app.commands import app
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/rows.npy", np.random.default_rng(0).normal(size=(60, 2)))
    ...     line = f"fit {folder}/rows.npy --trees 9 --out {folder}/run --quiet"
    ...     with contextlib.redirect_stdout(io.StringIO()):
    ...         _ = app(line.split(), standalone_mode=False)
    ...     run = load(f"{folder}/run")
    >>> run.detector.n_trees, run.detector.predict([[0.0, 0.0]])
    (9, array([1]))
    """

    config: RunSettings
    detector: Detector

    def __init__(
        self,
        folder: Path,
        config: RunSettings,
        detector: Detector,
        layout: Layout,
        history: History | list[History] | None = None,
    ) -> None:
        objective = detector.objective_ if isinstance(detector, LatentDetector) else None
        super().__init__(folder, config, objective=objective, detector=detector, history=history)
        self.layout, self.threshold = layout, -float(detector.offset_)

    @property
    def histories(self) -> dict[str, History]:
        """The history of each training by its name; ratio networks are trained together."""
        if isinstance(self.history, History):
            return {"model": self.history}
        return {f"network {i + 1}": history for i, history in enumerate(self.history)}

    def probability(self, anomaly: Array) -> Array | None:
        """P(outlier | score); None for a latent-variable model, whose threshold is a quantile."""
        detector = self.detector
        return None if isinstance(detector, LatentDetector) else detector.calibration_.probability(anomaly)

    def p_value(self, rows: Any, anomaly: Array) -> Array | None:
        """The conformal p-value of rows whose scores are known; None if training left no rows to measure it by."""
        conformal = self.detector.findings_.conformal
        if conformal is None:
            return None
        # Where the detector itself is measured, rows need not be scored again.
        return conformal.p_value(anomaly) if conformal.model is None else self.detector.p_value(rows)


def load(path: str | Path, *, max_bytes: int | None = None) -> Any:
    """What :func:`fvnce.save`, a detector's ``save`` or a training wrote. Nothing is unpickled.

    Args:
        path: a file, for the module or the detector in it, in evaluation mode; or the folder that ``fvnce fit --out``
            or ``fvnce.fit(checkpoint_dir=…)`` wrote, for a :class:`Run` with ``objective`` or ``detector``, ``history``
            and ``config``.
        max_bytes: what a file may make its reader allocate beyond what it holds, by default four times that and 64 MiB:
            a few bytes can name a layer of any size.

    Raises:
        RecordError: if a file is damaged, of another version, or asks for more than ``max_bytes``.
        RunError: if the folder of ``fvnce fit`` is not whole.

    >>> import tempfile, torch, fvnce
    >>> model = fvnce.LatentVariableModel(
    ...     torch.distributions.Independent(torch.distributions.Normal(torch.zeros(1), torch.ones(1)), 1),
    ...     fvnce.GaussianDecoder(fvnce.mlp([1, 2]), learned="shared"),
    ... )
    >>> objective = fvnce.VAE(model, fvnce.GaussianEncoder(fvnce.mlp([2, 2])))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     history = fvnce.fit(objective, torch.zeros(8, 2), epochs=2, checkpoint_dir=folder, seed=3)
    ...     run = load(folder)
    >>> type(run.objective).__name__, run.history["epoch"], run.config["seed"]
    ('VAE', [1.0, 2.0], 3)
    """
    place = Path(path)
    if (place / RECORD).is_file():
        return load_run(place)
    if place.is_dir():
        return _load_checkpoints(place, max_bytes)
    for detector in (NoiseContrastiveDetector, LatentDetector):
        if kind_of(place) == detector.KIND:
            return detector.load(place, **({} if max_bytes is None else {"max_bytes": max_bytes}))
    return training.load(place, max_bytes=max_bytes)


def load_run(folder: Path) -> FittedRun:
    """Read the folder of ``fvnce fit``; what is missing or damaged is named."""
    if not folder.is_dir():
        raise RunError(
            f"{folder} is no run folder: it does not exist or is a file; make one with fvnce fit DATA --out {folder}"
        )
    for name in (RECORD, "config.toml", MODEL):
        if not (folder / name).is_file():
            raise RunError(f"{folder} is no whole run: {name} is missing; make it again with fvnce fit")
    config = read_config(folder / "config.toml")
    record = read_run_record(folder / RECORD)
    check_config(folder, record)
    shape = record["layout"]["shape"]
    path = folder / MODEL
    kind = NoiseContrastiveDetector if config.kind == "detector" else LatentDetector
    try:
        detector = kind.load(path)
        kinds = record["layout"]["kinds"]
        layout = Layout(None if kinds is None else _readings(detector, kinds), shape and tuple(shape))
        return FittedRun(folder, config, detector, layout)
    except ValueError as error:
        raise RunError(f"{error}; make the run again with fvnce fit") from None
    except (LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise RunError(
            f"{path} is damaged ({type(error).__name__}: {' '.join(str(error).split())[:200]}); make the run again "
            "with fvnce fit"
        ) from error


def _readings(detector: Detector, kinds: dict[str, str]) -> dict[str, Reading]:
    """How each column of a run is read: what its model says, which is of these columns or of another run."""
    names = getattr(detector, "feature_names_in_", np.empty(0)).tolist()
    readings = getattr(detector.preprocessor_, "readings", None)
    if readings is None or names != list(kinds):
        raise RecordError(f"the columns of the record and of the model differ: {list(kinds)[:5]} and {names[:5]}")
    return {name: replace(reading, codes=None) for name, reading in zip(names, readings, strict=True)}


def damaged(path: Path, error: Exception) -> RunError:
    """The error for a file of a run that is not what a run writes."""
    said = "its lists are nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
    return RunError(f"{path} is damaged; make the run again with fvnce fit ({said[:200]})")


def read_run_record(path: Path) -> dict[str, Any]:
    """What ``run.json`` holds, after every entry was looked at."""
    try:
        record = read_document(path, "run")
        check_run_record(record)
        with reading(path):
            fields(record["layout"], f"the layout of {path}", "kinds", "shape")
            _ = record["config_sha256"]
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


def check_run_record(content: Any) -> None:
    """Refuse a ``run.json`` that no run wrote, with a sentence that names the entry."""
    _RECORD(content, "")
    layout = content["layout"]
    if (layout["kinds"] is None) == (layout["shape"] is None):
        raise shapes.ShapeError("layout must have either kinds or shape")


def _load_checkpoints(folder: Path, max_bytes: int | None) -> Run:
    objective = training.load(Checkpoints(folder).weights(), max_bytes=max_bytes)
    latest = Checkpoints(folder).latest()
    if latest is None:
        raise FileNotFoundError(f"{folder} must hold a run, found no checkpoint in it; load its weights file instead")
    state, _ = read_checkpoint(latest)
    history = History()
    with reading(latest):
        history.load_state_dict(state["history"])
        return Run(folder, dict(state["settings"]), objective=objective, history=history)


def _read_history(path: Path) -> History | list[History]:
    try:
        content = read_document(path, "history")
        with reading(path):
            histories = [_history(told) for told in content.values()]
    except FileNotFoundError:
        raise RunError(f"{path.parent} is no whole run: {path.name} is missing; make it again with fvnce fit") from None
    except RecordError as error:
        raise RunError(f"{error}; make the run again with fvnce fit") from None
    return histories[0] if list(content) == ["model"] else histories


def _history(told: dict[str, Any]) -> History:
    """What :meth:`fvnce.History.to_json` told."""
    history = History()
    for table, columns in ((history.steps, told["steps"]), (history.epochs, told["epochs"])):
        for row in zip(*columns.values(), strict=True):
            table.add(**{name: math.nan if value is None else value for name, value in zip(columns, row, strict=True)})
    history.notes.update(told["notes"])
    return history


_RECORD = shapes.record(
    {
        "kind": shapes.matching("detector|latent", "'detector' or 'latent'"),
        "rows": shapes.integer(),
        "known": shapes.integer(),
        "frame": shapes.instance(bool, "true or false"),
        "layout": shapes.record(
            {
                "kinds": shapes.or_none(shapes.by_name(shapes.matching("|".join(KINDS), "a kind of column"))),
                "shape": shapes.or_none(shapes.list_of(shapes.integer(1), low=1)),
            }
        ),
        "versions": shapes.by_name(shapes.text),
        "made": shapes.text,
    },
    {"name": shapes.text, "notices": shapes.names, "members": shapes.names, "seconds": shapes.by_name(shapes.reported)},
)
