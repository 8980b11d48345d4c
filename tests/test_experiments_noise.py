"""The programs that measure forgetting and refitted noise: their closed forms, and a small run of each."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from experiments import adaptive_noise, forgetting, tempering
from fvnce.objectives import Reference


def test_log_z_of_independent_components_by_quadrature() -> None:
    model = adaptive_noise.Components(torch.tensor([[1.0, 0.4], [-0.3, 0.8]]).double())
    grid = torch.linspace(-60, 60, 2401, dtype=torch.float64)
    x = torch.cartesian_prod(grid, grid)
    with torch.no_grad():
        mass = torch.cat([model.log_prob(part).exp() for part in x.split(500_000)]).sum()
    step = float(grid[1] - grid[0])
    assert math.log(float(mass) * step**2) == pytest.approx(model.log_partition(), abs=1e-6)


def test_rows_have_independent_components() -> None:
    """sech(y)/π has variance (π/2)², the square of y has a standard deviation of 2 (π/2)², and 5 errors are allowed."""
    task = replace(adaptive_noise.Task(), rows=20_000)
    truth, start, x = adaptive_noise.problem(task, 3, 0)
    covariance = (x @ truth.T).T.cov()
    error = (covariance - (math.pi / 2) ** 2 * torch.eye(3)).abs().max()
    assert error < 5 * 2 * (math.pi / 2) ** 2 / math.sqrt(20_000)
    assert float((start - truth).norm() / truth.norm()) == pytest.approx(task.off, abs=1e-5)


@pytest.mark.parametrize("noise", adaptive_noise.NOISES)
def test_a_small_run_of_every_noise(noise: str) -> None:
    pytest.importorskip("zuko")
    task = replace(adaptive_noise.Task(), rows=200, epochs=3, flow_epochs=1, centres=50, transforms=1, hidden=(8,))
    course = adaptive_noise.cell(task, 2, noise, 0)["course"]
    assert [point["steps"] for point in course] == [2, 4, 6]
    assert all(math.isfinite(value) for point in course for value in point.values())
    assert course[-1]["parameter_error"] < task.off


def test_a_small_run_of_forgetting() -> None:
    generator = torch.Generator().manual_seed(0)
    means = torch.rand(3, 12, generator=generator)
    labels = torch.arange(300) % 3
    x = means[labels] + 0.05 * torch.randn(300, 12, generator=generator)
    split = forgetting.Split(x, labels, x, labels, x, labels)
    task = replace(forgetting.Task(), network=(12, 4, 12), epochs=3, batch_size=30, centres=50)
    found = forgetting.budgeted(task, split, (1,), 0) | forgetting.without(task, split, (1,), 0)
    cell = {"data": "toy", "classes": [1], "seed": 0} | found
    (line,) = forgetting.summary([cell, cell | {"seed": 1}])
    assert line["vae"] == {"seeds": 2, "auroc": found["vae"]["auroc"], "rest": 1.0, "forgotten": 1.0}
    assert line["auto"]["rest"] == pytest.approx(found["auto"]["rest"] / found["vae"]["rest"])
    assert set(line) == {"data", "classes", "vae", "auto", "without", "ascent"}


def test_ascent_ends_where_the_budget_does() -> None:
    x = torch.rand(100, 12, generator=torch.Generator().manual_seed(0))
    task = replace(forgetting.Task(), network=(12, 4, 12), batch_size=20)
    pair = forgetting._pair(task, 0)
    trained = Reference(pair.model, pair.encoder)
    ascended, steps = forgetting.ascent(task, trained, x, x[:30], 0)
    before, after = forgetting._errors(trained, x).median(), forgetting._errors(ascended, x).median()
    assert steps > 0
    assert after >= task.budget * before


@pytest.mark.parametrize("way", tempering.WAYS)
def test_a_small_run_of_every_way(way: str) -> None:
    found = tempering.cell(way, replace(tempering.Task(), epochs=1, batch_size=128), 0)
    assert 0 <= found["auroc"] <= 1
    assert (way == "vae") == ("live_noise" not in found)
    assert (found["scale"] != 1 / 8) == (way in ("learned σ", "both"))
