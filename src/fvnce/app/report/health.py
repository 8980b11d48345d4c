"""The section of columns' health: how each was read, what is missing in it, what was left out and why."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...detection.frame import Frame
from ...detection.preprocessing import TablePreprocessor
from ...detection.rows import release
from ...pages.page import Section, Table, render
from .. import shapes
from ..readers.tables import present
from .context import Context

#: Columns that the table shows, those with something to say first.
SHOWN = 60
#: What a column holds, in words.
KINDS = {"truth": "yes or no", "time": "date", "clock": "time of day"}

#: Rows of a matrix that are looked at together.
PART = 2**16

_COLUMN = shapes.record({**dict.fromkeys(("name", "kind", "values", "note"), shapes.text), "missing": shapes.integer()})
check = shapes.record(
    {"health": shapes.or_why(shapes.record({"columns": shapes.list_of(_COLUMN), "left_out": shapes.names}))}
)


def build(context: Context) -> dict[str, Any]:
    """A line for each column, and the columns that were left out on request."""
    how = context.run.detector.preprocessor_
    if context.image or not isinstance(how, TablePreprocessor):
        return {"health": "Images have no columns."}
    data, layout = context.data, context.data.layout
    columns = []
    told_of = (
        [_told(data.rows[name]) for name in layout.columns] if isinstance(data.rows, Frame) else _matrix(data.rows)
    )
    for position, (name, (gone, told)) in enumerate(zip(layout.columns, told_of, strict=True)):
        kind = "number" if layout.kinds is None else layout.kinds[name].kind
        encoded = how.columns[position]
        note = (
            "empty, not used"
            if encoded.empty
            else "no cycle seen twice, not used"
            if encoded.times == [] and not encoded.missing
            else "constant, not used"
            if encoded.unused
            else ""
        )
        columns.append({"name": name, "kind": KINDS.get(kind, kind), "missing": gone, "values": told, "note": note})
    settings = context.run.config.data
    left_out = [f"{name} (--drop)" for name in settings.drop]
    left_out += [
        f"{name} ({why})" for name, why in ((settings.label, "the label"), (settings.id, "it names rows")) if name
    ]
    return {"health": {"columns": columns, "left_out": left_out}}


def show(facts: dict[str, Any], record: dict[str, Any]) -> list[Section]:
    """What was said when the file was read, and a table."""
    health, notices = facts["health"], record.get("notices", [])
    blocks = [render("fvnce.app", "notices.html", notices=notices)] if notices else []
    if isinstance(health, str):
        return [Section("How the data were read", [], blocks=blocks)] if notices else []
    columns, rows = health["columns"], max(1, record["rows"])
    troubled = [column for column in columns if column["missing"] or column["note"]]
    reading = [
        f"{len(columns):,} columns are used as follows; "
        + (f"{len(troubled):,} of them have missing values or are of no use." if troubled else "no value is missing.")
    ]
    if health["left_out"]:
        reading.append(f"Left out as asked: {', '.join(health['left_out'])}.")
    shown = columns
    if len(columns) > SHOWN:
        shown = [*troubled, *(column for column in columns if column not in troubled)][:SHOWN]
        reading.append(f"Of {len(columns):,} columns {SHOWN} are shown, those with something to say first.")
    lines = [
        [
            column["name"],
            column["kind"],
            f"{column['missing']:,} ({column['missing'] / rows:.1%})" if column["missing"] else "–",
            column["values"],
            column["note"] or "–",
        ]
        for column in shown
    ]
    table = Table("Columns as they were read", ["column", "read as", "missing", "values", "note"], lines)
    return [Section("Columns and their health", reading, blocks=blocks, tables=[table])]


def _matrix(rows: NDArray[Any]) -> list[tuple[int, str]]:
    """The same of every column of a matrix, in parts, since a memory map may be larger than memory."""
    missing = np.zeros(rows.shape[1], dtype=np.int64)
    low, high = np.full(rows.shape[1], np.inf), np.full(rows.shape[1], -np.inf)
    for start in range(0, len(rows), PART):
        part = np.asarray(rows[start : start + PART], dtype=np.float64)
        gone = np.isnan(part)
        missing += gone.sum(0)
        low = np.minimum(low, np.where(gone, np.inf, part).min(0))
        high = np.maximum(high, np.where(gone, -np.inf, part).max(0))
        release(rows)
    return [
        (int(gone), f"{least:.4g} to {most:.4g}" if gone < len(rows) else "none")
        for gone, least, most in zip(missing, low, high, strict=True)
    ]


def _told(values: NDArray[Any]) -> tuple[int, str]:
    """How many values are missing, and what the others are, in short."""
    there = present(values)
    gone, kind = len(values) - len(there), values.dtype.kind
    if kind == "O":
        return gone, f"{len(set(there.tolist())):,} different"
    if kind == "m" or not len(there):
        return gone, "–" if kind in "mM" else "none"
    low, high = there.min(), there.max()
    if kind == "M":
        return gone, f"{low.astype('datetime64[D]')} to {high.astype('datetime64[D]')}"
    return gone, f"{float(low):.4g} to {float(high):.4g}"
