"""The benchmark of the detector's speed on tiny sizes: every comparison is there, and a ratio is ours over theirs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def speed(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import detector_speed

    return detector_speed


def test_a_ratio_is_the_median_over_pairs_of_ours_over_theirs(speed: Any) -> None:
    rows = [{"fvnce": ours, "catboost": theirs} for ours, theirs in ((2.0, 1.0), (9.0, 3.0), (8.0, 1.0))]
    summary = speed.ratios(rows)["catboost"]
    assert summary["ratio"] == 3.0
    assert summary["seconds"] == 1.0
    assert summary["pairs"] == 3


@pytest.mark.slow
def test_every_comparison_is_made(speed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "adbench").mkdir()
    X = np.random.default_rng(0).normal(size=(120, 3))
    np.savez(tmp_path / "adbench" / "tiny.npz", X=X, y=np.arange(120) < 20)
    out = tmp_path / "results" / "speed.json"
    monkeypatch.setenv("FVNCE_DATA", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["detector_speed.py", "--quick", "--repeats", "1", "--out", str(out)])
    threads = torch.get_num_threads()
    try:
        speed.main()
    finally:
        torch.set_num_threads(threads)
    record = json.loads(out.read_text())
    assert set(record["summary"]) == {
        "fit, 10 % known",
        "fit, none known",
        "score, known outliers",
        "score, none known",
    }
    assert set(record["costs"]) >= {"file, MB", "one row, ms", "import, CPU s", "two rows, MB"}
    assert set(record["summary"]["fit, 10 % known"]["ours / theirs"]) == {"hist gradient boosting"}
    assert set(record["summary"]["fit, none known"]["ours / theirs"]) == {"isolation forest"}
    monkeypatch.setenv("FVNCE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(SystemExit, match=r"FVNCE_DATA.*adbench"):
        speed.main()
