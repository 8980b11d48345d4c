"""The program, called in this process, and a table of payments to call it on."""

from __future__ import annotations

import contextlib
import csv
import io
from pathlib import Path

import numpy as np
import pytest

from fvnce.app.cli import main

#: Settings of a detector that is fitted at once.
QUICK = ["--set", "n_trees=20", "--set", "n_networks=1", "--set", "steps=30"]


def fvnce(*arguments: object, code: int = 0) -> tuple[str, str]:
    """Run a command that must end with the exit code, and return what it wrote to standard output and error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    assert stop.value.code == code, err.getvalue()
    return out.getvalue(), err.getvalue()


def write_payments(path: Path, seed: int, *, label: bool = True) -> Path:
    """Write an identifier, a date, a constant column and missing ages.

    Of 300 rows 24 are frauds, and 18 of these are marked.
    """
    rng = np.random.default_rng(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["number", "day", "amount", "age", "bank", *(["fraud"] if label else [])])
        for i in range(300):
            bad = i % 25 in (3, 11)
            day = np.datetime64("2024-01-01") + np.timedelta64(int(rng.integers(0, 300)), "D")
            age = "" if i % 30 == 0 else rng.integers(18, 80)
            line = [f"P{seed}{i:05d}", day, f"${np.exp(rng.normal(7.5 if bad else 4.0, 0.6)):,.2f}", age, "one"]
            writer.writerow([*line, *(["yes" if bad and i % 4 else "no"] if label else [])])
    return path
