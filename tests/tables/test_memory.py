"""A table that is read in parts takes the memory of a part."""

import numpy as np
import pytest

from fvnce.tables import open_source


def test_no_part_of_a_parquet_file_is_held_after_it_was_read(tmp_path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "rows.parquet"
    columns = {f"x{i}": np.random.default_rng(i).normal(size=200_000) for i in range(4)}
    parquet.write_table(pa.table(columns), path, row_group_size=10_000)
    del columns
    before, most, rows = pa.total_allocated_bytes(), 0, 0
    for part in open_source(path).parts():
        most = max(most, pa.total_allocated_bytes() - before)
        rows += len(part.rows)
    assert rows == 200_000
    assert most < path.stat().st_size / 4
