"""What is recommended for dead noise is tried on the model at hand, and does what it says."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, Normal

import fvnce
from fvnce import NCE, FullyVariationalNCE, GaussianDecoder, GaussianEncoder, KernelDensity, PointEncoder, PowerRule
from fvnce.diagnostics import ENOUGH_LIVE, Diagnostics, Remedy, diagnose

WIDTH = 50


def rows() -> Tensor:
    return torch.randn(300, WIDTH, generator=torch.Generator().manual_seed(0))


def latent(*, point: bool, alpha: float = 0.0, scale: float = 0.1, noise: Any = None) -> FullyVariationalNCE:
    torch.manual_seed(0)
    prior = Independent(Normal(torch.zeros(4), torch.ones(4)), 1)
    model = fvnce.LatentVariableModel(prior, GaussianDecoder(fvnce.mlp([4, 32, WIDTH]), scale=scale))
    network = fvnce.mlp([WIDTH, 32, 4 if point else 8])
    encoder = PointEncoder(network) if point else GaussianEncoder(network)
    return FullyVariationalNCE(model, encoder, noise or KernelDensity(rows(), 0.5), PowerRule(alpha))


def gaussian() -> Independent:
    return Independent(Normal(torch.zeros(WIDTH), torch.full((WIDTH,), 1.3)), 1)


def plain(bandwidth: float) -> NCE:
    model = Independent(Normal(torch.zeros(WIDTH), torch.ones(WIDTH)), 1)
    return NCE(model, KernelDensity(rows(), bandwidth), PowerRule(1 / 64))


def look(objective: fvnce.objectives.ContrastiveObjective) -> Diagnostics:
    return diagnose(objective, rows(), latent_samples=1, generator=torch.Generator().manual_seed(1))


def first(report: Diagnostics) -> Remedy:
    return next(remedy for remedy in report.remedies if remedy.helps)


def test_noise_that_lives_needs_no_remedy() -> None:
    report = look(plain(1.0))
    assert report.live_noise > ENOUGH_LIVE
    assert report.remedies == ()
    assert not any("dead" in line for line in report.advice)


@pytest.mark.parametrize(
    ("objective", "name"),
    [
        (latent(point=False), "none"),
        (latent(point=False, alpha=1 / 64, noise=gaussian()), "decoder"),
        (latent(point=True), "log_scale"),
        (plain(8.0), "noise"),
    ],
    ids=["constant noise term", "narrow decoder", "point encoder", "wide kernels"],
)
def test_the_first_remedy_that_helps_is_marked(objective: fvnce.objectives.ContrastiveObjective, name: str) -> None:
    report = look(objective)
    assert report.live_noise == 0.0
    assert first(report).name == name
    marked = [line for line in report.advice if line.startswith("→")]
    assert marked == [f"→ {first(report).text}"]
    assert "dead" in report.advice[0]


def test_a_wider_decoder_has_the_live_fraction_that_was_foretold() -> None:
    """300 samples: the foretold and the found share have standard errors of at most 3 %, and five are allowed."""
    foretold = first(look(latent(point=False, alpha=1 / 64, noise=gaussian())))
    width = float(foretold.text.split("σ = ")[1].split()[0])
    live = look(latent(point=False, alpha=1 / 64, scale=width, noise=gaussian())).live_noise
    assert live == pytest.approx(foretold.live_noise, abs=5 * math.sqrt(2) * 0.03)


def test_other_kernels_have_the_live_fraction_that_was_foretold() -> None:
    foretold = first(look(plain(8.0)))
    width = float(foretold.text.split("of bandwidth ")[1].split()[0])
    assert look(plain(width)).live_noise == pytest.approx(foretold.live_noise, abs=5 * math.sqrt(2) * 0.03)


def test_what_profiling_would_carry_is_counted() -> None:
    report = look(latent(point=True))
    profiled = next(remedy for remedy in report.remedies if remedy.name == "profiled")
    assert profiled.ess_noise == pytest.approx(1 / 300, rel=0.5)
    assert not profiled.helps
    assert "of 300 " in profiled.text


def test_the_found_log_scale_lifts_half_of_the_noise() -> None:
    report = look(latent(point=False, alpha=1 / 64))
    remedy = next(remedy for remedy in report.remedies if remedy.name == "log_scale")
    lifted = latent(point=False, alpha=1 / 64)
    s = float(remedy.text.split("log_scale=")[1].split()[0])
    lifted.partition.log_scale.fill_(s)  # type: ignore[operator, union-attr]
    terms = lifted.eval().terms(rows(), lifted.noise.sample((300,)))
    assert terms.delta_noise is not None
    share = (terms.delta_noise > 0).double().mean().item()
    assert abs(share - 0.5) < 5 * math.sqrt(2) * 0.03


def test_binary_rows_get_no_kernels() -> None:
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(200, 400, generator=generator) < 0.5).float()
    torch.manual_seed(0)
    prior = Independent(Normal(torch.zeros(4), torch.ones(4)), 1)
    network = fvnce.mlp([4, 400])
    torch.nn.init.constant_(network[-1].bias, 9.0)  # type: ignore[arg-type, union-attr, index]
    model = fvnce.LatentVariableModel(prior, fvnce.BernoulliDecoder(network))
    encoder = GaussianEncoder(fvnce.mlp([400, 8]))
    noise = fvnce.noise.BernoulliNoise(torch.full((400,), 0.5))
    objective = FullyVariationalNCE(model, encoder, noise, PowerRule(1 / 64))
    report = diagnose(objective, x, latent_samples=1, generator=generator)
    assert report.live_noise == 0.0
    assert [remedy.name for remedy in report.remedies] == ["log_scale", "profiled", "bridges"]


@pytest.mark.parametrize("noise", [None, gaussian()], ids=["kernels", "gaussian"])
def test_remedies_are_those_of_the_generator_whatever_was_drawn_before(noise: Any) -> None:
    objective = latent(point=False, alpha=1 / 64, noise=noise)
    advice = []
    for seed in (5, 6):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        advice.append(look(objective).advice)
        assert torch.equal(torch.get_rng_state(), before)
    assert advice[0] == advice[1]
