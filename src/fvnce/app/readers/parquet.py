"""Parquet files, through pyarrow, which the extra ``parquet`` installs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .budget import within_budget
from .frame import DataError, Frame, listed


class ParquetReader:
    """A parquet file, read in parts."""

    def __init__(self, path: Path, categorical: tuple[str, ...] = (), kinds: dict[str, str] | None = None) -> None:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError:
            raise DataError(
                f"{path} is a parquet file, and pyarrow is not installed; install it with "
                "pip install 'fvnce[parquet]', or convert the file to csv"
            ) from None
        self.name, self._categorical = str(path), categorical
        try:
            # What is read ahead is kept until the end: the whole file.
            self._file = parquet.ParquetFile(path, pre_buffer=False)
        except (pyarrow.ArrowException, OSError) as error:
            if isinstance(error, FileNotFoundError | PermissionError):
                raise
            said = " ".join(str(error).split())[:200]
            raise DataError(f"{path} is not a parquet file, or damaged: {said}; write it again") from None
        self.rows = int(self._file.metadata.num_rows)
        self.columns = [str(name) for name in self._file.schema_arrow.names]
        missing = [name for name in kinds or {} if name not in self.columns]
        if missing:
            raise DataError(f"{path} lacks column {missing[0]!r} of training; it has {listed(self.columns)}")
        for group in range(self._file.metadata.num_row_groups):
            within_budget(self.name, "one of its groups of rows", self._file.metadata.row_group(group).total_byte_size)
        self.wanted = list(kinds) if kinds is not None else self.columns
        self.kinds = kinds or {
            name: "number" if _numeric(kind) and name not in categorical else "text"
            for name, kind in zip(self.columns, self._file.schema_arrow.types, strict=True)
        }

    def frames(self, rows: int) -> Iterator[Frame]:
        """The table in parts of at most so many rows."""
        import pyarrow

        try:
            for batch in self._file.iter_batches(rows, columns=self.wanted):
                yield Frame({name: self._column(name, batch.column(name)) for name in self.wanted})
        except (pyarrow.ArrowException, OSError) as error:
            said = " ".join(str(error).split())[:200]
            raise DataError(f"{self.name} is damaged: {said}; write it again") from None

    def _column(self, name: str, values: Any) -> NDArray[Any]:
        plain = values.to_pylist()
        if self.kinds[name] == "number":
            return np.array([np.nan if value is None else float(value) for value in plain], dtype=np.float64)
        return np.array([None if value is None else str(value) for value in plain], dtype=object)


def _numeric(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))
