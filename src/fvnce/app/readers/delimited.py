"""Text tables: any delimiter, header or not, missing values, columns of numbers and of text, read in parts.

Delimiter and header are found in the first lines unless given. What a column holds is decided on the first part:
numbers if every value is one or is missing, else text. A column in which a few values among many numbers are none is
refused, because neither reading of it is safe; the user says which.
"""

from __future__ import annotations

import csv
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .budget import budget
from .frame import DataError, Frame, listed

#: Texts that stand for nothing, in lower case.
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "#n/a"})
DELIMITERS = ",;\t| "
#: The first lines, in which delimiter and header are looked for: so many, or as many as have so many characters.
SAMPLE_LINES, SAMPLE_CHARACTERS = 200, 2**20
#: Rows of a part may take this share of the memory allowed.
PART_SHARE = 8
#: Below this share of values that are no numbers, a column is neither clearly text nor clearly numbers.
FEW = 0.1
_COMMA_NUMBER = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?")

Kinds = dict[str, str]


@dataclass(frozen=True)
class TableOptions:
    """How a text table is to be read.

    Attributes:
        delimiter: one character, or None to find it.
        header: whether the first line names the columns, or None to find out.
        missing: texts that stand for a missing value, beside the usual ones.
        categorical: columns to take as text whatever they hold.
        kinds: what each column holds, if known from training: "number" or "text".
    """

    delimiter: str | None = None
    header: bool | None = None
    missing: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    kinds: Kinds | None = field(default=None, hash=False)


class DelimitedReader:
    """A text table, read once from front to back.

    >>> reader = DelimitedReader("demo", ["a;b\\n", "1,5;x\\n", ";y\\n"], TableOptions())
    >>> [frame] = reader.frames(10)
    >>> reader.delimiter, reader.header, frame["a"], frame["b"]
    (';', True, array([1.5, nan]), array(['x', 'y'], dtype=object))
    """

    def __init__(self, name: str, lines: Iterable[str], options: TableOptions) -> None:
        self.name, self._options = name, options
        if options.delimiter is not None and (len(options.delimiter) != 1 or options.delimiter in '\r\n"\0'):
            raise DataError(
                f"delimiter must be one character, and neither a quote nor a line end, found {options.delimiter[:20]!r}"
            )
        rest = iter(lines)
        sample, whole = _sample(rest)
        if not any(line.strip() for line in sample):
            raise DataError(f"{name} is empty: a table needs at least one row; give a file that has one")
        self.delimiter = options.delimiter or find_delimiter(sample, whole=whole)
        self._missing = MISSING | {text.strip().lower() for text in options.missing}
        try:
            rows = _split(sample, self.delimiter, whole=whole)
        except csv.Error as error:
            raise self._unreadable(error, "near its beginning") from None
        if not rows:
            raise DataError(f"{name} is empty: a table needs at least one row; give a file that has one")
        self.header = self._has_header(rows) if options.header is None else options.header
        if options.header is None and options.kinds is not None:
            # Names known from training settle it.
            self.header = self.header or set(options.kinds) <= {text.strip() for text in rows[0]}
        self._reader = csv.reader(itertools.chain(sample, rest), delimiter=self.delimiter, skipinitialspace=True)
        first = self._next_row()
        assert first is not None
        self._pending: list[str] | None = None if self.header else first
        self.columns = _names(name, first) if self.header else [f"column_{i + 1}" for i in range(len(first))]
        self.wanted = self._match(options.kinds)
        for wanted in options.categorical:
            if wanted not in self.columns:
                raise DataError(f"{name} has no column {wanted!r}; its columns are {listed(self.columns)}")
        self.kinds: Kinds = dict(options.kinds or {})

    @property
    def line(self) -> int:
        """Lines read so far."""
        return self._reader.line_num

    def frames(self, rows: int) -> Iterator[Frame]:
        """The table in parts of at most so many rows."""
        start = 0
        while True:
            part, lines = self._rows(rows)
            if not part:
                if start == 0:
                    raise DataError(f"{self.name} has a header but no rows; give a file that has some")
                return
            texts = dict(zip(self.columns, zip(*part, strict=True), strict=True))
            yield Frame({name: self._parse(name, texts[name], lines) for name in self.wanted})
            start += len(part)

    def _match(self, kinds: Kinds | None) -> list[str]:
        """The columns to give: all, or those of training, found by name or else by position."""
        if kinds is None:
            return self.columns
        missing = [name for name in kinds if name not in self.columns]
        if not missing:
            return list(kinds)
        unnamed = not self.header or all(name.startswith("column_") for name in kinds)
        if unnamed and len(self.columns) == len(kinds):
            self.columns = list(kinds)
            return self.columns
        raise DataError(
            f"{self.name} lacks column {missing[0]!r} of training; it has {listed(self.columns)}, and training had "
            f"{listed(list(kinds))}"
        )

    def _rows(self, count: int) -> tuple[list[list[str]], list[int]]:
        part: list[list[str]] = []
        lines: list[int] = []
        # A field costs some 64 bytes beside its letters, so that a wide table is read in parts of fewer rows.
        left = budget() // PART_SHARE
        while len(part) < count and left > 0:
            row = self._next_row() if self._pending is None else self._pending
            self._pending = None
            if row is None:
                break
            if len(row) != len(self.columns):
                raise DataError(
                    f"{self.name}, line {self.line}: found {len(row)} fields where the first line has "
                    f"{len(self.columns)}; correct the line, or name the delimiter with --delimiter"
                )
            part.append(row)
            lines.append(self.line)
            left -= 64 * len(row) + sum(map(len, row))
        return part, lines

    def _next_row(self) -> list[str] | None:
        try:
            for row in self._reader:
                if row:
                    return row
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self.name} is not text in UTF-8 (byte {error.object[error.start]:#04x} after line {self.line}); "
                "convert it, for instance with iconv -f latin1 -t utf-8"
            ) from None
        except csv.Error as error:
            raise self._unreadable(error, f"line {self.line}") from None
        return None

    def _unreadable(self, error: csv.Error, where: str) -> DataError:
        if "field limit" in str(error):
            return DataError(
                f"{self.name}, {where}: a field has more than {csv.field_size_limit():,} characters; close the quote "
                "that opens it, or leave its column out of the file"
            )
        return DataError(f"{self.name}, {where}: {error}; give a text table, or name the delimiter with --delimiter")

    def _has_header(self, rows: list[list[str]]) -> bool:
        """The first line names columns if none of it is a number and some number stands below, or if all is text and
        no first entry comes back below it."""
        first, rest = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]
        if any(self._is_number(text) for text in first):
            return False
        if not rest:
            # A line of words alone names columns, unless the columns are known and it is what is to be scored.
            return self._options.kinds is None
        below = list(zip(*rest, strict=True))
        if any(self._is_number(text) for column in below for text in column):
            return all(text.strip() for text in first) or any(not text.strip() for text in first[:1])
        return len(set(first)) == len(first) and all(
            text not in column for text, column in zip(first, below, strict=True)
        )

    def _is_number(self, text: str) -> bool:
        return text.strip().lower() not in self._missing and to_number(text, self.delimiter) is not None

    def _parse(self, name: str, texts: Sequence[str], lines: list[int]) -> NDArray[Any]:
        kind = "text" if name in self._options.categorical else self.kinds.get(name)
        if kind == "text":
            return self._texts(texts)
        values, bad = self._numbers(texts)
        if not bad:
            if kind is None and not np.isnan(values).all():
                self.kinds[name] = "number"
            return values
        present = sum(text.strip().lower() not in self._missing for text in texts)
        where = f"{self.name}, line {lines[bad[0]]}: column {name!r}"
        if kind == "number" or (kind is None and len(bad) < FEW * present):
            raise DataError(
                f"{where} holds numbers elsewhere but {texts[bad[0]].strip()[:40]!r} here; correct it, or pass "
                f"--missing {texts[bad[0]].strip()[:40]!r} or --categorical {name!r}"
            )
        self.kinds[name] = "text"
        return self._texts(texts)

    def _texts(self, texts: Sequence[str]) -> NDArray[np.object_]:
        stripped = (text.strip() for text in texts)
        return np.array([None if text.lower() in self._missing else text for text in stripped], dtype=object)

    def _numbers(self, texts: Sequence[str]) -> tuple[NDArray[np.float64], list[int]]:
        values, bad = np.empty(len(texts)), []
        for position, text in enumerate(texts):
            if text.strip().lower() in self._missing:
                values[position] = math.nan
                continue
            number = to_number(text, self.delimiter)
            if number is None:
                bad.append(position)
            else:
                values[position] = number
        return values, bad


