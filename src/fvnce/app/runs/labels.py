"""Columns that a person names: any by its name or number, and that of labels, of which one value marks outliers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ...detection.rows import INLIER, OUTLIER
from ..readers.errors import DataError, listed

Say = Callable[[str], None]
#: Shares of known outliers above which something is likely to be the wrong way round.
MANY, MOST = 0.25, 0.5


def find_column(columns: list[str], name: str, where: str) -> str:
    """A column by its name, or by its number from 1, or from −1 backwards."""
    if name in columns:
        return name
    try:
        return columns[find_position(name, len(columns), where)]
    except DataError:
        raise DataError(f"{where} has no column {name!r}; its columns are {listed(columns)}") from None


def find_position(name: str, width: int, where: str) -> int:
    """The position of a column without a name, from 0."""
    text = name.removeprefix("column_")
    number = int(text) if re.fullmatch(r"-?\d{1,9}", text) else 0
    if number == 0 or abs(number) > width:
        raise DataError(f"{where} has no column {name!r}; its columns are numbered from 1 to {width}")
    return number - 1 if number > 0 else width + number


def split_label(label: str) -> tuple[str, str]:
    """The column and the value that ``--label`` names, the value empty if it names none.

    >>> split_label("class=3"), split_label("fraud")
    (('class', '3'), ('fraud', ''))
    """
    column, _, value = label.rpartition("=")
    return (column, value) if column else (label, "")


class Labels:
    """Labels as they come, in parts.

    >>> labels = Labels("fraud")
    >>> labels.marks(np.array(["yes", None, "no"], dtype=object)).tolist()
    [True, False, False]
    >>> Labels("class", "3").marks(np.array([3.0, 1.0])).tolist()
    [True, False]
    """

    def __init__(self, column: str, value: str = "") -> None:
        self.column, self.value = column, _plain(value)
        self._counts: Counter[str] = Counter()

    @classmethod
    def of(cls, label: str, columns: list[str], where: str) -> Self:
        """From what --label says: a column, or COLUMN=VALUE."""
        name, value = (label, "") if label in columns else split_label(label)
        return cls(find_column(columns, name, where), value)

    def marks(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Which of these labels mark a known outlier."""
        texts = [_plain(value) for value in values.tolist()]
        self._counts.update(texts)
        known = {text: text == self.value if self.value else text.lower() in OUTLIER for text in set(texts)}
        return np.array([known[text] for text in texts], dtype=bool)

    def check(self, say: Say, *, mostly: bool = False) -> None:
        """After the last part: refuse labels that cannot be told, and those that seem the wrong way round."""
        there = {text: count for text, count in self._counts.items() if text}
        column = self.column
        if self.value and self.value not in there:
            raise DataError(f"column {column!r} never holds {self.value!r}; it holds {listed(sorted(there))}")
        odd = sorted(text for text in there if text.lower() not in OUTLIER | INLIER | {"nan"})
        if odd and not self.value:
            rarest = min(sorted(there), key=lambda text: there[text])
            raise DataError(
                f"column {column!r} must mark known outliers by 1 and other rows by 0, found {listed(odd, 5)}; say "
                f"which value marks them, as in --label {listed([f'{column}={rarest}'])}, its rarest value"
            )
        total = sum(self._counts.values())
        known = self._counts[self.value] if self.value else sum(there[t] for t in there if t.lower() in OUTLIER)
        told = f"column {column!r} marks {known:,} of {total:,} rows as known outliers"
        if known > MOST * total and not mostly:
            others = {text: count for text, count in there.items() if text != self.value}
            rarest = min(sorted(others), key=lambda text: others[text], default="") if self.value else ""
            hint = f"choose another value, as in --label {listed([f'{column}={rarest}'])}, or " if rarest else ""
            raise DataError(f"{told}, more than half; {hint}pass --mostly-outliers if that is what they are")
        if known > MANY * total:
            say(f"{told}: more than a quarter, so look whether the value that marks them is the right one")


def _plain(value: Any) -> str:
    """A label as text, numbers without what does not count: 1.0 is 1."""
    if value is None:
        return ""
    text = str(value).strip()
    try:
        return text if isinstance(value, bool) or "_" in text else f"{float(text):.15g}"
    except ValueError:
        return text
