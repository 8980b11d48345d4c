"""Runs: folders that training wrote.

``fvnce fit --out`` writes a detector, its settings and a page; ``fvnce.fit(checkpoint_dir=…)`` writes an objective and
checkpoints. :func:`load` opens both kinds.

==================  ===============================================================
``settings``        settings of a run; ``config.toml``
``training_data``   training rows and known outliers read from files
``fitting``         fit: from settings to a folder
``scoring``         score: from a file to scores, in parts
``evaluation``      evaluate: detection quality on labeled rows
``review``          sheets of rows to review, and their verdicts
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
    """Contents of the folder of a run.

    Attributes:
        folder: path of the folder.
        config: settings of the training: those of ``config.toml`` for ``fvnce fit``; for ``fvnce.fit`` a dict of the
            settings that its results depend on.
        detector: the :class:`fvnce.NoiseContrastiveDetector` that ``fvnce fit`` trained; None for an objective.
        objective: the objective in evaluation mode, with the best weights if training was validated, else the newest;
            None for a detector, which consists of several models.
        history: training history; for a detector a list with one entry for each of its networks.

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
    """Run of ``fvnce fit``, with a detector that scores rows.

    Attributes:
        folder: path of the folder.
        config: settings of the training, from ``config.toml``.
        detector: the trained detector.
        objective: None.
        history: training histories of its networks.
        layout: columns or shape of the rows.
        threshold: score above which a row is flagged as an outlier.

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
        """Return the conformal p-values of scored rows; None if training held no rows out for them.

        Args:
            rows: new rows.
            anomaly: their scores.
        """
        conformal = self.detector.findings_.conformal
        if conformal is None:
            return None
        # If the detector itself scored the held-out rows, the given scores can be compared directly.
        return conformal.p_value(anomaly) if conformal.model is None else self.detector.p_value(rows)


def load(path: str | Path, *, max_bytes: int | None = None) -> Any:
    """Load what :func:`fvnce.save`, a detector's ``save`` or a training wrote, without pickle.

    Args:
        path: a file, which gives the module (in evaluation mode) or the detector in it; or the folder that
            ``fvnce fit --out`` or ``fvnce.fit(checkpoint_dir=…)`` wrote, which gives a :class:`Run` with ``objective``
            or ``detector``, ``history`` and ``config``.
        max_bytes: largest total size of the tensors in a file; by default unlimited.

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
    """Open the folder of ``fvnce fit``; raise FileError if a file is missing or damaged.

    Args:
        folder: the folder that ``fvnce fit --out`` wrote.
        kind: class of the detector; the default needs no torch, but has no training history.
    """
    if not folder.is_dir():
        raise FileError(
            f"{folder} is not a run folder: it does not exist or is a file; make one with fvnce fit DATA --out {folder}"
        )
    for name in (CONFIG, MODEL):
        if not (folder / name).is_file():
            raise FileError(f"{folder} is not a complete run: {name} is missing; make it again with fvnce fit")
    config = read_config(folder / CONFIG)
    try:
        with reading(folder / MODEL):
            detector = kind.load(folder / MODEL)
            history, layout = list(getattr(detector, "history_", [])), _layout(detector)
            return FittedRun(folder=folder, config=config, history=history, detector=detector, layout=layout)
    except FileError as error:
        raise FileError(f"{error}; make the run again with fvnce fit") from None


def _layout(detector: FittedEnsemble) -> Layout:
    """Return the layout of the rows: named columns and their types, or the shape of arrays."""
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
