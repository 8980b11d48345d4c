"""Inference of column types from all rows and columns of a table.

A :class:`ColumnScan` counts the kinds of the texts of a column, part by part. :func:`decide` then infers all types:

- A column has numbers, dates or times of day if most of its values are; it becomes text only if the user says so.
- A single repeated text in such a column is read as a missing value, with a notice.
- The decimal mark is that of the column's own values, else the user's, else that of the whole file.

Ambiguous cases become a :class:`~fvnce.tables.errors.Problem` for the user: several texts among numbers, and numbers
such as 1.234 if no value shows whether the mark separates thousands.
"""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from .errors import Problem
from .parsing import BOUND, COMPACT_DATE, DOLLARS, LOCAL_DATE, MISSING, MONEY, TRUTHS, ColumnType, amount, kind_of

#: Number of different texts of each kind that a scan keeps, and number that an error lists for one column.
KEPT, LISTED = 64, 8
#: Number of different values that make a column numeric even if some texts are more frequent.
FEW, SOME = 3, 10
#: Number of rows after which a column with less than 1 % of other values is text.
SURE_ROWS = 20_000
#: Texts that are a missing value among numbers even if they occur once.
GAPS = frozenset({"n.a.", "n.a", "n/d", "n.d.", "nil", "missing", "unknown", "err", "error", "void", "blank", "empty"})


Shown = dict[tuple[str, str], tuple[str, int]]


@dataclass
class ColumnScan:
    """Counts of the kinds of text in a column, accumulated over parts of its rows.

    >>> scan = ColumnScan()
    >>> scan.add({"20.10": (1, 0), "-": (3, 1)})
    >>> dict(scan.counts), scan.shown["number", "."]
    ({'number': 1, 'text': 3}, ('20.10', 0))
    """

    counts: Counter[str] = field(default_factory=Counter)
    #: For each kind some of its different texts, each with its count and first row.
    texts: dict[str, dict[str, tuple[int, int]]] = field(default_factory=lambda: defaultdict(dict))
    #: The first text and row that shows a decimal mark, the order of a date, or another property of numbers.
    shown: Shown = field(default_factory=dict)

    @property
    def closed(self) -> bool:
        """Whether the column is certain to be text."""
        total = self.counts.total()
        return total > SURE_ROWS and self.counts["text"] > 0.99 * total

    def add(self, texts: Mapping[str, tuple[int, int]]) -> None:
        """Add different stripped texts, each with its count and first row."""
        for text, (count, row) in texts.items():
            kind, shows = ("text", "") if self.closed else kind_of(text)
            self.counts[kind] += count
            if shows:
                self.shown.setdefault((kind, shows), (text, row))
            seen = self.texts[kind]
            if text in seen or len(seen) < KEPT:
                before, first = seen.get(text, (0, row))
                seen[text] = before + count, first
            if kind == "number" or kind.startswith("unit "):
                for what in (what for what, pattern in ABOUT.items() if pattern.match(text)):
                    self.shown.setdefault((kind, what), (text, row))

    def add_whole(self, values: NDArray[Any], start: int = 0) -> None:
        """Add integers, checked only for dates such as 20240301 and for length."""
        values = values[values == values]
        if len(values) and (largest := values.max()) > 2**53:
            self.shown.setdefault(("number", "long"), (str(int(largest)), start))
        if ("number", "plain") in self.shown or not len(values):
            return
        dated = values.min() >= 19000101 and values.max() <= 20991231
        self.add(distinct(map(str, values.astype(int).tolist()), start) if dated else {"0": (len(values), start)})

    def merge_units(self) -> str:
        """Count numbers with a unit as numbers if it is that of most or a currency, else as text; return the unit."""
        units = [kind.removeprefix("unit ") for kind in self.counts if kind.startswith("unit ")]
        most = len(units) == 1 and self.counts[f"unit {units[0]}"] >= self.counts["number"]
        money = any(map(MONEY.fullmatch, units))
        into = "number" if most or (len(units) == 1 and money) else "text"
        for unit in units:
            kind = f"unit {unit}"
            # Digits and letters without a blank may be a code, unlike 5 kg.
            text, (_, row) = next(iter(self.texts[kind].items()))
            if into == "text" and (money or len(self.texts[kind]) >= SOME or re.search(r"\d\s|[.,]\d", text)):
                self.shown["unit", kind] = text, row
            self.counts[into] += self.counts.pop(kind)
            self.texts[into] |= self.texts.pop(kind)
            self.shown.setdefault((into, "plain"), (text, 0))
            for other, shows in [key for key in self.shown if key[0] == kind and key[1] != "bare"]:
                self.shown.setdefault((into, shows), self.shown[other, shows])
        return units[0] if into == "number" else ""

    def among(self, kind: str) -> dict[str, tuple[int, int]]:
        """Return the texts of all other kinds."""
        return {text: seen for other, texts in self.texts.items() if other != kind for text, seen in texts.items()}


