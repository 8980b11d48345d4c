r"""Column types: how the texts of a column become numbers.

====================  =====================================================  ==================================
kind                  such as                                                becomes
====================  =====================================================  ==================================
``number``            1.5e3, $1,234.50, 1.234,50 €, (12.00), 12%, 1'000      the number; 0.12 for 12%
``truth``             yes/no, Y/N, true/FALSE, on/off                        1 and 0
``time``              2024-03-01, 2024-03-01 14:30:05+01:00, 1.3.2024        seconds since 1970, by the wall clock
``clock``             14:30, 14:30:05                                        hours
``duration``          a typed column of durations                            seconds
``text``              anything else                                          a code for each text seen in training
====================  =====================================================  ==================================

A :class:`ColumnType` is learned from training rows and stored with the model, so that later rows are read the same way:
whether 1,234 is a thousand or a bit more than one, and whether 1/3 is in January or in March.

A new kind needs a parser in ``_PARSERS``, a noun in ``NOUNS``, and a place in :func:`learn_type`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .. import _validation

Array = NDArray[np.float64]
#: What a column of each kind holds, for messages.
NOUNS = {
    "number": "numbers",
    "truth": "truths",
    "time": "dates",
    "clock": "times of day",
    "duration": "durations",
    "text": "texts",
}
#: Below this share of values that cannot be read, a column is neither clearly text nor clearly something else.
MISFIT_SHARE = 0.1
TRUE, FALSE = frozenset({"true", "yes", "y", "t", "on"}), frozenset({"false", "no", "n", "f", "off"})

_MONEY = r"(?:[$€£¥₹₽]|USD|EUR|CHF|GBP|JPY|CAD|AUD|SEK|NOK|DKK|PLN|Fr\.|kr)"
_AMOUNT = re.compile(rf"([+-]?)\s*{_MONEY}?\s*([+-]?)\s*([\d.,'’\s]*\d[.,]?(?:[eE][+-]?\d+)?)\s*(?:{_MONEY}|(%))?")
#: Digits with a decimal point and with a decimal comma; the same mark separates all thousands.
_POINT = re.compile(r"(?:[1-9]\d{0,2}(?:([,'’\s])\d{3})(?:\1\d{3})*|\d+)?(?:\.\d*)?(?:[eE][+-]?\d+)?")
_COMMA = re.compile(r"(?:[1-9]\d{0,2}(?:([.'’\s])\d{3})(?:\1\d{3})*|\d+)?(?:,\d*)?(?:[eE][+-]?\d+)?")
_SEPARATOR = re.compile(r"[^\d.eE+-]")
_ISO_DATE = re.compile(r"(\d{4})([-/])(\d{1,2})\2(\d{1,2})")
_LOCAL_DATE = re.compile(r"(\d{1,2})([./-])(\d{1,2})\2(\d{4})")
_TIME_OF_DATE = re.compile(
    r"(?:[T ]\s*(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)?\s*([AaPp][Mm])?)?\s*(?:Z|UTC|[+-]\d{2}:?\d{2})?"
)
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2})(?:\.\d+)?)?")


@dataclass(frozen=True)
class ColumnType:
    """How the values of a column are read.

    Attributes:
        kind: one of :data:`NOUNS`.
        decimal: "." or ",", the decimal mark of numbers.
        day_first: whether 1/3/2024 is in March.
        codes: for text, the code of each text of training.
        ignored: whether the column is left out, as identifiers are.

    >>> ColumnType("number", decimal=",").parse(["1.234,50 €", None])[0].tolist()
    [1234.5, nan]
    """

    kind: str = "number"
    decimal: str = "."
    day_first: bool = False
    codes: dict[str, int] | None = None
    ignored: bool = False

    def parse(self, texts: Sequence[str | None]) -> tuple[Array, int | None]:
        """Return the numbers that texts stand for, NaN where there is none, and the position of the first misfit.

        >>> ColumnType("number").parse(["$1,234.50", None, "50%"])[0].tolist()
        [1234.5, nan, 0.5]
        >>> ColumnType("number").parse(["1", "one"])[1]
        1
        """
        # Most columns hold a text more than once.
        parsed: dict[str | None, float | None] = {
            text: self.parse_one(text.strip()) for text in set(texts) if text is not None
        }
        parsed[None] = math.nan
        values = [parsed[text] for text in texts]
        misfit = next((position for position, value in enumerate(values) if value is None), None)
        return np.array([math.nan if value is None else value for value in values], dtype=np.float64), misfit

    def parse_one(self, text: str) -> float | None:
        """Return the number that a text without outer blanks stands for, or None."""
        return _PARSERS[self.kind](self, text)

    @property
    def noun(self) -> str:
        """What the column holds, for messages."""
        return NOUNS[self.kind]

    def with_codes(self, texts: Iterable[str | None]) -> Self:
        """Return this type with a code for each different text."""
        different = sorted({text.strip() for text in texts if text is not None})
        return replace(self, codes={text: code for code, text in enumerate(different)})

    @classmethod
    def from_state(cls, state: Any) -> Self:
        """Build a type from its fields in a file, or raise FileError for a state that no type has."""
        codes, kind, decimal, day_first, ignored = _validation.fields(
            state,
            "a column",
            "codes",
            kind=partial(_validation.choice, options=tuple(NOUNS)),
            decimal=partial(_validation.choice, options=(".", ",")),
            day_first=_validation.flag,
            ignored=_validation.flag,
        )
        counts = isinstance(codes, dict) and sorted(codes.values()) == list(range(len(codes)))
        good = counts if kind == "text" else codes is None
        _validation.require(good, "have codes that count from 0 if it is text", codes, of="a column")
        return cls(kind, decimal, day_first, codes, ignored)


def learn_type(texts: Iterable[str | None], decimal: str | None = None) -> tuple[ColumnType, str | None]:
    """Learn how to read a column of texts.

    Args:
        texts: of the column, None where missing.
        decimal: the decimal mark to assume if no value shows it: whether 1,234 is a thousand or a bit more than one.

    Returns:
        The type, and the first misfit if a few values among many do not fit, so that no type is safe.

    >>> learn_type(["1.234,50 €", "2,5"])[0].decimal, learn_type(["1,234"])[0].parse(["1,234"])[0]
    (',', array([1234.]))
    >>> learn_type(["Y", "n"])[0].kind, learn_type(["3/4/2024", "13/4/2024"])[0].day_first
    ('truth', True)
    >>> learn_type(["1"] * 40 + ["1x"])[1]
    '1x'
    """
    present = [text.strip() for text in texts if text is not None]
    if not present:
        return ColumnType(), None
    different = list(dict.fromkeys(present))
    lower = {text.lower() for text in different}
    if lower <= TRUE | FALSE | {"0", "1"} and lower & (TRUE | FALSE):
        return ColumnType("truth"), None
    best, fewest, misfit = ColumnType("text"), len(present), ""
    for candidate in (_number_type(different, decimal), _date_type(different), ColumnType("clock")):
        misfits = {text for text in different if candidate.parse_one(text) is None}
        count = sum(text in misfits for text in present)
        if count == 0:
            return candidate, None
        if count < fewest:
            best, fewest, misfit = candidate, count, next(text for text in different if text in misfits)
    return (best, misfit) if fewest < MISFIT_SHARE * len(present) else (ColumnType("text"), None)


def has_ambiguous_dates(texts: Iterable[str | None]) -> bool:
    """Return whether a column has dates of which none shows whether the day or the month comes first."""
    dates = [match for match in (_LOCAL_DATE.match(text.strip()) for text in texts if text is not None) if match]
    return bool(dates) and all(m.group(2) != "." and int(m.group(1)) <= 12 and int(m.group(3)) <= 12 for m in dates)


def _number_type(texts: Sequence[str], default: str | None) -> ColumnType:
    """Choose the decimal mark that most of the texts that show one have, else the default."""
    point, comma = ColumnType("number", "."), ColumnType("number", ",")
    votes = {".": 0, ",": 0}
    unclear = False
    for text in texts:
        by_point, by_comma = point.parse_one(text), comma.parse_one(text)
        if (by_point is None) != (by_comma is None):
            votes["." if by_comma is None else ","] += 1
        elif by_point is not None and by_point != by_comma:
            unclear |= "," in text
    if votes["."] == votes[","] and unclear and not any("." in text and "," not in text for text in texts):
        return ColumnType("number", default or ".")
    return comma if votes[","] > votes["."] else point


def _date_type(texts: Sequence[str]) -> ColumnType:
    """Decide whether the day comes first: in 1.3.2024 it does; in 1/3/2024 if some first number is above 12."""
    dates = [match for match in map(_LOCAL_DATE.match, texts) if match]
    return ColumnType("time", day_first=any(m.group(2) == "." or int(m.group(1)) > 12 for m in dates))


def _number(column: ColumnType, text: str) -> float | None:
    comma = column.decimal == ","
    if not comma or "," not in text:
        try:
            # In a column of decimal commas 1.234 is a thousand, and 1.5 what it says.
            if "_" not in text and not (comma and "." in text and _COMMA.fullmatch(text.lstrip("+-"))):
                return float(text)
        except ValueError:
            pass
    inside = text[1:-1] if text.startswith("(") and text.endswith(")") else text
    match = _AMOUNT.fullmatch(inside.strip())
    if match is None or (match.group(1) and match.group(2)):
        return None
    digits = match.group(3).strip()
    if not (_COMMA if comma else _POINT).fullmatch(digits):
        return None
    plain = digits.replace(".", "").replace(",", ".") if comma else digits.replace(",", "")
    try:
        value = float(_SEPARATOR.sub("", plain))
    except ValueError:
        return None
    sign = -1.0 if "-" in (match.group(1), match.group(2)) else 1.0
    # Accountants write amounts owed in brackets.
    return sign * (-value if inside is not text else value) / (100.0 if match.group(4) else 1.0)


def _truth(column: ColumnType, text: str) -> float | None:
    lower = text.lower()
    return 1.0 if lower in TRUE | {"1", "1.0"} else 0.0 if lower in FALSE | {"0", "0.0"} else None


def _time(column: ColumnType, text: str) -> float | None:
    if match := _ISO_DATE.match(text):
        year, month, day = (int(match.group(i)) for i in (1, 3, 4))
    elif match := _LOCAL_DATE.match(text):
        first, second, year = (int(match.group(i)) for i in (1, 3, 4))
        day, month = (first, second) if column.day_first or match.group(2) == "." else (second, first)
    else:
        return None
    rest = _TIME_OF_DATE.fullmatch(text, match.end())
    if rest is None:
        return None
    hour, minute, second = (int(rest.group(i) or 0) for i in (1, 2, 3))
    if half := rest.group(5):
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + 12 * (half.lower() == "pm")
    try:
        moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None
    return moment.timestamp() + float(f"0.{rest.group(4) or 0}")


def _clock(column: ColumnType, text: str) -> float | None:
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    hour, minute, second = (int(match.group(i) or 0) for i in (1, 2, 3))
    return hour + minute / 60 + second / 3600 if hour < 24 and minute < 60 and second < 60 else None


def _code(column: ColumnType, text: str) -> float | None:
    return None if column.codes is None else float(column.codes.get(text, -2))


_PARSERS: dict[str, Callable[[ColumnType, str], float | None]] = {
    "number": _number,
    "truth": _truth,
    "time": _time,
    "clock": _clock,
    "duration": _number,
    "text": _code,
}
