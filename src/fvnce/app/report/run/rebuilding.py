"""Reconstructions of data, noise and outliers, and samples of the model."""

from __future__ import annotations

from typing import Any

from ....pages.page import Section, Table
from .blocks import number, sheet_figure

#: Columns that a table of columns shows.
_COLUMNS = 12


def rebuilding_section(facts: dict[str, Any]) -> Section:
    """Sheets of images, or tables of columns."""
    rebuilt, samples = facts["rebuilt"], facts["samples"]
    reading, blocks, tables = [], [], []
    if isinstance(rebuilt, str):
        reading.append(rebuilt)
    elif "sheets" in rebuilt:
        for sheet in rebuilt["sheets"]:
            blocks.append(sheet_figure(sheet["png"], f"{sheet['name'].capitalize()}: above as given, below rebuilt."))
    else:
        groups = list(rebuilt["errors"])
        rows = [
            [name, *(number(rebuilt["errors"][group][i]) for group in groups)]
            for i, name in enumerate(rebuilt["columns"][:_COLUMNS])
        ]
        tables.append(Table("Root mean square error of rebuilt columns, in deviations", ["column", *groups], rows))
    if isinstance(samples, str):
        reading.append(samples)
    elif "png" in samples:
        blocks.append(sheet_figure(samples["png"], "Samples of the model."))
    else:
        rows = [
            [
                name,
                *(number(samples[who][what][i]) for what in (0, 1) for who in ("data", "model")),
            ]
            for i, name in enumerate(samples["columns"][:_COLUMNS])
        ]
        header = ["column", "mean, data", "mean, model", "deviation, data", "deviation, model"]
        tables.append(Table("Samples of the model beside the data, standardised columns", header, rows))
    if any(isinstance(part, dict) and len(part.get("columns", [])) > _COLUMNS for part in (rebuilt, samples)):
        reading.append(f"The first {_COLUMNS} columns are shown.")
    return Section("Reconstructions and samples", reading, tables=tables, blocks=blocks)
