"""The search over what the paper leaves open, and the page that is made of results."""

import json
import math
import re
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

import experiments
from experiments import instances, search, search_deep
from fvnce.diagnostics import FRACTIONS
from fvnce.paper.datasets import load_digits
from fvnce.paper.setting import MNIST
from fvnce.paper.table import rows
from fvnce.scoring import PowerRule
from tools.pages.reproduction import page


def test_every_program_is_listed_and_everything_listed_is_a_program():
    root = Path(experiments.__file__).parent
    runnable = {
        path.relative_to(root).with_suffix("").parts
        for path in root.rglob("*.py")
        if 'if __name__ == "__main__":' in path.read_text("utf-8")
    }
    table = re.split(r"^``", experiments.__doc__, flags=re.MULTILINE)[1:]
    listed = set()
    for entry in table:
        name, _, text = entry.partition("``")
        folder = name.removesuffix(".NAME")
        listed |= {(folder, part) for part in re.findall(r"``(\w+)``", text)} if folder != name else {(name,)}
    assert listed == runnable


def test_the_distance_of_the_paper_to_itself_is_zero():
    measured = {
        (network, row.name, 0): {"train": row.paper[i][0], "test": row.paper[i][0] + 3.0, "noise": row.paper[i][1]}
        for i, network in enumerate(MNIST.networks)
        for row in rows(MNIST)
    }
    distance = search.distance(MNIST, measured)
    assert distance["train"] == 0
    assert distance["test column"] == pytest.approx(3)
    assert distance["test"] == pytest.approx(3 / math.sqrt(2))  # half of the numbers are 3 off


def test_helpful_changes_are_combined():
    def variant(distance, **changes):
        return {"changes": changes, "distance": {"train": distance, "test": distance + 1}}

    parts = search.helpful(
        [
            variant(10),
            variant(7, lr=1),
            variant(5, lr=2),
            variant(12, output="sigmoid"),
            variant(3, encoder="gaussian"),
            variant(9, code_activation="relu"),
        ]
    )
    assert parts == [{"encoder": "gaussian"}, {"lr": 2}, {"code_activation": "relu"}]
    made = search.combinations(parts)
    assert {"encoder": "gaussian", "lr": 2} in made
    assert {"encoder": "gaussian", "code_activation": "decoder-relu"} in made
    assert len(made) == 4


@pytest.mark.parametrize("row", search_deep.POWERS)
def test_the_search_on_the_deeper_network_follows_the_gradient_of_the_rule(row):
    alpha, beta = search_deep.POWERS[row]
    delta = torch.linspace(-300, 500, 1601, dtype=torch.float64, requires_grad=True)
    PowerRule(alpha, beta, clip=MNIST.clip).f1(delta).sum().backward()
    slope = search_deep.slope(search_deep.Choices(), alpha, beta, delta.detach())
    torch.testing.assert_close(slope, delta.grad)


def test_the_noise_term_that_the_search_leaves_out_has_no_gradient():
    record = json.loads((Path(experiments.__file__).parents[1] / "results/paper-mnist/search-deep.json").read_text())
    points = [at["largest_noise_delta"] for run in record["runs"] for at in [*run["course"], run]]
    delta = torch.tensor(points, requires_grad=True)
    for row in rows(MNIST):
        if row.rule is not None:
            row.rule.f0(delta).sum().backward()
    assert len(points) > len(record["runs"])
    assert (delta.grad == 0).all()


def test_the_page_of_the_reproduction_is_written_from_the_files(tmp_path):
    """The paper's own numbers, with a seed's noise added, give a page in which its order is found again."""
    cells = []
    for seed in range(3):
        for i, network in enumerate(MNIST.networks):
            for row in rows(MNIST):
                data, noise, _ = row.paper[i]
                numbers = {"train": data + seed, "test": data - 5, "noise": noise - seed * (row.name != "ae")}
                cells.append({"network": "-".join(map(str, network)), "row": row.name, "seed": seed} | numbers)
                if row.rule is not None:
                    cells[-1] |= dict.fromkeys(FRACTIONS, 0.0)
    record = {
        "command": "a command",
        "version": "1",
        "torch": "2",
        "settings": asdict(MNIST),
        "seeds": 3,
        "rows": {row.name: {"label": row.label, "paper": row.paper} for row in rows(MNIST)},
        "cells": cells,
    }
    (tmp_path / "table.json").write_text(json.dumps(record))
    text = page(tmp_path)
    assert "| AE | 767 ± 0.6 | 761 ± 0.0 | -1138 ± 0.0 | 1905 ± 0.6 | 766 | -1138 | 1904 |" in text
    assert "| 784-128-784 | AE → VAE | +470 | +471 ± 0.6 | +1 | the paper's step is in our interval |" in text
    assert "| 784-256-128-256-784 | (1/64, 0) → (1/16, 0) | -28 | -28 ± 0.0 | +0 |" in text
    assert text.count("| the paper's step is in our interval |") == 12  # all neighbors, and (0, 1) with the VAE, twice
    assert text.count("in nats: noise 1 (most in") == 2
    assert "not found again" not in text
    for cell in cells:
        if cell["row"] == "1-256":
            cell |= {"noise": cell["noise"] + 100, "ess_data": 0.95}
    (tmp_path / "table.json").write_text(json.dumps(record))
    text = page(tmp_path)
    steps = [line for line in text.splitlines() if "→" in line and line.startswith("|")]
    assert {step.split(" | ")[1] for step in steps[:4]} == {"VAE → (1/256, 0)", "(1/256, 0) → (1/64, 0)"}
    assert text.count("| opposite sign |") == 2
    assert "the noise column of (1/256, 0) on" in text  # the largest disagreement comes first
    assert text.index("What disagrees most") < text.index("| AE |")
    assert text.count("noise 40 (most in (1/256, 0): +99)") == 2  # √((99² + 4)/6); the mean is 16
    assert "to (1/256, 0) is not found again on 784-128-784 and 784-256-128-256-784" in text
    with pytest.raises(FileNotFoundError, match=r"table\.json"):
        page(tmp_path / "nowhere")


@pytest.mark.slow
def test_instances_hold():
    """Every identity and inequality of the paper, on (barely) trained models."""
    images = load_digits()
    settings = instances.InstanceSettings(epochs=2, points=32, importance_samples=200)
    with torch.random.fork_rng():
        lines = instances.compare(settings, images.train, images.test[: settings.points])
    assert [line[-1] for line in lines] == ["yes"] * 7
    assert all(len(line) == len(instances.HEADER) for line in lines)
