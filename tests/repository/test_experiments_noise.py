"""The programs that measure forgetting and refitted noise: their closed forms, and a small run of each."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.distributions import MultivariateNormal

from exact_models import LinearGaussianModel
from experiments import adaptive_noise, flow_contrastive, forgetting, tempering
from fvnce import fit_gaussian, mlp
from fvnce.paper.setting import standard_normal
from fvnce.training import Baseline
from tools.pages import forgetting as pages


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
    problem = adaptive_noise.components(3, 20_000, 0.0, 0)
    truth = problem.model.b.detach()
    covariance = (problem.x @ truth.T).T.cov()
    error = (covariance - (math.pi / 2) ** 2 * torch.eye(3)).abs().max()
    assert error < 5 * 2 * (math.pi / 2) ** 2 / math.sqrt(20_000)
    assert problem.error() == 0
    assert adaptive_noise.components(3, 10, 0.3, 0).error() == pytest.approx(0.3, abs=1e-5)


def test_factors_are_the_model_whose_posterior_is_known() -> None:
    """The same density as the linear-Gaussian model's; its rows have its covariance, to five errors of an entry."""
    problem = adaptive_noise.factors(8, 20_000, 0.0, 0)
    model, x = problem.model, problem.x
    linear = model.decoder.network
    exact = LinearGaussianModel(linear.weight.detach(), linear.bias.detach(), model.decoder.scale.item())
    q = model.posterior(x[:50])
    z = q.sample()
    torch.testing.assert_close(model.log_joint(x[:50], z) - q.log_prob(z), exact.log_prob(x[:50]), rtol=1e-4, atol=1e-3)
    assert problem.error() < 1e-6
    covariance = model.covariance()
    spread = covariance.diagonal().sqrt()
    assert ((x.T.cov() - covariance).abs() / (spread[:, None] * spread)).max() < 5 * math.sqrt(2 / 20_000)


def test_the_most_likely_covariance_is_likelier_than_the_truth() -> None:
    problem = adaptive_noise.factors(8, 300, 0.0, 0)
    centred = problem.x - problem.x.mean(0)

    def log_likelihood(covariance: torch.Tensor) -> float:
        return float(MultivariateNormal(torch.zeros(8), covariance).log_prob(centred).mean())

    covariance = adaptive_noise.most_likely_covariance(problem.x, 2)
    smallest = torch.linalg.eigvalsh(covariance)[:6]
    torch.testing.assert_close(smallest, smallest.mean().expand(6), rtol=1e-3, atol=0.0)
    assert log_likelihood(covariance) > log_likelihood(problem.model.covariance())
    for factor in (0.98, 1.02):
        assert log_likelihood(covariance) > log_likelihood(factor * covariance)


def test_the_error_in_the_plane_is_a_divergence() -> None:
    """Of the Gaussian that the energy starts near to, KL is positive, and its Z is near 1 on the grid."""
    problem = adaptive_noise.plane("moons", 100, 0)
    with torch.no_grad():
        for value in problem.model.network[-1].parameters():
            value.zero_()
    # The Gaussian of scale 3 has 1.5 % of its mass outside the grid's square of 8 deviations over 3.
    assert problem.log_partition() == pytest.approx(0, abs=0.02)
    assert problem.error() > 0


CASES = [("moons", noise) for noise in adaptive_noise.NOISES]
CASES += [(name, noise) for name in ("components", "factors") for noise in adaptive_noise.NOISES]
CASES += [("factors", noise) for noise in adaptive_noise.DECODED]


@pytest.mark.parametrize(("name", "noise"), CASES)
def test_a_small_run_of_every_noise(name: str, noise: str) -> None:
    pytest.importorskip("zuko")
    small = {"rows": 200, "rows_in_the_plane": 200, "epochs": 3, "flow_epochs": 1, "centres": 50, "transforms": 1}
    task = replace(adaptive_noise.Task(), hidden=(8,), **small)
    course = adaptive_noise.cell(task, name, 2, noise, 0)["course"]
    assert [point["steps"] for point in course] == [2, 4, 6]
    assert all(math.isfinite(value) for point in course for value in point.values())
    if name == "components":
        assert course[-1]["parameter_error"] < task.off


def test_a_small_run_of_forgetting() -> None:
    generator = torch.Generator().manual_seed(0)
    means = torch.rand(3, 12, generator=generator)
    labels = torch.arange(300) % 3
    x = means[labels] + 0.05 * torch.randn(300, 12, generator=generator)
    split = forgetting.Split(x, labels, x, labels, x, labels)
    task = replace(forgetting.Task(), network=(12, 4, 12), epochs=3, batch_size=30, centres=50)
    numbers = forgetting.budgeted(task, split, (1,), 0) | forgetting.without(task, split, (1,), 0)
    cell = {"data": "toy", "classes": [1], "seed": 0} | numbers
    (line,) = forgetting.summary([cell, cell | {"seed": 1}])
    assert line["vae"] == {"seeds": 2, "auroc": numbers["vae"]["auroc"], "rest": 1.0, "forgotten": 1.0}
    assert line["auto"]["rest"] == pytest.approx(numbers["auto"]["rest"] / numbers["vae"]["rest"])
    assert set(line) == {"data", "classes", "vae", "auto", "without", "ascent"}


