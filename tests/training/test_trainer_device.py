"""Training on an accelerator, emulated: every noise, every objective, checkpoints, and how often the host waits."""

from __future__ import annotations

import copy
import math
import re
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Independent, Normal
from torch.utils.data import DataLoader

import fvnce
from emulated_device import DEVICE, DeviceTensor, emulated_device
from fvnce import PowerRule
from fvnce.detection.members.ratio_network import RatioNetworks
from fvnce.detection.rows import TrainingRows
from fvnce.models import (
    BernoulliDecoder,
    EnergyModel,
    GaussianDecoder,
    GaussianEncoder,
    LatentVariableModel,
    PointEncoder,
    mlp,
)
from fvnce.models.fixed import map_tensors
from fvnce.noise import EmpiricalNoise, FlowNoise, GaussianSteps, KernelDensity, draw_with_log_prob
from fvnce.objectives import (
    IWAE,
    NCE,
    VAE,
    Autoencoder,
    ConditionalNCE,
    FullyVariationalNCE,
    RankingNCE,
    VariationalNCE,
)
from fvnce.training import FitOptions, NonFiniteLoss
from fvnce.training.checkpoint import load_weights
from fvnce.training.ddp import make_fabric
from fvnce.training.trainer import Trainer
from member_settings import member_settings
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
    "nce": lambda noise: NCE(energy(), noise, partition="learned"),
    "snce": lambda noise: NCE(energy(), noise, PowerRule(0.5), noise_ratio=2.0),
    "variational nce": lambda noise: VariationalNCE(model(), encoder(), noise, importance_samples=3),
    "ranking nce": lambda noise: RankingNCE(energy(), noise=noise, noise_samples=2),
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


@pytest.fixture(params=["cpu", "device"])
def either(request, monkeypatch):
    if request.param == "cpu":
        yield
    else:
        with emulated_device(monkeypatch):
            yield


def rows(n=60, binary=False):
    actual = data(n, WIDTH, torch.float32)
    return (actual > 0).float() if binary else actual


def on_device(module):
    return all(isinstance(p, DeviceTensor) for p in module.parameters())


def trained(objective, X, **options):
    """A short run; plain descent has the fewest operations."""
    return fvnce.fit(objective, X, **{"epochs": 1, "batch_size": 16, "optimizer": "sgd", "seed": 0} | options)


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("noise", NOISE)
def test_every_noise_trains_every_objective(device, noise, objective):
    torch.manual_seed(0)
    made = OBJECTIVES[objective](NOISE[noise]())
    before = copy.deepcopy(made.state_dict())
    history = trained(
        made, rows(32, binary=noise == "bernoulli"), options=FitOptions(noise_pool=64 if "many" in noise else None)
    )
    assert on_device(made)
    assert all(math.isfinite(loss) for loss in history.steps["loss"])
    assert any(not torch.equal(before[name], value.cpu()) for name, value in made.state_dict().items())


@pytest.mark.parametrize("objective", [*OBJECTIVES, *WITHOUT_NOISE])
def test_validation_and_adam_run_there_too(device, objective):
    torch.manual_seed(0)
    made = OBJECTIVES[objective](NOISE["mixture"]()) if objective in OBJECTIVES else WITHOUT_NOISE[objective]()
    history = trained(made, rows(), validation=rows(20), optimizer="adam", grad_clip=1.0)
    assert on_device(made)
    assert math.isfinite(history.epochs["val_loss"][0])


def test_the_emulation_refuses_what_cuda_refuses(device):
    x = torch.ones(3, device=DEVICE)
    assert float((x * torch.tensor(2.0)).sum()) == 6  # a scalar of the CPU is none of it
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.ones(3)
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(3, device=DEVICE, generator=torch.Generator())


def waits_of_steps(device, monkeypatch, objective, X, **options):
    """How often the host waits at each step of an epoch, but for the first and the last, which record statistics."""
    counts = []
    train_step = Trainer._train_step

    def counted(trainer, *arguments):
        train_step(trainer, *arguments)
        counts.append(len(device.waits))

    monkeypatch.setattr(Trainer, "_train_step", counted)
    trained(objective, X, **options)
    return [after - before for before, after in pairwise(counts[:-1])]


@pytest.mark.parametrize("objective", [*OBJECTIVES, *WITHOUT_NOISE])
@pytest.mark.parametrize("noise", ["kernel", "mixture"])
def test_the_host_waits_at_most_twice_a_step(device, monkeypatch, noise, objective):
    torch.manual_seed(0)
    made = OBJECTIVES[objective](NOISE[noise]()) if objective in OBJECTIVES else WITHOUT_NOISE[objective]()
    waits = waits_of_steps(device, monkeypatch, made, rows(96), grad_clip=1.0)
    assert len(waits) == 4
    assert max(waits) <= 2


