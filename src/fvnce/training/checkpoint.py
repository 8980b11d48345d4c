"""The files of a run, and ``save`` and ``load`` of an objective or a model without the code that trained it.

The folder of a run holds ``objective.safetensors``, the whole objective as it was at the start with its noise, and then
only weights: ``best.safetensors`` and the checkpoints, ``step-000000120.safetensors``. ``load`` takes any of these
files; ``fvnce.load`` opens the folder.

A checkpoint holds all that the next step depends on. Written atomically and checksummed (see ``serialization``);
with several processes each of the others writes a file of its own before the main process writes the one that names
them all.
"""

from __future__ import annotations

import platform
import re
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

# Objectives are made of what these rooms register.
from .. import _random, models, noise, objectives, scoring  # noqa: F401
from ..noise import to_state
from ..serialization import (
    RecordError,
    describe,
    encode,
    fields,
    flatten,
    kind_of,
    locked,
    read_record,
    reading,
    rebuild,
    sweep,
    unflatten,
    write_record,
)
from .distributed import first_failure, on_main

if TYPE_CHECKING:
    from .loop import Run
    from .resume import RunKey

OBJECTIVE_NAME = "objective.safetensors"
BEST_NAME = "best.safetensors"
#: Ends the names of checkpoints that could not be read when a run was resumed.
UNREADABLE = ".unreadable"
_KIND = "checkpoint"
_NAME = re.compile(r"step-(\d+)\.safetensors")


def save(path: str | Path, objective: nn.Module) -> Path:
    """Write an objective, a model or a network made of built-in parts to one file, atomically.

    Raises:
        TypeError: if a part is of a class that :func:`load` could not rebuild; the part is named. Its weights can be
            kept with ``safetensors.torch.save_model``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = save(f"{folder}/network.safetensors", nn.Sequential(nn.Linear(2, 3), nn.Tanh()))
    ...     load(path)
    Sequential(
      (0): Linear(in_features=2, out_features=3, bias=True)
      (1): Tanh()
    )
    """
    content, tensors = describe(objective)
    write_record(Path(path), "objective", {"module": content}, tensors)
    return Path(path)


def load(path: str | Path, *, max_bytes: int | None = None) -> nn.Module:
    """The module that :func:`save` wrote, or the objective of a run, in evaluation mode. Nothing is unpickled.

    Args:
        path: a file of :func:`save`, or a checkpoint or the best weights of a run. A run's folder, which holds more
            than an objective, is opened by :func:`fvnce.load`.
        max_bytes: what a file may make its reader allocate beyond what it holds, by default four times that and 64 MiB:
            a few bytes can name a layer of any size.

    Raises:
        RecordError: if the file is damaged, of another version, or asks for more than ``max_bytes``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     load(save(f"{folder}/network.safetensors", nn.Linear(2, 3))).training
    False
    """
    place = Path(path)
    if place.is_dir():
        raise IsADirectoryError(
            f"path must be a file, found the folder {place}; fvnce.load({str(place)!r}) opens a run"
        )
    if kind_of(place) == "objective":
        content, tensors = read_record(place, "objective")
        (module,) = fields(content, str(place), "module")
        return rebuild(module, tensors, what=place, max_bytes=max_bytes)
    whole = place.with_name(OBJECTIVE_NAME)
    if not whole.is_file():
        raise RecordError(
            f"{place} holds weights of an objective that is not made of built-in parts; build it and call load_weights"
        )
    return load_weights(place, load(whole, max_bytes=max_bytes))


def load_weights(path: str | Path, module: nn.Module) -> nn.Module:
    """Put the weights of a checkpoint, or the best weights of a run, into a module of the same shape.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_weights(Path(folder) / "best.safetensors", nn.Linear(2, 3))
    ...     load_weights(f"{folder}/best.safetensors", nn.Linear(2, 3))
    Linear(in_features=2, out_features=3, bias=True)
    """
    place = Path(path)
    with reading(path):
        if kind_of(place) == _KIND:
            module.load_state_dict(read_checkpoint(place)[0]["objective"])
        else:
            module.load_state_dict(read_record(place, "weights")[1])
    return module


def save_weights(path: Path, module: nn.Module) -> None:
    """Write the state of a module, of whatever class."""
    write_record(path, "weights", {"class": type(module).__name__}, module.state_dict())


