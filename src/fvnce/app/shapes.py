"""Shapes of JSON that a page is drawn from: every entry of its kind, every list of its length.

A page is made of what ``run.json`` and ``analysis.json`` hold, and anybody may have written them. What passes can be
drawn, holds no markup where a number belongs, no path where a name belongs, and no picture that is none.

>>> record({"rows": integer()})({"rows": "many"}, "run")
Traceback (most recent call last):
fvnce.app.shapes.ShapeError: run.rows must be an integer from 0 to 9007199254740992, found 'many'
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ..pages import png_uri

#: Looks at a value that stands at a place of the file.
Shape = Callable[[Any, str], None]
#: Beyond it, differences of two numbers could be infinite.
_LARGEST = 1e300


class ShapeError(ValueError):
    """An entry that is not what it must be; the message names it."""


def _fail(place: str, wanted: str, value: Any) -> ShapeError:
    return ShapeError(f"{place or 'it'} must be {wanted}, found {_short(value)}")


def _short(value: Any) -> str:
    if isinstance(value, dict | list):
        return f"a {'table' if isinstance(value, dict) else 'list'} of {len(value)}"
    if isinstance(value, int) and abs(value) > 10**20:
        return "a huge number"
    return repr(value if not isinstance(value, str) else value[:40])


def _one(fits: Callable[[Any], bool], wanted: str) -> Shape:
    def check(value: Any, place: str) -> None:
        if not fits(value):
            raise _fail(place, wanted, value)

    return check


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST


def integer(low: int = 0, high: int = 2**53) -> Shape:
    """An integer between two, which count."""
    return _one(
        lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high,
        f"an integer from {low} to {high}",
    )


def instance(kind: type, wanted: str) -> Shape:
    """A value of a type, ``wanted`` in words."""
    return _one(lambda value: isinstance(value, kind), wanted)


def matching(pattern: str, wanted: str) -> Shape:
    """Text that a pattern matches as a whole."""
    return _one(lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None, wanted)


#: A finite number, and no larger than can be drawn.
number = _one(_is_number, "a finite number")
#: A number that is written and not drawn, and so may be infinite or none at all.
reported = _one(lambda value: isinstance(value, float) or _is_number(value), "a finite number")
text = instance(str, "text")
_table = instance(dict, "a table")


def picture(value: Any, place: str) -> None:
    """A PNG image as base64."""
    text(value, place)
    try:
        png_uri(value)
    except ValueError:
        raise _fail(place, "a PNG image as base64", value) from None


def list_of(entry: Shape, length: int | None = None, low: int = 0) -> Shape:
    """A list of one shape, of so many entries or of at least so many."""

    def check(value: Any, place: str) -> None:
        if not isinstance(value, list) or len(value) < low or (length is not None and len(value) != length):
            raise _fail(
                place, "a list" if length is None and not low else f"a list of {length or f'{low} or more'}", value
            )
        for i, item in enumerate(value):
            entry(item, f"{place}[{i}]")

    return check


def by_name(entry: Shape) -> Shape:
    """A table with any names and entries of one shape."""

    def check(value: Any, place: str) -> None:
        _table(value, place)
        for name, item in value.items():
            entry(item, f"{place}[{name[:40]!r}]")

    return check


def record(entries: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None) -> Shape:
    """A table with these entries; others may stand beside them."""

    def check(value: Any, place: str) -> None:
        _table(value, place)
        for name, entry in entries.items():
            if name not in value:
                raise ShapeError(f"{place or 'it'} must have an entry {name!r}, found none")
            entry(value[name], f"{place}.{name}" if place else name)
        for name, entry in (optional or {}).items():
            if name in value:
                entry(value[name], f"{place}.{name}" if place else name)

    return check


def or_none(entry: Shape) -> Shape:
    """The shape, or null."""
    return lambda value, place: None if value is None else entry(value, place)


def or_why(entry: Shape) -> Shape:
    """A sentence that says why there is none, or the thing itself."""
    return lambda value, place: None if isinstance(value, str) else entry(value, place)


def alike(
    lists: Mapping[str, Shape], others: Mapping[str, Shape] | None = None, optional: Mapping[str, Shape] | None = None
) -> Shape:
    """A table whose ``lists`` are equally long, with other entries beside them."""
    entry = record({**lists, **(others or {})}, optional)

    def check(value: Any, place: str) -> None:
        entry(value, place)
        lengths = [len(value[name]) for name in lists]
        if len(set(lengths)) > 1:
            raise ShapeError(f"the lists of {place} must be equally long, found {lengths}")

    return check


names = list_of(text)
gaps = list_of(or_none(number))
sheet = record({"png": picture, "width": integer(1, 10**6), "height": integer(1, 10**6)})


def histogram(value: Any, place: str) -> None:
    """Edges, and for each group the counts between them."""
    record({"edges": list_of(number, low=2), "counts": by_name(list_of(integer()))})(value, place)
    for counts in value["counts"].values():
        if len(counts) != len(value["edges"]) - 1:
            raise ShapeError(f"{place} must have a count between each two edges")


def both(*shapes: Shape) -> Shape:
    """All of several shapes at once."""

    def check(value: Any, place: str) -> None:
        for shape in shapes:
            shape(value, place)

    return check
