r"""What a column of text says, as numbers: amounts of money, shares, truths, dates and times.

====================  =====================================================  ==================================
kind                  such as                                                becomes
====================  =====================================================  ==================================
``number``            1.5e3, $1,234.50, 1.234,50 €, (12.00), 12%, 1'000      the number; a share of one for 12%
``truth``             yes/no, Y/N, true/FALSE, on/off                        1 and 0
``time``              2024-03-01, 2024-03-01 14:30:05+01:00, 1.3.2024        seconds since 1970, by the wall clock
``clock``             14:30, 14:30:05                                        hours
``duration``          a column of durations                                  seconds
``text``              anything else                                          a code for each text seen in training
====================  =====================================================  ==================================

How a column is read is learnt from training rows and kept with the model, so that rows to come are read alike: whether
1,234 is a thousand or a bit more than one, and whether 1/3 is in January or in March.

Columns that name rows instead of describing them, identifiers, row counters and account numbers, are told too: every
row to come has a new one, so that it would be strange for its name alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .members.base import require
from .plan import Array

KINDS = ("number", "truth", "time", "clock", "duration", "text")
#: Below this share of values that cannot be read, a column is neither clearly text nor clearly something else.
FEW = 0.1
TRUE, FALSE = frozenset({"true", "yes", "y", "t", "on"}), frozenset({"false", "no", "n", "f", "off"})

_MONEY = r"(?:[$€£¥₹₽]|USD|EUR|CHF|GBP|JPY|CAD|AUD|SEK|NOK|DKK|PLN|Fr\.|kr)"
_AMOUNT = re.compile(rf"([+-]?)\s*{_MONEY}?\s*([+-]?)\s*([\d.,'’\s]*\d[.,]?(?:[eE][+-]?\d+)?)\s*(?:{_MONEY}|(%))?")
_POINT = re.compile(r"(?:[1-9]\d{0,2}(?:([,'’\s])\d{3})(?:\1\d{3})*|\d+)?(?:\.\d*)?(?:[eE][+-]?\d+)?")
_COMMA = re.compile(r"(?:[1-9]\d{0,2}(?:([.'’\s])\d{3})(?:\1\d{3})*|\d+)?(?:,\d*)?(?:[eE][+-]?\d+)?")
_BETWEEN = re.compile(r"[^\d.eE+-]")
_ISO = re.compile(r"(\d{4})([-/])(\d{1,2})\2(\d{1,2})")
_LOCAL = re.compile(r"(\d{1,2})([./-])(\d{1,2})\2(\d{4})")
_REST = re.compile(
    r"(?:[T ]\s*(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)?\s*([AaPp][Mm])?)?\s*(?:Z|UTC|[+-]\d{2}:?\d{2})?"
)
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2})(?:\.\d+)?)?")
#: Rows below which nothing can be told.
ENOUGH = 20
#: Digits of an account number, all of the same length.
DIGITS = 9
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_ALONE = frozenset({"account", "index", "idx", "key", "no", "nr", "row", "rownum", "serial"})
_LAST = frozenset({"id", "ids", "uuid", "guid", "iban", "ssn", "rowid"})
_NUMBER = frozenset({"number", "no", "nr", "num", "code"})
_THINGS = frozenset(
    {"account", "card", "customer", "invoice", "order", "patient", "policy", "row", "serial", "transaction"}
)


@dataclass(frozen=True)
class Reading:
    """How the texts of a column are read.

    Attributes:
        kind: what they are, as above.
        decimal: "." or ",", what stands before the fraction of a number.
        day_first: whether 1/3/2024 is in March.
        codes: for text, the code of each text of training.
        ignored: whether the column is left out, as identifiers are.
    """

    kind: str = "number"
    decimal: str = "."
    day_first: bool = False
    codes: dict[str, int] | None = None
    ignored: bool = False

    def numbers(self, texts: Sequence[str | None]) -> tuple[Array, int | None]:
        """The numbers that texts stand for, NaN where there is none, and the position of the first that cannot be read.

        >>> Reading("number").numbers(["$1,234.50", None, "50%"])[0].tolist()
        [1234.5, nan, 0.5]
        >>> Reading("number").numbers(["1", "one"])[1]
        1
        """
        # Most columns hold a text more than once.
        known: dict[str | None, float | None] = {text: self._read(text) for text in set(texts) if text is not None}
        known[None] = math.nan
        values = [known[text] for text in texts]
        bad = next((position for position, value in enumerate(values) if value is None), None)
        return np.array([math.nan if value is None else value for value in values], dtype=np.float64), bad

    def _read(self, text: str) -> float | None:
        return _READERS[self.kind](self, text.strip())

    @property
    def told(self) -> str:
        """What the column holds, in a sentence."""
        return {"truth": "truths", "time": "dates", "clock": "times of day", "duration": "durations"}.get(
            self.kind, "texts" if self.kind == "text" else "numbers"
        )


def learn_reading(texts: Iterable[str | None], decimal: str | None = None) -> tuple[Reading, str | None]:
    """How to read a column, and the first of a few values that do not fit, if there are such: neither reading is safe.

    Args:
        texts: of the column, None where missing.
        decimal: what 1,234 is if nothing else in the column tells: "." for a thousand, "," for a bit more than one.

    >>> learn_reading(["1.234,50 €", "2,5"])[0].decimal, learn_reading(["1,234"])[0].numbers(["1,234"])[0]
    (',', array([1234.]))
    >>> learn_reading(["Y", "n"])[0].kind, learn_reading(["3/4/2024", "13/4/2024"])[0]
    ('truth', Reading(kind='time', decimal='.', day_first=True, codes=None, ignored=False))
    >>> learn_reading(["1"] * 40 + ["1x"])[1]
    '1x'
    """
    present = [text.strip() for text in texts if text is not None]
    if not present:
        return Reading(), None
    different = list(dict.fromkeys(present))
    if all(text.lower() in TRUE | FALSE | {"0", "1"} for text in different) and any(
        text.lower() in TRUE | FALSE for text in different
    ):
        return Reading("truth"), None
    best, fewest = Reading("text"), len(present)
    for reading in (_number_style(different, decimal), _date_style(different), Reading("clock")):
        wrong = {text for text in different if reading._read(text) is None}
        count = sum(text in wrong for text in present)
        if count == 0:
            return reading, None
        if count < fewest:
            best, fewest, odd = reading, count, next(text for text in different if text in wrong)
    if best.kind != "text" and fewest < FEW * len(present):
        return best, odd
    return Reading("text"), None


def with_codes(reading: Reading, texts: Iterable[str | None]) -> Reading:
    """The reading of a column of text with a code for each of its texts."""
    different = sorted({text.strip() for text in texts if text is not None})
    return replace(reading, codes={text: code for code, text in enumerate(different)})


def _number_style(texts: Sequence[str], default: str | None) -> Reading:
    """Which of point and comma stands before a fraction: what most values that tell say, else as told."""
    point, comma = Reading("number", "."), Reading("number", ",")
    told = {".": 0, ",": 0}
    unclear = False
    for text in texts:
        one, other = point._read(text), comma._read(text)
        if (one is None) != (other is None):
            told["." if other is None else ","] += 1
        elif one is not None and one != other:
            unclear |= "," in text
    if told["."] == told[","] and unclear and not any("." in text and "," not in text for text in texts):
        return Reading("number", default or ".")
    return comma if told[","] > told["."] else point


def _date_style(texts: Sequence[str]) -> Reading:
    """Whether the day comes first: in 1.3.2024 it does; in 1/3/2024 it does if some first number is above 12."""
    found = [match for match in map(_LOCAL.match, texts) if match]
    return Reading("time", day_first=any(m.group(2) == "." or int(m.group(1)) > 12 for m in found))


def is_ambiguous(texts: Iterable[str | None]) -> bool:
    """Whether no date of a column tells day from month."""
    found = [match for match in (_LOCAL.match(text.strip()) for text in texts if text is not None) if match]
    return bool(found) and all(m.group(2) != "." and int(m.group(1)) <= 12 and int(m.group(3)) <= 12 for m in found)


def _number(reading: Reading, text: str) -> float | None:
    comma = reading.decimal == ","
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
        value = float(_BETWEEN.sub("", plain))
    except ValueError:
        return None
    sign = -1.0 if "-" in (match.group(1), match.group(2)) else 1.0
    # In the books of accountants an amount in brackets is owed.
    return sign * (-value if inside is not text else value) / (100.0 if match.group(4) else 1.0)


def _truth(reading: Reading, text: str) -> float | None:
    low = text.lower()
    return 1.0 if low in TRUE or low in ("1", "1.0") else 0.0 if low in FALSE or low in ("0", "0.0") else None


def _time(reading: Reading, text: str) -> float | None:
    if match := _ISO.match(text):
        year, month, day = (int(match.group(i)) for i in (1, 3, 4))
    elif match := _LOCAL.match(text):
        first, second, year = (int(match.group(i)) for i in (1, 3, 4))
        day, month = (first, second) if reading.day_first or match.group(2) == "." else (second, first)
    else:
        return None
    rest = _REST.fullmatch(text, match.end())
    if rest is None:
        return None
    hour, minute, second = (int(rest.group(i) or 0) for i in (1, 2, 3))
    if half := rest.group(5):
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + 12 * (half.lower() == "pm")
    try:
        found = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None
    return found.timestamp() + float(f"0.{rest.group(4) or 0}")


def _clock(reading: Reading, text: str) -> float | None:
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    hour, minute, second = (int(match.group(i) or 0) for i in (1, 2, 3))
    return hour + minute / 60 + second / 3600 if hour < 24 and minute < 60 and second < 60 else None


_READERS: dict[str, Callable[[Reading, str], float | None]] = {
    "number": _number,
    "truth": _truth,
    "time": _time,
    "clock": _clock,
    "duration": _number,
    "text": lambda reading, text: None if reading.codes is None else float(reading.codes.get(text, -2)),
}


def require_reading(state: Any) -> Reading:
    """A reading from its state, or an error for what none has."""
    reading = Reading(**state)
    require(reading.kind in KINDS, f"have columns of kinds {', '.join(KINDS)}", reading.kind)
    require(reading.decimal in (".", ","), "have '.' or ',' before fractions", reading.decimal)
    for flag in (reading.day_first, reading.ignored):
        require(isinstance(flag, bool), "say of a column yes or no", flag)
    require((reading.codes is not None) == (reading.kind == "text"), "have codes for texts", reading.codes)
    if reading.codes is not None:
        good = isinstance(reading.codes, dict) and sorted(reading.codes.values()) == list(range(len(reading.codes)))
        require(good, "number its categories from 0", reading.codes)
    return reading


def identifier_in(name: Any, values: NDArray[Any], of: int | None = None) -> str | None:
    """What makes a column one that names rows, in words, or None.

    Args:
        name: of the column.
        values: of the column, None or NaN where missing.
        of: rows of the table, if the values are those of a random part of them.

    >>> identifier_in("n", np.arange(40)), identifier_in("patient_id", np.arange(100) // 2)
    ('counts rows', 'names rows: its name says so, and it holds 50 different values in 100 rows')
    >>> identifier_in("age", np.arange(100) // 2) is None
    True
    """
    share = 1.0 if of is None else len(values) / of
    if len(values) < share * ENOUGH or values.dtype.kind not in "iufO":
        return None
    if values.dtype.kind == "O":
        there: Any = [value for value in values.tolist() if value is not None]
        different = len(set(there)) if all(isinstance(value, str) for value in there) else len(set(map(str, there)))
    else:
        there = values[~np.isnan(values)] if values.dtype.kind == "f" else values
        if not (np.isfinite(there).all() and (there == np.floor(there)).all()):
            return None
        different = len(np.unique(there))
    count = len(there)
    if count < share * ENOUGH:
        return None
    told = f"{different:,} different values in {count:,} rows"
    if _says_so(name) and different > max(share * ENOUGH, count // 20):
        return f"names rows: its name says so, and it holds {told}"
    if values.dtype.kind == "O":
        # Of texts that occur twice each, a part of the rows holds share · (1 − share / 2) · rows different ones.
        return f"names rows: it holds {told}" if different > max(50 * share, (1 - share / 2) * count) else None
    if different == count and float(there.max()) - float(there.min()) < (of or count):
        return "counts rows"
    low, high = float(there.min()), float(there.max())
    if different > 0.9 * count and low >= 10 ** (DIGITS - 1) and len(f"{low:.0f}") == len(f"{high:.0f}"):
        return f"looks like account numbers: {told}, all of {len(f'{low:.0f}')} digits"
    return None


def _says_so(name: Any) -> bool:
    """Whether a name says that a column holds names.

    >>> [_says_so(name) for name in ("patient_id", "customerID", "Account No", "account_balance", "paid")]
    [True, True, True, False, False]
    """
    words = [word for word in re.split(r"[^a-z]+", _CAMEL.sub(" ", str(name)).lower()) if word]
    if not words:
        return False
    alone = len(words) == 1 and words[0] in _ALONE
    return alone or words[-1] in _LAST or (words[-1] in _NUMBER and bool(_THINGS & set(words)))
