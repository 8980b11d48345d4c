"""The benchmarks of detection with nothing known, on tiny data: they run to the end, add up and make their sections."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tools.pages import blocks, detection
from tools.pages.benchmarks import page

ROOT = Path(__file__).resolve().parents[2]


def block(name: str, results: Path) -> str:
    return blocks.filled(f"<!-- {name}: made by `make pages`, do not edit -->\n<!-- end of {name} -->", results)


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    path = ROOT / "benchmarks" / f"{name}.py"
    specification = importlib.util.spec_from_file_location(f"bench_{name}", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, specification.name, module)  # dataclasses look their module up
    specification.loader.exec_module(module)
    return module


def run(name: str, out: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    module = load(name, monkeypatch)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--out", str(out), *arguments])
    module.main()
    return json.loads(out.read_text())


def test_novelty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "adbench").mkdir()
    X = np.concatenate([rng.normal(size=(200, 3)), rng.normal(5, 1, (20, 3))])
    np.savez(tmp_path / "adbench" / "tiny.npz", X=X, y=np.repeat([0, 1], [200, 20]))
    monkeypatch.setenv("FVNCE_DATA", str(tmp_path))
    (tmp_path / "bench").mkdir()
    out = tmp_path / "bench" / "detection_novelty.json"
    record = run("detection_novelty", out, monkeypatch, "--quick", "--detectors", "fvnce,iforest")
    assert {row["protocol"] for row in record["rows"]} == {"contaminated", "random-half"}
    # Runs add up: only what is missing is run.
    record = run("detection_novelty", out, monkeypatch, "--quick")
    assert len(record["rows"]) == 2 * 9
    assert len({row["detector"] for row in record["rows"]}) == 9
    for ranking in record["summary"].values():
        [ours] = [row for row in ranking if row["detector"] == "fvnce"]
        assert ours["auroc"] > 0.99
        assert ours["seeds"] == [0]
    shown = page(out.parent)
    assert "A random half of the inliers, known to be clean" in shown
    assert "The protocol of DTE" not in shown
    assert "| **fvnce** | 1 |" in shown
    assert "**Clean training rows, a random half" in block("nothing known", tmp_path)
    run("detection_novelty", out, monkeypatch, "--quick", "--detectors", "fvnce,iforest", "--protocols", "first-half")
    assert "The protocol of DTE" in page(out.parent)
    assert "the first half of the inliers in file order" in block("nothing known", tmp_path)
    # Rows that were measured on other inputs are not added to.
    out.write_text(json.dumps(json.loads(out.read_text()) | {"inputs": "cut at ±10"}))
    record = run("detection_novelty", out, monkeypatch, "--quick", "--detectors", "iforest")
    assert len(record["rows"]) == 2
    with pytest.raises(SystemExit, match=r"protocols.*half.*, found clean"):
        run("detection_novelty", out, monkeypatch, "--protocols", "clean")
    monkeypatch.setenv("FVNCE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(SystemExit, match=r"FVNCE_DATA.*adbench"):
        run("detection_novelty", out, monkeypatch)


def test_halves_of_the_inliers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DTE trains on the first inliers of a file, we on a random half; neither cuts what lies far away."""
    program = load("detection_novelty", monkeypatch)
    path, truth = tmp_path / "sorted.npz", np.zeros(1200, dtype=int)
    truth[::12] = 1
    X = np.stack([np.arange(1200.0), np.where(np.arange(1200) == 1188, 1e6, np.arange(1200) % 2)], 1)
    np.savez(path, X=X, y=truth)
    inliers = np.flatnonzero(truth == 0)
    first, test, shown = program.rows_of(path, "first-half", 0)
    assert len(first) == 550
    assert (np.diff(first[:, 0]) > 0).all()
    assert first[:, 0].max() < test[shown == 0, 0].min()
    assert np.allclose(first[:, 0] * inliers[:550].std() + inliers[:550].mean(), inliers[:550])
    random, _, _ = program.rows_of(path, "random-half", 0)
    assert len(random) == 550
    assert random[:, 0].max() < 2  # standardised over all of the file, not over its beginning
    for protocol in ("first-half", "random-half"):
        train, test, shown = program.rows_of(path, protocol, 0)
        assert shown.sum() == 100
        assert len(train) + len(test) == 1200
        assert test.max() > 1e5
    # DTE draws small tables anew, with replacement, and others by seed only beyond 50,000 rows.
    assert len(np.unique(program._dte_rows(300, 0))) < 300 < len(program._dte_rows(300, 0)) == 1000
    assert (program._dte_rows(50_000, 0) == np.arange(50_000)).all()
    assert len(np.unique(program._dte_rows(60_000, 0))) == 50_000


def write_idx(path: Path, values: Any) -> None:
    head = bytes([0, 0, 8, values.ndim]) + b"".join(int(side).to_bytes(4, "big") for side in values.shape)
    path.write_bytes(head + values.astype(np.uint8).tobytes())


