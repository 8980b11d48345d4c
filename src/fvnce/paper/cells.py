"""Finished parts of an experiment, kept on disk so that a run can be stopped, resumed, and extended by more seeds."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .._version import __version__
from ..serialization import write_text


class Cells:
    """A folder of JSON files, one for each finished cell. A cell made under other settings is made anew."""

    def __init__(self, folder: Path, settings: Mapping[str, object]) -> None:
        self.folder = folder
        text = json.dumps(settings, sort_keys=True, default=str)
        self.settings = json.loads(text)
        self.key = hashlib.sha256(text.encode()).hexdigest()[:12]

    def path(self, name: str, suffix: str = ".json") -> Path:
        """Where a cell is, or a file beside it."""
        return self.folder / f"{name}-{self.key}{suffix}"

    def read(self, name: str) -> dict[str, Any]:
        """A cell that is on disk."""
        content: dict[str, Any] = json.loads(self.path(name).read_text())
        return content

    def get(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The cell of this name, from disk if it is there, else made and kept."""
        path = self.path(name)
        if path.exists():
            return self.read(name)
        content = make() | {"settings": self.settings, "version": __version__}
        write_json(path, content)
        return content


def write_json(path: Path, content: object) -> Path:
    """Write a JSON file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return path


def made_by(command: str) -> dict[str, Any]:
    """What every file of results begins with."""
    return {"command": command, "version": __version__, "torch": torch.__version__}


def measured(cell: Mapping[str, Any]) -> dict[str, Any]:
    """A cell without what is the same in all of them."""
    return {name: value for name, value in cell.items() if name not in ("settings", "version")}


def mean_and_error(values: Sequence[float], digits: int = 0) -> str:
    """Mean ± standard error, the error with a digit more than whole numbers have; of one value, that value.

    >>> mean_and_error([1.0, 3.0]), mean_and_error([1.0, 3.0], 2), mean_and_error([2.0])
    ('2 ± 1.0', '2.00 ± 1.00', '2')
    """
    mean = f"{statistics.fmean(values):.{digits}f}"
    if len(values) < 2:
        return mean
    return f"{mean} ± {statistics.stdev(values) / math.sqrt(len(values)):.{max(digits, 1)}f}"
