"""The benchmarks on tiny sizes: they run from the first line to the last, and their files make a page."""

import json
import re
import sys

import numpy as np
import pytest
import torch

from fvnce.training import batches
from programs import ROOT, load
from tools.pages.benchmarks import page

#: A peer's numbers, measured elsewhere on the same splits.
PEERS = "dataset,detector,la,seed,auroc,ap,fit_s\ntiny,knn,0.1,0,0.5,0.001,1\n"


@pytest.fixture
def run(tmp_path, monkeypatch):
    def run(name, *arguments):
        out = tmp_path / "results" / f"{name}.json"
        monkeypatch.setattr(sys, "argv", [f"{name}.py", "--quick", "--out", str(out), *arguments])
        monkeypatch.setattr(batches, "RENEWAL_FRACTION", batches.RENEWAL_FRACTION)  # set back afterwards
        load(ROOT / "benchmarks" / f"{name}.py").main()
        return json.loads(out.read_text()), page(out.parent)

    return run


def test_every_benchmark_says_what_it_measures_and_how_long_it_takes():
    listed = load(ROOT / "benchmarks" / "__main__.py").listed(ROOT / "benchmarks")
    assert {"kde.py", "training.py", "detection.py"} <= {name for name, *_ in listed}
    for name, what, takes in listed:
        assert what.endswith("."), name
        assert re.fullmatch(r"Takes about .*\b(seconds?|minutes?|hours?)\b.*\.", takes), name


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("[a-z]*.py")), ids=lambda path: path.stem)
def test_results_find_their_folder(path):
    """Nothing is measured for minutes and then lost because a folder is not there."""
    source = path.read_text("utf-8")
    assert "write_json(" in source or ".parent.mkdir(parents=True, exist_ok=True)" in source


def test_kde(run, capsys):
    record, page = run("kde")
    for row in record["high dimensions"]:
        # Nats of error; the naive formula loses digits to cancellation that ours keeps.
        assert row["error"]["ours"] < 1e-3
        assert row["error"]["ours"] <= row["error"]["naive torch"]
    assert record["low dimensions"][0]["error"]["scikit-learn"] < 1e-9
    assert "## Kernel densities" in page
    assert "time / bare product" in capsys.readouterr().out


@pytest.mark.slow
def test_training(run, capsys):
    record, page = run("training")
    assert all(ratio > 0 for ratio in record["ratios"].values())
    # The contenders are what their names say.
    live = {name: notes["live_noise"] for name, notes in record["before_training"].items()}
    assert live["fit, fvNCE, none live"] == 0
    assert live["fit, fvNCE, every noise sample live"] > 0.9
    assert "## Training" in page
    assert "fit / hand-written loop" in capsys.readouterr().out


@pytest.mark.slow
def test_small_models(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import small_models

    out = tmp_path / "small.json"
    monkeypatch.setattr(sys, "argv", ["small_models.py", "--rows", "256", "--epochs", "2", "--out", str(out)])
    threads = torch.get_num_threads()
    try:
        small_models.main()
    finally:
        torch.set_num_threads(threads)
    found = json.loads(out.read_text())["fit / hand-written loop"]
    assert len(found) == 6
    assert all(each["ratio"] > 0 for each in found.values())


def test_detection(run, capsys, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    (tmp_path / "adbench").mkdir()
    X = np.concatenate([rng.normal(size=(200, 3)), rng.normal(5, 1, (40, 3))])
    np.savez(tmp_path / "adbench" / "tiny.npz", X=X, y=np.repeat([0, 1], [200, 40]))
    (tmp_path / "peers.csv").write_text(PEERS)
    monkeypatch.setenv("FVNCE_DATA", str(tmp_path))
    record, page = run("detection", "--shares", "0.1", "--peers", str(tmp_path / "peers.csv"))
    assert [row["detector"] for row in record["summary"]["0.1, seed 0"]] == ["fvnce", "knn"]
    assert record["rows"][0]["known"] == 3
    assert record["rows"][0]["auroc"] > 0.95
    assert "10% of the anomalies known" in page
    assert "knn" in capsys.readouterr().out
    # Runs add up: what the file holds is not run again.
    record, _ = run("detection", "--shares", "0.1,0", "--peers", str(tmp_path / "peers.csv"))
    assert [row["share"] for row in record["rows"]] == [0.1, 0.0]
    assert "tiny 0.1" not in capsys.readouterr().out
    # Numbers of columns that are cut are not mixed with others, and the page says what they are.
    assert "Columns are standardised by training rows, the peers" in page
    record, page = run("detection", "--shares", "0.1", "--peers", str(tmp_path / "peers.csv"), "--cut", "10")
    assert [row["share"] for row in record["rows"]] == [0.1]
    assert "Columns are standardised by training rows and cut at ±10, the peers" in page
    monkeypatch.setenv("FVNCE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(SystemExit, match=r"FVNCE_DATA.*adbench"):
        run("detection")


@pytest.mark.parametrize("name", ["annealing", "bridges", "flat_landscape"])
def test_the_smaller_studies_of_estimators(name, run):
    record, page = run(name)
    assert record["cpu_seconds"] > 0
    if name == "annealing":
        near, far = record["rows"]
        assert far["one step"]["predicted"] / near["one step"]["predicted"] > 20  # exponential
        assert far["geometric"]["predicted"] == pytest.approx(16, rel=0.3)  # R²
    elif name == "bridges":
        assert set(record["problems"]["shifted by 2, 2-D"]) == {"one step", "softmax", "binary", "reference"}
    else:
        assert record["rows"][1]["condition"]["eNCE"] == pytest.approx(16)  # the square of its larger eigenvalue
    assert f"results/bench/{name}.json" in page


@pytest.mark.slow
def test_estimators(run):
    record, page = run("estimators")
    for estimators in record["problems"].values():
        assert len(estimators) == 8
        assert all(len(row["runs"]) == 2 for row in estimators.values())
    assert "## Estimators" in page
