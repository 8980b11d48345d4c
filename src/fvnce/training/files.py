"""``save`` and ``load``: an objective or a model in a file, restored without the code that trained it.

The folder of a run holds ``objective.safetensors``, the whole objective as it was at the start with its noise, and then
only weights: ``best.safetensors`` and the checkpoints. ``load`` takes any of these files, or the folder.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from ..serialization.records import RecordError, kind_of, read_record, write_record
from . import registry
from .checkpoint import KIND, Checkpoints, read_checkpoint

OBJECTIVE_NAME = "objective.safetensors"
BEST_NAME = "best.safetensors"


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
    content, tensors = registry.describe(objective)
    write_record(Path(path), "objective", {"module": content}, tensors)
    return Path(path)


def load(path: str | Path) -> nn.Module:
    """The module that :func:`save` wrote, or the objective of a run, in evaluation mode. Nothing is unpickled.

    Args:
        path: a file of :func:`save`; a checkpoint or the best weights of a run; or a run's folder, of which the best
            weights are taken if it was validated, else the newest.
    """
    place = Path(path)
    if place.is_dir():
        place = _of_run(place)
    kind = kind_of(place)
    if kind == "objective":
        content, tensors = read_record(place, "objective")
        return registry.rebuild(content["module"], tensors)
    whole = place.with_name(OBJECTIVE_NAME)
    if not whole.is_file():
        raise RecordError(
            f"{place} holds weights of an objective that is not made of built-in parts; build it and call load_weights"
        )
    return load_weights(place, load(whole))


def load_weights(path: str | Path, module: nn.Module) -> nn.Module:
    """Put the weights of a checkpoint, or the best weights of a run, into a module of the same shape."""
    module.load_state_dict(_weights(Path(path)))
    return module


def save_weights(path: Path, module: nn.Module) -> None:
    """Write the state of a module, of whatever class."""
    write_record(path, "weights", {"class": type(module).__name__}, module.state_dict())


def _weights(path: Path) -> dict[str, Tensor]:
    kind = kind_of(path)
    if kind == KIND:
        state, _ = read_checkpoint(path)
        weights: dict[str, Tensor] = state["objective"]
        return weights
    return read_record(path, "weights")[1]


def _of_run(folder: Path) -> Path:
    best = folder / BEST_NAME
    if best.is_file():
        return best
    latest = Checkpoints(folder).latest()
    if latest is None:
        raise FileNotFoundError(f"{folder} must hold a run, found neither {BEST_NAME} nor a checkpoint in it")
    return latest
