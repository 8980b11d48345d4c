"""Nested state as JSON and tensors, and back, without pickle.

An optimiser's or a callback's state is a nest of dictionaries, lists, tuples, numbers, text and tensors. JSON takes the
nest with a reference in place of each tensor; the tensors go, by name, into a flat dictionary for safetensors. Floats
survive exactly: JSON writes the shortest decimal that reads back as the same float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .errors import RecordError, shown

_TENSOR, _TUPLE, _PAIRS = "$tensor", "$tuple", "$pairs"
_RESERVED = (_TENSOR, _TUPLE, _PAIRS)


def flatten(value: object, prefix: str = "") -> tuple[Any, dict[str, Tensor]]:
    """(what JSON holds, tensors by name) of a nest.

    >>> import torch
    >>> flatten({"step": 3, "moment": torch.zeros(2)}, "optimizer")
    ({'step': 3, 'moment': {'$tensor': 'optimizer.moment'}}, {'optimizer.moment': tensor([0., 0.])})
    """
    tensors: dict[str, Tensor] = {}
    return _flatten(value, prefix, tensors), tensors


def unflatten(content: object, tensors: Mapping[str, Tensor]) -> Any:
    """The nest that :func:`flatten` took apart.

    >>> import torch
    >>> unflatten(*flatten({0: (1.5, None, torch.ones(1))}))
    {0: (1.5, None, tensor([1.]))}
    """
    if isinstance(content, list):
        return [unflatten(item, tensors) for item in content]
    if not isinstance(content, dict):
        return content
    if _TENSOR in content:
        name = content[_TENSOR]
        if not isinstance(name, str) or name not in tensors:
            raise RecordError(f"state refers to a tensor {shown(name)} that is not stored with it")
        return tensors[name]
    if _TUPLE in content:
        return tuple(unflatten(item, tensors) for item in content[_TUPLE])
    if _PAIRS in content:
        return {key: unflatten(item, tensors) for key, item in content[_PAIRS]}
    return {key: unflatten(item, tensors) for key, item in content.items()}


def _flatten(value: object, path: str, tensors: dict[str, Tensor]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        name = path or "value"
        while name in tensors:  # {"a.b": …} and {"a": {"b": …}} have the same path
            name += "_"
        tensors[name] = value.detach()
        return {_TENSOR: name}
    if isinstance(value, tuple):
        return {_TUPLE: [_flatten(item, _join(path, i), tensors) for i, item in enumerate(value)]}
    if isinstance(value, list):
        return [_flatten(item, _join(path, i), tensors) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        items = [(key, _flatten(item, _join(path, key), tensors)) for key, item in value.items()]
        if all(isinstance(key, str) and key not in _RESERVED for key, _ in items):
            return dict(items)
        for key, _ in items:
            if not isinstance(key, int | float | str):
                raise TypeError(f"keys of {path or 'state'} must be text or numbers, found {key!r}")
        return {_PAIRS: [list(item) for item in items]}
    raise TypeError(
        f"{path or 'state'} must be made of numbers, text, lists, dictionaries and tensors to be stored without "
        f"pickle, found {type(value).__name__}"
    )


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)
