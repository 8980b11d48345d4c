"""Parquet files, through pyarrow, in parts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .budget import within_budget
from .columns import ColumnReader, TableOptions
from .frame import DataError, Frame, listed


class ParquetReader:
    """A parquet file, read in parts."""

    def __init__(self, path: Path, options: TableOptions) -> None:
        import pyarrow
        from pyarrow import parquet

        self.name = str(path)
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
        missing = [name for name in options.kinds or {} if name not in self.columns]
        if missing:
            raise DataError(f"{path} lacks column {missing[0]!r} of training; it has {listed(self.columns)}")
        for group in range(self._file.metadata.num_row_groups):
            within_budget(self.name, "one of its groups of rows", self._file.metadata.row_group(group).total_byte_size)
        self.reader = ColumnReader(self.name, self.columns, options)

    def frames(self, rows: int) -> Iterator[Frame]:
        """The table in parts of at most so many rows."""
        import pyarrow

        start = 0
        try:
            for batch in self._file.iter_batches(rows, columns=self.reader.wanted):
                columns = {name: batch.column(name) for name in self.reader.wanted}
                yield self.reader.frame(columns, lambda row, start=start: f"row {start + row + 1}")  # type: ignore[misc]
                start += len(batch)
        except (pyarrow.ArrowException, OSError) as error:
            said = " ".join(str(error).split())[:200]
            raise DataError(f"{self.name} is damaged: {said}; write it again") from None
