"""Finished parts of an experiment, kept on disk so that a run can be stopped, resumed, and extended by more seeds."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .. import __version__


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

    def get(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The cell of this name, from disk if it is there, else made and kept."""
        path = self.path(name)
        if path.exists():
            content: dict[str, Any] = json.loads(path.read_text())
            return content
        content = make() | {"settings": self.settings, "version": __version__}
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(content, indent=1))
        os.replace(partial, path)
        return content