@pytest.mark.parametrize("noise", NOISE)
def test_the_host_waits_at_most_twice_a_step_with_any_noise(device, monkeypatch, noise):
    torch.manual_seed(0)
    X = rows(96, binary=noise == "bernoulli")
    if noise != "flow":  # zuko waits for reasons of its own; fit draws flows from a pool
        assert (
            max(waits_of_steps(device, monkeypatch, variational(NOISE[noise]()), X, options=FitOptions(noise_pool=0)))
            <= 2
        )
    assert (
        max(waits_of_steps(device, monkeypatch, variational(NOISE[noise]()), X, options=FitOptions(noise_pool=256)))
        <= 2
    )


def test_a_data_loader_and_a_memory_map_feed_the_device(device, monkeypatch, tmp_path):
    np.save(tmp_path / "x.npy", rows(96).numpy())
    loader = DataLoader(rows(96), batch_size=16, shuffle=True)
    for source in (np.load(tmp_path / "x.npy", mmap_mode="r"), loader):
        torch.manual_seed(0)
        made = variational(NOISE["kernel"]())
        assert max(waits_of_steps(device, monkeypatch, made, source)) <= 2
        assert on_device(made)


def test_noise_is_that_of_the_cpu(device):
    for name, make in NOISE.items():
        noise = make()
        if "gaussian" in name or name == "mixture":  # torch's own draw on their device
            continue
        there = map_tensors(noise, lambda t: t.to(DEVICE))
        x, log_p = draw_with_log_prob(noise, 9, torch.Generator().manual_seed(3))
        y, log_q = draw_with_log_prob(there, 9, torch.Generator().manual_seed(3))
        assert isinstance(y, DeviceTensor)
        torch.testing.assert_close(y.cpu(), x)
        torch.testing.assert_close(log_q.cpu(), log_p)


@pytest.mark.parametrize("width", [2, 300])
def test_densities_of_many_centres_are_those_of_the_cpu(device, width):
    noise = KernelDensity(data(5000, width, torch.float32), 0.5)
    there = map_tensors(noise, lambda t: t.to(DEVICE))
    x = data(70, width, torch.float32, seed=1).requires_grad_()
    y = x.detach().to(DEVICE).requires_grad_()
    noise.log_prob(x).sum().backward()
    there.log_prob(y).sum().backward()
    torch.testing.assert_close(there.log_prob(y).detach().cpu(), noise.log_prob(x).detach(), rtol=1e-6, atol=1e-3)
    torch.testing.assert_close(y.grad.cpu(), x.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("pool", [0, 64])
def test_a_run_on_the_device_resumes_bit_for_bit(device, tmp_path, pool):
    def begun():
        torch.manual_seed(0)
        return variational(NOISE["mixture"](), partition="profiled")

    options = {"options": FitOptions(noise_pool=pool), "optimizer": "adam", "validation": rows(20)}
    whole, parted = begun(), begun()
    trained(whole, rows(64), epochs=3, **options)
    trained(parted, rows(64), epochs=1, checkpoint_dir=tmp_path, **options)
    again = begun()
    trained(again, rows(64), epochs=3, checkpoint_dir=tmp_path, resume=True, **options)
    for name, value in whole.state_dict().items():
        assert torch.equal(value.cpu(), again.state_dict()[name].cpu()), name
    loaded = fvnce.load(tmp_path / "best.safetensors")
    assert all(p.device.type == "cpu" for p in loaded.parameters())


def test_a_run_of_the_cpu_goes_on_on_the_device(monkeypatch, tmp_path):
    torch.manual_seed(0)
    made = variational(NOISE["kernel"]())
    trained(made, rows(64), checkpoint_dir=tmp_path, options=FitOptions(noise_pool=64), accelerator="cpu")
    with emulated_device(monkeypatch):
        history = trained(
            made, rows(64), epochs=2, checkpoint_dir=tmp_path, options=FitOptions(noise_pool=64), resume=True
        )
        assert len(history.steps) == 8
        assert on_device(made)


class Broken(nn.Module):
    """p(x) whose log-density is −inf, NaN or infinitely steep at a row after some steps."""

    def __init__(self, how, after):
        super().__init__()
        self.how, self.after, self.calls = how, after, 0
        self.weight = nn.Parameter(torch.zeros(()))

    def log_prob(self, x):
        self.calls += 1
        value = -0.5 * (x - self.weight).square().sum(1)
        if self.calls <= self.after:
            return value
        if self.how == "gradient":
            return value + (self.weight * 0).sqrt()
        bad = torch.arange(len(x), device=x.device) == 5
        return torch.where(bad, {"zero": -math.inf, "nan": math.nan}[self.how], value)


@pytest.mark.parametrize(("how", "named"), [("zero", "row 5 of x"), ("nan", "row 5 of x"), ("gradient", "weight")])
def test_what_is_not_finite_is_named_and_spoils_nothing(device, tmp_path, how, named):
    torch.manual_seed(0)
    # With α = 1 the loss is finite at a data row of Δ = −∞.
    made = NCE(Broken(how, after=10), NOISE["kernel"](), PowerRule(1.0))
    with pytest.raises(NonFiniteLoss, match=named) as error:
        trained(
            made,
            rows(64),
            epochs=9,
            lr=0.1,
            checkpoint_dir=tmp_path,
            options=FitOptions(checkpoint_every=1, keep_last=1),
        )
    step = int(re.search(r"step (\d+)", str(error.value))[1])
    assert step == 5
    saved = torch.as_tensor(load_weights(tmp_path / f"step-{step:09d}.safetensors", copy.deepcopy(made)).model.weight)
    assert math.isfinite(saved.item())
    assert torch.equal(saved.detach().cpu(), made.model.weight.detach().cpu())


@pytest.mark.parametrize("left_by", ["backward", "nan", "gradient"])
def test_gradients_from_before_have_no_effect(either, left_by):
    def losses(left_by=None):
        torch.manual_seed(0)
        made = NCE(Broken(left_by, after=4), NOISE["kernel"](), PowerRule(1.0))
        if left_by == "backward":
            (100 * made(rows(16))).backward()
        elif left_by is not None:
            with pytest.raises(NonFiniteLoss):
                trained(made, rows(64), lr=0.0)
            assert made.model.weight.grad is None
        made.model.after = math.inf
        return trained(made, rows(64), lr=1e-4).steps["loss"]

    assert losses(left_by) == losses()


@pytest.mark.parametrize(("bad", "clean"), [(math.nan, 0), (math.inf, 16)])
@pytest.mark.parametrize(
    "objective",
    [*(name for name in OBJECTIVES if re.search("auto|learned|profiled|^nce", name)), "conditional nce", "batch norm"],
)
def test_a_refused_batch_changes_nothing(either, objective, bad, clean):
    def begun():
        torch.manual_seed(0)
        if objective == "batch norm":
            return VAE(model(), nn.Sequential(nn.BatchNorm1d(WIDTH), encoder()))
        if objective in WITHOUT_NOISE:
            return WITHOUT_NOISE[objective]()
        return OBJECTIVES[objective](NOISE["gaussian-diagonal"]())

    def run(made, X):
        return trained(made, DataLoader(X, batch_size=16), options=FitOptions(noise_pool=0))

    X = rows(32)
    expected, made = begun(), begun()
    if clean:
        run(expected, X[:clean])
    X[clean + 4, 1] = bad
    with pytest.raises((ValueError, NonFiniteLoss), match=f"x must .* found {bad} at row 4"):
        run(made, X)
    kept, now = expected.state_dict(), made.state_dict()
    for name, value in kept.items():
        torch.testing.assert_close(now[name].cpu(), value.cpu(), rtol=0, atol=0, equal_nan=True, msg=name)
    assert run(made, rows(32)).steps["loss"] == run(expected, rows(32)).steps["loss"]


def test_a_row_that_is_refused_changes_no_log_scale(either):
    torch.manual_seed(0)
    made, X = OBJECTIVES["fvnce, auto"](NOISE["kernel"]()), rows(16)
    trained(made, X)
    before = copy.deepcopy(made.state_dict())
    X[4, 1] = math.nan
    with pytest.raises(ValueError, match=r"x must .*found nan at row 4"):
        trained(made, DataLoader(X, batch_size=16))
    assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())


