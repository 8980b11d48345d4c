"""``fvnce data`` tells of values that are not there, and of those without bound, in JSON that any program can read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fvnce.app.cli import main


def told(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    with pytest.raises(SystemExit) as done:
        main(["data", *map(str, words)])
    assert done.value.code == 0
    return capsys.readouterr().out


def strict(text: str) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_an_array_without_a_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.full((4, 2), np.nan))
    assert told(capsys, path).strip() == f"{path}: npy, 4 rows of 2, no value, 8 missing"
    found = strict(told(capsys, path, "--json"))
    assert (found["low"], found["high"], found["missing"]) == (None, None, 8)


def test_durations_are_told_in_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    taken = pyarrow.array(np.array([90_000, 7_200_000, "NaT"], dtype="timedelta64[ms]"))
    parquet.write_table(pyarrow.table({"taken": taken}), path)
    assert told(capsys, path).splitlines()[-1].split() == ["taken", "duration", "1", "90", "to", "7200", "seconds"]
    column = strict(told(capsys, path, "--json"))["columns"]["taken"]
    assert column == {"kind": "duration", "missing": 1, "low": 90.0, "high": 7200.0}


def test_values_without_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "a.npy", np.array([[1.0, np.inf], [2.0, 3.0]]))
    assert "values from 1 to inf" in told(capsys, tmp_path / "a.npy")
    found = strict(told(capsys, tmp_path / "a.npy", "--json"))
    assert (found["low"], found["high"]) == (1.0, None)
    (tmp_path / "t.csv").write_text("a,b\n1,-inf\n2,3\n")
    with pytest.raises(SystemExit) as done:
        main(["data", str(tmp_path / "t.csv"), "--json"])
    assert done.value.code == 1
    found = strict(capsys.readouterr().out)
    assert [(p["column"], p["place"], p["value"]) for p in found["problems"]] == [("b", "line 2", "-inf")]
    assert found["options"] == "--missing -inf"
