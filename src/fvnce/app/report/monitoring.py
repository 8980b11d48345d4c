"""Page of ``fvnce monitor``: differences of new rows from the training rows, with a chart for each column."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from ...detection import Changes
from ...detection.trust.monitor import ColumnChange
from .charts import histogram_chart
from .page import PageTable, Section, block, plain, write_page

#: The most columns with a chart, and in the table, ordered by p-value.
DRAWN, SHOWN = 12, 60


def write_monitoring_page(path: Path, source: str, changes: Changes) -> Path:
    """Write the page that compares new rows with the training rows."""
    columns = sorted(changes.columns, key=_surest)
    headline, share, *others = str(changes).splitlines()
    steps = ["Check the columns below: correct a new unit, a new spelling or a failed sensor at the source."]
    steps.append("If the change is permanent, train again on recent rows: `fvnce fit DATA --out RUN`.")
    words = block("verdict", headline=headline, sentences=[share, *others])
    header = ["column", "missing", "in training", "p", "unseen texts", "difference", "p"]
    table = PageTable(
        "Columns; p-values are adjusted for the number of tests", header, [_line(c) for c in columns[:SHOWN]]
    )
    charts = [_chart(c) for c in columns if len(c.edges) > 1 and len(c.before) > len(c.edges) + 1][:DRAWN]
    scores = plain("monitoring.md", changes=changes, number=_number, share=_share)
    sections = [Section("Verdict", blocks=[words])]
    if changes.alarm:
        sections.append(Section("What to do next", blocks=[block("next_steps", steps=steps)]))
    sections.append(Section("Scores and p-values", scores.splitlines()))
    if columns:
        more = f"{len(columns) - SHOWN:,} columns with the weakest evidence of a change are not shown."
        reading = ["Values beyond those of training are in the first or last bin of a chart."] if charts else []
        reading += [more] if len(columns) > SHOWN else []
        sections.append(Section("Columns", reading, charts=charts, tables=[table]))
    made = f"{changes.rows:,} rows, compared with those of training. Made {time.strftime('%Y-%m-%d %H:%M:%S')}."
    return write_page(path, Path(source).name, made, sections)


def _surest(column: ColumnChange) -> tuple[float, float]:
    p = [value for value in (column.p_missing, column.p_difference) if value is not None]
    return min(p, default=2.0), -(column.difference or 0.0)


def _line(c: ColumnChange) -> Sequence[str]:
    tests = [_share(c.missing), _share(c.missing_before), _number(c.p_missing)]
    return [c.name, *tests, _share(c.unseen), _number(c.difference), _number(c.p_difference)]


def _chart(c: ColumnChange) -> Markup:
    """Plot fractions of rows between quantiles of training; values beyond these are in the end bins."""
    counts = {}
    for group, shares in (("training", c.before), ("new rows", c.now)):
        counts[group] = [shares[2 * i] + shares[2 * i + 1] for i in range(1, len(c.edges))]
        counts[group][0] += shares[0] + shares[1]  # below and at the first edge
        counts[group][-1] += shares[-1]
    middle = c.edges[len(c.edges) // 2]
    return histogram_chart(
        c.edges,
        counts,
        label=c.name,
        mark=(middle, "middle of training"),
        caption=c.words or c.name,
        alt=f"Shares of training rows and of new rows in bins of {c.name}: {c.words}",
    )


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
