"""``fvnce data``: data sets, and how a file will be read."""

import math
from typing import Annotated, Any

import typer

from ...pages.escape import line_json, visible
from . import terminal

HELP = """\
Examples:

fvnce data

fvnce data mnist

fvnce data table.csv
"""


def data(
    name: Annotated[
        str | None, typer.Argument(metavar="mnist|FILE", help="A data set, or a file.", show_default=False)
    ] = None,
    delimiter: terminal.Delimiter = None,
    header: terminal.Header = None,
    missing: terminal.Missing = None,
    categorical: terminal.Categorical = None,
    array: terminal.Array = None,
    json: Annotated[bool, typer.Option("--json", help="The description of a file as JSON.")] = False,
) -> None:
    """Fetch, describe or list."""
    if name is None:
        typer.echo("digits  8×8 digits, part of scikit-learn: fvnce reproduce --data digits")
        typer.echo("mnist   28×28 digits, fetched and checked: fvnce data mnist")
        return
    if name == "mnist":
        from ...paper.datasets import fetch_mnist

        typer.echo(fetch_mnist(terminal.make_echo(False)))
        return
    from pathlib import Path

    if name != "-" and not Path(name).exists():
        raise typer.BadParameter(f"{name!r} is neither a data set (mnist) nor a file that exists")
    from ..readers.columns import TableOptions
    from ..readers.sources import ReadOptions, open_source

    options = TableOptions(terminal.one_character(delimiter), header, tuple(missing or ()), tuple(categorical or ()))
    content = _describe(open_source(name, ReadOptions(options, array)))
    typer.echo(line_json(_without_infinity(content)) if json else _text(content))


def _describe(source: Any) -> dict[str, Any]:
    import numpy as np

    from ...detection.frame import Frame

    rows, shape = 0, None
    columns: dict[str, dict[str, Any]] = {}
    low, high, missing = np.inf, -np.inf, 0
    for part in source.parts():
        rows += len(part.rows)
        if isinstance(part.rows, Frame):
            for name in part.rows.columns.tolist():
                _add(columns.setdefault(name, {"kind": "", "missing": 0}), part.rows[name])
            continue
        shape = [int(side) for side in part.rows.shape[1:]]
        gone = np.isnan(part.rows) if part.rows.dtype.kind == "f" else np.zeros((), bool)
        missing += int(gone.sum())
        if not gone.all():
            low, high = min(low, float(np.nanmin(part.rows))), max(high, float(np.nanmax(part.rows)))
    content: dict[str, Any] = {"file": source.name, "kind": source.kind, "rows": rows}
    if shape is not None:
        edges = {"low": low, "high": high} if low <= high else {"low": None, "high": None}
        return content | {"shape": shape, **edges, "missing": missing}
    reader = source.reader
    for name, reading in reader.reader.kinds.items():
        columns[name]["kind"] = reading.kind
    content |= {"delimiter": getattr(reader, "delimiter", None), "header": getattr(reader, "header", None)}
    for entry in columns.values():
        values = entry.pop("values", None)
        if values is not None:
            entry["different"] = len(values)
    return content | {"columns": columns}


def _without_infinity(content: Any) -> Any:
    """What JSON can hold: null for a number without bound."""
    if isinstance(content, dict):
        return {name: _without_infinity(value) for name, value in content.items()}
    return None if isinstance(content, float) and not math.isfinite(content) else content


def _add(entry: dict[str, Any], values: Any) -> None:
    from ..readers.columns import present

    there = present(values)
    entry["missing"] += len(values) - len(there)
    if values.dtype.kind == "O":
        entry["kind"], known = "text", entry.setdefault("values", set())
        # Enough to tell a category from an identifier, whatever the length of the file.
        if len(known) < 10_000:
            known.update(there.tolist())
        return
    time = values.dtype.kind == "M"
    entry["kind"] = "time" if time else entry["kind"] or "number"
    if len(there):
        edges = there.min(), there.max()
        low, high = (str(edge.astype("datetime64[s]")) if time else float(edge) for edge in edges)
        entry["low"], entry["high"] = min(entry.get("low", low), low), max(entry.get("high", high), high)


def _text(content: dict[str, Any]) -> str:
    if "shape" in content:
        size = "×".join(map(str, content["shape"]))
        gone = f", {content['missing']:,} missing" if content["missing"] else ""
        values = "no value" if content["low"] is None else f"values from {content['low']:.6g} to {content['high']:.6g}"
        return f"{visible(content['file'])}: {content['kind']}, {content['rows']:,} rows of {size}, {values}{gone}"
    from ...pages.page import Table

    rows = [
        [
            name,
            entry["kind"],
            f"{entry['missing']:,}",
            f"{entry['different']:,} different" if entry["kind"] == "text" else _span(entry),
        ]
        for name, entry in content["columns"].items()
    ]
    if content["delimiter"] is None:
        how = ""
    else:
        how = f", delimiter {content['delimiter']!r}, {'a header' if content['header'] else 'no header'}"
    caption = f"{content['file']}: {content['kind']}, {content['rows']:,} rows{how}"
    return Table(caption, ["column", "kind", "missing", "values"], rows).text()


def _span(entry: dict[str, Any]) -> str:
    if "low" not in entry:
        return "none"
    return " to ".join(edge if isinstance(edge, str) else f"{edge:.6g}" for edge in (entry["low"], entry["high"]))