class Checkpoints:
    """The checkpoints of one run in one folder.

    Args:
        folder: where they are; made when the first is written.
        keep: how many of the newest are kept.
    """

    def __init__(self, folder: str | Path, keep: int = 2) -> None:
        self.folder = Path(folder)
        self.keep = keep

    def prepare(self, *, resumes: bool) -> None:
        """Make the folder and remove what killed runs left; one that does not resume another finds no checkpoint."""
        self.folder.mkdir(parents=True, exist_ok=True)
        sweep(self.folder)
        latest = self.latest()
        if latest is None:  # what else lies there is of a run that died before its first
            (self.folder / BEST_NAME).unlink(missing_ok=True)
            (self.folder / OBJECTIVE_NAME).unlink(missing_ok=True)
        elif not resumes:
            raise FileExistsError(
                f"checkpoint_dir must be without checkpoints, found {latest}; pass resume=True to continue that run"
            )

    def locked(self) -> AbstractContextManager[None]:
        """Be the only writer."""
        return locked(self.folder / ".lock", self.folder)

    def path(self, step: int, rank: int = 0) -> Path:
        """The file of a step; other ranks have their own."""
        part = f".rank-{rank}" if rank else ""
        return self.folder / f"step-{step:09d}{part}.safetensors"

    def steps(self) -> list[int]:
        """Steps of the checkpoints that are there, ascending."""
        names = (_NAME.fullmatch(path.name) for path in self.folder.glob("step-*.safetensors"))
        return sorted(int(name.group(1)) for name in names if name)

    def latest(self) -> Path | None:
        """The newest checkpoint."""
        steps = self.steps()
        return self.path(steps[-1]) if steps else None

    def weights(self) -> Path:
        """The file with the best weights if the run was validated, else the newest."""
        best = self.folder / BEST_NAME
        found = best if best.is_file() else self.latest()
        if found is None:
            raise FileNotFoundError(f"{self.folder} must hold a run, found neither {BEST_NAME} nor a checkpoint in it")
        return found

    def set_aside(self, steps: list[int]) -> None:
        """Take checkpoints that cannot be read out of the way, parts first; they are kept under other names."""
        for step in steps:
            for path in (*self._parts(step), self.path(step)):
                if path.exists():
                    path.replace(path.with_name(f"{path.name}{UNREADABLE}"))

    def write_rank(self, step: int, rank: int, state: Mapping[str, Any]) -> str:
        """Write what belongs to one of the other processes, and return its checksum."""
        content, tensors = flatten(state)
        return write_record(self.path(step, rank), f"{_KIND}-part", {"state": content}, tensors)

    def write(self, step: int, state: Mapping[str, Any], parts: Mapping[int, str] | None = None) -> Path:
        """Write the main file; afterwards older ones than the ``keep`` newest are removed."""
        content, tensors = flatten(state)
        named = {str(rank): checksum for rank, checksum in (parts or {}).items()}
        path = self.path(step)
        write_record(path, _KIND, {"state": content, "parts": named, "versions": versions()}, tensors)
        # Later ones, of a run that was taken up at an earlier step, do not count: this one must be among the kept.
        for old in [old for old in self.steps() if old <= step][: -self.keep]:
            # The main file goes first: parts without it are litter, it without its parts would be a broken checkpoint.
            for file in (self.path(old), *self._parts(old)):
                file.unlink(missing_ok=True)
        return path

    def _parts(self, step: int) -> list[Path]:
        return list(self.folder.glob(f"step-{step:09d}.rank-*.safetensors"))