#: Other properties of numbers: bounds, possible codes, infinite, not 0, or not dates such as 20240301.
ABOUT = {
    "bound": BOUND,
    "zero": re.compile(r"0\d+$"),
    "long": re.compile(r"[+-]?\d{16,}$"),
    "power": re.compile(r"\d{1,4}[eE]\d{1,2}$"),
    "bare": re.compile(r".*[1-9]"),
    "infinite": re.compile(r"(?i)[+-]?inf(?:inity)?$|[+-]?[\d.]+e\+?\d{3,}$"),
    "plain": re.compile(rf"(?!{COMPACT_DATE.pattern}$)"),
}


def distinct(texts: Iterable[str | None], start: int = 0, gaps: frozenset[str] = MISSING) -> dict[str, tuple[int, int]]:
    """Return the different texts that are not missing values, each with its count and first row.

    >>> distinct(["7", None, " 7", "NA"])
    {'7': (2, 0)}
    """
    result: dict[str, tuple[int, int]] = {}
    for row, text in enumerate(texts):
        if text is not None and (plain := text.strip()).lower() not in gaps:
            count, first = result.get(plain, (0, start + row))
            result[plain] = count + 1, first
    return result


@dataclass
class Decision:
    """Result of :func:`decide`: column types, problems that the user must resolve, and notices."""

    types: dict[Any, ColumnType] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def refuse(self, name: Any, seen: tuple[str, int], requirement: str, verb: str = "", *options: str) -> None:
        """Add a problem, whose advice is the verb or the options; the first option can be pasted."""
        advice = [*([verb] if verb else []), *(["pass " + " or ".join(options)] if options else [])]
        self.problems.append(Problem(name, seen[1], seen[0], requirement, ", or ".join(advice), options[:1]))


