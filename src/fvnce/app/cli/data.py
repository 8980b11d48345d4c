"""The command ``fvnce data``: describe a file, or fetch and list the data sets of the paper."""

from pathlib import Path
from typing import Annotated, Any

import typer

from . import (
    Array,
    Categorical,
    Decimal,
    Delimiter,
    Header,
    Missing,
    make_echo,
    option,
    text_table,
    writable,
    writing,
)


def data(
    name: Annotated[
        str | None,
        typer.Argument(metavar="mnist|FILE", help="Data set to download, or file to describe.", show_default=False),
    ] = None,
    delimiter: Delimiter = None,
    header: Header = None,
    missing: Missing = None,
    decimal: Decimal = None,
    categorical: Categorical = None,
    schema: Annotated[
        str | None,
        option("FILE", "Write how each column is read to FILE; if FILE exists, read the columns as it says."),
    ] = None,
    array: Array = None,
    json: Annotated[bool, option(None, "Print the description of a file as JSON.", "--json")] = False,
) -> None:
    """If a table can be read in several ways, all ambiguous columns are listed, with the options that resolve them.

    Examples:

    fvnce data

    fvnce data mnist

    fvnce data table.csv

    fvnce data table.csv --schema schema.toml
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
    from ...tables.errors import TableError
    from ..escaping import line_json
    from ..runs.settings import read_schema, schema_toml

    if schema is not None:
        writable(schema, "--schema", [name])
    owned = read_schema(schema) if schema is not None and Path(schema).exists() else None
    given = (delimiter, header, tuple(missing or ()), tuple(categorical or ()), None, array)
    source = open_source(name, ReadOptions(*given, decimal, owned))
    if not isinstance(source, TableSource):
        text, content = _describe_array(source)
        typer.echo(line_json(content) if json else text)
        return
    try:
        text, content = _describe_table(source)
        typer.echo(line_json(content) if json else text)
    except TableError as error:
        if json:
            problems = [dict(zip(error.rows[0], row, strict=True)) for row in error.rows[1:]]
            typer.echo(line_json({"file": name, "problems": problems, "options": error.paste}))
        raise
    finally:
        types = {column: source.types[column] for column in source.columns if column in source.types}
        if schema is not None and owned is None and types:
            with writing(schema) as file:
                file.write(schema_toml(types, name))
    for notice in source.notices:
        make_echo(False)(notice)


def _describe_table(source: Any) -> tuple[str, dict[str, Any]]:
    """Describe the columns of a table, as text and for JSON."""
    from ..report.summary import ColumnSummary

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
        lines.append([name, kind, f"{summary.missing:,}", summary.span(kind)])
    options = {key: getattr(source, key, None) for key in ("delimiter", "header")}
    caption = f"{source.name}: {source.kind}, {rows:,} rows"
    if options["delimiter"] is not None:
        caption += f", delimiter {options['delimiter']!r}, {'a header' if options['header'] else 'no header'}"
    content = {"file": source.name, "kind": source.kind, "rows": rows, **options, "columns": columns}
    return text_table(caption, lines, left=True), content


def _describe_array(source: Any) -> tuple[str, dict[str, Any]]:
    """Describe the shape and range of an array, as text and for JSON."""
    from ..escaping import visible
    from ..report.summary import ColumnSummary

    rows, summary = 0, ColumnSummary()
    for part in source.parts():
        rows += len(part.rows)
        summary.add(part.rows.ravel())
    shape, missing = [int(side) for side in source.shape[1:]], summary.missing
    values = "no value" if summary.low is None else f"values from {float(summary.low):.6g} to {float(summary.high):.6g}"
    gaps = f", {missing:,} missing" if missing else ""
    name, kind = source.name, source.kind
    text = f"{visible(name)}: {kind}, {rows:,} rows of {'×'.join(map(str, shape))}, {values}{gaps}"
    content = {"file": name, "kind": kind, "rows": rows, "shape": shape, "low": None, "high": None}
    return text, content | summary.content() | {"missing": missing}
