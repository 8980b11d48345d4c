"""Reasons for a score in words: unusual values in the columns that raise it most.

A reason is a column with a positive part (:meth:`~fvnce.detection.Explanation.reasons`). Its sentence, one of
:data:`SENTENCES`, compares the value with :class:`Usual`, statistics of the column in the unlabeled training rows. A
common value can raise a score in combination with other columns, or because known outliers share it; the sentence then
says only that it raises this score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .._validation import FileError, fields, listed, number, require, stored_array
from ..tables.parsing import MONEY, ColumnType
from .members.base import State
from .preprocessing import Preprocessor, TablePreprocessor, time_parts
from .rows import Array, weighted_quantiles

#: Every sentence, by what is said; ``shown`` is the name of a column and its value, ``there`` the rows with a value.
SENTENCES = {
    "unseen": "{shown}: never seen",
    "rare": "{shown}: {count} of {rows}",
    "missing": "{shown}: {count} of {rows}",
    "filled": "{shown}: a value in {count} of {rows}",
    "highest": "{shown}: higher than all {there}; usual {low} to {high}",
    "higher": "{shown}: higher than {percent} of {those}; usual {low} to {high}",
    "lowest": "{shown}: lower than all {there}; usual {low} to {high}",
    "lower": "{shown}: lower than {percent} of {those}; usual {low} to {high}",
    "one value": "{shown}: {low} in {percent} of {those}",
    "date": "{shown}: {part} in {count} of {rows}",
    "common": "{shown}: common by itself, but raises this score",
    "name": "{shown}",
}
#: Levels of the stored quantiles, finer in both tails, and the levels between which a number is usual.
_TAIL = np.arange(10) / 1000
LEVELS = np.concatenate([_TAIL, np.arange(1, 100) / 100, 1 - _TAIL[::-1]])
LOW, HIGH = 0.1, 0.9
#: Largest fraction of training rows for which a category, a gap, a value or a part of a date is called rare.
RARE = 0.05
#: Parts of dates in the order of :func:`time_parts`: the number and the names of their values.
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November")
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
DATE_PARTS = (
    [f"month {name}" for name in (*MONTHS, "December")],
    [f"weekday {name}" for name in DAYS],
    [f"hour {hour}" for hour in range(24)],
)


@dataclass(frozen=True)
class Usual:
    """Statistics of each column over the unlabeled training rows.

    Attributes:
        rows: number of rows.
        present: number of rows with a value in each column, shape (D,).
        columns: for each column, quantiles of numbers at :data:`LEVELS`, counts of each text, or counts of each month,
            weekday and hour of dates; empty if no row has a value.

    >>> X, weights = np.arange(1000.0)[:, None], np.ones(1000)
    >>> usual = Usual.learn(TablePreprocessor.learn(X, weights, None), X, weights)
    >>> usual.sentence(0, "amount", 2000.0, "$2,000", ColumnType(unit="$"), ())
    'amount $2,000: higher than all 1,000 rows; usual $99 to $899'
    """

    rows: float
    present: Array
    columns: list[Array]

    @classmethod
    def learn(cls, preprocessor: TablePreprocessor, rows: Array, weights: Array) -> Self:
        """Compute the statistics of weighted rows in the form that the preprocessor takes."""
        columns, present = [], []
        for values, how in zip(np.asarray(rows, dtype=np.float64).T, preprocessor.columns, strict=True):
            there = ~np.isnan(values) & ((how.categories is None) | (values != -1))
            known, weight = values[there], weights[there]
            present.append(float(weight.sum()))
            if not len(known):
                columns.append(np.empty(0))
            elif how.categories is not None:
                columns.append(np.bincount(np.maximum(known, 0).astype(int), weight).astype(np.float64))
            elif how.times is not None:
                counts = [np.bincount(p, weight, len(n)) for p, n in zip(_places(known), DATE_PARTS, strict=True)]
                columns.append(np.concatenate(counts))
            else:
                columns.append(weighted_quantiles(known, weight, LEVELS))
        return cls(float(weights.sum()), np.array(present), columns)

    def sentence(
        self, column: int, name: str, value: float, text: str, reading: ColumnType, cycles: Sequence[int]
    ) -> str:
        """Return the sentence about a value.

        Args:
            column: index of the column.
            name: name of the column.
            value: value in the form that the preprocessor takes.
            text: value as it is shown.
            reading: type of the column.
            cycles: parts of a date that models see.
        """
        usual, present = self.columns[column], float(self.present[column])
        entries = {"shown": f"{name} {text}", "rows": counted(self.rows)}

        def of_count(rare: str, count: float, **others: str) -> str:
            return said(rare if count <= RARE * self.rows else "common", **entries, **others, count=f"{count:,.0f}")

        if np.isnan(value) or (reading.kind == "text" and value == -1):
            entries["shown"] = f"{name} missing"
            return of_count("missing", self.rows - present)
        if present <= RARE * self.rows:
            return of_count("filled", present)
        if reading.kind == "text":
            count = float(usual[int(value)]) if 0 <= value < len(usual) else 0.0
            return of_count("rare" if count else "unseen", count)
        if reading.kind == "time":
            starts = np.cumsum([0, *map(len, DATE_PARTS)])
            places = [int(place[0]) for place in _places(np.array([value]))]
            counts = {DATE_PARTS[part][places[part]]: float(usual[starts[part] + places[part]]) for part in cycles}
            part, count = min(counts.items(), key=lambda item: item[1], default=("", np.inf))
            return of_count("date", count, part=part)
        low, high = (float(usual[np.searchsorted(LEVELS, level)]) for level in (LOW, HIGH))
        # Quantiles are those of the rows that have a value.
        there = counted(present) + (" with a value" if present < self.rows else "")
        those = f"the {there}" if present < self.rows else "rows"
        entries |= {"low": value_text(low, reading), "high": value_text(high, reading), "there": there, "those": those}
        below, above = LEVELS[usual < value], LEVELS[usual > value]
        if low == high != value and usual[0] <= value <= usual[-1]:
            same = LEVELS[usual == low]
            return said("one value", **entries, percent=percent(float(same[-1] - same[0])))
        if value > usual[-1] or value < usual[0]:
            return said("highest" if value > usual[-1] else "lowest", **entries)
        if value > high:
            return said("higher", **entries, percent=percent(float(below[-1])))
        if value < low:
            return said("lower", **entries, percent=percent(1 - float(above[0])))
        return said("common", **entries)

    def state(self) -> State:
        """Return the state as JSON content and arrays."""
        arrays = {"present": self.present, "columns": np.concatenate([np.empty(0), *self.columns])}
        return {"rows": self.rows, "lengths": [len(column) for column in self.columns]}, arrays

    @classmethod
    def from_state(cls, content: Any, arrays: Mapping[str, NDArray[Any]], preprocessor: Preprocessor) -> Self:
        """Restore the statistics from a state, which is checked."""
        if not isinstance(preprocessor, TablePreprocessor):
            raise FileError("usual values must be those of a table, found some of images")
        rows, lengths = fields(content, "usual values", rows=number, lengths=listed(number, len(preprocessor.columns)))
        fixed = {"time": sum(map(len, DATE_PARTS))}
        for length, how in zip(lengths, preprocessor.readings or [ColumnType()] * len(lengths), strict=True):
            allowed = range(len(how.codes or ()) + 1) if how.kind == "text" else (0, fixed.get(how.kind, len(LEVELS)))
            require(length in allowed, "have usual values of each column", length)
        ends = np.cumsum([int(length) for length in lengths])
        require(set(arrays) == {"present", "columns"}, "have usual values", sorted(arrays))
        stored_array("rows with values", arrays["present"], np.float64, (len(lengths),))
        values = stored_array("usual values", arrays["columns"], np.float64, (int(ends[-1]),))
        return cls(rows, arrays["present"], np.split(values, ends[:-1]))


def said(which: str, **entries: str) -> str:
    """Return one of :data:`SENTENCES` with its fields filled in.

    >>> said("rare", shown="country KP", count="1", rows="2,310 rows")
    'country KP: 1 of 2,310 rows'
    """
    return SENTENCES[which].format(**entries)


def counted(rows: float) -> str:
    """Format a number of rows with its noun.

    >>> counted(2310.0), counted(1.0)
    ('2,310 rows', '1 row')
    """
    return f"{rows:,.0f} row{'' if round(rows) == 1 else 's'}"


def percent(fraction: float) -> str:
    """Format a fraction of rows in per cent, with one decimal in the tails.

    >>> percent(0.999), percent(0.98)
    ('99.9 %', '98 %')
    """
    return f"{100 * fraction:.1f}".removesuffix(".0") + " %"


def value_text(value: Any, reading: ColumnType) -> str:
    """Format a value as in a file: a text unchanged, a number with its unit.

    >>> value_text(78110.0, ColumnType(unit="$")), value_text(0.5, ColumnType(unit="%")), value_text("KP", ColumnType())
    ('$78,110', '50%', 'KP')
    >>> value_text(9.5, ColumnType("clock")), value_text(0.0, ColumnType("time")), value_text(1.0, ColumnType("truth"))
    ('9:30', '1970-01-01', 'yes')
    """
    if isinstance(value, np.timedelta64):
        value = float(value / np.timedelta64(1, "s"))
    if reading.kind == "duration" and isinstance(value, float):
        return f"{value:.6g} seconds"
    if reading.kind == "time" and isinstance(value, float):
        value = np.datetime64(round(value), "s")
    if isinstance(value, np.datetime64):
        return str(value.astype("datetime64[s]")).replace("T", " ").removesuffix(" 00:00:00").removesuffix(":00")
    if reading.kind == "clock" and isinstance(value, float):
        minutes = round(60 * value)
        return f"{minutes // 60}:{minutes % 60:02d}"
    if reading.kind == "truth" and isinstance(value, float):
        return "yes" if value else "no"
    if isinstance(value, float | np.floating) and reading.kind != "text":
        if reading.unit == "%":
            return f"{100 * value:.6g}%"
        if reading.unit and MONEY.fullmatch(reading.unit):
            cents = ".2f" if value % 1 and round(value, 2) == value else ".10g"
            return f"{'-' * bool(value < 0)}{reading.unit}{' ' * reading.unit[-1].isalpha()}{abs(value):,{cents}}"
        # All digits of whole numbers, as in a file; six digits of others are enough to find the row.
        digits = f"{value:.15g}" if float(value).is_integer() else f"{value:.6g}"
        return f"{digits} {reading.unit}".rstrip()
    return str(value)


def _places(seconds: Array) -> list[NDArray[np.int64]]:
    """Return the indices of parts of dates among the values of :data:`DATE_PARTS`."""
    month, day, hour = time_parts(seconds)
    return [part.astype(np.int64) for part in (month - 1, day, np.minimum(hour, 23))]