def test_grey_values_are_refused_on_the_device(device):
    decoder = BernoulliDecoder(mlp([2, 8, WIDTH]))
    prior = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    made = VAE(LatentVariableModel(prior, decoder), encoder())
    X = rows(32, binary=True)
    trained(made, X)
    X[7] = 0.5
    with pytest.raises((ValueError, NonFiniteLoss), match=r"found 0\.5"):
        trained(made, X)


def test_a_bad_row_of_a_data_loader_is_named(device):
    made = variational(NOISE["kernel"]())
    X = rows(32)
    X[20, 1] = math.nan
    with pytest.raises(NonFiniteLoss, match=r"x must .* found nan at row 4, column 1"):
        trained(made, DataLoader(X, batch_size=16))


def test_the_networks_of_the_detector_train_there(device):
    rng = np.random.default_rng(0)
    data = TrainingRows(rng.normal(size=(75, 3)), np.ones(75), rng.normal(6, 1, size=(5, 3)), np.ones(5))
    there, here = (RatioNetworks.fit(data, member_settings(device=name), 0)[0] for name in (str(DEVICE), "cpu"))
    assert device.waits  # it was used
    np.testing.assert_allclose(there.anomaly(data.X), here.anomaly(data.X), rtol=1e-5)


def test_a_device_without_float64_is_not_chosen_and_trains_what_needs_none(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert make_fabric("auto").device.type == "cpu"
    with emulated_device(monkeypatch, double=False):
        trained(WITHOUT_NOISE["vae"](), rows(32))
        trained(NCE(energy(), NOISE["gaussian-diagonal"](), partition="learned"), rows(32))
        with pytest.raises(TypeError, match="float64"):
            trained(variational(NOISE["kernel"]()), rows(32))