def test_ascent_ends_where_the_budget_does() -> None:
    x = torch.rand(100, 12, generator=torch.Generator().manual_seed(0))
    task = replace(forgetting.Task(), network=(12, 4, 12), batch_size=20)
    pair = forgetting._pair(task, 0)
    trained = Baseline(pair.model, pair.encoder)
    ascended, steps = forgetting.ascent(task, trained, x, x[:30], 0)
    before, after = forgetting._errors(trained, x).median(), forgetting._errors(ascended, x).median()
    assert steps > 0
    assert after >= task.budget * before


@pytest.mark.parametrize("way", tempering.WAYS)
def test_a_small_run_of_every_way(way: str) -> None:
    numbers = tempering.cell(way, replace(tempering.Task(), epochs=1, batch_size=128), 0)
    assert 0 <= numbers["auroc"] <= 1
    assert (way == "vae") == ("live_noise" not in numbers)
    assert (numbers["scale"] != 1 / 8) == (way in ("learned σ", "both"))
    assert ("bridges" in numbers) == way.startswith("bridges")
    assert ("auroc_without" in numbers) == (way in tempering.CONTROLS)


def test_a_bridge_of_one_level_is_the_profiled_form() -> None:
    """J = E_data Δ − log E_noise e^Δ of the shared network, and more levels begin and end where one does."""
    torch.manual_seed(0)
    noise = fit_gaussian(torch.randn(50, 5), "diagonal")
    x, y = torch.randn(40, 5), noise.sample((40,))

    def made(levels: int, held: bool = False) -> tempering.LatentBridges:
        torch.manual_seed(1)
        options = {"levels": levels, "scale": 0.5, "held": held}
        return tempering.LatentBridges(mlp([5, 2]), mlp([2, 5]), 2, 5, standard_normal(2), noise, **options)

    one = made(1)
    ((data, at_noise),) = one.deltas(x, y)
    for rows, delta in ((x, data), (y, at_noise)):
        expected = one.model.log_joint(rows, one.encoder(rows).mean) - noise.log_prob(rows)
        torch.testing.assert_close(delta, expected)
    # Levels that have not learnt anything yet are one density: all bridges but the last are even.
    for num, den in made(3).deltas(x, y)[:-1]:
        assert not num.any()
        assert not den.any()
    held = made(3, held=True)
    held(x).backward()
    assert all(p.grad is not None for p in held.parameters())
    state = held.state_of_bridges(x, torch.Generator().manual_seed(0))
    assert state.live_noise[:-1] == [1.0, 1.0]
    assert state.ess_noise[:-1] == pytest.approx([1.0, 1.0])


@pytest.mark.slow
@pytest.mark.parametrize("method", flow_contrastive.METHODS)
def test_a_small_run_of_each_noise_that_learns(method: str) -> None:
    problem = flow_contrastive.plane("moons", 0)
    first, last = flow_contrastive.course(method, problem, [2, 40], 0)
    assert (first["steps"], last["steps"]) == (2, 40)
    assert first["seconds"] < last["seconds"]
    # A Gaussian of these rows is off by about 0.8 nats.
    assert 0 < last["error"] < 1.5
    assert 0 < last["noise_error"] < 3
    assert [step["error"] for step in flow_contrastive.course(method, problem, [2, 40], 0)] == [
        first["error"],
        last["error"],
    ]


def _cell(problem: str, method: str, seed: int, error: float, samples: float | None = None) -> dict[str, Any]:
    point = {"steps": 9, "seconds": 1.0, "error": error, "noise_error": 5.0, "annealed_minus_log_z": 0.5}
    point |= {} if samples is None else {"effective_samples": samples}
    return {"problem": problem, "columns": 2, "rows": 9, "method": method, "seed": seed, "course": [point]}


def test_a_noise_is_better_only_beyond_the_error_and_with_a_log_z_to_trust() -> None:
    cells = []
    for seed in range(3):
        other = (0.1, -0.1, 0.05)[seed]
        for problem, against, samples in (("clear", 1.0, 500.0), ("close", 1.97, 500.0), ("few", 1.0, 50.0)):
            cells.append(_cell(problem, "against", seed, against, samples))
            cells.append(_cell(problem, "refitted", seed, 2.0 + other, 500.0))
    errors, trusted = pages._final_errors(cells)
    names = ["clear", "close", "few"]
    assert errors["few", "against"][0] == 1.5  # the larger estimate of log Z
    assert not trusted["few", "against"]
    assert pages._compared(errors, trusted, names, "against", "refitted") == (
        "better on clear; worse on none; undecided on close, few."
    )
    assert "worse on clear;" in pages._compared(errors, trusted, names, "refitted", "against")