def decide(
    scans: Mapping[Any, ColumnScan],
    given: Mapping[Any, ColumnType],
    *,
    decimal: str | None = None,
    hint: str | None = None,
    loose: Sequence[Any] = (),
) -> Decision:
    """Infer the types of columns from their scans.

    Args:
        scans: scans of the columns.
        given: types that are known, except perhaps for their decimal mark.
        decimal: decimal mark given by the user.
        hint: decimal mark of 1.234 if no value shows one, since the other mark separates fields.
        loose: columns that may be text although most of their values are numbers, such as identifiers.

    Returns:
        The types, problems and notices.

    >>> scans = {name: ColumnScan() for name in "ab"}
    >>> scans["a"].add(distinct(["1.234"])), scans["b"].add(distinct(["20.10", "30", "-", "-"]))
    (None, None)
    >>> decision = decide(scans, {})
    >>> decision.types["a"].decimal, decision.types["b"].missing, decision.notices
    ('.', ('-',), ["column 'b': '-' is read as missing, in 2 rows"])
    >>> decide({"a": scans["a"]}, {}).problems[0].options
    ('--decimal .',)
    """
    result = Decision()
    for name, scan in scans.items():
        unit = scan.merge_units()
        column = given.get(name) or _kind(name, scan, result, name in loose)
        if unit and name not in given and column.kind == "number":
            column = replace(column, unit=unit)
            if unit != "%" and not MONEY.fullmatch(unit):
                result.notices.append(
                    f"column {name!r} holds numbers with the unit {unit!r}; later rows must have it too"
                )
            if not MONEY.fullmatch(unit) and (bare := scan.shown.get(("number", "bare"))):
                result.refuse(name, bare, f"must have the unit {unit!r} as elsewhere", "correct it", _categorical(name))
        result.types[name] = column
        mixed = [seen for (kind, _), seen in scan.shown.items() if kind == "unit"]
        if 1 < len(mixed) <= FEW and name not in given:  # many different units are words, as in addresses
            result.refuse(name, mixed[1], f"must have one unit as {mixed[0][0]!r}", "convert it", _categorical(name))
        if name in given:
            result.problems += misfits(name, column, scan.among(column.kind))
    numbers = [name for name, column in result.types.items() if column.kind in ("number", "duration")]
    marks = {mark for name in numbers for mark in ".," if ("number", mark) in scans[name].shown}
    common, hint = (marks.pop() if len(marks) == 1 else None), None if marks else hint
    first = {order for scan in scans.values() for order in ("day", "month") if ("time", order) in scan.shown}
    for name, column in result.types.items():
        shown = scans[name].shown
        if name in numbers:
            _settle_number(name, column, shown, decimal or common, hint, result)
        elif column.kind == "time" and name not in given:
            own = {order for order in ("day", "month") if ("time", order) in shown} or first
            known = bool(own) or ("time", "?") in shown
            result.types[name] = replace(column, day_first=own == {"day"} if known else None)
            if ("time", "?") in shown and len(own) != 1:
                unclear = (
                    f"column {name!r} holds dates such as {shown['time', '?'][0]!r}, in which month and day cannot be"
                )
                result.notices.append(f"{unclear} told apart: the month is taken to come first; --schema can say other")
            _settle_years(name, scans[name], result)
    return result


def _settle_years(name: Any, scan: ColumnScan, result: Decision) -> None:
    """Add a problem for dates such as 24/03/17 whose year may come first, and a notice for two-digit years."""
    dates = [(text, match) for text in scan.texts["time"] if (match := LOCAL_DATE.match(text))]
    short = [(text, match.group(1), match.group(4)) for text, match in dates if len(match.group(4)) == 2]
    first, last = {start for _, start, _ in short}, {end for _, _, end in short}
    if len(last) > len(first) and max(last) <= "31" and ("time", "month") not in scan.shown:
        seen = short[0][0], scan.texts["time"][short[0][0]][1]
        requirement = "must show whether the year or the day comes first"
        result.refuse(name, seen, requirement, "write years in four digits", _categorical(name))
    elif late := [(text, end) for text, _, end in short if "31" < end <= "68"]:
        result.notices.append(f"column {name!r} holds years of two digits: {late[0][0]!r} is read as 20{late[0][1]}")


def _kind(name: Any, scan: ColumnScan, result: Decision, loose: bool) -> ColumnType:
    """Return the type of a column, without its decimal mark and the order of its dates."""
    counts, numbers = scan.counts, scan.texts["number"]
    if not counts:
        return ColumnType()
    words = {text.lower() for text in scan.texts["truth"]}
    if words and any(words <= truths for truths in TRUTHS) and not scan.among("truth").keys() - {"0", "1"}:
        return ColumnType("truth")
    best = max(("number", "time", "clock"), key=counts.__getitem__)
    others = scan.among(best)
    if best == "number" and not others and len(numbers) >= SOME and ("number", "plain") not in scan.shown:
        return ColumnType("time")
    if not others:
        return ColumnType(best)
    single, different = len({text.lower() for text in others}) == 1, len(scan.texts[best])
    token, count = next(iter(others)), counts.total() - counts[best]
    gap = token.lower() in GAPS or not any(map(str.isalnum, token))
    mostly = 2 * counts[best] >= counts.total() or (different >= SOME and different >= 3 * len(others))
    mostly = mostly or (single and (gap or different >= FEW))
    if not mostly or loose:
        return ColumnType("text")
    if single and (gap or count > 1) and not any(map(str.isdigit, token)):
        result.notices.append(f"column {name!r}: {token!r} is read as missing, in {count:,} rows")
        return ColumnType(best, missing=(token,))
    result.problems += misfits(name, ColumnType(best), others)
    return ColumnType(best)


