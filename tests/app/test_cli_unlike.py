"""``fvnce score`` and ``fvnce fit`` name rows with few values, and files that are far from training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fvnce.app.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def save(path: Path, n: int, shift: float = 0.0, empty: tuple[int, ...] = ()) -> Path:
    X = np.random.default_rng(n).normal(shift, size=(n, 4))
    X[list(empty), :3] = np.nan
    np.save(path, X)
    return path


def test_files_far_from_training_and_rows_with_few_values_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = save(tmp_path / "rows.npy", 300, empty=(6, 40)), tmp_path / "run"
    code, _, said = run(capsys, "fit", data, "--set", "n_trees=9", "--out", out)
    assert code == 0
    assert "2 of 300 rows have values in less than half of the columns" in said
    assert "7, 41" in said
    assert "2 of 300 rows" in (out / "report.html").read_text()

    code, _, said = run(capsys, "score", out, save(tmp_path / "far.npy", 500, 30.0), "--out", tmp_path / "a.csv")
    assert code == 0
    assert "500 of 500 rows (100 %) are above the threshold" in said
    code, _, said = run(capsys, "score", out, tmp_path / "far.npy", "--strict", "--out", tmp_path / "b.csv")
    assert code != 0

    code, _, said = run(capsys, "score", out, save(tmp_path / "new.npy", 100, empty=(2,)), "--out", tmp_path / "c.csv")
    assert code == 0
    assert "1 of 100 rows" in said
    assert "unreliable: 3" in said
    code, _, said = run(capsys, "score", out, save(tmp_path / "usual.npy", 90), "--out", tmp_path / "d.csv")
    assert (code, "warning" in said) == (0, False)