def test_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = load_digits()
    images, digit = content.images * 15, content.target
    (tmp_path / "mnist").mkdir()
    for name, part in (("train", slice(0, 400)), ("t10k", slice(400, 700))):
        write_idx(tmp_path / "mnist" / f"{name}-images-idx3-ubyte", images[part])
        write_idx(tmp_path / "mnist" / f"{name}-labels-idx1-ubyte", digit[part])
    (tmp_path / "kmnist").mkdir()
    np.savez(tmp_path / "kmnist" / "kmnist-test-imgs.npz", images[700:1000].astype(np.uint8))
    np.savez(tmp_path / "kmnist" / "kmnist-test-labels.npz", digit[700:1000])
    monkeypatch.setenv("FVNCE_DATA", str(tmp_path))
    (tmp_path / "bench").mkdir()
    out = tmp_path / "bench" / "detection_images.json"
    record = run("detection_images", out, monkeypatch, "--quick", "--protocols", "held out;one class")
    assert {row["method"] for row in record["rows"]} == {"fvnce", "kNN"}
    assert {(row["protocol"], row["data"]) for row in record["rows"]} == {
        ("held out", "MNIST"),
        ("one class", "MNIST"),
        ("one class", "kmnist"),
    }
    assert all(row["auroc"] > 0.9 for row in record["rows"] if row["method"] == "fvnce")
    shown = page(out.parent)
    assert "**MNIST, held out**" in shown
    assert "| mean AUROC | MNIST, held out |" in block("images", tmp_path)


UNSEEN = {
    "what": "w",
    "version": "2",
    "commit": "c",
    "protocol": "p",
    "sources": {
        "a": {
            "tables": 3,
            "settings": {
                "10 % known": [
                    {
                        "detector": "fvnce",
                        "seeds": 3,
                        "auroc": 0.9,
                        "ap": 0.7,
                        "minus": {"peer": "catboost", "auroc": 0.1, "auroc_se": 0.04, "ap": -0.02, "ap_se": 0.05},
                    },
                    {"detector": "fvnce 1", "seeds": 3, "auroc": 0.8, "ap": 0.75},
                    {"detector": "catboost", "seeds": 3, "auroc": 0.8, "ap": 0.72},
                ]
            },
        },
        "b": {
            "tables": 2,
            "chosen on since": True,
            "settings": {
                "10 % known": [
                    {"detector": "fvnce", "seeds": 1, "auroc": 0.5, "ap": 0.1},
                    {"detector": "catboost", "seeds": 1, "auroc": 0.625, "ap": 0.1},
                ]
            },
        },
        "c": {"tables": 1, "settings": {"none known": []}},
    },
    "pooled": {
        "10 % known": {
            "against": "catboost",
            "tables": 3,
            "auroc": 0.1,
            "auroc_se": 0.04,
            "ap": -0.2,
            "ap_se": 0.05,
            "wins_ap": 1,
        }
    },
}


def test_the_first_result_shows_losses_and_marks_only_what_exceeds_its_error() -> None:
    text = "\n".join([*blocks._unseen(UNSEEN), *blocks._by_source(UNSEEN)])
    assert "**On 3 tables" in text
    assert "| 10 % | CatBoost | **+.100 ± .040** | **−.200 ± .050** | 1 of 3 |" in text
    assert "| a | 3 | **+.100 ± .040** / −.020 ± .050 |" in text
    # no standard error where tables were not paired, no number where nothing was measured
    assert "| b | 2 | −.125 / +.000 |" in text
    assert "| c | 1 | – |" in text
    # the version before is named where it is better
    assert "version 1 on the 3 tables of a" in text
    assert "| 10 % | **.900** / .700 | .800 / **.750** |" in text


def test_the_page_of_benchmarks_shows_every_detector_and_where_defaults_are_chosen_now() -> None:
    text = "\n".join(detection.unseen(UNSEEN))
    assert "| **fvnce** | 3 | 0.900 | 0.700 |" in text
    assert "| fvnce 1 | 3 | 0.800 | 0.750 |" in text
    assert "2 tables; later versions choose their defaults on them." in text


def test_pooled_differences_are_those_of_the_sources() -> None:
    """The file is a copy of measurements: its parts must agree with each other."""
    record = json.loads((ROOT / "results" / "bench" / "detection_unseen.json").read_text("utf-8"))
    for setting, pooled in record["pooled"].items():
        shown = [
            (source["tables"], row["minus"])
            for source in record["sources"].values()
            for row in source["settings"].get(setting, [])
            if row["detector"] == "fvnce" and "minus" in row
        ]
        count = sum(tables for tables, _ in shown)
        assert count == pooled["tables"]
        for key in ("auroc", "ap"):
            mean = sum(tables * minus[key] for tables, minus in shown) / count
            assert mean == pytest.approx(pooled[key], abs=1e-4)
        assert {minus["peer"] for _, minus in shown} == {pooled["against"]}
