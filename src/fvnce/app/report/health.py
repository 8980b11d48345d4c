"""The section of columns' health: how each was read, what is missing in it, what was left out and why."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...detection.frame import Frame
from ...detection.preprocessing import TablePreprocessor
from ...detection.rows import release
from ...pages.page import Section, Table, render
from ..readers import Rows
from ..readers.tables import ColumnSummary
from .context import Context

#: Columns that the table shows, those with something to say first.
SHOWN = 60
#: What a column holds, in words.
KINDS = {"truth": "yes or no", "time": "date", "clock": "time of day"}
#: Rows of a matrix that are looked at together.
PART = 2**16


def build(context: Context) -> dict[str, Any]:
    """A line for each column, and the columns that were left out on request."""
    how = context.run.detector.preprocessor_
    if context.image or not isinstance(how, TablePreprocessor):
        return {"health": None}
    data, layout = context.data, context.data.layout
    columns = []
    for name, found, encoded in zip(layout.columns, _summaries(data.rows), how.columns, strict=True):
        kind = "number" if layout.kinds is None else layout.kinds[name].kind
        note = "constant, not used" if encoded.unused else ""
        if encoded.empty:
            note = "empty, not used"
        elif encoded.times == [] and not encoded.missing:
            note = "no cycle seen twice, not used"
        told = {"missing": found.missing, "values": _told(found), "note": note}
        columns.append({"name": name, "kind": KINDS.get(kind, kind), **told})
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
    if health is None:
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


def _summaries(rows: Rows) -> list[ColumnSummary]:
    if isinstance(rows, Frame):
        found = [ColumnSummary() for _ in rows.columns]
        for summary, name in zip(found, rows.columns, strict=True):
            summary.add(rows[name])
        return found
    found = [ColumnSummary() for _ in range(rows.shape[1])]
    for start in range(0, len(rows), PART):  # a memory map may be larger than memory
        part = np.asarray(rows[start : start + PART], dtype=np.float64)
        for summary, values in zip(found, part.T, strict=True):
            summary.add(values)
        release(rows)
    return found


def _told(found: ColumnSummary) -> str:
    """What the values of a column are, in short."""
    if found.kind == "O":
        return f"{len(found.texts):,} different"
    if found.low is None:
        return "none"
    if found.kind == "M":
        return f"{found.low.astype('datetime64[D]')} to {found.high.astype('datetime64[D]')}"
    return f"{float(found.low):.4g} to {float(found.high):.4g}{' seconds' if found.kind == 'm' else ''}"
