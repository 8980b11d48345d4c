"""A row is called on the page by what names it: a number that names rows is not taken for the number of the row."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from fvnce.app.cli import main


def test_an_identifier_that_is_a_number_is_not_told_as_the_number_of_a_row(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(60, 2))
    lines = [f"{700_000 + i},{a},{b}" for i, (a, b) in enumerate(values)]
    (tmp_path / "t.csv").write_text("\n".join(["account,a,b", *lines]) + "\n")
    options = ["--id", "account", "--set", "n_trees=5", "--set", "members=mixture_forest", "--quiet"]
    with pytest.raises(SystemExit) as done:
        main(["fit", str(tmp_path / "t.csv"), *options, "--out", str(tmp_path / "run")])
    assert done.value.code == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert len(re.findall(r"id 7000\d\d", page)) >= 60
    assert "row 700," not in page


def test_a_column_that_the_run_was_trained_on_neither_marks_outliers_nor_names_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = np.random.default_rng(0).normal(size=(60, 2))
    lines = [f"{a},{b},{int(i < 3)}" for i, (a, b) in enumerate(values)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,bad", *lines]) + "\n")
    data, run = str(tmp_path / "t.csv"), str(tmp_path / "run")
    for words, code in (
        (["fit", data, "--set", "n_trees=5", "--set", "members=mixture_forest", "--quiet", "--out", run], 0),
        (["evaluate", run, data, "--label", "bad"], 1),
        (["score", run, data, "--id", "bad"], 1),
    ):
        with pytest.raises(SystemExit) as done:
            main(words)
        assert done.value.code == code
        said = capsys.readouterr().err
        assert not code or "column 'bad'" in said
