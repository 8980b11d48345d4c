"""Training on an accelerator, emulated: every noise, every objective, checkpoints, and how often the host waits."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Independent, Normal
from torch.utils.data import DataLoader

import fvnce
from fvnce import PowerRule
from fvnce.models import EnergyModel, GaussianDecoder, GaussianEncoder, LatentVariableModel, PointEncoder, mlp
from fvnce.noise import EmpiricalNoise, FlowNoise, GaussianSteps, KernelDensity
from fvnce.objectives import (
    IWAE,
    NCE,
    SNCE,
    VAE,
    Autoencoder,
    ConditionalNCE,
    FullyVariationalNCE,
    Profiled,
    RankingNCE,
    VariationalNCE,
)
from fvnce.scoring import Logarithmic
from emulated_device import DEVICE, DeviceTensor, Emulation, emulated_device
from noise_contract import MEMBERS, data

WIDTH = 3
NOISE = {member.name: lambda member=member: member.make(WIDTH, torch.float32) for member in MEMBERS}
NOISE |= {
    "kernel of many centres": lambda: KernelDensity(data(2000, WIDTH, torch.float32), 0.4),
    "kernel in float64": lambda: KernelDensity(data(50, WIDTH, torch.float64), 0.8),
    "empirical": lambda: EmpiricalNoise(data(60, WIDTH, torch.float32)),
    "flow": lambda: FlowNoise("NICE", torch.zeros(WIDTH), torch.full((WIDTH,), 2.0), transforms=1, hidden=(8,)),
}


def model() -> LatentVariableModel:
    prior = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    return LatentVariableModel(prior, GaussianDecoder(mlp([2, 8, WIDTH]), learned="shared"))


def encoder() -> nn.Module:
    return GaussianEncoder(mlp([WIDTH, 8, 4]))


def energy() -> EnergyModel:
    normal = Independent(Normal(torch.zeros(WIDTH), torch.full((WIDTH,), 3.0)), 1)
    return EnergyModel(mlp([WIDTH, 8, 1]), reference=normal)


def variational(noise, alpha=0.1, q=encoder, **options):
    return FullyVariationalNCE(model(), q(), noise, PowerRule(alpha), **options)


OBJECTIVES = {
    "fvnce": variational,
    "fvnce, auto": lambda noise: variational(noise, 0.0, log_scale="auto"),
    "fvnce, learned": lambda noise: variational(noise, partition="learned"),
    "fvnce, profiled": lambda noise: variational(noise, partition="profiled"),
    "fvnce, point encoder": lambda noise: variational(noise, q=lambda: PointEncoder(mlp([WIDTH, 8, 2]))),
    "fvnce, noise encoder": lambda noise: variational(noise, noise_encoder=encoder(), latent_samples=2),
    "fvnce, profiled by root": lambda noise: FullyVariationalNCE(
        model(), encoder(), noise, PowerRule(0.1, 0.3), partition="profiled"
    ),
    "fvnce, profiled by root with momentum": lambda noise: FullyVariationalNCE(
        model(), encoder(), noise, PowerRule(0.1, 0.3), partition=Profiled(momentum=0.5)
    ),
    "nce": lambda noise: NCE(energy(), noise, partition="learned"),
    "snce": lambda noise: SNCE(energy(), noise, PowerRule(0.5), noise_ratio=2.0),
    "variational nce": lambda noise: VariationalNCE(model(), encoder(), noise, importance_samples=3),
    "ranking nce": lambda noise: RankingNCE(energy(), noise, noise_samples=2),
}
WITHOUT_NOISE = {
    "vae": lambda: VAE(model(), encoder()),
    "iwae": lambda: IWAE(model(), encoder(), latent_samples=2),
    "autoencoder": lambda: Autoencoder(model(), PointEncoder(mlp([WIDTH, 8, 2]))),
    "conditional nce": lambda: ConditionalNCE(energy()),
    "conditional nce, steps": lambda: ConditionalNCE(energy(), conditional=GaussianSteps(0.3)),
}


@pytest.fixture
def device(monkeypatch):
    with emulated_device(monkeypatch) as emulation:
        yield emulation


def rows(n=60, binary=False):
    found = data(n, WIDTH, torch.float32)
    return (found > 0).float() if binary else found


def on_device(module):
    return all(isinstance(p, DeviceTensor) for p in module.parameters())


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("noise", NOISE)
def test_every_noise_trains_every_objective(device, noise, objective):
    torch.manual_seed(0)
    made = OBJECTIVES[objective](NOISE[noise]())
    X = rows(binary=noise == "bernoulli")
    before = copy.deepcopy(made.state_dict())
    history = fvnce.fit(made, X[:40], validation=X[40:], epochs=2, batch_size=16, seed=0)
    assert on_device(made)
    assert all(math.isfinite(loss) for loss in history.steps["loss"] + history.epochs["val_loss"])
    assert any(not torch.equal(before[name], value.cpu()) for name, value in made.state_dict().items())


@pytest.mark.parametrize("objective", WITHOUT_NOISE)
def test_objectives_without_noise_train(device, objective):
    torch.manual_seed(0)
    made = WITHOUT_NOISE[objective]()
    fvnce.fit(made, rows(), validation=rows(), epochs=2, batch_size=16, seed=0)
    assert on_device(made)
