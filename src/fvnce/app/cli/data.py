"""``fvnce data``: how a file will be read, and the data sets of the paper."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from . import Array, Categorical, Delimiter, Header, Missing, make_echo, one_character, text_table


def data(
    name: Annotated[
        str | None, typer.Argument(metavar="mnist|FILE", help="A data set, or a file.", show_default=False)
    ] = None,
    delimiter: Delimiter = None,
    header: Header = None,
    missing: Missing = None,
    categorical: Categorical = None,
    array: Array = None,
    json: Annotated[bool, typer.Option("--json", help="Print the description of a file as JSON.")] = False,
) -> None:
    """Examples:

    fvnce data

    fvnce data mnist

    fvnce data table.csv
    """
    if name is None:
        typer.echo("digits  8×8 digits, part of scikit-learn: fvnce reproduce --data digits")
        typer.echo("mnist   28×28 digits, fetched and checked: fvnce data mnist")
        return
    if name == "mnist":
        from ...paper.datasets import fetch_mnist

        typer.echo(fetch_mnist(make_echo(False)))
        return
    if name != "-" and not Path(name).exists():
        raise typer.BadParameter(f"{name!r} is neither a data set (mnist) nor a file that exists")
    from ...tables import ReadOptions, TableSource, open_source
    from ..escaping import line_json

    options = ReadOptions(one_character(delimiter), header, tuple(missing or ()), tuple(categorical or ()), None, array)
    source = open_source(name, options)
    text, content = _describe_table(source) if isinstance(source, TableSource) else _describe_array(source)
    typer.echo(line_json(content) if json else text)


def _describe_table(source: Any) -> tuple[str, dict[str, Any]]:
    """Return a description of a table as text and for JSON."""
    from ..report.columns import ColumnSummary

    rows = 0
    summaries: dict[str, ColumnSummary] = {}
    for part in source.parts():
        rows += len(part.rows)
        for name in part.rows.columns.tolist():
            summaries.setdefault(name, ColumnSummary()).add(part.rows[name])
    lines, columns = [["column", "kind", "missing", "values"]], {}
    for name, summary in summaries.items():
        kind = source.types[name].kind if name in source.types else "number"
        columns[name] = {"kind": kind, "missing": summary.missing, **summary.content()}
        lines.append([name, kind, f"{summary.missing:,}", summary.span(6)])
    options = {key: getattr(source, key, None) for key in ("delimiter", "header")}
    caption = f"{source.name}: {source.kind}, {rows:,} rows"
    if options["delimiter"] is not None:
        caption += f", delimiter {options['delimiter']!r}, {'a header' if options['header'] else 'no header'}"
    content = {"file": source.name, "kind": source.kind, "rows": rows, **options, "columns": columns}
    return text_table(caption, lines), content


def _describe_array(source: Any) -> tuple[str, dict[str, Any]]:
    """Return a description of an array as text and for JSON."""
    import numpy as np

    from ..escaping import visible

    rows, missing, low, high = 0, 0, np.inf, -np.inf
    for part in source.parts():
        rows += len(part.rows)
        gone = np.isnan(part.rows) if part.rows.dtype.kind == "f" else np.zeros((), bool)
        missing += int(gone.sum())
        if not gone.all():
            low, high = min(low, float(np.nanmin(part.rows))), max(high, float(np.nanmax(part.rows)))
    shape = [int(side) for side in source.shape[1:]]
    values = f"values from {low:.6g} to {high:.6g}" if low <= high else "no value"
    gaps = f", {missing:,} missing" if missing else ""
    name, kind = source.name, source.kind
    text = f"{visible(name)}: {kind}, {rows:,} rows of {'×'.join(map(str, shape))}, {values}{gaps}"
    # JSON has no infinity.
    edges = {key: edge if math.isfinite(edge) else None for key, edge in (("low", low), ("high", high))}
    return text, {"file": name, "kind": kind, "rows": rows, "shape": shape, **edges, "missing": missing}
