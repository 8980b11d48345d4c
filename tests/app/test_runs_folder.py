"""``fvnce fit --out``: one writer at a time, and --overwrite replaces a run and nothing else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fvnce.app.cli import main
from fvnce.app.runs import load_run
from fvnce.app.runs.fitting import sole_writer
from fvnce.training import FolderInUse

DETECTOR = ["--set", "n_trees=5", "--set", "members=isolation_forest", "--set", "calibration_folds=0", "-q"]
NETWORK = ["--set", "members=network", "--set", "n_networks=1", "--set", "steps=5", *DETECTOR[-3:]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "rows.npy"
    np.save(path, np.random.default_rng(0).normal(size=(60, 3)))
    return path


def fit(*arguments: Any) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["fit", *map(str, arguments)])
    return int(stop.value.code or 0)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_overwrite_leaves_what_no_run_wrote(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert fit(data, "--out", out, *NETWORK) == 0
    mine = {"notes.txt": "mine", "scores.csv": "row,score\n", "deep/er.txt": "x"}
    (out / "deep").mkdir()
    for name, text in mine.items():
        (out / name).write_text(text)
    assert fit(data, "--out", out, "--overwrite", *DETECTOR) == 0
    assert load_run(out).detector.ensemble_.names == ["isolation_forest"]
    for name, text in mine.items():
        assert (out / name).read_text() == text
    assert files(out) - set(mine) == {"model.safetensors", "config.toml", "report.html", "card.md"}
    assert not list(tmp_path.glob(".*"))


def test_overwrite_removes_what_earlier_versions_wrote(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert fit(data, "--out", out, *DETECTOR) == 0
    for name in ("run.json", "history.json"):
        (out / name).write_text("{}")
    assert load_run(out).detector.ensemble_.names == ["isolation_forest"]
    assert fit(data, "--out", out, "--overwrite", *DETECTOR) == 0
    assert files(out) == {"model.safetensors", "config.toml", "report.html", "card.md"}


def test_overwrite_stops_before_it_has_touched_anything(data: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "run"
    assert fit(data, "--out", out, *DETECTOR) == 0
    (out / "report.html").unlink()
    (out / "report.html").mkdir()
    before = {name: (out / name).read_bytes() for name in files(out)}
    assert fit(data, "--out", out, "--overwrite", *DETECTOR) == 1
    assert "report.html must be a file, found a folder" in capsys.readouterr().err
    assert {name: (out / name).read_bytes() for name in files(out)} == before


def test_overwrite_does_not_write_through_a_link(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert fit(data, "--out", out, *DETECTOR) == 0
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (out / "report.html").unlink()
    (out / "report.html").symlink_to(victim)
    assert fit(data, "--out", out, "--overwrite", *DETECTOR) == 0
    assert victim.read_text() == "mine"
    assert (out / "report.html").read_text().startswith("<!doctype html>")


def test_a_folder_that_another_process_writes_is_refused_in_one_line(data: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "run"
    with sole_writer(out):
        assert fit(data, "--out", out, *DETECTOR) == 1
        said = capsys.readouterr().err
        assert said.startswith(f"fvnce: {out} is being written by process {os.getpid()} on ")
        assert said.count("\n") == 1
        with pytest.raises(FolderInUse), sole_writer(out):
            pass
    assert not out.exists()
    assert fit(data, "--out", out, *DETECTOR) == 0
