r"""Column types: parsing the texts of a column as numbers.

====================  =====================================================  ==================================
kind                  such as                                                becomes
====================  =====================================================  ==================================
``number``            1.5e3, $1,234.50, 1.234,50 €, (12.00), 12%, <0.5       the number; 0.12 for 12%
``truth``             yes/no, Y/N, true/FALSE, on/off                        1 and 0
``time``              2024-03-01 14:30:05+01:00, 1.3.2024, 3/1/24, 1 Mar 24  seconds since 1970, by the wall clock
``clock``             14:30, 2:30 PM, 36:15:05                               hours
``duration``          a typed column of durations                            seconds
``text``              anything else                                          a code for each text seen in training
====================  =====================================================  ==================================

A :class:`ColumnType` is inferred from all rows of a file and stored with the model, so that later rows are read in the
same way: the decimal mark of 1,234, the month of 1/3, the texts that mean a missing value.

A new kind needs an entry in :data:`KINDS` and a case in :func:`kind_of`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from .. import _validation

Array = NDArray[np.float64]
#: Texts that mean a missing value in every column, in lower case: ours, those of pandas, and Excel's errors.
# fmt: off
MISSING = frozenset({
    "", "na", "n/a", "nan", "-nan", "null", "none", "?", "nat", "<na>", "#n/a", "#n/a n/a", "#na", "1.#ind", "-1.#ind",
    "1.#qnan", "-1.#qnan", "#div/0!", "#value!", "#ref!", "#name?", "#num!", "#null!",
})
# fmt: on
TRUE, FALSE = frozenset({"true", "yes", "y", "t", "on"}), frozenset({"false", "no", "n", "f", "off"})
#: Pairs of words for true and false: in a column of F and N, not both can mean false.
TRUTHS = ({"true", "t", "false", "f"}, {"yes", "y", "no", "n"}, {"on", "off"})

_MONEY = r"(?:[A-Z]{0,2}[$€£¥₹₽₩₪₫₴₦₱₺฿]|USD|EUR|CHF|GBP|JPY|CAD|AUD|SEK|NOK|DKK|PLN|Fr\.|kr)"
MONEY, DOLLARS = re.compile(_MONEY), re.compile("[$£¥]|USD|GBP|JPY")
_UNIT = r"(?:[^\W\d_]|[°²³µ/%‰″\"^])(?:[^\W\d_]|[°²³µ/%‰″\"^-]){0,11}"
#: An amount: sign, currency, sign, digits, currency or unit, minus.
_AMOUNT = re.compile(
    rf"([+-]?)\s*({_MONEY}?)\s*([+-]?)\s*([\d.,'’\s]*\d[.,]?(?:[eE][+-]?\d+)?)\s*({_MONEY}|{_UNIT}|)(-?)"
)
#: Digits with a decimal point or a decimal comma; all thousands have the same separator.
_DIGITS = {
    mark: re.compile(
        rf"(?:[1-9]\d{{0,2}}(?:([{other}'’\s])\d{{3}})(?:\1\d{{3}})*|[1-9]\d?(?:[{other}]\d\d)+[{other}]\d{{3}}|\d+)?"
        rf"(?:[{mark}]\d*)?((?:[eE][+-]?\d+)?)"
    )
    for mark, other in (".,", ",.")
}
_SEPARATOR = re.compile(r"[^\d.eE+-]")
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")
#: The sign of a bound, before a value outside the range of an instrument.
BOUND = re.compile(r"^(?:[<>]=?|[≤≥])\s*(?=[\d.,+-])")
_MONTHS = ("", "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
LOCAL_DATE = re.compile(r"(\d{1,2})([./-])(\d{1,2})\2(\d{4}|\d{2})(?!\d)")
#: Eight digits that are a date if the whole column matches.
COMPACT_DATE = re.compile(r"(?P<year>(?:19|20)\d\d)(?P<month>0[1-9]|1[0-2])(?P<day>0[1-9]|[12]\d|3[01])")
_WEEKDAY, _MONTH = r"(?:[A-Za-z]{3},? )?", r"(?P<month>[A-Za-z]{3})[a-z]*\.?"
#: Dates that can be read in one way; a month without a day is its first day, but has no time of day.
_DATES = (
    re.compile(r"(?P<year>\d{4})([-/.])(?P<month>\d{1,2})\2(?P<day>\d{1,2})(?!\d)"),
    re.compile(r"(?P<year>\d{4})[-/](?P<month>\d{1,2})(?P<day>)$"),
    re.compile(rf"{_WEEKDAY}(?P<day>\d{{1,2}})[ ./-]+{_MONTH}[ ,./-]+(?P<year>\d{{4}}|\d{{2}})(?!\d)"),
    re.compile(rf"{_WEEKDAY}{_MONTH} (?P<day>\d{{1,2}}),? (?P<year>\d{{4}})(?!\d)"),
    COMPACT_DATE,
)
_TIME_OF_DATE = re.compile(
    r"(?:(?:[T :]|, )\s*(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)?\s*([AaPp][Mm])?)?"
    r"\s*(?:Z|UTC|GMT|[+-]\d{2}:?\d{2})?"
)
_CLOCK = re.compile(r"(\d{1,4}):(\d{2})(?::(\d{2})(\.\d+)?)?\s*([AaPp][Mm])?")


@dataclass(frozen=True)
class ColumnType:
    """Type of a column: how its values are read.

    Attributes:
        kind: one of :data:`KINDS`.
        decimal: "." or ",", the decimal mark of numbers; None if unknown: 1.234 is then rejected.
        day_first: whether 1/3/2024 is in March; None if unknown: such dates are then rejected.
        codes: for text, the code of each text of training.
        ignored: whether the column is excluded, such as an identifier.
        missing: texts that mean a missing value in this column, in addition to those for all columns.
        unit: required unit after its numbers, as in 5 kg and 5 %; or the currency, which is optional.

    >>> ColumnType("number", decimal=",").parse(["1.234,50 €", None])[0].tolist()
    [1234.5, nan]
    """

    kind: str = "number"
    decimal: str | None = None
    day_first: bool | None = False
    codes: dict[str, int] | None = None
    ignored: bool = False
    missing: tuple[str, ...] = ()
    unit: str = ""

    def parse(self, texts: Sequence[str | None]) -> tuple[Array, int | None]:
        """Parse texts as numbers.

        Args:
            texts: the cells of the column, None for an empty one.

        Returns:
            The numbers, NaN where missing or unreadable, and the position of the first unreadable text or None.

        >>> ColumnType("number").parse(["$1,234.50", None])[0].tolist(), ColumnType(unit="%").parse(["50%"])[0].tolist()
        ([1234.5, nan], [0.5])
        >>> ColumnType("number").parse(["1", "one"])[1]
        1
        """
        gaps = self.gaps
        # Most columns have repeated texts.
        parsed: dict[str | None, float | None] = {
            text: math.nan if (plain := text.strip()).lower() in gaps else self.parse_one(plain)
            for text in set(texts)
            if text is not None
        }
        parsed[None] = math.nan
        values = [parsed[text] for text in texts]
        misfit = next((position for position, value in enumerate(values) if value is None), None)
        return np.array([math.nan if value is None else value for value in values], dtype=np.float64), misfit

    def parse_one(self, text: str) -> float | None:
        """Parse one stripped text as a number; None if it is unreadable."""
        return KINDS[self.kind].parse(self, text)

    @property
    def noun(self) -> str:
        """Noun for the values of the column, for messages."""
        return KINDS[self.kind].noun

    @property
    def undecided(self) -> bool:
        """Whether the decimal mark of the numbers is unknown."""
        return self.kind == "number" and self.decimal is None

    @property
    def gaps(self) -> frozenset[str]:
        """All texts that mean a missing value, in lower case."""
        return MISSING | {text.strip().lower() for text in self.missing}

    @cached_property
    def number_codes(self) -> dict[tuple[float, str], int]:
        """For text, the code of each number that a text of training equals; −2 if several do."""
        result: dict[tuple[float, str], int] = {}
        for text, code in (self.codes or {}).items():
            if (number := amount(text, ".")) is not None:
                result[number] = -2 if number in result else code
        return result

    def with_codes(self, texts: Iterable[str | None]) -> Self:
        """Return this type with a code for each different text."""
        gaps = self.gaps
        different = sorted({text.strip() for text in texts if text is not None and text.strip().lower() not in gaps})
        return replace(self, codes={text: code for code, text in enumerate(different)})

    @classmethod
    def from_state(cls, state: Any) -> Self:
        """Build a type from its fields in a file, or raise FileError for a state that no type has."""
        # Runs of 0.3 store neither missing texts nor the unit of a column.
        state = {"missing": [], "unit": "", **state} if isinstance(state, dict) else state
        codes, kind, decimal, day_first, ignored, missing, unit = _validation.fields(
            state,
            "a column",
            "codes",
            kind=partial(_validation.choice, options=tuple(KINDS)),
            decimal=_validation.optional(partial(_validation.choice, options=(".", ","))),
            day_first=_validation.optional(_validation.flag),
            ignored=_validation.flag,
            missing=_validation.listed(_validation.text),
            unit=_validation.text,
        )
        counts = isinstance(codes, dict) and sorted(codes.values()) == list(range(len(codes)))
        good = counts if kind == "text" else codes is None
        _validation.require(good, "have codes that count from 0 if it is text", codes, of="a column")
        return cls(kind, decimal, day_first, codes, ignored, tuple(missing), unit)


def kind_of(text: str) -> tuple[str, str]:
    """Classify a text: return its kind, and the decimal mark of a number or the order of a date.

    The kind of 5 kg is "unit kg", that of 5 % "unit %", that of $5 "unit $". The mark of a number is "." or ",", "?."
    or "?," if it can be read in two ways with different results, and "" if both agree. The order of a date is "day",
    "month", "?" if ambiguous, or "" if it does not matter.

    >>> [kind_of(text) for text in ("20.10", "1.234", "7", "2,5 €", "13/4/2024", "3/4/2024", "no", "Bern")]
    [('number', '.'), ('number', '?.'), ('number', ''), ('unit €', ','), ('time', 'day'), ('time', '?'), ('truth', \
''), ('text', '')]
    """
    bare = BOUND.sub("", text, count=1)
    by_point, by_comma = amount(bare, "."), amount(bare, ",")
    unit, shows = (by_point or by_comma or (0.0, ""))[1], ""
    if by_point != by_comma:
        shows = "." if by_comma is None else "," if by_point is None else "?," if "," in text else "?."
    is_number = bool(by_point or by_comma)
    if is_number and (unit in ("", "%") or MONEY.match(unit)):
        return f"unit {unit}" if unit else "number", shows
    for first in ("month", "day"):
        if _time(ColumnType("time", day_first=first == "day"), text) is not None:
            local = LOCAL_DATE.match(text)
            if local is None or local.group(2) == ".":
                return "time", ""
            return "time", first if first == "day" or int(local.group(3)) > 12 else "?"
    if _clock(ColumnType("clock"), text) is not None:
        return "clock", ""
    if is_number:
        return f"unit {unit}", shows
    return ("truth" if text.lower() in TRUE | FALSE else "text"), ""


def _number(column: ColumnType, text: str) -> float | None:
    bare = BOUND.sub("", text, count=1)
    amounts = {amount(bare, mark) for mark in column.decimal or ".,"} - {None}
    if len(amounts) != 1:
        return None
    value, unit = amounts.pop() or (math.nan, "")
    # A currency may be left out; 0 needs no unit.
    same = unit == column.unit or ("" in (unit, column.unit) and MONEY.fullmatch(unit + column.unit))
    return value if same or (value == 0 and not unit) else None


def amount(text: str, mark: str) -> tuple[float, str] | None:
    """Parse a text as a number with the decimal mark ``mark``, and its currency or unit; None if it is not one."""
    text = text.replace("−", "-").replace("–", "-")
    if ("," if mark == "." else ".") not in text and "_" not in text:
        try:
            return float(text.replace(mark, ".")), ""
        except ValueError:
            pass
    # In accounting, negative amounts are in brackets.
    owed = re.fullmatch(rf"({_MONEY}?)\s*\(([^()]+)\)", text)
    match = _AMOUNT.fullmatch((owed.group(1) + owed.group(2) if owed else text).strip())
    if match is None or sum(map(bool, (owed, *match.group(1, 3, 6)))) > 1 or _ADDRESS.fullmatch(text):
        return None
    digits, unit = match.group(4).strip(), match.group(2) + match.group(5)
    grouped = _DIGITS[mark].fullmatch(digits)
    if not grouped or (grouped.group(1) and grouped.group(2)):  # thousands separators do not occur with an exponent
        return None
    if unit not in ("", "%") and not MONEY.match(unit) and re.match(r"0\d", digits):  # a code, such as 007b
        return None
    plain = digits.replace(".", "").replace(",", ".") if mark == "," else digits.replace(",", "")
    try:
        value = float(_SEPARATOR.sub("", plain))
    except ValueError:
        return None
    value = -value if owed or "-" in match.group(1, 3, 6) else value
    return value / (100.0 if unit == "%" else 1.0), unit


def _truth(column: ColumnType, text: str) -> float | None:
    lower = text.lower()
    return 1.0 if lower in TRUE | {"1", "1.0"} else 0.0 if lower in FALSE | {"0", "0.0"} else None


def _time(column: ColumnType, text: str) -> float | None:
    if match := LOCAL_DATE.match(text):
        first, second, year = (int(match.group(i)) for i in (1, 3, 4))
        if len(match.group(4)) == 2 and match.group(2) != "/" and min(map(len, match.group(1, 3))) < 2:
            return None  # 1.2.34 is a version number
        unknown = column.day_first is None and match.group(2) != "."
        if unknown and (len(match.group(4)) == 2 or (max(first, second) <= 12 and first != second)):
            return None
        by_day = column.day_first or match.group(2) == "." or (unknown and first > 12)
        day, month = (first, second) if by_day else (second, first)
    elif match := next(filter(None, (date.match(text) for date in _DATES)), None):
        year, day, name = int(match["year"]), int(match["day"] or 1), match["month"].lower()
        month = int(name) if name.isdigit() else _MONTHS.index(name) if name in _MONTHS else 0
    else:
        return None
    rest = _TIME_OF_DATE.fullmatch(text, match.end())
    if rest is None:
        return None
    year = year if year > 99 else year + (1900 if year > 68 else 2000)
    try:
        moment = datetime(year, month, day, *_hours(rest), tzinfo=UTC)
    except ValueError:
        return None
    return moment.timestamp() + float(f"0.{rest.group(4) or 0}")


def _clock(column: ColumnType, text: str) -> float | None:
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    hour, minute, second = _hours(match)
    seconds = second + float(match.group(4) or 0)
    return hour + minute / 60 + seconds / 3600 if hour >= 0 and max(minute, second) < 60 else None


def _hours(match: re.Match[str]) -> tuple[int, int, int]:
    """Return hours, minutes and seconds; hours are −1 if invalid, such as 13 PM."""
    hour, minute, second = (int(match.group(i) or 0) for i in (1, 2, 3))
    if half := match.group(match.re.groups):
        hour = hour % 12 + 12 * (half.lower() == "pm") if 1 <= hour <= 12 else -1
    return hour, minute, second


def _code(column: ColumnType, text: str) -> float | None:
    """Return the code of a text; 700 has that of "00700" if no other text of training equals this number."""
    if column.codes is None:
        return None
    other = -2 if (number := amount(text, ".")) is None else column.number_codes.get(number, -2)
    return float(column.codes.get(text, other))


class Kind(NamedTuple):
    """Kind of a column: its parser, and nouns for its values in messages and on pages."""

    parse: Callable[[ColumnType, str], float | None]
    noun: str
    label: str


KINDS = {
    "number": Kind(_number, "numbers", "number"),
    "truth": Kind(_truth, "yes or no", "yes or no"),
    "time": Kind(_time, "dates", "date"),
    "clock": Kind(_clock, "times of day", "time of day"),
    "duration": Kind(_number, "durations", "duration"),
    "text": Kind(_code, "texts", "text"),
}
