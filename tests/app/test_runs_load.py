"""A run is one thing: what ``fvnce fit`` and ``fvnce.fit`` wrote is opened by one function."""

import json
import re

import numpy as np
import pytest
import torch
from torch.distributions import Independent, Normal

import fvnce
from fvnce.app.cli import main
from fvnce.app.runs import FittedRun, Run
from fvnce.io import FileError


def command(*arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    assert stop.value.code == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of a detector, on rows of which some are known outliers."""
    place = tmp_path_factory.mktemp("runs")
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(size=(120, 3)), rng.normal(5, 1, (10, 3))])
    np.savez(place / "t.npz", X=rows, y=np.arange(130) >= 120)
    data = ["fit", place / "t.npz", "--label", "y", "-q"]
    settings = ("members=network", "n_networks=2", "steps=5", "hidden=8")
    command(*data, *(word for setting in settings for word in ("--set", setting)), "--out", place / "detector")
    return place


def test_a_run_of_a_detector_is_opened(folder, capsys):
    run = fvnce.load(folder / "detector")
    assert isinstance(run, FittedRun)
    assert isinstance(run.detector, fvnce.NoiseContrastiveDetector)
    assert run.objective is None
    assert [len(history.steps) for history in run.history] == [5]  # two networks, trained together
    for told, kept in zip(run.history, run.detector.history_, strict=True):
        assert told.steps["loss"] == pytest.approx(kept.steps["loss"], nan_ok=True, abs=0)
    with np.load(folder / "t.npz") as saved:
        anomaly = -run.detector.score_samples(saved["X"])
    capsys.readouterr()
    command("score", folder / "detector", folder / "t.npz", "-q", "--json")
    scores = [json.loads(line)["score"] for line in capsys.readouterr().out.splitlines()]
    np.testing.assert_array_equal(scores, anomaly)
    one = fvnce.load(folder / "detector" / "model.safetensors")
    np.testing.assert_array_equal(-one.score_samples(np.zeros((1, 3))), run.detector.anomaly_score(np.zeros((1, 3))))


def test_a_run_of_checkpoints_is_opened(tmp_path):
    torch.manual_seed(0)
    prior = Independent(Normal(torch.zeros(1), torch.ones(1)), 1)
    model = fvnce.LatentVariableModel(prior, fvnce.GaussianDecoder(fvnce.mlp([1, 2]), learned="shared"))
    objective = fvnce.VAE(model, fvnce.GaussianEncoder(fvnce.mlp([2, 2])))
    x = torch.randn(32, 2)
    history = fvnce.fit(objective, x, epochs=3, batch_size=8, seed=4, checkpoint_dir=tmp_path / "run", progress=False)
    run = fvnce.load(tmp_path / "run")
    assert isinstance(run, Run)
    assert run.detector is None
    for name, value in objective.state_dict().items():
        assert torch.equal(run.objective.state_dict()[name], value)
    assert run.history.to_dict() == history.to_dict()
    assert (run.config["batch_size"], run.config["seed"]) == (8, 4)
    assert repr(run) == f"Run({str(tmp_path / 'run')!r}, VAE)"


def test_a_folder_that_holds_no_run_is_named(tmp_path, folder):
    with pytest.raises(FileNotFoundError, match="must hold a run"):
        fvnce.load(tmp_path)
    for name in ("config.toml", "model.safetensors"):
        part = tmp_path / name
        part.mkdir()
        for path in (folder / "detector").iterdir():
            if path.is_file() and path.name != name:
                (part / path.name).write_bytes(path.read_bytes())
        with pytest.raises(FileError, match=f"{name} is missing"):
            fvnce.load(part)
    with pytest.raises(FileError):
        fvnce.load(folder / "detector" / "config.toml")


def test_fit_reads_nothing_that_it_has_just_written(folder, tmp_path, monkeypatch):
    def reads(*arguments, **settings):
        raise AssertionError("what was just written is read again")

    monkeypatch.setattr(fvnce.NoiseContrastiveDetector, "load", reads)
    for name in ("load_run", "read_config"):
        monkeypatch.setattr(f"fvnce.app.runs.{name}", reads)
    options = ["--set", "n_trees=5", "--set", "members=mixture_forest"]
    command("fit", folder / "t.npz", "--label", "y", *options, "--out", tmp_path / "run")


def test_the_page_depends_on_the_seed_alone(folder, tmp_path):
    state = torch.get_rng_state()
    torch.manual_seed(7)
    try:
        command("fit", "--config", folder / "detector", "-q", "--out", tmp_path / "again")
    finally:
        torch.set_rng_state(state)
    pages = [(place / "report.html").read_text() for place in (folder / "detector", tmp_path / "again")]
    first, second = (re.sub(r"Made [-\d: ]+\d", "", page) for page in pages)  # all but when it was made
    assert first == second
