"""What ``run.json`` and ``study.json`` must look like to be drawn: every entry of its kind, every list of its length.

A page is made of what these files hold, and anybody may have written them. What passes here can be drawn, holds no
markup where a number belongs, no path where a name belongs, and no picture that is none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ....pages.escape import png_uri

#: Looks at a value that stands at a place of the file.
Shape = Callable[[Any, str], None]
#: Beyond it, differences of two numbers could be infinite.
_LARGEST = 1e300


class ShapeError(ValueError):
    """An entry that is not what it must be; the message names it."""


def check_record(content: Any) -> None:
    """Compare with what ``run.json`` must be."""
    _RECORD(content, "")
    layout = content["layout"]
    if (layout["kinds"] is None) == (layout["shape"] is None):
        raise ShapeError("layout must have either kinds or shape")


def check_facts(content: Any) -> None:
    """Compare with what ``study.json`` must be."""
    _FACTS(content, "")
    if len({isinstance(content[name], str) for name in ("ratios", "reliability", "log_partition")}) > 1:
        raise ShapeError("ratios, reliability and log_partition must all be there, or all be sentences")


def _fail(place: str, wanted: str, value: Any) -> ShapeError:
    return ShapeError(f"{place or 'it'} must be {wanted}, found {_short(value)}")


def _short(value: Any) -> str:
    if isinstance(value, dict | list):
        return f"a {'table' if isinstance(value, dict) else 'list'} of {len(value)}"
    if isinstance(value, int) and abs(value) > 10**20:
        return "a huge number"
    return repr(value if not isinstance(value, str) else value[:40])


def _number(value: Any, place: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_LARGEST <= value <= _LARGEST:
        raise _fail(place, "a finite number", value)


def _told(value: Any, place: str) -> None:
    """A number that is written and not drawn, and so may be infinite or none at all."""
    if not isinstance(value, float):
        _number(value, place)


def _integer(low: int = 0, high: int = 2**53) -> Shape:
    def check(value: Any, place: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _fail(place, f"an integer from {low} to {high}", value)

    return check


def _kind(kind: type, wanted: str) -> Shape:
    def check(value: Any, place: str) -> None:
        if not isinstance(value, kind):
            raise _fail(place, wanted, value)

    return check


def _matching(pattern: str, wanted: str) -> Shape:
    def check(value: Any, place: str) -> None:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise _fail(place, wanted, value)

    return check


def _picture(value: Any, place: str) -> None:
    _text(value, place)
    try:
        png_uri(value)
    except ValueError:
        raise _fail(place, "a PNG image as base64", value) from None


def _list(entry: Shape, length: int | None = None, low: int = 0) -> Shape:
    def check(value: Any, place: str) -> None:
        if not isinstance(value, list) or len(value) < low or (length is not None and len(value) != length):
            raise _fail(
                place, "a list" if length is None and not low else f"a list of {length or f'{low} or more'}", value
            )
        for i, item in enumerate(value):
            entry(item, f"{place}[{i}]")

    return check


def _by_name(entry: Shape) -> Shape:
    def check(value: Any, place: str) -> None:
        if not isinstance(value, dict):
            raise _fail(place, "a table", value)
        for name, item in value.items():
            entry(item, f"{place}[{name[:40]!r}]")

    return check


def _table(entries: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None) -> Shape:
    """So many entries; others may stand beside them."""

    def check(value: Any, place: str) -> None:
        if not isinstance(value, dict):
            raise _fail(place, "a table", value)
        for name, entry in entries.items():
            if name not in value:
                raise ShapeError(f"{place or 'it'} must have an entry {name!r}, found none")
            entry(value[name], f"{place}.{name}" if place else name)
        for name, entry in (optional or {}).items():
            if name in value:
                entry(value[name], f"{place}.{name}" if place else name)

    return check


def _or_none(entry: Shape) -> Shape:
    return lambda value, place: None if value is None else entry(value, place)


def _or_why(entry: Shape) -> Shape:
    """A sentence that says why there is none, or the thing itself."""
    return lambda value, place: None if isinstance(value, str) else entry(value, place)


def _alike(entry: Shape, *lists: Callable[[Any], list[Any]]) -> Shape:
    """An entry whose lists are equally long."""

    def check(value: Any, place: str) -> None:
        entry(value, place)
        if len({len(of(value)) for of in lists}) > 1:
            raise ShapeError(f"the lists of {place} must be equally long, found {[len(of(value)) for of in lists]}")

    return check


_text = _kind(str, "text")
_names = _list(_text)
_gaps = _list(_or_none(_number))
_reason_pair = _list(lambda value, place: None, length=2)
_sheet = _table({"png": _picture, "width": _integer(1, 10**6), "height": _integer(1, 10**6)})


def _histogram(value: Any, place: str) -> None:
    _table({"edges": _list(_number, low=2), "counts": _by_name(_list(_integer()))})(value, place)
    for counts in value["counts"].values():
        if len(counts) != len(value["edges"]) - 1:
            raise ShapeError(f"{place} must have a count between each two edges")


def _curves(axis: str) -> Shape:
    def check(value: Any, place: str) -> None:
        _by_name(_gaps)(value, place)
        if value and not {axis, "loss"} <= set(value):
            raise ShapeError(f"{place} must be empty or have entries {axis!r} and 'loss'")
        if len({len(column) for column in value.values()}) > 1:
            raise ShapeError(f"the lists of {place} must be equally long")

    return check


def _reason(value: Any, place: str) -> None:
    _reason_pair(value, place)
    _text(value[0], place)
    _number(value[1], place)


def _both(*shapes: Shape) -> Shape:
    def check(value: Any, place: str) -> None:
        for shape in shapes:
            shape(value, place)

    return check


def _rebuilt(value: Any, place: str) -> None:
    if isinstance(value, dict) and "sheets" in value:
        _table({"sheets": _list(_table({"name": _text, "png": _sheet}))})(value, place)
        return
    _table({"columns": _names, "errors": _by_name(_gaps)})(value, place)
    if any(len(errors) != len(value["columns"]) for errors in value["errors"].values()):
        raise ShapeError(f"{place} must have an error for each column")


def _samples(value: Any, place: str) -> None:
    if isinstance(value, dict) and "png" in value:
        _table({"png": _sheet})(value, place)
        return
    _table({"columns": _names, "data": _list(_gaps, 2), "model": _list(_gaps, 2)})(value, place)
    if any(len(numbers) != len(value["columns"]) for who in ("data", "model") for numbers in value[who]):
        raise ShapeError(f"{place} must have a mean and a deviation for each column")


def _anomaly(value: Any, place: str) -> None:
    _table(
        {
            "name": _text,
            "score": _told,
            "probability": _or_none(_told),
            "reasons": _list(_reason),
            "values": _text,
        }
    )(value, place)
    if "picture" in value or "heat" in value:
        _table({"picture": _picture, "heat": _picture})(value, place)


_RECORD = _table(
    {
        "kind": _matching("detector|latent", "'detector' or 'latent'"),
        "rows": _integer(),
        "known": _integer(),
        "frame": _kind(bool, "true or false"),
        "layout": _table(
            {
                "kinds": _or_none(_by_name(_matching("number|text", "'number' or 'text'"))),
                "shape": _or_none(_list(_integer(1), low=1)),
            }
        ),
        "versions": _by_name(_text),
        "made": _text,
    },
    {"members": _names, "seconds": _by_name(_told)},
)

_FACTS = _table(
    {
        "histories": _list(
            _table(
                {
                    # It becomes part of the name of a file.
                    "name": _matching(r"[\w -]{1,60}", "a name of letters, digits, - and _"),
                    "epochs": _curves("epoch"),
                    "steps": _curves("step"),
                }
            )
        ),
        "scores": _both(_histogram, _table({"threshold": _number})),
        "probability": _or_why(
            _alike(
                _table({"score": _gaps, "probability": _gaps, "prior": _told, "known": _integer()}),
                lambda value: value["score"],
                lambda value: value["probability"],
            )
        ),
        "plane": _alike(
            _table(
                {
                    "of": _matching("rows|codes", "'rows' or 'codes'"),
                    "size": _integer(),
                    "share": _told,
                    "x": _list(_number),
                    "y": _list(_number),
                    "known": _list(_integer(0, 1)),
                    "score": _gaps,
                    "text": _names,
                },
                {
                    "sprite": _table(
                        {"png": _picture, **dict.fromkeys(("across", "width", "height"), _integer(1, 10**6))}
                    )
                },
            ),
            *((lambda value, name=name: value[name]) for name in ("x", "y", "known", "score", "text")),
        ),
        "rebuilt": _or_why(_rebuilt),
        "samples": _or_why(_samples),
        "top": _list(_anomaly),
        "flagged": _integer(),
        "looked_at": _integer(),
        "unlabelled": _integer(),
        "ratios": _or_why(_both(_histogram, _table({"log_scale": _told}))),
        "reliability": _or_why(
            _alike(
                _table({"predicted": _gaps, "observed": _gaps, "error": _told, "log_loss": _told}),
                lambda value: value["predicted"],
                lambda value: value["observed"],
            )
        ),
        "log_partition": _or_why(_table({"value": _told, "error": _told, "log_scale": _told})),
        "advice": _names,
    }
)
