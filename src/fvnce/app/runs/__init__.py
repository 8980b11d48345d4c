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

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ... import training
from ...detection import LatentDetector, NoiseContrastiveDetector
from ...detection.batch_scorer import MODEL
from ...detection.preprocessing import TablePreprocessor
from ...serialization import RecordError, kind_of, read_document, reading
from ...training import History
from ...training.checkpoint import Checkpoints, read_checkpoint
from .settings import RunSettings, read_config
from .training_data import Layout

Array = NDArray[np.float64]
RECORD = "run.json"
HISTORY = "history.json"


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
        detector: the :class:`fvnce.NoiseContrastiveDetector` that ``fvnce fit`` trained; None for an objective.
        objective: in evaluation mode, the best weights if the training was validated, else the newest; None for a
            detector, which is made of several models.
        history: the record of the training; for a detector a list, with one entry for each of its networks.

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
        detector: NoiseContrastiveDetector | None = None,
        history: History | list[History],
    ) -> None:
        self.folder, self.config = folder, config
        self.objective, self.detector, self.history = objective, detector, history

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
    ...     line = f"fit {folder}/rows.npy --set n_trees=9 --out {folder}/run --quiet"
    ...     with contextlib.redirect_stdout(io.StringIO()):
    ...         _ = app(line.split(), standalone_mode=False)
    ...     run = load(f"{folder}/run")
    >>> run.detector.n_trees, run.detector.predict([[0.0, 0.0]])
    (9, array([1]))
    """

    config: RunSettings
    detector: NoiseContrastiveDetector
    history: list[History]

    def __init__(self, folder: Path, config: RunSettings, detector: NoiseContrastiveDetector, layout: Layout) -> None:
        super().__init__(folder, config, detector=detector, history=list(detector.history_))
        self.layout, self.threshold = layout, -float(detector.offset_)

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
    path = folder / MODEL
    try:
        shape = _row_shape(folder / RECORD)
        detector = NoiseContrastiveDetector.load(path)
        return FittedRun(folder, config, detector, _layout(detector, shape))
    except ValueError as error:
        raise RunError(f"{error}; make the run again with fvnce fit") from None
    except (LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise RunError(
            f"{path} is damaged ({type(error).__name__}: {' '.join(str(error).split())[:200]}); make the run again "
            "with fvnce fit"
        ) from error


def _row_shape(path: Path) -> tuple[int, ...] | None:
    """The shape of one row of an array; None for a table with names."""
    record = read_document(path, "run")
    with reading(path):
        shape = record["layout"]["shape"]
        whole = shape is None or (isinstance(shape, list) and shape and all(type(n) is int and n > 0 for n in shape))
        if not whole:
            raise RecordError(
                f"layout.shape of {path} must be null or a list of positive integers, found {shape!r:.60}"
            )
        return shape and tuple(shape)


def _layout(detector: NoiseContrastiveDetector, shape: tuple[int, ...] | None) -> Layout:
    """What rows look like: as the model read them, or arrays of one shape."""
    if shape is not None:
        return Layout(None, shape)
    how = detector.preprocessor_
    if not isinstance(how, TablePreprocessor) or how.readings is None:
        raise RecordError("the record is of a table and the model is not")
    names = detector.feature_names_in_.tolist()
    return Layout({name: replace(found, codes=None) for name, found in zip(names, how.readings, strict=True)}, None)


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
