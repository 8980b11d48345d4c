"""Sections on columns: their importance, how each was read, missing values, and columns left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ...detection.preprocessing import TablePreprocessor
from ...tables.parsing import KINDS
from .analysis import Analysis, heat_uri
from .page import PageTable, Section, block, plain
from .summary import ColumnSummary

#: Columns shown at once in the list by importance, and in the table of columns, those with a note first.
SEEN, SHOWN = 15, 60


class ReadColumn(NamedTuple):
    """Name, kind and contents of a column as it was read, and the reason if it is not used."""

    name: str
    kind: str
    summary: ColumnSummary
    span: str
    unused: str


def sections(analysis: Analysis) -> Iterator[Section]:
    """Yield columns or pixels by importance, notices from reading the file, and a table of columns."""
    blocks = [block("notices", sentences=analysis.notices)] if analysis.notices else []
    yield _importance(analysis)
    columns, settings = read_columns(analysis), analysis.run.config.data
    if not columns:
        if blocks:
            yield Section("How the data were read", blocks=blocks)
        return
    rows, lines = len(analysis.data.known), []
    for column in columns:
        gone = column.summary.missing
        missing = f"{gone:,} ({gone / rows:.1%})" if gone else "–"
        note = f"{column.unused}, not used" if column.unused else "–"
        lines.append([column.name, column.kind, missing, column.span, note])
    troubled = [line for line in lines if line[2] != "–" or line[4] != "–"]
    left_out = [f"{name} (--drop)" for name in settings.drop]
    left_out += [f"{name} ({why})" for name, why in ((settings.label, "the label"), (settings.id, "--id")) if name]
    text = plain("columns.md", troubled=len(troubled), columns=columns, left_out=left_out, shown=SHOWN)
    lines = lines if len(lines) <= SHOWN else [*troubled, *(line for line in lines if line not in troubled)][:SHOWN]
    table = PageTable("Columns as they were read", ["column", "read as", "missing", "values", "note"], lines)
    yield Section("Columns and their health", text.splitlines(), blocks=blocks, tables=[table])


def read_columns(analysis: Analysis) -> list[ReadColumn]:
    """Return the columns of a table as they were read; none for images."""
    preprocessor, layout = analysis.run.detector.preprocessor_, analysis.run.layout
    if analysis.is_image or not isinstance(preprocessor, TablePreprocessor):
        return []
    columns = []
    for name, summary, how in zip(layout.columns, analysis.summaries, preprocessor.columns, strict=True):
        kind = "number" if layout.types is None else layout.types[name].kind
        unused = "constant" if how.unused else ""
        if how.empty:
            unused = "empty"
        elif how.times == [] and not how.missing:
            unused = "no cycle seen twice"
        columns.append(ReadColumn(name, KINDS[kind].label, summary, summary.span(kind), unused))
    return columns


def _importance(analysis: Analysis) -> Section:
    """Return the section of importances, which :mod:`fvnce.detection.explanation` defines."""
    shares = np.asarray(analysis.run.detector.feature_importances_, dtype=np.float64)
    if analysis.is_image:
        heat = heat_uri(shares.reshape(analysis.rows.shape[1:]))
        reading = ["Red pixels contribute most to the differences in score between images."]
        return Section("Pixels by importance", reading, blocks=[block("importance_map", uri=heat)])
    reading = [
        "How much each column contributes to the differences in score between rows. High-scoring rows differ most, so "
        "they count most. Importances sum to 100\u00a0%."
    ]
    order, columns = np.argsort(-shares, kind="stable").tolist(), analysis.run.layout.columns
    lines = [(columns[i], float(shares[i]), "") for i in order]
    bars = block("importance", lines=lines, largest=float(shares.max()) or 1.0, seen=SEEN)
    return Section("Columns by importance", reading, blocks=[bars])
