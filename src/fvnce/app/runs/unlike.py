"""Rows that are unlike those of training: columns that are empty, texts never seen, numbers far away.

A score of such rows says little, and a person should know before they believe it: a column may have moved, changed its
unit or its spelling.
"""

from __future__ import annotations

from typing import Any

from ...detection.preprocessing import TablePreprocessor
from .scorer import Scorer

#: Share of the values of a column that must be unlike any of training to be worth a word.
SHARE = 0.5
#: Rows below which only an empty file can be told.
ENOUGH = 5


class Unlike:
    """Counts of odd values by column, over parts."""

    def __init__(self, scorer: Scorer) -> None:
        self._detector, self._names = scorer.detector, scorer.layout.columns
        self._rows = 0
        self._there: Any = 0
        self._odd: Any = 0

    def add(self, rows: Any) -> None:
        """Count some more rows."""
        if isinstance(self._detector.preprocessor_, TablePreprocessor):
            there, odd = self._detector.odd_values(rows)
            self._rows += len(rows)
            self._there, self._odd = self._there + there, self._odd + odd

    def sentences(self) -> list[str]:
        """What a person should know, a sentence for each column."""
        how = self._detector.preprocessor_
        if not isinstance(how, TablePreprocessor) or self._rows < ENOUGH:
            return []
        found = []
        for name, column, there, odd in zip(self._names, how.columns, self._there, self._odd, strict=True):
            if column.empty:
                continue
            if there == 0:
                found.append(f"column {name!r} is empty in all {self._rows:,} rows")
            elif odd > SHARE * there:
                what = (
                    "texts that no training row had"
                    if column.categories is not None
                    else f"values other than {column.centre:.6g}, which all training rows had"
                    if column.unused
                    else "numbers more than 10 deviations away from those of training"
                )
                found.append(f"column {name!r} holds {what}, in {odd:,} of {there:,} rows")
        return found
