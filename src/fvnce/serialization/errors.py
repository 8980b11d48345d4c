"""What is said of a file that cannot be trusted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class RecordError(ValueError):
    """A file that cannot be trusted: torn, altered, made by another version, or not one of ours.

    >>> import tempfile
    >>> import fvnce
    >>> with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
    ...     fvnce.load(file.name)
    Traceback (most recent call last):
        ...
    fvnce.serialization.errors.RecordError: ... is damaged or not a file of fvnce: ...
    """


@contextmanager
def reading(what: object) -> Iterator[None]:
    """Turn whatever a crafted content makes the code in the block stumble over into one :class:`RecordError`.

    A checksum proves that a file is as it was written, not that it was written by us: a stranger's file may lack a key,
    hold text where a number belongs, or name shapes that do not fit. Errors of the file system pass.

    >>> with reading("run.safetensors"):
    ...     {}["module"]
    Traceback (most recent call last):
    fvnce.serialization.errors.RecordError: run.safetensors does not hold what it must (KeyError: 'module'); write it \
again with this version of fvnce
    """
    try:
        yield
    except RecordError:
        raise
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise RecordError(
            f"{what} does not hold what it must ({type(error).__name__}: {first[:200]}); write it again with this "
            "version of fvnce"
        ) from error


def fields(content: object, where: str, *names: str) -> list[Any]:
    """The values of a mapping that must have these keys and no other, in this order.

    >>> fields({"rows": 3}, "the layout", "rows", "columns")
    Traceback (most recent call last):
    fvnce.serialization.errors.RecordError: the layout must hold rows and columns, found no 'columns'; write it again \
with this version of fvnce
    """
    wanted = f"{where} must hold {' and '.join(filter(None, [', '.join(names[:-1]), names[-1]]))}"
    again = "write it again with this version of fvnce"
    if not isinstance(content, Mapping):
        raise RecordError(f"{wanted}, found a {type(content).__name__}; {again}")
    for name in names:
        if name not in content:
            raise RecordError(f"{wanted}, found no {name!r}; {again}")
    unknown = sorted(map(str, content.keys() - set(names)))
    if unknown:
        raise RecordError(f"{wanted}, found {shown(unknown[0])} as well; {again}")
    return [content[name] for name in names]


def shown(value: object) -> str:
    """What an error tells of a value that may be anything and of any length.

    >>> shown("method"), shown([0] * 1000)
    ("'method'", 'a list')
    """
    return (
        repr(value)[:100]
        if value is None or isinstance(value, bool | int | float | str)
        else f"a {type(value).__name__}"
    )
