"""What a run is made from, and ``config.toml``, from which the same command makes it again.

[run]       seed
[data]      path, outliers, label, mostly_outliers, drop, keep, id, delimiter, header, missing, categorical, array,
            sha256
[detector]  parameters of NoiseContrastiveDetector
"""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..._version import __version__
from ..readers.arrays import images_below


class SettingsError(ValueError):
    """Settings that do not make a run."""


@dataclass(frozen=True)
class DataSettings:
    """Where the rows are and how to read them."""

    path: str
    outliers: str | None = None  # a file of known outliers of the same layout
    label: str | None = None  # the column that marks known outliers, or column=value
    mostly_outliers: bool = False  # whether the label may mark more than half of the rows
    drop: tuple[str, ...] = ()  # columns to leave out
    keep: tuple[str, ...] = ()  # columns to use though they seem to name rows
    id: str | None = None  # the column that names rows, which is carried into the scores
    delimiter: str | None = None  # of a text table
    header: bool | None = None  # whether a text table has one
    missing: tuple[str, ...] = ()  # texts that stand for a missing value
    categorical: tuple[str, ...] = ()  # columns that are text whatever they hold
    array: str | None = None  # which array of an npz file
    sha256: str | None = None  # of the file, when it was read


@dataclass(frozen=True)
class RunSettings:
    """All of a run."""

    data: DataSettings
    seed: int = 0
    detector: dict[str, Any] = field(default_factory=dict)

    def to_toml(self) -> str:
        """The text of ``config.toml``."""
        content: dict[str, dict[str, Any]] = {
            "run": {"seed": self.seed},
            "data": {k: v for k, v in asdict(self.data).items() if v not in (None, (), False) or k == "header"},
            "detector": dict(self.detector),
        }
        comment = f"Written by fvnce {__version__}. Repeat this run with: fvnce fit --config config.toml --out FOLDER"
        return to_toml(content, comment)


def read_config(path: Path) -> RunSettings:
    """The settings in a ``config.toml``, or in the folder of a run."""
    place = path / "config.toml" if path.is_dir() else path
    if not place.is_file():
        raise SettingsError(f"{place} does not exist; give the config.toml of a run")
    try:
        content = tomllib.loads(place.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        said = "its lists are nested too deeply" if isinstance(error, RecursionError) else error
        raise SettingsError(f"{place} is not TOML: {said}; correct it, or make the run again") from None
    return _from_content(content, str(place))


def _from_content(content: Mapping[str, Any], name: str) -> RunSettings:
    """Settings from the tables of a file; a key that does not exist is named."""
    run = _checked(content.get("run", {}), {"kind", "seed"}, f"{name} [run]")
    if run.get("kind", "detector") != "detector":  # which runs of 0.2 name
        raise SettingsError(
            f"{name} [run]: kind must be detector, found {_short(run['kind'])}; latent-variable models are trained in "
            "Python, by fvnce.detection.LatentDetector"
        )
    _checked(content, {"run", "data", "detector"}, name)
    data = _checked(content.get("data", {}), {f.name for f in fields(DataSettings)}, f"{name} [data]")
    if "path" not in data:
        raise SettingsError(f'{name} [data] must name the path of the rows; write path = "rows.csv"')
    detector = content.get("detector", {})
    _checked(detector, set(detector) if isinstance(detector, Mapping) else set(), f"{name} [detector]")
    for key, value in detector.items():
        if not all(isinstance(v, bool | int | float | str) for v in (value if isinstance(value, list) else [value])):
            wanted = "true, false, a number, a text or a list of these"
            raise SettingsError(f"{name} [detector]: {key} must be {wanted}, found {_short(value)}; correct it")
    seed = run.get("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise SettingsError(f"{name} [run]: seed must be an integer >= 0, found {_short(seed)}; correct it")
    source = DataSettings(**_typed(data, DataSettings, f"{name} [data]"))
    return RunSettings(source, seed, dict(detector))


def fingerprint(path: str) -> str | None:
    """SHA-256 of a file; of a folder, over the names and contents of its images; None for a pipe."""
    place = Path(path)
    if place.is_file():
        with place.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    if not place.is_dir():
        return None
    digest = hashlib.sha256()
    for image in images_below(place):
        digest.update(os.fsencode(image.relative_to(place)))
        digest.update(image.read_bytes())
    return digest.hexdigest()


def to_toml(content: Mapping[str, Mapping[str, Any]], comment: str = "") -> str:
    """Tables of booleans, numbers, strings and lists of these; None is left out, which TOML cannot say.

    The standard library reads TOML and does not write it, and settings need no more than this.

    >>> print(to_toml({"run": {"seed": 0, "rule": "power(1/64)", "hidden": [64, 64], "label": None}}))
    [run]
    seed = 0
    rule = "power(1/64)"
    hidden = [64, 64]
    <BLANKLINE>
    """
    lines = [f"# {line}" for line in comment.splitlines()]
    for name, table in content.items():
        lines += ["", f"[{_toml_key(name)}]"] if lines else [f"[{_toml_key(name)}]"]
        lines += [f"{_toml_key(key)} = {_toml_value(key, value)}" for key, value in table.items() if value is not None]
    return "\n".join(lines) + "\n"


def _toml_key(name: str) -> str:
    plain = name and all(c.isascii() and (c.isalnum() or c in "-_") for c in name)
    return name if plain else _toml_string(name)


def _toml_value(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _toml_string(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(key, item) for item in value) + "]"
    raise TypeError(f"{key} must be a boolean, a number, a string or a list of these, found {type(value).__name__}")


def _toml_string(text: str) -> str:
    # JSON's escapes are TOML's, but for DEL and characters beyond 16 bits, which TOML takes as they are.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _checked(table: Any, allowed: set[str], where: str) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        raise SettingsError(f"{where} must be a table, found {_short(table)}; correct it")
    for key in table:
        if key not in allowed:
            raise SettingsError(
                f"{where} has an unknown entry {key[:60]!r}; the entries are {', '.join(sorted(allowed))}"
            )
    return dict(table)


def _typed(table: dict[str, Any], settings: type, where: str) -> dict[str, Any]:
    """The entries of a table, each of the type its setting has: a text is no list of letters, and true is no 1."""
    kinds = {field.name: str(field.type).removesuffix(" | None") for field in fields(settings)}
    for key, value in table.items():
        wanted, example, fits = _TYPES[kinds[key]]
        if not fits(value):
            raise SettingsError(f"{where}: {key} must be {wanted}, found {_short(value)}; write {key} = {example}")
    return {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}


def _short(value: Any) -> str:
    if isinstance(value, Mapping | list):
        return f"a {'list' if isinstance(value, list) else 'table'}"
    return repr(value)[:60]


#: By the annotation of a setting: what it must be, an example, and whether a value of TOML is that.
_TYPES: dict[str, tuple[str, str, Callable[[Any], bool]]] = {
    "str": ("a text", '"text"', lambda value: isinstance(value, str)),
    "bool": ("true or false", "true", lambda value: isinstance(value, bool)),
    "tuple[str, ...]": (
        "a list of texts",
        '["one", "two"]',
        lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
    ),
}
