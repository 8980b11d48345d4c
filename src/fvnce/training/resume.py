"""Resuming: find a checkpoint that can be read, and refuse it if it is of another run.

Weights do not say what they were trained for. So a checkpoint also holds the settings of the training and facts about
the objective, by name: its description, as a file would hold it (``io.describe``), with tensors as digests, and the
values of small buffers, which are settings or state. A part that cannot be described, of a user's class, is known by
its class, the shapes of its parameters and its public attributes. What training itself changes, such as a counter, is
not compared.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from ..io import FileError, describe, reading, unflatten
from .checkpoint import UNREADABLE, Checkpoints, read_checkpoint
from .ddp import first_failure, on_main

if TYPE_CHECKING:
    from lightning_fabric import Fabric

#: Numbers of the largest buffer that is compared.
_LARGEST_VALUE = 2**14
_LONGEST = 100
#: Attributes by which torch's distributions hold others.
_INNER = ("base_dist", "component_distribution", "mixture_distribution")
_PLAIN = (type(None), bool, int, float, complex, str)

Checkpoint = tuple[Path, dict[str, Any], dict[str, Any]]
Facts = dict[str, dict[str, Any]]


def find_checkpoint(checkpoints: Checkpoints | None, resume: bool | str | Path, fabric: Fabric) -> Checkpoint | None:
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