class Saver:
    """Writes what a run leaves behind; without a folder, nothing.

    Args:
        run: the run.
        checkpoints: its folder.
        key: what a resumed run must share with it, where there is a folder.
    """

    def __init__(self, run: Run, checkpoints: Checkpoints | None, key: RunKey | None) -> None:
        self.run, self.checkpoints, self.key = run, checkpoints, key
        self._saved_at = -1

    def latest(self) -> Path | None:
        """The newest checkpoint."""
        return None if self.checkpoints is None else self.checkpoints.latest()

    def prepare(self, *, resumes: bool) -> None:
        """Make the folder, and write the objective into it unless it is there."""
        checkpoints = self.checkpoints
        if checkpoints is not None:
            on_main(self.run.fabric, lambda: checkpoints.prepare(resumes=resumes))
            if not (checkpoints.folder / OBJECTIVE_NAME).exists():
                self.write_objective()

    def goes_on_from(self, path: Path) -> None:
        """The run stands where this checkpoint does, which need not be written again if it is the newest."""
        self._saved_at = self.run.step if path == self.latest() else -1

    def save(self, *, final: bool = False) -> None:
        """Write a checkpoint of the run as it stands, unless there is one of this step."""
        run = self.run
        if self.checkpoints is None or self._saved_at == run.step:
            return
        run.recorder.flush()
        # A gradient may turn infinite while the loss does not: such weights are no good checkpoint.
        for name, value in run.objective.named_parameters():
            if not bool(torch.isfinite(value.detach()).all()):
                raise run.failure(None, f"parameter {name} is not finite")
        # Whoever could not write, all know it: else one process would end and another wait for it.
        failure = first_failure(run.fabric, self._try(self._write_checkpoint))
        if failure is None:
            self._saved_at = run.step
        elif final:
            raise failure
        else:
            self._warn(failure)

    def save_best(self) -> None:
        """Write the objective as the best one so far."""
        if self.checkpoints is not None and self.run.is_main:
            path = self.checkpoints.folder / BEST_NAME
            self._warn(self._try(lambda: save_weights(path, self.run.objective)))

    def write_objective(self) -> None:
        """Write the objective as it is, with its noise."""
        if self.checkpoints is not None and self.run.is_main:
            self._warn(self._try(self._write_objective))

    def _try(self, write: Callable[[], object]) -> OSError | None:
        try:
            write()
        except OSError as error:
            return error
        return None

    def _warn(self, failure: Exception | None) -> None:
        """A full disk need not end a run that goes on: it is told of, and tried again later."""
        if failure is not None:
            warnings.warn(
                f"step {self.run.step}: nothing could be saved ({failure}); earlier files are intact", stacklevel=3
            )

    def _write_objective(self) -> None:
        assert self.checkpoints is not None
        path = self.checkpoints.folder / OBJECTIVE_NAME
        try:
            save(path, self.run.objective)
        except TypeError:
            # An objective with parts of the user's own classes cannot be rebuilt from a file; its weights are kept all
            # the same. A file of another run would rebuild another objective.
            path.unlink(missing_ok=True)

    def _write_checkpoint(self) -> None:
        run, checkpoints = self.run, self.checkpoints
        assert checkpoints is not None
        own = {"batches": run.batches.state_dict(), "random": _random.capture(run.device)}
        written = [""] * run.world
        if run.world > 1:
            rank, mine = run.fabric.global_rank, [""]
            failure: Exception | None = None
            if rank:
                failure = self._try(lambda: mine.append(checkpoints.write_rank(run.step, rank, own)))
            failure = first_failure(run.fabric, failure)
            if failure is not None:
                raise failure
            torch.distributed.all_gather_object(written, mine[-1])
        if run.is_main:
            checkpoints.write(run.step, {**self._state(), "own": own}, dict(enumerate(written[1:], 1)))

    def _state(self) -> dict[str, Any]:
        run = self.run
        assert self.key is not None
        scheduler = None
        if run.scheduler is not None:
            # Without what the settings give again and JSON cannot hold.
            scheduler = {name: value for name, value in run.scheduler.state_dict().items() if not callable(value)}
        replaced = None
        if run.noise_since is not None:
            config, tensors = to_state(run.objective.noise)  # type: ignore[arg-type]
            replaced = {"config": encode(config), "tensors": tensors, "since": run.noise_since}
        return {
            **self.key.state(),
            "step": run.step,
            "epoch": run.epoch,
            "position": run.position,
            "stopped": run.stopped,
            "objective": dict(run.objective.state_dict()),
            "optimizer": run.raw_optimizer.state_dict(),
            "scheduler": scheduler,
            "scaler": run.fabric.strategy.precision.state_dict(),
            "history": run.history.state_dict(),
            "callbacks": [callback.state_dict() for callback in run.callbacks],
            "noise": replaced,
        }


def read_checkpoint(path: Path, rank: int = 0) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """(state, state of this process if it is not the main one), after all checksums have been compared."""
    content, tensors = read_record(path, _KIND)
    saved, parts, written_with = fields(content, str(path), "state", "parts", "versions")
    with reading(path):
        _compare_versions(path, written_with)
        state = unflatten(saved, tensors)
    if rank == 0:
        return state, None
    if str(rank) not in parts:
        raise RecordError(f"{path} was written by {len(parts) + 1} processes; this is process {rank}")
    part = path.with_name(path.name.replace(".safetensors", f".rank-{rank}.safetensors"))
    below, inner = read_record(part, f"{_KIND}-part", parts[str(rank)])
    (own,) = fields(below, str(part), "state")
    return state, unflatten(own, inner)


def versions() -> dict[str, str]:
    """Versions of what a run's last bits depend on."""
    found = {"python": platform.python_version()}
    for name in ("fvnce", "torch", "numpy", "lightning-fabric", "safetensors"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _compare_versions(path: Path, saved: Mapping[str, str]) -> None:
    now = versions()
    changed = [f"{name} {saved[name]} → {now[name]}" for name in now if saved.get(name, now[name]) != now[name]]
    if changed:
        warnings.warn(
            f"{path.name} was written with other versions ({', '.join(changed)}): the run continues, but its last bits "
            "may differ from those of a run never interrupted",
            stacklevel=2,
        )
