"""TOML, written. The standard library reads it and does not write it; settings need tables of plain values only."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def to_toml(content: Mapping[str, Mapping[str, Any]], comment: str = "") -> str:
    """Tables of booleans, numbers, strings and lists of these; None is left out, which TOML cannot say.

    >>> print(to_toml({"run": {"seed": 0, "rule": "power(1/64)", "hidden": [64, 64], "label": None}}))
    [run]
    seed = 0
    rule = "power(1/64)"
    hidden = [64, 64]
    <BLANKLINE>
    """
    lines = [f"# {line}" for line in comment.splitlines()]
    for name, table in content.items():
        lines += ["", f"[{_key(name)}]"] if lines else [f"[{_key(name)}]"]
        lines += [f"{_key(key)} = {_value(key, value)}" for key, value in table.items() if value is not None]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    plain = name and all(c.isascii() and (c.isalnum() or c in "-_") for c in name)
    return name if plain else _string(name)


def _value(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(key, item) for item in value) + "]"
    raise TypeError(f"{key} must be a boolean, a number, a string or a list of these, found {type(value).__name__}")


def _string(text: str) -> str:
    # JSON's escapes are TOML's, but for DEL and characters beyond 16 bits, which TOML takes as they are.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