def misfits(
    name: Any, column: ColumnType, texts: Mapping[str, tuple[int, int]], where: str = "elsewhere"
) -> list[Problem]:
    """Add a problem for each text that does not fit the type of its column."""
    wrong = [(text, row) for text, (_, row) in texts.items() if column.parse_one(text) is None]
    result = Decision()
    for text, row in wrong[:LISTED]:
        other = "," if column.decimal == "." else "."
        if where == "in training" and replace(column, decimal=other).parse_one(text) is not None:
            requirement = f"must have the decimal mark {column.decimal} as in training"
            result.refuse(name, (text, row), requirement, "", f"--decimal {other}")
            continue
        value = any(map(str.isdigit, text))
        options = [*_missing(text), _categorical(name)]
        if where == "in training":  # a column of training cannot become text, nor its values missing
            options = [] if value else _missing(text)
        elif value or len(wrong) > LISTED:
            options.reverse()
        noun = f"{column.noun} with the unit {column.unit!r}" if column.unit and value else column.noun
        result.refuse(name, (text, row), f"must hold {noun} as {where}", "correct it", *options)
    return result.problems


def _missing(text: str) -> list[str]:
    """Return the option for a missing value, or none for a text that cannot be pasted into a command."""
    return [f"--missing {shlex.quote(text)}"] if len(text) <= 40 and text.isprintable() else []


def _categorical(name: Any) -> str:
    return f"--categorical {shlex.quote(str(name))}"


def _value(text: str, mark: str) -> float:
    return (amount(BOUND.sub("", text, count=1), mark) or (math.nan, ""))[0]


def _settle_number(
    name: Any, column: ColumnType, shown: Shown, common: str | None, hint: str | None, result: Decision
) -> None:
    """Set the decimal mark of a column: that of its own values if they show one, else the common one."""
    of = {what: seen for (kind, what), seen in shown.items() if kind == "number"}
    own = [mark for mark in ".," if mark in of]
    mark = column.decimal or (own[0] if len(own) == 1 else common)
    unclear = of.get("?,") or of.get("?.")
    if mark is None and unclear and not own and (DOLLARS.search(unclear[0]) if "?," in of else hint):
        # A comma in dollars separates thousands; if commas separate fields, a point is the decimal mark.
        mark = "."
        value = _value(unclear[0], mark)
        result.notices.append(f"column {name!r}: {unclear[0]!r} is taken for {value:.10g}; if not, pass --decimal ,")
    result.types[name] = replace(column, decimal=mark)
    stray = [other for other in own if other != mark and (column.decimal or len(own) > 1)]
    if stray:
        other = "," if stray[-1] == "." else "."
        requirement = f"must have the decimal mark {other!r} as elsewhere"
        result.refuse(name, of[stray[-1]], requirement, "correct it", _categorical(name))
    elif mark is None and unclear:
        values = sorted(_value(unclear[0], each) for each in ".,")
        requirement = f"must show whether such numbers are {values[0]:.10g} or {values[1]:.10g}"
        result.refuse(name, unclear, requirement, "", "--decimal .", "--decimal ,")
    if "infinite" in of and math.isinf(_value(text := of["infinite"][0], mark or ".")):
        result.refuse(name, of["infinite"], "must not hold infinity", "correct it", *_missing(text))
    if "bound" in of:
        result.notices.append(f"column {name!r} holds bounds such as {of['bound'][0]!r}: the sign is left out")
    for what, lost in {
        "zero": "whose leading zeros are lost",
        "long": "of which only 15 digits are kept",
        "power": "read as powers of ten",
    }.items():
        if what in of:
            example = f"column {name!r} holds numbers such as {of[what][0]!r}, {lost}"
            result.notices.append(f"{example}; pass {_categorical(name)} if they are codes")
