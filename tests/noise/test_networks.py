"""Noise made of networks follows its objective: it moves, is in the state, is saved, and is never trained."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import (
    AffineTransform,
    Distribution,
    Independent,
    Normal,
    TransformedDistribution,
    Uniform,
    constraints,
)

import fvnce
from fvnce.models import mlp
from fvnce.models.fixed import FixedDistribution
from fvnce.noise import FlowNoise, KernelDensity, NoiseMixture, draw, load_noise, save_noise
from fvnce.objectives import NCE
from fvnce.training import FitOptions, fit, fit_flow
from training_runs import contrastive, digest, rows

zuko = pytest.importorskip("zuko")

WIDTH = 4


class Shifted(Distribution):
    """N(network(0), I), with a network of the user's own; one with dropout, which must stay off."""

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012
    support = constraints.real_vector
    has_rsample = False

    def __init__(self) -> None:
        self.networks = {"mean": nn.Sequential(mlp([1, 8, WIDTH]), nn.Dropout(0.5))}
        self.at = torch.zeros(1)
        super().__init__(torch.Size(), torch.Size((WIDTH,)), validate_args=False)

    @property
    def _inner(self) -> Distribution:
        mean = self.networks["mean"](self.at)
        return Independent(Normal(mean, torch.ones_like(mean)), 1)

    def log_prob(self, value: Tensor) -> Tensor:
        return self._inner.log_prob(value)

    def sample(self, sample_shape=()) -> Tensor:
        return self._inner.sample(sample_shape)


