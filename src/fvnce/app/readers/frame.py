"""A table in memory: named columns of numbers, NaN where missing, or of text, None where missing.

It looks enough like a pandas data frame (``columns``, ``dtypes``, ``iloc``, ``shape``) for the detector to take it for
one, so that pandas need not be there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class DataError(ValueError):
    """A file that cannot be used as it is; the message says where and what to do."""


def listed(names: Sequence[str], most: int = 12) -> str:
    """Names in one line of a sentence: the first few of them, and of each no more than fits there.

    >>> listed(["a", "b" * 100], 12)[:12], listed(list("abc"), 2)
    ('a, bbbbbbbbb', 'a, b, … (3 in all)')
    """
    lines = (" ".join(name[:200].split()) for name in names[:most])
    shown = ", ".join(name if len(name) <= 60 else f"{name[:59]}…" for name in lines)
    return shown + (f", … ({len(names)} in all)" if len(names) > most else "")


class Frame:
    """Columns of equal length by name.

    >>> frame = Frame({"age": np.array([30.0, np.nan]), "town": np.array(["Bern", None], dtype=object)})
    >>> frame.shape, [dtype.kind for dtype in frame.dtypes]
    ((2, 2), ['f', 'O'])
    >>> frame.iloc[:, 0]
    array([30., nan])
    """

    def __init__(self, columns: Mapping[str, NDArray[Any]]) -> None:
        self._columns = dict(columns)
        lengths = {len(values) for values in self._columns.values()}
        if len(lengths) > 1:
            raise ValueError(f"columns must be equally long, found lengths {sorted(lengths)}")
        self._length = lengths.pop() if lengths else 0

    @property
    def columns(self) -> NDArray[np.object_]:
        """Their names."""
        return np.array(list(self._columns), dtype=object)

    @property
    def dtypes(self) -> _Positions:
        """Their types."""
        return _Positions([values.dtype for values in self._columns.values()])

    @property
    def iloc(self) -> _Places:
        """``frame.iloc[:, j]`` is column j, ``frame.iloc[i]`` rows."""
        return _Places(self)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self._length, len(self._columns)

    @property
    def nbytes(self) -> int:
        """Memory it takes, about: a text costs some 56 bytes and its letters, and as many again for its place."""
        numbers = sum(values.nbytes for values in self._columns.values())
        texts = (values for values in self._columns.values() if values.dtype.kind == "O")
        return numbers + sum(56 + len(text) for values in texts for text in values.tolist() if text is not None)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def without(self, names: Sequence[str]) -> Frame:
        """All columns but these."""
        return Frame({name: values for name, values in self._columns.items() if name not in set(names)})

    def take(self, rows: Any) -> Frame:
        """Some rows, by slice, mask or positions."""
        return Frame({name: values[rows] for name, values in self._columns.items()})

    def row(self, position: int) -> dict[str, Any]:
        """One row, by name of column."""
        return {name: values[position] for name, values in self._columns.items()}

    @classmethod
    def join(cls, parts: Sequence[Frame]) -> Frame:
        """Frames of the same columns, one below the other."""
        names = parts[0].columns
        return cls({name: np.concatenate([part[name] for part in parts]) for name in names})


class _Positions:
    """A sequence that is also indexed by ``iloc``."""

    def __init__(self, values: list[Any]) -> None:
        self.iloc = values

    def __iter__(self) -> Iterator[Any]:
        return iter(self.iloc)

    def __len__(self) -> int:
        return len(self.iloc)


class _Places:
    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, tuple):
            rows, column = key
            return self._frame[str(self._frame.columns[column])][rows]
        return self._frame.take(key)
