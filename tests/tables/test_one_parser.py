"""Files, frames and batches go through one parser: the same columns to the bit, whatever holds them."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest

from commands import fvnce
from experiments.messy_tables import Messy, counted, made, pasted, tried
from fvnce.detection import BatchScorer
from fvnce.tables import Frame, ReadOptions, open_source
from fvnce.tables.errors import TableError
from fvnce.tables.schema import frame_to_matrix, learn_types

FILES = {file.name: file for file in made(seed=1, rows=120)}
QUICK: dict[str, Any] = {"n_trees": 20, "members": ("isolation_forest",), "calibration_folds": 0}
OPTIONS = ["--set", "n_trees=20", "--set", "members=isolation_forest", "--set", "calibration_folds=0"]


def write(file: Messy, folder: Path) -> Path:
    path = folder / f"{file.name.replace(' ', '_')}{file.suffix}"
    path.write_bytes(file.content())
    return path


def texts_of(file: Messy) -> dict[str, list[str | None]]:
    text = file.content().decode(file.encoding).removeprefix(file.before)
    rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=file.delimiter))
    return {name: [row[i] or None for row in rows[1:]] for i, name in enumerate(rows[0])}


@pytest.mark.filterwarnings("ignore:column .*:UserWarning")
@pytest.mark.parametrize("name", [name for name in FILES if name != "logs"])
def test_the_same_table_is_the_same_columns_in_every_form(name: str, tmp_path: Path) -> None:
    columns = texts_of(FILES[name])
    path = tmp_path / "t.parquet"
    pa.parquet.write_table(pa.table({key: pa.array(values, pa.string()) for key, values in columns.items()}), path)
    forms: list[Any] = [open_source(write(FILES[name], tmp_path)).read(), open_source(path).read()]
    forms += [pd.DataFrame(columns), pl.DataFrame(columns), pa.table(columns), pa.RecordBatch.from_pydict(columns)]
    matrices, kinds = [], []
    for form in forms:
        frame = Frame.of(form)
        types = learn_types(frame)
        kinds.append([(c.kind, c.decimal, c.day_first, c.missing, c.codes) for c in types])
        matrices.append(frame_to_matrix(frame, types))
    used = [not column.ignored for column in learn_types(Frame.of(forms[2]))]
    for matrix, kind in zip(matrices[1:], kinds[1:], strict=True):
        assert kind == kinds[0]
        np.testing.assert_array_equal(matrix[:, used], matrices[0][:, used])


@pytest.mark.parametrize("name", FILES)
def test_a_batch_as_pandas_reads_it_scores_as_the_file(name: str, tmp_path: Path) -> None:
    file = FILES[name]
    path = write(file, tmp_path)
    options = ["--decimal", "."] if name == "logs" else []
    fvnce("fit", path, "--out", tmp_path / "run", "-q", *options, *OPTIONS)
    lines = fvnce("score", tmp_path / "run", path, "-q")[0].splitlines()
    expected = [float(line.split(",")[1]) for line in lines[1:]]
    skipped = file.before.count("\n")
    # Without a word pandas reads the 1.234 of a German thousand as a bit more than one.
    how: dict[str, Any] = {"dtype": str} if name == "german" else {}
    frame = pd.read_csv(path, sep=file.delimiter, encoding=file.encoding, skiprows=skipped, **how)
    np.testing.assert_array_equal(BatchScorer(tmp_path / "run")(frame)["score"], expected)


@pytest.mark.filterwarnings("ignore:column .*:UserWarning")
def test_messy_files_are_read_right(tmp_path: Path) -> None:
    """All but one of the files of the experiment at the first attempt; that one asks what nobody could know."""
    sums = counted([tried(file, tmp_path, **QUICK) for file in made()])
    assert (sums["files_right"], sums["columns_right"]) == (sums["files"], sums["columns"])
    assert sums["files_right_at_first_attempt"] == sums["files"] - 1
    assert sums["least_auroc"] > 0.85
    logs = write(FILES["logs"], tmp_path)
    with pytest.raises(TableError, match="'ms'") as error:
        open_source(logs).read()
    assert error.value.paste == "--decimal ."
    assert open_source(logs, ReadOptions(**pasted(error.value.paste))).read().shape == (120, 5)


def test_a_list_of_problems_says_what_is_wrong_with_each_value(tmp_path: Path) -> None:
    for name, unit in {"old": "CHF", "new": "USD"}.items():
        lines = [f"{n},{unit} {n}.50" for n in range(40)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["place,price", *lines]))
    trained = open_source(tmp_path / "old.csv").read()
    with pytest.raises(TableError) as error:
        open_source(tmp_path / "new.csv", ReadOptions(types=trained.types)).read()
    header, first, *_ = error.value.rows
    assert "'CHF'" in dict(zip(header, first, strict=True))["problem"]
