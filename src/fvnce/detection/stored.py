"""Whether what a file holds could have been made by ``fit``: the sentences in which it is refused.

A checksum proves that nobody altered a file, not that its writer was honest. A forged tree can lead back to itself and
a row walk in it for ever; an index can lie outside of its table, a network be one that fills the memory. So every part
of a detector compares its own state with what ``fit`` makes, in its ``from_state``, with these words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..serialization import RecordError

#: The largest file that is read unless told otherwise.
MAX_BYTES = 4 * 2**30


def check_size(path: Path, max_bytes: int) -> None:
    """Refuse a file that is too large before it is read."""
    if path.is_file() and path.stat().st_size > max_bytes:
        raise RecordError(
            f"{path} must have at most {max_bytes:,} bytes, found {path.stat().st_size:,}; if you trust it, raise "
            "max_bytes"
        )


def part_of(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Those whose names begin so, without that beginning.

    >>> part_of({"0.a": torch.ones(1), "1.a": torch.zeros(1)}, "1.")
    {'a': tensor([0.])}
    """
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def require(condition: bool, wanted: str, found: Any, *, of: str = "it") -> None:
    """Refuse what does not meet a condition.

    >>> require(False, "have positive scales", [0.0])
    Traceback (most recent call last):
    fvnce.serialization.records.RecordError: it must have positive scales, found 0.0
    """
    if condition:
        return
    shown = found.tolist() if isinstance(found, np.ndarray) else found
    shown = shown[0] if isinstance(shown, list) and len(shown) == 1 else shown
    raise RecordError(f"{of} must {wanted}, found {str(shown)[:100]}")


def require_number(what: str, value: Any) -> None:
    """Refuse what is no finite number."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    require(good, f"have a finite number as {what}", value)


def require_count(what: str, value: Any, low: int) -> None:
    """Refuse what is no integer from ``low`` on."""
    good = isinstance(value, int) and not isinstance(value, bool) and value >= low
    require(good, f"have an integer >= {low} as {what}", value)


def require_array(what: str, values: NDArray[Any], dtype: type[np.generic], shape: tuple[int, ...]) -> None:
    """Refuse an array of another kind or shape, or with numbers that are not finite."""
    good = isinstance(values, np.ndarray) and values.dtype == dtype and values.shape == shape
    require(good, f"have {what} of shape {shape} in {dtype.__name__}", f"{np.shape(values)} in {values.dtype}")
    require(bool(np.isfinite(values).all()), f"have finite {what}", "NaN or infinity")


def require_lengths(what: str, wanted: int, *lists: Any) -> None:
    """Refuse lists of another length."""
    found = [len(values) for values in lists]
    require(all(length == wanted for length in found), f"have {wanted} of each thing in {what}", found)


def require_standardising(what: str, centres: Sequence[Any], scales: Sequence[Any]) -> None:
    """Refuse centres that are not finite, and scales that are not positive."""
    for value in (*centres, *scales):
        require_number(f"centres and scales of {what}", value)
    require(all(scale > 0 for scale in scales), f"have positive scales of {what}", scales)


def require_weights(what: str, weights: Sequence[Any]) -> None:
    """Refuse weights that are negative or do not sum to one."""
    for value in weights:
        require_number(f"weights of {what}", value)
    good = all(value >= 0 for value in weights) and math.isclose(sum(weights), 1.0, rel_tol=1e-9)
    require(good, f"have weights of {what} with sum one", weights)


def require_network(found: nn.Module, wanted: nn.Module) -> None:
    """Refuse a network of other layers, settings or shapes than are wanted, or with weights that are not finite."""
    pairs = list(zip(found.named_modules(), wanted.named_modules(), strict=False))
    alike = len(list(found.modules())) == len(list(wanted.modules())) and all(
        name == other and type(layer) is type(model) and _settings(layer) == _settings(model)
        for (name, layer), (other, model) in pairs
    )
    require(alike, f"have a network like {type(wanted).__name__} of this detector", _line(found))
    shapes = {name: tuple(value.shape) for name, value in wanted.state_dict().items()}
    require({n: tuple(v.shape) for n, v in found.state_dict().items()} == shapes, "have weights that fit", _line(found))
    for name, value in found.state_dict().items():
        require(bool(torch.isfinite(value).all()), f"have finite weights in {name}", "NaN or infinity")


def _settings(layer: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(layer).items() if not name.startswith("_") and name != "training"}


def _line(module: nn.Module) -> str:
    return " ".join(str(module).split())
