"""Runs: folders that training wrote, whichever way the model was trained.

``fvnce fit --out`` writes a detector, its settings and a page; ``fvnce.fit(checkpoint_dir=…)`` writes an objective and
checkpoints. :func:`load` opens both.

==================  ===============================================================
``settings``        what a run is made from; ``config.toml``
``training_data``   files as training rows and known outliers
``fitting``         fit: from settings to a folder
``scoring``         score: from a file to scores, in parts
``evaluation``      evaluate: how well labelled outliers are found
``review``          rows to look at, as sheets, and their verdicts
==================  ===============================================================
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...detection.batch_scorer import LATENT, MODEL
from ...detection.fitted import FittedEnsemble
from ...detection.preprocessing import TablePreprocessor
from ...io import FileError, kind_of, reading
from .settings import CONFIG, RunSettings, read_config
from .training_data import Layout

if TYPE_CHECKING:
    from torch import nn

__all__ = ["FittedRun", "Run", "load"]

Array = NDArray[np.float64]


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class Run:
    """What the folder of a run holds.

    Attributes:
        folder: where it is.
        config: the settings of the training: of ``fvnce fit`` those of ``config.toml``; of ``fvnce.fit`` those that
            decide its bits, by name.
        detector: the :class:`fvnce.NoiseContrastiveDetector` that ``fvnce fit`` trained; None for an objective.
        objective: in evaluation mode, the best weights if the training was validated, else the newest; None for a
            detector, which is made of several models.
        history: the record of the training; for a detector a list, with one entry for each of its networks.

    >>> import tempfile, torch, fvnce
    >>> noise = fvnce.fit_gaussian(torch.eye(4))
    >>> objective = fvnce.NCE(fvnce.EnergyModel(fvnce.mlp([4, 1]), reference=noise), noise, fvnce.PowerRule(alpha=0))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = fvnce.fit(objective, torch.eye(4), epochs=1, checkpoint_dir=folder)
    ...     run = load(folder)
    >>> type(run.objective).__name__, run.detector, run.history["epoch"]
    ('NCE', None, [1.0])
    """

    folder: Path
    config: Any
    history: Any
    objective: nn.Module | None = None
    detector: FittedEnsemble | None = None

    def __repr__(self) -> str:
        held = self.detector if self.detector is not None else self.objective
        return f"{type(self).__name__}({str(self.folder)!r}, {type(held).__name__})"


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class FittedRun(Run):
    """A run of ``fvnce fit``, which scores rows.

    Attributes:
        folder: where it is.
        config: the settings of the training, those of ``config.toml``.
        detector: the detector that it trained.
        objective: None.
        history: the records of the training of its networks.
        layout: what rows look like.
        threshold: the score above which a row is called an outlier.

    >>> import contextlib, io, tempfile
    >>> import numpy as np
    >>> from fvnce.app.cli import app
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
    detector: FittedEnsemble
    layout: Layout

    @property
    def threshold(self) -> float:
        """The score above which a row is flagged."""
        return -float(self.detector.offset_)

    def p_value(self, rows: Any, anomaly: Array) -> Array | None:
        """Return the conformal p-values of scored rows; None if training left no rows to measure them by.

        Args:
            rows: new rows.
            anomaly: their scores.
        """
        conformal = self.detector.findings_.conformal
        if conformal is None:
            return None
        # Where the detector itself is measured, rows need not be scored again.
        return conformal.p_value(anomaly) if conformal.model is None else self.detector.p_value(rows)


def load(path: str | Path, *, max_bytes: int | None = None) -> Any:
    """Open what :func:`fvnce.save`, a detector's ``save`` or a training wrote. Nothing is unpickled.

    Args:
        path: a file, for the module or the detector in it, in evaluation mode; or the folder that ``fvnce fit --out``
            or ``fvnce.fit(checkpoint_dir=…)`` wrote, for a :class:`Run` with ``objective`` or ``detector``, ``history``
            and ``config``.
        max_bytes: how much the tensors in a file may take, by default any number of bytes.

    Raises:
        FileError: if a file is damaged, of another version, or holds more than ``max_bytes``, or if a file of the
            folder is missing.

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
    from ... import training
    from ...detection import LatentDetector, NoiseContrastiveDetector

    place = Path(path)
    if any((place / name).is_file() for name in (MODEL, CONFIG)):
        return load_run(place, NoiseContrastiveDetector)
    if place.is_dir():
        return _load_checkpoints(place, max_bytes)
    classes: dict[str, Any] = {FittedEnsemble.KIND: NoiseContrastiveDetector, LATENT: LatentDetector}
    if detector := classes.get(kind_of(place)):
        return detector.load(place, **({} if max_bytes is None else {"max_bytes": max_bytes}))
    return training.load_module(place, max_bytes=max_bytes)


def load_run(folder: Path, kind: type[FittedEnsemble] = FittedEnsemble) -> FittedRun:
    """Open the folder of ``fvnce fit``, or raise FileError that names what is missing or damaged.

    Args:
        folder: that ``fvnce fit --out`` wrote.
        kind: the class of its detector; by default what scores without torch, and has no history of training.
    """
    if not folder.is_dir():
        raise FileError(
            f"{folder} is no run folder: it does not exist or is a file; make one with fvnce fit DATA --out {folder}"
        )
    for name in (CONFIG, MODEL):
        if not (folder / name).is_file():
            raise FileError(f"{folder} is no whole run: {name} is missing; make it again with fvnce fit")
    config = read_config(folder / CONFIG)
    try:
        with reading(folder / MODEL):
            detector = kind.load(folder / MODEL)
            history, layout = list(getattr(detector, "history_", [])), _layout(detector)
            return FittedRun(folder=folder, config=config, history=history, detector=detector, layout=layout)
    except FileError as error:
        raise FileError(f"{error}; make the run again with fvnce fit") from None


def _layout(detector: FittedEnsemble) -> Layout:
    """Return what rows look like: named columns as the model reads them, or arrays of one shape."""
    preprocessor = detector.preprocessor_
    if not isinstance(preprocessor, TablePreprocessor):
        return Layout(None, preprocessor.shape)
    if preprocessor.readings is None:
        return Layout(None, (detector.n_features_in_,))
    columns = zip(detector.feature_names_in_.tolist(), preprocessor.readings, strict=True)
    return Layout({name: replace(column, codes=None) for name, column in columns}, None)


def _load_checkpoints(folder: Path, max_bytes: int | None) -> Run:
    from ... import training
    from ...training.checkpoint import Checkpoints, read_checkpoint

    objective = training.load_module(Checkpoints(folder).weights(), max_bytes=max_bytes)
    latest = Checkpoints(folder).latest()
    if latest is None:
        raise FileNotFoundError(f"{folder} must hold a run, found no checkpoint in it; load its weights file instead")
    state, _ = read_checkpoint(latest)
    history = training.History()
    with reading(latest):
        history.load_state_dict(state["history"])
        return Run(folder=folder, config=dict(state["settings"]), history=history, objective=objective)