def to_number(text: str, delimiter: str = ",") -> float | None:
    """The number a text stands for; a comma is a decimal point where it is not the delimiter.

    >>> to_number(" 1.5e3 "), to_number("2,5", ";"), to_number("2,5"), to_number("1_000")
    (1500.0, 2.5, None, None)
    """
    try:
        value = float(text)
    except ValueError:
        if delimiter != "," and _COMMA_NUMBER.fullmatch(text.strip()):
            return float(text.replace(",", "."))
        return None
    return None if "_" in text else value


def find_delimiter(sample: Sequence[str], *, whole: bool = True) -> str:
    """The delimiter that splits most lines alike, and leaves fewest other delimiters inside fields.

    >>> find_delimiter(["a;b;c", "1,5;2,5;3"]), find_delimiter(["a\\tb", "1\\t2"]), find_delimiter(["7", "8"])
    (';', '\\t', ',')
    """
    best, chosen = (0.0, 0.0), ","
    for delimiter in DELIMITERS:
        try:
            rows = _split(sample, delimiter, whole=whole)
        except csv.Error:
            continue
        width, count = Counter(map(len, rows)).most_common(1)[0] if rows else (1, 0)
        if width < 2 or (delimiter == " " and best > (0.9, 0.0)):
            continue
        cells = [cell for row in rows for cell in row]
        # A quote that opens inside a field means that the fields were cut at the wrong places.
        clean = sum(not any(other in cell for other in ';\t|"') for cell in cells) / len(cells)
        if (count / len(rows), clean) > best:
            best, chosen = (count / len(rows), clean), delimiter
    return chosen


def _sample(lines: Iterator[str]) -> tuple[list[str], bool]:
    """The first lines, and whether they are all."""
    sample: list[str] = []
    size = 0
    for line in lines:
        sample.append(line)
        size += len(line)
        if len(sample) == SAMPLE_LINES or size > SAMPLE_CHARACTERS:
            return sample, False
    return sample, True


def _split(sample: Sequence[str], delimiter: str, *, whole: bool) -> list[list[str]]:
    rows = [row for row in csv.reader(sample, delimiter=delimiter, skipinitialspace=True) if row]
    # The last of many lines may end within a quoted field.
    return rows if whole or len(rows) < 2 else rows[:-1]


def _names(name: str, fields: list[str]) -> list[str]:
    names = [text.strip() or f"column_{i + 1}" for i, text in enumerate(fields)]
    twice = [text for text, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{name} names column {twice[0]!r} twice; rename one, or pass --no-header if that is no header")
    return names
