"""The files of a run, and ``save`` and ``load`` of an objective or a model without the code that trained it.

The folder of a run holds ``objective.safetensors``, the whole objective as it was at the start with its noise, and then
only weights: ``best.safetensors`` and the checkpoints, ``step-000000120.safetensors``. ``load`` takes any of these
files; ``fvnce.load`` opens the folder.

A checkpoint holds all that the next step depends on, of every process, and is written by the main process, atomically
and with a checksum (see ``io``).

Weights alone do not show what they were trained for. So a checkpoint also holds the settings of the training and facts
about the objective, by name, and is refused if they are of another run: the objective's description, as a file would
hold it (``io.describe``), with tensors as digests, and the values of small buffers, which are settings or state. A part
that cannot be described, of a user's class, is known by its class, the shapes of its parameters and its public
attributes. What training itself changes, such as a counter, is not compared.
"""

from __future__ import annotations

import hashlib
import platform
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

# Objectives are made of the classes that these rooms register.
from .. import models, noise, objectives, scoring  # noqa: F401
from .._version import __version__
from ..io import (
    FileError,
    describe,
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
from .ddp import first_failure, on_main

if TYPE_CHECKING:
    from lightning_fabric import Fabric

OBJECTIVE_NAME = "objective.safetensors"
BEST_NAME = "best.safetensors"
#: Ends the names of checkpoints that could not be read when a run was resumed.
UNREADABLE = ".unreadable"
_KIND = "checkpoint"
_NAME = re.compile(r"step-(\d+)\.safetensors")
#: Numbers of the largest buffer that is compared.
_LARGEST_VALUE = 2**14
_LONGEST = 100
#: Attributes by which torch's distributions hold others.
_INNER = ("base_dist", "component_distribution", "mixture_distribution")
_PLAIN = (type(None), bool, int, float, complex, str)

Facts = dict[str, dict[str, Any]]


def save(path: str | Path, objective: nn.Module) -> Path:
    """Write an objective, a model or a network made of built-in parts to one file, atomically.

    Args:
        path: the file to write.
        objective: the objective, model or network.

    Raises:
        TypeError: if a part is of a class that :func:`fvnce.load` could not rebuild; the part is named. Its weights can
            be kept with ``safetensors.torch.save_model``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = save(f"{folder}/network.safetensors", nn.Sequential(nn.Linear(2, 3), nn.Tanh()))
    ...     load_module(path)
    Sequential(
      (0): Linear(in_features=2, out_features=3, bias=True)
      (1): Tanh()
    )
    """
    content, tensors = describe(objective)
    write_record(Path(path), "objective", {"module": content}, tensors)
    return Path(path)


def load_module(path: str | Path, *, max_bytes: int | None = None) -> nn.Module:
    """Return the module that :func:`save` wrote, or the objective of a run, in evaluation mode. Nothing is unpickled.

    Args:
        path: a file of :func:`save`, or a checkpoint or the best weights of a run. The folder of a run, which holds
            more than an objective, is opened by :func:`fvnce.load`.
        max_bytes: how much the tensors in a file may take, by default any number of bytes.

    Raises:
        FileError: if the file is damaged, of another version, or holds more than ``max_bytes``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     load_module(save(f"{folder}/network.safetensors", nn.Linear(2, 3))).training
    False
    """
    place = Path(path)
    if place.is_dir():
        raise IsADirectoryError(f"path must be a file, found the folder {place}; open it with fvnce.load")
    if kind_of(place) == "objective":
        content, tensors = read_record(place, "objective")
        (module,) = fields(content, str(place), "module")
        return rebuild(module, tensors, what=place, max_bytes=max_bytes)
    whole = place.with_name(OBJECTIVE_NAME)
    if not whole.is_file():
        raise FileError(f"{place} holds only weights, of a user's classes; build the module and call load_weights")
    return load_weights(place, load_module(whole, max_bytes=max_bytes))


def load_weights(path: str | Path, module: nn.Module) -> nn.Module:
    """Put the weights of a checkpoint, or the best weights of a run, into a module of the same shape.

    Args:
        path: a checkpoint, a file of weights, or the folder of a run.
        module: what takes the weights, in place.

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
    """Write the state of a module of any class."""
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
        """Make the folder, remove what killed processes left, and refuse checkpoints unless they are resumed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        sweep(self.folder)
        latest = self.latest()
        if latest is None:  # other files are of a run that ended before its first checkpoint
            (self.folder / BEST_NAME).unlink(missing_ok=True)
            (self.folder / OBJECTIVE_NAME).unlink(missing_ok=True)
        elif not resumes:
            raise FileExistsError(
                f"checkpoint_dir must hold no checkpoint, found {latest}; pass resume=True to continue"
            )

    def locked(self) -> AbstractContextManager[None]:
        """Hold the lock of the folder, which only one writer can."""
        return locked(self.folder / ".lock", self.folder)

    def path(self, step: int) -> Path:
        """Return the file of a step."""
        return self.folder / f"step-{step:09d}.safetensors"

    def steps(self) -> list[int]:
        """Return the steps of the checkpoints in the folder, ascending."""
        names = (_NAME.fullmatch(path.name) for path in self.folder.glob("step-*.safetensors"))
        return sorted(int(name.group(1)) for name in names if name)

    def latest(self) -> Path | None:
        """Return the newest checkpoint, if there is one."""
        steps = self.steps()
        return self.path(steps[-1]) if steps else None

    def weights(self) -> Path:
        """Return the file with the best weights if the run was validated, else the newest checkpoint."""
        best = self.folder / BEST_NAME
        path = best if best.is_file() else self.latest()
        if path is None:
            raise FileNotFoundError(f"{self.folder} must hold a run, found neither {BEST_NAME} nor a checkpoint in it")
        return path

    def set_aside(self, steps: list[int]) -> None:
        """Rename checkpoints that cannot be read."""
        for path in map(self.path, steps):
            path.replace(path.with_name(f"{path.name}{UNREADABLE}"))

    def write(self, step: int, state: Mapping[str, Any], rank_state: Mapping[str, Any], fabric: Fabric) -> None:
        """Write a checkpoint, and remove older ones than the ``keep`` newest.

        Args:
            step: steps done.
            state: the state of the training, the same on every process.
            rank_state: the state of this process.
            fabric: the processes.
        """
        content, tensors = flatten(rank_state)
        states: list[Any] = [unflatten(content, {name: value.cpu() for name, value in tensors.items()})]
        if fabric.world_size > 1:
            mine, states = states[0], [None] * fabric.world_size
            torch.distributed.gather_object(mine, states if fabric.is_global_zero else None)
        if not fabric.is_global_zero:
            return
        content, tensors = flatten({**state, "rank_states": {str(rank): each for rank, each in enumerate(states)}})
        write_record(self.path(step), _KIND, {"state": content, "versions": versions()}, tensors)
        # Later ones, of a run that was resumed at an earlier step, do not count: this one must be among the kept.
        for old in [old for old in self.steps() if old <= step][: -self.keep]:
            self.path(old).unlink(missing_ok=True)


def read_checkpoint(path: Path, rank: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (state, state of one process) of a checkpoint, after all checksums have been compared."""
    content, tensors = read_record(path, _KIND)
    content.pop("parts", None)  # in version 0.2.0
    saved, written_with = fields(content, str(path), "state", "versions")
    with reading(path):
        now = versions()
        changed = [f"{name} {old} → {now[name]}" for name, old in written_with.items() if now.get(name, old) != old]
        state = unflatten(saved, tensors)
        rank_states = {"0": state.pop("own")} if "own" in state else state.pop("rank_states")  # "own" in version 0.2.0
        if str(rank) not in rank_states:
            raise FileError(f"{path} was written by {len(rank_states)} processes; this is process {rank}")
    if changed:
        text = f"{path.name} was written with other versions ({', '.join(changed)}): last bits of results may differ"
        warnings.warn(text, stacklevel=2)
    return state, rank_states[str(rank)]


def versions() -> dict[str, str]:
    """Return the versions of the packages on which the last bits of a run depend."""
    packages = ("torch", "numpy", "lightning-fabric", "safetensors")
    return {"python": platform.python_version(), "fvnce": __version__, **{name: version(name) for name in packages}}


def states_of(parts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the states of parts, without functions, which the settings give again and a file cannot hold."""
    states = {name: part.state_dict() for name, part in parts.items() if part is not None}
    return {name: {k: v for k, v in state.items() if not callable(v)} for name, state in states.items()}


def restore_states(parts: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    """Put parts into the states of :func:`states_of`."""
    for name, part in parts.items():
        if part is not None:
            part.load_state_dict(states[name])


def find_checkpoint(
    checkpoints: Checkpoints | None, resume: bool | str | Path, fabric: Fabric
) -> tuple[Path, dict[str, Any], dict[str, Any]] | None:
    """Return (path, state, state of this process) of the checkpoint to continue from, or None to start.

    Args:
        checkpoints: the folder of the run.
        resume: False to start, a path, or True for the newest checkpoint that can be read; newer ones that cannot are
            renamed, with a warning.
        fabric: the processes, which must all be able to read their part.
    """
    if resume is not True:
        return (Path(resume), *read_checkpoint(Path(resume), fabric.global_rank)) if resume else None
    assert checkpoints is not None
    unreadable: dict[int, Exception] = {}
    for step in reversed(checkpoints.steps()):
        path = checkpoints.path(step)
        failure: Exception | None = None
        try:
            state, rank_state = read_checkpoint(path, fabric.global_rank)
        except (FileError, FileNotFoundError) as error:
            failure = error
        failure = first_failure(fabric, failure)
        if failure is None:
            if unreadable:
                reasons = "; ".join(map(str, unreadable.values()))
                text = f"{reasons}; the run goes on from {path.name}, what cannot be read is kept as *{UNREADABLE}"
                warnings.warn(text, stacklevel=5)
                on_main(fabric, lambda: checkpoints.set_aside(list(unreadable)))
            return path, state, rank_state
        unreadable[step] = failure
    for failure in unreadable.values():
        raise failure  # that of the newest
    return None


def check_same_run(path: Path, state: Mapping[str, Any], settings: Mapping[str, Any], facts: Facts) -> None:
    """Raise a ValueError that says what differs if a checkpoint is of other settings or of another objective."""
    remedy = "or call fvnce.training.load_weights(path, objective) and fit into another folder"
    if "facts" not in state:
        raise ValueError(f"{path} is of an earlier version of fvnce; finish the run with that version, {remedy}")
    with reading(path):
        # A setting that only one of the two knows is not compared.
        changes = _changes(state["settings"], settings, state["settings"].keys() & settings.keys())
        before, now = state["facts"]["structure"], facts["structure"]
        refitted = state["noise"] is not None  # and stored, so the noise of the start does not matter
        names = {name for name in before.keys() | now.keys() if not (refitted and name.split(".")[0] == "noise")}
        changes += _changes(before, now, names)
        if not changes:
            changes = _changes(state["facts"]["values"], facts["values"], state["facts"]["values"].keys())
    if changes:
        more = f"; and {len(changes) - 3} more" if len(changes) > 3 else ""
        raise ValueError(f"{path} is of another run: {'; '.join(changes[:3])}{more}; pass what that run had, {remedy}")


def _changes(before: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Return what differs in words, the whole before its parts, and last what only one of the two has."""
    changed = [name for name in names if before.get(name) != now.get(name)]
    changed.sort(key=lambda name: (name != "objective", name not in before or name not in now, name.count("."), name))
    return [
        f"{name} was {str(before.get(name, 'absent'))[:_LONGEST]}, is {str(now.get(name, 'absent'))[:_LONGEST]}"
        for name in changed
    ]


def objective_facts(objective: nn.Module) -> Facts:
    """Return facts about an objective by name, as text that is the same in every process.

    >>> facts = objective_facts(nn.Sequential(nn.Linear(2, 3)))
    >>> facts["structure"]["0.out_features"], facts["values"]["0.weight"]
    ('3', 'a parameter (3, 2) torch.float32')
    """
    return {"structure": dict(_structure(objective, "")), "values": current_values(objective)}


def current_values(objective: nn.Module) -> dict[str, str]:
    """Return the shapes of parameters, and small buffers and public attributes, some of which training changes."""
    values = {name: f"a parameter {tuple(p.shape)} {p.dtype}" for name, p in objective.named_parameters()}
    for path, module in objective.named_modules():
        fixed = [(name, value) for name, value in module.named_parameters(recurse=False) if not value.requires_grad]
        public = [] if type(module).__module__.startswith("torch.") else _public(module).items()
        for name, value in (*module.named_buffers(recurse=False), *fixed, *public):
            if isinstance(value, _PLAIN) or (isinstance(value, Tensor) and value.numel() <= _LARGEST_VALUE):
                values[_join(path, name)] = _text(value)
    return values


def _structure(value: object, path: str) -> Iterator[tuple[str, str]]:
    try:
        described = unflatten(*describe(value))["structure"]
    except (TypeError, ValueError):  # it is of a class that cannot be described, or holds one
        layer = isinstance(value, nn.Module) and type(value).__module__.startswith("torch.")
        yield path or "objective", f"torch.{value!r}" if layer else type(value).__qualname__
        parts: dict[str, Any] = {}
        if isinstance(value, nn.Module):
            parts = {name: part for name, part in _public(value).items() if not isinstance(part, (*_PLAIN, Tensor))}
            parts |= dict(value.named_children())
        elif isinstance(value, Distribution):
            arguments = getattr(type(value), "arg_constraints", ())
            parts = {name: getattr(value, name, None) for name in (*arguments, *_INNER)}
        for name, part in parts.items():
            yield from _structure(part, _join(path, name))
    else:
        yield from _leaves(described, path)


def _leaves(described: object, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(described, Mapping):
        for key, item in described.items():
            if key != "$id" or "$kind" not in described:  # the number of an object says nothing, a reference to it does
                yield from _leaves(item, path if key.startswith("$") else _join(path, key))
    elif isinstance(described, tuple | list):
        for position, item in enumerate(described):
            yield from _leaves(item, _join(path, str(position)))
    else:
        yield path or "objective", _text(described)


def _public(module: nn.Module) -> dict[str, Any]:
    inherited = vars(nn.Module())
    return {name: value for name, value in vars(module).items() if not (name.startswith("_") or name in inherited)}


def _join(path: str, name: str) -> str:
    name = name.lstrip("_")
    return f"{path}.{name}" if path else name


def _text(value: object) -> str:
    if not isinstance(value, Tensor):
        return value if isinstance(value, str) else repr(value)
    if value.numel() == 1:
        return repr(value.item())
    data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return f"a tensor {tuple(value.shape)} with SHA-256 {hashlib.sha256(data).hexdigest()[:12]}"
