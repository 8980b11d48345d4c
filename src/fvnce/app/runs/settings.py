"""Settings of a run, stored in ``config.toml`` so that the run can be repeated.

[run]       seed
[data]      path, outliers, label, checked, review, mostly_outliers, drop, keep, id, delimiter, header, missing,
            decimal, categorical, schema, array, sha256
[detector]  parameters of NoiseContrastiveDetector
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ..._validation import Check, FileError, choice, count, flag, listed, short, text
from ..._version import __version__
from ...tables import ColumnType
from ...tables.arrays import images_below
from ...tables.parsing import KINDS

CONFIG = "config.toml"


@dataclass(frozen=True)
class DataSettings:
    """Settings of the data: where the rows are and how to read them."""

    path: str
    outliers: str | None = None  # file of known outliers in the same layout
    label: str | None = None  # column that marks known outliers, or column=value
    checked: str | None = None  # column that marks rows whose label is trusted
    review: tuple[str, ...] = ()  # sheets with verdicts
    mostly_outliers: bool = False  # whether the label may mark more than half of the rows
    drop: tuple[str, ...] = ()  # columns to leave out
    keep: tuple[str, ...] = ()  # columns to use although they look like identifiers
    id: str | None = None  # identifier column that is copied into the scores
    delimiter: str | None = None  # delimiter of a text table
    header: bool | None = None  # whether a text table has a header
    missing: tuple[str, ...] = ()  # texts that mean a missing value
    decimal: str | None = None  # decimal mark where the values do not show it
    categorical: tuple[str, ...] = ()  # columns to read as text
    schema: str | None = None  # file that describes how columns are read
    array: str | None = None  # name of the array in an npz file
    sha256: str | None = None  # checksum of the file when it was read


@dataclass(frozen=True)
class RunSettings:
    """All settings of a run: seed, data and detector."""

    data: DataSettings
    seed: int = 0
    detector: dict[str, Any] = field(default_factory=dict)

    def to_toml(self) -> str:
        """Return the settings as the text of ``config.toml``."""
        content: dict[str, dict[str, Any]] = {
            "run": {"seed": self.seed},
            "data": {k: v for k, v in asdict(self.data).items() if v not in (None, (), False) or k == "header"},
            "detector": dict(self.detector),
        }
        comment = f"Written by fvnce {__version__}. Repeat this run with: fvnce fit --config config.toml --out FOLDER"
        return to_toml(content, comment)


def _texts(name: str, value: object) -> tuple[str, ...]:
    return tuple(listed(text)(name, value))


#: Checks of the entries of ``config.toml``; runs of version 0.2 also have an entry ``kind``.
_RUN: dict[str, Check] = {"seed": lambda name, value: count(name, value, low=0), "kind": text}
_DATA: dict[str, Check] = {
    **dict.fromkeys(("path", "outliers", "label", "checked", "id", "delimiter", "schema", "array", "sha256"), text),
    "decimal": partial(choice, options=(".", ",")),
    **dict.fromkeys(("review", "drop", "keep", "missing", "categorical"), _texts),
    **dict.fromkeys(("mostly_outliers", "header"), flag),
}


def read_config(path: Path) -> RunSettings:
    """Read the settings from a ``config.toml``, or from the folder of a run."""
    place = path / CONFIG if path.is_dir() else path
    content = _read_toml(place, "give the config.toml of a run")
    tables = {name: content.get(name, {}) for name in ("run", "data", "detector")}
    run = _checked(tables["run"], _RUN, f"{place} [run]")
    if run.get("kind", "detector") != "detector":
        raise FileError(
            f"{place} [run]: kind must be detector, found {short(run['kind'])}; latent-variable models are trained in "
            "Python, by fvnce.detection.LatentDetector"
        )
    _checked(content, dict.fromkeys(tables, lambda name, value: value), str(place))
    data = _checked(tables["data"], _DATA, f"{place} [data]")
    if "path" not in data:
        raise FileError(f'{place} [data] must name the path of the rows; write path = "rows.csv"')
    # The detector checks its parameters itself.
    detector = _checked(tables["detector"], None, f"{place} [detector]")
    return RunSettings(DataSettings(**data), run.get("seed", 0), detector)


#: Checks of the entries of a column in a schema file.
_COLUMN: dict[str, Check] = {
    "kind": partial(choice, options=tuple(KINDS)),
    "decimal": partial(choice, options=(".", ",")),
    "missing": _texts,
    "unit": text,
    **dict.fromkeys(("day_first", "ignored"), flag),
}


def read_schema(path: str) -> dict[str, ColumnType]:
    """Read a schema file that ``fvnce data FILE --schema`` wrote."""
    content = _read_toml(Path(path), "write it with fvnce data FILE --schema")
    return {name: ColumnType(**_checked(table, _COLUMN, f"{path} [{name}]")) for name, table in content.items()}


def schema_toml(types: Mapping[str, ColumnType], name: str) -> str:
    """Return the text of a schema file, which describes how the columns of a table are read."""
    columns = {
        column: {
            key: value for key, value in asdict(how).items() if key in _COLUMN and value not in (None, (), False, "")
        }
        for column, how in types.items()
    }
    comment = (
        f"How the columns of {name} are read. Edit it, then: fvnce fit FILE --schema THIS\n"
        f"kind is one of {', '.join(KINDS)}; decimal . or ,; day_first (of dates) true or false;\n"
        "missing a list of texts; ignored = true leaves a column out.\n"
        "The type of a column that is not listed is detected from its values."
    )
    return to_toml(columns, comment)


def _read_toml(place: Path, advice: str) -> dict[str, Any]:
    if not place.is_file():
        raise FileError(f"{place} does not exist; {advice}")
    try:
        return tomllib.loads(place.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        problem = "its lists are nested too deeply" if isinstance(error, RecursionError) else error
        raise FileError(f"{place} is not TOML: {problem}; correct it, or make it again") from None


def _checked(table: Any, checks: Mapping[str, Check] | None, where: str) -> dict[str, Any]:
    """Check the entries of a table, and return them; raise FileError for the first invalid one."""
    if not isinstance(table, Mapping):
        raise FileError(f"{where} must be a table, found {short(table)}; correct it")
    if checks is None:
        return dict(table)
    for key in table:
        if key not in checks:
            raise FileError(f"{where} has an unknown entry {key[:60]!r}; the entries are {', '.join(sorted(checks))}")
    try:
        return {key: checks[key](key, value) for key, value in table.items()}
    except (TypeError, ValueError) as error:
        raise FileError(f"{where}: {error}; correct it") from None


def fingerprint(path: str) -> str | None:
    """Return the SHA-256 of a file, or of the names and contents of the images in a folder; None for a pipe."""
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
    """Return tables of booleans, numbers, strings and lists of these as TOML, without entries that are None.

    The standard library can read TOML, but not write it.

    >>> print(to_toml({"run": {"seed": 0, "rule": "power(1/64)", "hidden": [64, 64], "label": None}}))
    [run]
    seed = 0
    rule = "power(1/64)"
    hidden = [64, 64]
    <BLANKLINE>
    """
    lines = [f"# {line}" for line in comment.splitlines()]
    for name, table in content.items():
        lines += ["", f"[{_toml_key(name)}]"]
        lines += [f"{_toml_key(key)} = {_toml_value(value)}" for key, value in table.items() if value is not None]
    return "\n".join(lines).lstrip("\n") + "\n"


def _toml_key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else _toml_value(name)


def _toml_value(value: Any) -> str:
    # TOML writes these values as JSON does, except for DEL in a string and for infinity.
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")