class Both(nn.Module, Distribution):
    """A module that is itself a distribution, with a parameter and a buffer."""

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012
    support = constraints.real_vector
    has_rsample = False

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.mean_ = nn.Parameter(torch.linspace(0, 1, WIDTH))
        self.register_buffer("scale", torch.full((WIDTH,), 1.5))
        Distribution.__init__(self, torch.Size(), torch.Size((WIDTH,)), validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        return Independent(Normal(self.mean_, self.scale), 1).log_prob(value)

    def sample(self, sample_shape=()) -> Tensor:
        return Independent(Normal(self.mean_, self.scale), 1).sample(sample_shape)


def flow(kind: str = "NSF") -> FlowNoise:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return FlowNoise(kind, torch.linspace(0, 1, WIDTH), torch.linspace(1, 2, WIDTH), transforms=2, hidden=(8,))


def by_hand(kind: str, **options: object) -> Distribution:
    """What zuko returns, weights and all: still to be trained, were it not noise."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        made: Distribution = getattr(zuko.flows, kind)(WIDTH, transforms=2, hidden_features=(8,), **options)()
    return made


def stretched() -> Distribution:
    affine = AffineTransform(torch.linspace(0, 1, WIDTH), torch.linspace(1, 2, WIDTH), event_dim=1)
    return TransformedDistribution(by_hand("NSF"), [affine], validate_args=False)


MEMBERS: dict[str, Callable[[], Distribution]] = {
    "fitted NSF": flow,
    "fitted MAF": lambda: flow("MAF"),
    "fitted NICE": lambda: flow("NICE"),
    "zuko NSF": lambda: by_hand("NSF"),
    "zuko MAF": lambda: by_hand("MAF", randperm=True),
    "zuko NICE": lambda: by_hand("NICE"),
    "transformed": stretched,
    "mixture": lambda: NoiseMixture([flow(), KernelDensity(rows(30), 0.7), by_hand("MAF")], [2, 1, 1]),
    "independent": lambda: Independent(stretched(), 0),
    "hand-written": Shifted,
    "module": Both,
}
every_member = pytest.mark.parametrize("make", MEMBERS.values(), ids=MEMBERS)
saved = pytest.mark.parametrize("name", ["fitted NSF", "fitted MAF", "fitted NICE"])


def settled(noise: Distribution, x: Tensor) -> Tensor:
    """log p_n with all networks in evaluation mode."""
    if isinstance(noise, Shifted):
        noise.networks["mean"].eval()
    with torch.no_grad():
        return noise.log_prob(x)


@every_member
def test_it_moves_with_the_objective(make: Callable[[], Distribution]) -> None:
    noise, x = make(), rows(20)
    before = settled(noise, x)
    objective = contrastive(noise=noise, partition="profiled")
    assert torch.equal(objective.noise.log_prob(x), before)
    objective.double()
    after = objective.noise.log_prob(x.double())
    assert after.dtype == torch.float64
    assert torch.allclose(after.float(), before, atol=1e-3)
    assert draw(objective.noise, 3, torch.Generator().manual_seed(0)).dtype == torch.float64
    objective(x.double()).backward()
    assert torch.allclose(objective.float().noise.log_prob(x), before, atol=1e-5)
    # What was handed over is untouched.
    assert torch.equal(settled(noise, x), before)
    objective.bfloat16()
    assert torch.allclose(objective.noise.log_prob(x), before, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in MEMBERS if name != "mixture"])
def test_it_moves_to_another_device(name: str) -> None:
    """The meta device stands for any other: every tensor must be there, or the evaluation fails."""
    fixed = FixedDistribution(MEMBERS[name]()).to("meta")
    assert all(value.is_meta for value in fixed.state_dict().values())
    noise = fixed.distribution
    if isinstance(noise, FlowNoise):  # which looks at its points, and there are none to look at
        assert noise.shift.is_meta
        assert noise.scale.is_meta
        assert all(value.is_meta for value in noise.flow.state_dict().values())
    else:
        assert noise.log_prob(torch.zeros(2, WIDTH, device="meta")).is_meta


@every_member
def test_it_is_in_the_state_and_not_among_the_parameters(make: Callable[[], Distribution]) -> None:
    x = rows(20)
    objective, plain = contrastive(noise=make()), contrastive()
    names = set(objective.state_dict()) - set(plain.state_dict())
    assert names
    assert {name for name, _ in objective.named_parameters()} == {name for name, _ in plain.named_parameters()}
    assert not objective.noise.log_prob(x).requires_grad
    other = contrastive(noise=make(), seed=1)
    with torch.no_grad():
        for name, value in other.state_dict().items():
            if name in names and value.is_floating_point():
                value.mul_(0.9)
    assert not torch.equal(other.noise.log_prob(x), objective.noise.log_prob(x))
    other.load_state_dict(objective.state_dict())
    assert torch.equal(other.noise.log_prob(x), objective.noise.log_prob(x))
    other.load_state_dict(copy.deepcopy(objective).state_dict(), assign=True)
    assert torch.equal(other.noise.log_prob(x), objective.noise.log_prob(x))
    assert not other.noise.log_prob(x).requires_grad
    with pytest.raises(RuntimeError, match=f"Missing key.*{min(names)}"):
        other.load_state_dict({name: value for name, value in objective.state_dict().items() if name != min(names)})
    with pytest.raises(RuntimeError, match="Unexpected key"):
        other.load_state_dict(objective.state_dict() | {"_noise.7.weight": torch.zeros(1)})
    with pytest.raises(RuntimeError, match="size mismatch"):
        other.load_state_dict(objective.state_dict() | {min(names): torch.zeros(99)})


@every_member
def test_it_is_never_trained(make: Callable[[], Distribution]) -> None:
    """Training mode, an optimiser with decay over everything there is, and gradients asked for: p_n stays."""
    x = rows(40)
    noise = make()
    before = settled(noise, x)
    objective = contrastive(noise=noise, partition="profiled").train().requires_grad_(True)
    optimiser = torch.optim.AdamW(objective.parameters(), lr=0.1, weight_decay=0.5)
    for _ in range(3):
        optimiser.zero_grad()
        objective(x).backward()
        optimiser.step()
    assert torch.equal(objective.noise.log_prob(x), before)
    assert torch.equal(copy.deepcopy(objective).noise.log_prob(x), before)


def test_a_part_used_twice_is_held_once() -> None:
    shared = flow()
    noise = NoiseMixture([shared, Independent(shared, 0)])
    fixed = FixedDistribution(noise)
    assert {name.split(".")[0] for name in fixed.state_dict()} == {"0"}
    held = fixed.double().distribution
    assert isinstance(held, NoiseMixture)
    assert held.components[0].flow is held.components[1].base_dist.flow
    x = rows(5).double()
    assert torch.allclose(held.log_prob(x), held.components[0].log_prob(x))


@saved
def test_flows_are_saved_alone_and_with_the_objective(name: str, tmp_path: Path) -> None:
    x, noise = rows(20), MEMBERS[name]()
    for made in (noise, FixedDistribution(noise).double().distribution):
        save_noise(made, tmp_path)
        back = load_noise(tmp_path)
        at = x.to(made.shift.dtype)
        assert torch.equal(back.log_prob(at), made.log_prob(at))
        assert torch.equal(*(draw(one, 7, torch.Generator().manual_seed(0)) for one in (made, back)))
    mixed = NoiseMixture([noise, KernelDensity(x, 0.5)], [3, 1])
    for objective in (contrastive(noise=mixed), contrastive(noise=mixed).double()):
        fvnce.save(tmp_path / "objective.safetensors", objective)
        back = fvnce.load(tmp_path / "objective.safetensors")
        assert digest(back) == digest(objective)
        at = x.to(next(objective.parameters()).dtype)
        assert torch.equal(back.noise.log_prob(at), objective.noise.log_prob(at))


def test_loading_leaves_the_random_state_alone(tmp_path: Path) -> None:
    save_noise(flow(), tmp_path)
    state = torch.get_rng_state()
    load_noise(tmp_path)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_run_with_a_flow_is_taken_up_and_loaded(tmp_path: Path) -> None:
    x = rows(64)
    noise = fit_flow(x, epochs=1, transforms=1, hidden=(8,), seed=0)
    assert isinstance(noise, FlowNoise)
    before = noise.log_prob(x)

    def run(folder: Path, epochs: int) -> nn.Module:
        objective = contrastive(noise=noise, partition="profiled")
        options = FitOptions(noise_pool=64)
        fit(objective, x, epochs=epochs, batch_size=16, seed=0, checkpoint_dir=folder, resume=True, options=options)
        return objective

    whole = run(tmp_path / "whole", 2)
    run(tmp_path / "parts", 1)
    parts = run(tmp_path / "parts", 2)
    assert digest(whole) == digest(parts)
    loaded = fvnce.load(tmp_path / "parts").objective
    assert digest(loaded) == digest(parts)
    assert torch.equal(loaded.noise.log_prob(x), before)


def test_a_run_with_noise_of_the_users_own_keeps_its_weights(tmp_path: Path) -> None:
    x = rows(64)
    objective = contrastive(noise=by_hand("NSF"), partition="profiled")
    fit(objective, x, epochs=1, batch_size=16, seed=0, checkpoint_dir=tmp_path)
    other = contrastive(noise=by_hand("NSF"), partition="profiled", seed=1)
    fvnce.training.load_weights(max(tmp_path.glob("step-*.safetensors")), other)
    assert digest(other) == digest(objective)


def test_precision_of_the_noise_survives_a_file(tmp_path: Path) -> None:
    """A model in float32 against noise in float64: both come back as they were."""
    noise = KernelDensity(rows(30).double() + 1e-9, 0.3)
    objective = contrastive(noise=noise)
    fvnce.save(tmp_path / "objective.safetensors", objective)
    back = fvnce.load(tmp_path / "objective.safetensors")
    assert back.noise.centres.dtype == torch.float64
    assert torch.equal(back.noise.centres, noise.centres)
    assert next(back.parameters()).dtype == torch.float32


@pytest.mark.slow
def test_a_flow_integrates_to_one_and_its_draws_follow_it() -> None:
    """A Riemann sum; and the mean of 20,000 draws within 5 standard errors of the mean by quadrature."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        noise = FlowNoise("NSF", torch.tensor([1.0, -1.0]), torch.tensor([0.5, 2.0]), transforms=2, hidden=(8,))
    noise = FixedDistribution(noise).double().distribution
    first = torch.linspace(-4, 6, 801, dtype=torch.float64)
    second = torch.linspace(-21, 19, 801, dtype=torch.float64)
    points = torch.cartesian_prod(first, second)
    mass = noise.log_prob(points).exp() * float(first[1] - first[0]) * float(second[1] - second[0])
    assert float(mass.sum()) == pytest.approx(1, abs=1e-3)
    x = draw(noise, 20_000, torch.Generator().manual_seed(0))
    error = x.std(0) / math.sqrt(len(x))
    assert bool(((x.mean(0) - mass @ points).abs() < 5 * error + 1e-3).all())
    assert noise.sample((2, 3)).shape == (2, 3, 2)
    assert draw(noise, 0).shape == (0, 2)
    with pytest.raises(ValueError, match=r"x.*found"):
        noise.log_prob(torch.full((1, 2), math.nan))


def test_references_and_priors_made_of_flows_move_too() -> None:
    x = rows(6).double()
    model = fvnce.EnergyModel(mlp([WIDTH, 1]), reference=flow())
    assert NCE(model, flow(), partition="learned").double()(x).isfinite()
    inner = zuko.flows.NSF(2, transforms=1, hidden_features=(8,)).requires_grad_(False)
    latent = fvnce.LatentVariableModel(inner(), fvnce.GaussianDecoder(nn.Linear(2, WIDTH)))
    assert latent.double().log_joint(x, torch.zeros(6, 2).double()).dtype == torch.float64
    with pytest.raises(ValueError, match=r"prior.*found"):
        fvnce.LatentVariableModel(by_hand("NSF"), fvnce.GaussianDecoder(nn.Linear(2, WIDTH)))


def test_what_an_objective_holds_checks_nothing_itself_and_inverts_anew() -> None:
    affine = AffineTransform(torch.tensor(1.0), torch.tensor(2.0))
    inverse = affine.inv  # kept by the transform, in the precision it has now
    noise = TransformedDistribution(Uniform(torch.zeros(2), torch.ones(2)), [affine])
    held = FixedDistribution(noise).double().distribution
    assert held.log_prob(torch.full((2,), 9.0, dtype=torch.float64)).tolist() == [-math.inf] * 2
    assert held.transforms[0].inv(torch.zeros(1, dtype=torch.float64)).dtype == torch.float64
    assert affine.inv is inverse
    back = TransformedDistribution(Uniform(torch.zeros(2), torch.ones(2)), [inverse])
    assert FixedDistribution(back).double().distribution.sample().dtype == torch.float64
