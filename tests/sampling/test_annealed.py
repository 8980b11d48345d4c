"""Annealed NCE: log Z along a path, on Gaussians where the path, its draws and its error are known."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Independent, Normal

from fvnce import NCE
from fvnce.objectives import Learned
from fvnce.sampling import annealed_nce

pytestmark = pytest.mark.usefixtures("double_precision")

LOG_Z = 0.5 * math.log(2 * math.pi)


class Bell(nn.Module):
    """φ = e^(−(x − m)²/2)."""

    def __init__(self, mean):
        super().__init__()
        self.mean = mean

    def log_prob(self, x):
        return -((x - self.mean) ** 2).sum(-1) / 2


def noise(width=1):
    return Independent(Normal(torch.zeros(width), torch.ones(width)), 1)


def geometric(mean, generator=None):
    """Draws of f_t = N(tm, 1)."""
    return lambda t, n: t * mean + torch.randn(n, 1, generator=generator)


def arithmetic(mean, pilot, generator):
    """Draws of cos² p_n + sin² e^(−c) φ, whose second part has the mass Z e^(−c)."""

    def draws(t, n):
        first, second = math.cos(math.pi / 2 * t) ** 2, math.sin(math.pi / 2 * t) ** 2 * math.exp(LOG_Z - pilot)
        chosen = torch.rand(n, 1, generator=generator) < second / (first + second)
        return torch.randn(n, 1, generator=generator) + mean * chosen

    return draws


def test_one_level_is_the_log_z_that_nce_learns():
    x, y = 1.5 + torch.randn(300, 1), torch.randn(300, 1)
    value, _ = annealed_nce(Bell(1.5), noise(), levels=1, samples=300, draws=lambda t, n: x if t else y)
    objective = NCE(Bell(1.5), noise(), partition=Learned(start=float(value)))
    (gradient,) = torch.autograd.grad(objective(x, y), list(objective.parameters()))
    assert abs(float(gradient)) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("path", ["geometric", "arithmetic"])
@pytest.mark.parametrize("levels", [1, 5])
def test_the_value_is_right_and_so_is_its_error(path, levels):
    """400 estimates: their z-scores have mean 0 and spread 1, to five deviations, 0.25 and 0.18."""
    generator = torch.Generator().manual_seed(0)
    scores = []
    for _ in range(400):
        draws = geometric(2.0, generator) if path == "geometric" else arithmetic(2.0, LOG_Z + 0.7, generator)
        pilot = None if path == "geometric" else LOG_Z + 0.7
        value, error = annealed_nce(Bell(2.0), noise(), path=path, levels=levels, samples=500, draws=draws, pilot=pilot)
        scores.append((float(value) - LOG_Z) / float(error))
    z_scores = torch.tensor(scores)
    assert abs(float(z_scores.mean())) < 0.25
    assert float(z_scores.std()) == pytest.approx(1, abs=0.18)


@pytest.mark.parametrize("path", ["geometric", "arithmetic"])
def test_consistency(path):
    """Sixteen times the draws, a quarter of the error.

    Of 60 estimates the root mean square has a relative deviation of 9 %, the ratio of two 13 %: the bounds are four of
    that wide.
    """
    generator = torch.Generator().manual_seed(0)
    typical = []
    for samples in (100, 1600):
        errors = []
        for _ in range(60):
            exact = geometric(2.0, generator) if path == "geometric" else arithmetic(2.0, LOG_Z + 0.7, generator)
            pilot = None if path == "geometric" else LOG_Z + 0.7
            value, _ = annealed_nce(Bell(2.0), noise(), path=path, levels=4, samples=samples, draws=exact, pilot=pilot)
            errors.append(float(value) - LOG_Z)
        typical.append(torch.tensor(errors).square().mean().sqrt().item())
    assert 4 / 1.6 < typical[0] / typical[1] < 4 * 1.6, typical


def test_along_many_levels_the_error_is_the_energy_of_the_path():
    """n K Var → ∫ I(t) dt: m² on the geometric path of N(0, 1) to N(m, 1), at most π² on the arithmetic one."""
    samples, levels = 20_000, 24
    for mean in (3.0, 6.0):
        _, error = annealed_nce(
            Bell(mean),
            noise(),
            levels=levels,
            samples=samples,
            draws=geometric(mean, torch.Generator().manual_seed(1)),
        )
        assert samples * levels * float(error) ** 2 == pytest.approx(mean**2, rel=0.12)
    generator = torch.Generator().manual_seed(1)
    _, error = annealed_nce(
        Bell(6.0),
        noise(),
        path="arithmetic",
        levels=levels,
        samples=samples,
        draws=arithmetic(6.0, LOG_Z, generator),
        pilot=LOG_Z,
    )
    # 12 % for the estimate of a variance and for levels being finite.
    assert samples * levels * float(error) ** 2 < 1.12 * math.pi**2


def test_chains_find_log_z_and_follow_the_generator():
    def found(path):
        return annealed_nce(
            Bell(3.0), noise(3), path=path, levels=8, samples=800, generator=torch.Generator().manual_seed(2)
        )

    for path in ("geometric", "arithmetic"):
        state = torch.get_rng_state()
        first = found(path)
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(first.value, found(path).value)
    value, error = found("geometric")
    assert abs(float(value) - 3 * LOG_Z) < 4 * float(error)


class Narrow(nn.Module):
    """N(3, 0.5²)³ without its constant."""

    log_z = 3 * (LOG_Z + math.log(0.5))

    def log_prob(self, x):
        return -((x - 3) / 0.5).square().sum(-1) / 2


@pytest.mark.slow
@pytest.mark.parametrize("path", ["geometric", "arithmetic"])
def test_chains_that_lag_are_corrected(path):
    """From N(0, 2²)³ with default settings: chains that are taken for draws of their level are 2 nats off."""
    start = Independent(Normal(torch.zeros(3), torch.full((3,), 2.0)), 1)
    estimates = [
        annealed_nce(Narrow(), start, path=path, generator=torch.Generator().manual_seed(s))
        for s in range(8 if path == "geometric" else 4)
    ]
    scores = [(float(each.value) - Narrow.log_z) / float(each.error) for each in estimates]
    # Each is below 3.5 with probability 0.9995 if the error is right.
    assert max(map(abs, scores)) < 3.5, scores
    assert path == "arithmetic" or sum(each.trusted for each in estimates) >= 6


def test_chains_that_stay_behind_are_not_trusted():
    """One step of 0.01 a level: nothing moves, and all that is left is importance sampling from afar."""
    estimate = annealed_nce(Bell(4.0), noise(3), steps=1, step_size=0.01, generator=torch.Generator().manual_seed(0))
    assert not estimate.trusted


def test_a_model_that_is_zero_at_most_of_the_noise():
    class Cut(nn.Module):
        def log_prob(self, x):
            return torch.where(x[:, 0] > 1, -x[:, 0].square() / 2, -math.inf)

    estimate = annealed_nce(Cut(), noise(1), generator=torch.Generator().manual_seed(0))
    truth = LOG_Z + math.log(0.15866)
    assert abs(float(estimate.value) - truth) < 4 * float(estimate.error)
    assert float(estimate.error) < 0.3


def test_rows_may_have_any_shape():
    class Image(nn.Module):
        def log_prob(self, x):
            return -(x - 1).flatten(1).square().sum(-1) / 2

    start = Independent(Normal(torch.zeros(1, 2, 2), torch.ones(1, 2, 2)), 3)
    value, error = annealed_nce(Image(), start, generator=torch.Generator().manual_seed(0))
    assert abs(float(value) - 4 * LOG_Z) < 4 * float(error)


def test_far_ends_are_not_trusted():
    assert not annealed_nce(Bell(12.0), noise(), levels=1, samples=2000, draws=geometric(12.0)).trusted
    assert annealed_nce(Bell(12.0), noise(), levels=20, samples=2000, draws=geometric(12.0)).trusted


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"path.*'straight'"):
        annealed_nce(Bell(1.0), noise(), path="straight")
    with pytest.raises(ValueError, match=r"pilot.*None"):
        annealed_nce(Bell(1.0), noise(), path="arithmetic", draws=geometric(1.0))
    with pytest.raises(TypeError, match=r"log_prob.*Linear"):
        annealed_nce(nn.Linear(1, 1), noise())
