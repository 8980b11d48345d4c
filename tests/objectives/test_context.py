"""p(x|c): who is given the context, what it changes, and what is learned with it where the truth is known."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal

import fvnce
from exact_models import LinearGaussianModel
from fvnce import (
    IWAE,
    NCE,
    VAE,
    Autoencoder,
    ConditionalNCE,
    EnergyModel,
    FullyVariationalNCE,
    GaussianDecoder,
    GaussianEncoder,
    LatentVariableModel,
    Logarithmic,
    PointEncoder,
    PowerRule,
    Quadratic,
    RankingNCE,
    VariationalNCE,
    log_marginal,
    mlp,
)
from fvnce.models import (
    BernoulliDecoder,
    BinaryEncoder,
    CategoricalEncoder,
    CoveringEncoder,
    WithContext,
)
from fvnce.noise import GaussianSteps
from fvnce.objectives import Amortized, Batch, Objective, Terms

pytestmark = pytest.mark.usefixtures("double_precision")

X, Z, C, ROWS = 3, 2, 2, 8


def normal(width: int, scale: float = 1.0) -> Independent:
    return Independent(Normal(torch.zeros(width), torch.full((width,), scale)), 1)


class Ignoring(nn.Module):
    """A network that takes a context and makes nothing of it."""

    by_rows = True

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        return self.network(x)


def shifted(context: Tensor) -> Distribution:
    """p_n(x|c) = N((c, 0), 4)."""
    mean = torch.cat([context, context.new_zeros(len(context), X - C)], -1)
    return Independent(Normal(mean, 2.0), 1)


def decoder(wrap: Callable[[nn.Module], nn.Module], inputs: int) -> LatentVariableModel:
    return LatentVariableModel(normal(Z), GaussianDecoder(wrap(mlp([inputs, 6, X], nn.SiLU)), scale=0.7))


def encoder(wrap: Callable[[nn.Module], nn.Module], inputs: int) -> GaussianEncoder:
    return GaussianEncoder(wrap(mlp([inputs, 6, 2 * Z], nn.SiLU)))


def energy(wrap: Callable[[nn.Module], nn.Module], inputs: int) -> EnergyModel:
    return EnergyModel(wrap(mlp([inputs, 6, 1], nn.SiLU)), reference=normal(X, 1.5))


#: Every objective, of a wrapper of networks, the width that it adds to their inputs, and the noise.
OBJECTIVES: dict[str, Callable[[Any, int, Any], Objective]] = {
    "fvnce": lambda w, c, n: FullyVariationalNCE(decoder(w, Z + c), encoder(w, X + c), n, PowerRule(0)),
    "fvnce, profiled": lambda w, c, n: FullyVariationalNCE(
        decoder(w, Z + c), encoder(w, X + c), n, PowerRule(0.5), partition="profiled", latent_samples=2
    ),
    "fvnce, two encoders": lambda w, c, n: FullyVariationalNCE(
        decoder(w, Z + c), encoder(w, X + c), n, PowerRule(0, 1), noise_encoder=encoder(w, X + c), noise_ratio=2.0
    ),
    "fvnce, variance reduced": lambda w, c, n: FullyVariationalNCE(
        decoder(w, Z + c), encoder(w, X + c), n, PowerRule(0), variance_reduced=True
    ),
    "vnce": lambda w, c, n: VariationalNCE(decoder(w, Z + c), encoder(w, X + c), n, importance_samples=3),
    "nce": lambda w, c, n: NCE(energy(w, X + c), n, partition="learned"),
    "nce, quadratic": lambda w, c, n: NCE(energy(w, X + c), n, Quadratic(), noise_ratio=2.0),
    "nce, profiled": lambda w, c, n: NCE(energy(w, X + c), n, PowerRule(0), partition="profiled"),
    "ranking": lambda w, c, n: RankingNCE(energy(w, X + c), noise=n, noise_samples=3),
    "ranking, latent": lambda w, c, n: RankingNCE(decoder(w, Z + c), encoder(w, X + c), n, latent_samples=2),
    "conditional": lambda w, c, n: ConditionalNCE(energy(w, X + c), conditional=GaussianSteps(0.3), steps=2),
    "conditional, latent": lambda w, c, n: ConditionalNCE(decoder(w, Z + c), encoder(w, X + c)),
    "vae": lambda w, c, n: VAE(decoder(w, Z + c), encoder(w, X + c), latent_samples=2),
    "iwae": lambda w, c, n: IWAE(decoder(w, Z + c), encoder(w, X + c), latent_samples=3),
    "autoencoder": lambda w, c, n: Autoencoder(decoder(w, Z + c), PointEncoder(w(mlp([X + c, Z])))),
}
every = pytest.mark.parametrize("name", OBJECTIVES)


def made(name: str, wrap: Any, width: int, noise: Any) -> Objective:
    torch.manual_seed(0)
    return OBJECTIVES[name](wrap, width, noise)


def evaluated(objective: Objective, *arguments: Tensor, **named: Tensor) -> list[Tensor]:
    """The loss and all gradients, at draws of one seed."""
    torch.manual_seed(1)
    loss = objective(*arguments, **named)
    loss.backward()
    return [loss.detach(), *(p.grad for p in objective.parameters() if p.grad is not None)]


@every
def test_a_context_that_changes_nothing_changes_no_bit(name: str) -> None:
    plain, ignoring = made(name, lambda n: n, 0, normal(X, 1.5)), made(name, Ignoring, 0, normal(X, 1.5))
    x = torch.randn(ROWS, X)
    for expected, actual in zip(evaluated(plain, x), evaluated(ignoring, x, context=torch.ones(ROWS, C)), strict=True):
        assert torch.equal(expected, actual)


@every
def test_noise_of_a_context_that_changes_nothing_is_that_noise(name: str) -> None:
    def same(context: Tensor) -> Distribution:
        return Independent(Normal(torch.zeros(len(context), X), 1.5), 1)

    one, other = made(name, Ignoring, 0, normal(X, 1.5)), made(name, Ignoring, 0, same)
    x, context = torch.randn(ROWS, X), torch.ones(ROWS, C)
    torch.testing.assert_close(evaluated(one, x, context=context), evaluated(other, x, context=context))


@every
@pytest.mark.parametrize("noise", [normal(X, 1.5), shifted], ids=["noise", "conditional noise"])
def test_gradients_reach_every_network_by_its_context(name: str, noise: Any) -> None:
    objective = made(name, WithContext, C, noise)
    context = torch.randn(ROWS, C, requires_grad=True)
    objective(torch.randn(ROWS, X), context=context).backward()
    first = [module.network[0] for module in objective.modules() if isinstance(module, WithContext)]
    assert first
    for layer in first:
        assert bool((layer.weight.grad[:, -C:] != 0).any())
    assert context.grad is not None
    assert bool((context.grad != 0).any(1).all())


@pytest.mark.parametrize("name", ["nce", "nce, quadratic", "nce, profiled", "ranking"])
def test_a_row_has_its_own_context(name: str) -> None:
    """Rows, contexts and the noise that goes with them are the same batch in another order."""
    objective: Any = made(name, WithContext, C, normal(X, 1.5)).eval()
    x, context, order = torch.randn(ROWS, X), torch.randn(ROWS, C), torch.randperm(ROWS)
    count = int(objective.noise_samples)
    y = objective.noise.sample((count, ROWS))
    flat = (lambda y: y.transpose(0, 1).flatten(0, 1)) if name.startswith("ranking") else (lambda y: y.flatten(0, 1))
    expected = objective(x, flat(y), context=context)
    torch.testing.assert_close(objective(x[order], flat(y[:, order]), context=context[order]), expected)
    assert not torch.isclose(objective(x, flat(y), context=context[order]), expected)


@every
def test_a_context_that_nothing_takes_is_refused(name: str) -> None:
    objective = made(name, lambda n: n, 0, normal(X, 1.5))
    assert not objective.takes_context
    with pytest.raises(ValueError, match="context"):
        objective(torch.randn(ROWS, X), context=torch.ones(ROWS, C))
    with pytest.raises(ValueError, match="context"):
        objective.terms(torch.randn(ROWS, X), context=torch.ones(ROWS, C))


def test_contexts_that_do_not_fit_are_refused() -> None:
    objective = made("nce", WithContext, C, shifted)
    x = torch.randn(ROWS, X)
    with pytest.raises(ValueError, match=rf"context must hold one row .*\({ROWS - 1}, {C}\)"):
        objective(x, context=torch.ones(ROWS - 1, C))
    with pytest.raises(TypeError, match=r"context must be a torch\.Tensor, found list"):
        objective(x, context=[1.0] * ROWS)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="context must be given"):
        objective(x)
    with pytest.raises(ValueError, match=r"noise must give .* batch shape \(8,\)"):
        NCE(energy(WithContext, X + C), lambda c: normal(X))(x, context=torch.ones(ROWS, C))
    with pytest.raises(ValueError, match=r"context must have shape \(8, C\)"):
        WithContext(mlp([X + C, 1]))(x, torch.ones(ROWS))
    with pytest.raises(ValueError, match="noise must be a distribution to be replaced"):
        objective.replace_noise(normal(X))  # type: ignore[operator]
    ranking = made("ranking", WithContext, C, normal(X))
    with pytest.raises(ValueError, match="x_noise must hold 3 noise samples for each of the 8 rows"):
        ranking(x, torch.randn(6, X), context=torch.ones(ROWS, C))
    with pytest.raises(ValueError, match="context must be None"):
        log_marginal(decoder(lambda n: n, Z), encoder(lambda n: n, X), x, context=torch.ones(ROWS, C))


@pytest.mark.parametrize("noise", [normal(X, 1.5), shifted], ids=["noise", "conditional noise"])
def test_noise_has_the_contexts_of_data_in_order(noise: Any) -> None:
    objective = NCE(energy(WithContext, X + C), noise, noise_ratio=2.0)
    x, y, context = torch.randn(ROWS, X), torch.randn(2 * ROWS, X), torch.randn(ROWS, C)
    terms = objective.terms(x, y, context=context)
    pairs = torch.cat([context, context])
    log_noise = noise.log_prob(y) if isinstance(noise, Distribution) else noise(pairs).log_prob(y)
    assert terms.ratios is not None
    assert terms.ratios[1] is not None
    torch.testing.assert_close(terms.ratios[1].values, objective.model.log_prob(y, pairs) - log_noise)


def test_noise_that_does_not_count_is_skipped_with_its_context() -> None:
    """Where most of the noise has a weight of 0, the rest is evaluated again, at contexts of its own."""
    objective = NCE(energy(WithContext, X + C), normal(X, 400.0), PowerRule(0), noise_ratio=4.0)
    x, context = torch.randn(ROWS, X), torch.randn(ROWS, C)
    torch.manual_seed(2)
    y = torch.where(torch.rand(4 * ROWS, 1) < 0.3, torch.randn(4 * ROWS, X), 400 * torch.randn(4 * ROWS, X))
    other = copy.deepcopy(objective)
    other.live_fraction.fill_(0.1)
    torch.testing.assert_close(evaluated(objective, x, y, context=context), evaluated(other, x, y, context=context))
    assert 0 < float(other.live_fraction) < 0.5


@pytest.mark.parametrize(
    "part",
    [
        CategoricalEncoder(WithContext(mlp([X + C, 4]))),
        BinaryEncoder(WithContext(mlp([X + C, 4]))),
        CoveringEncoder(GaussianEncoder(WithContext(mlp([X + C, 2 * Z]))), normal(Z)),
        BernoulliDecoder(WithContext(mlp([X + C, X]))),
        GaussianDecoder(WithContext(mlp([X + C, X]))),
    ],
    ids=lambda part: type(part).__name__,
)
def test_parts_hand_the_context_on(part: nn.Module) -> None:
    part = part.double()
    x = torch.randn(ROWS, X)
    one, other = part(x, torch.zeros(ROWS, C)), part(x, torch.ones(ROWS, C))
    assert one.batch_shape == (ROWS,)
    value = torch.zeros(one.batch_shape + one.event_shape)
    assert not torch.equal(one.log_prob(value), other.log_prob(value))


def test_an_energy_of_latents_takes_a_context() -> None:
    network = WithContext(mlp([X + Z + C, 6, 1]))
    model = EnergyModel(network, reference=normal(X), latent_reference=normal(Z))
    objective = FullyVariationalNCE(model, encoder(WithContext, X + C), shifted, PowerRule(0), partition="profiled")
    objective(torch.randn(ROWS, X), context=torch.randn(ROWS, C)).backward()
    joint = EnergyModel(network).log_joint(torch.randn(ROWS, X), torch.randn(4, ROWS, Z), torch.randn(ROWS, C))
    assert joint.shape == (4, ROWS)


class Centered(nn.Module):
    """The exact posterior of a linear-Gaussian model whose mean is moved by B c."""

    def __init__(self, model: LinearGaussianModel, moves: Tensor) -> None:
        super().__init__()
        self.model, self.moves = model, moves

    def forward(self, x: Tensor, context: Tensor) -> Distribution:
        return self.model.posterior(x - context @ self.moves.T)

    def log_prob(self, x: Tensor, context: Tensor) -> Tensor:
        return self.model.log_prob(x - context @ self.moves.T)

    def log_joint(self, x: Tensor, z: Tensor, context: Tensor) -> Tensor:
        return self.model.log_joint(x - context @ self.moves.T, z)


class Moved(nn.Module):
    """x = A z + B c + b."""

    def __init__(self, weight: Tensor, moves: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.moves, self.bias = weight, moves, bias

    def forward(self, z: Tensor, context: Tensor) -> Tensor:
        return z @ self.weight.T + context @ self.moves.T + self.bias


def linear() -> tuple[LatentVariableModel, Centered, MultivariateNormal, Tensor, Tensor]:
    """p(x, z|c), its exact posterior, p(x|c) in closed form, and rows with their contexts."""
    torch.manual_seed(3)
    weight, moves, bias = torch.randn(X, Z), torch.randn(X, C), torch.randn(X)
    model = LatentVariableModel(normal(Z), GaussianDecoder(Moved(weight, moves, bias), scale=0.5))
    exact = Centered(LinearGaussianModel(weight, bias, 0.5), moves)
    context, x = torch.randn(ROWS, C), torch.randn(ROWS, X)
    truth = MultivariateNormal(context @ moves.T + bias, weight @ weight.T + 0.25 * torch.eye(X))
    return model, exact, truth, x, context


def test_bounds_with_the_exact_posterior_are_the_closed_form_of_log_p_of_x_given_c() -> None:
    model, exact, truth, x, context = linear()
    expected = truth.log_prob(x)
    torch.testing.assert_close(exact.log_prob(x, context), expected)
    for objective in (VAE(model, exact, closed_form=False), IWAE(model, exact, latent_samples=3)):
        torch.testing.assert_close(objective.terms(x, context=context).evidence, expected)
    torch.testing.assert_close(VAE(exact, exact).terms(x, context=context).evidence, expected)
    torch.testing.assert_close(log_marginal(model, exact, x, latent_samples=3, context=context), expected)
    with_divergence = VAE(model, exact, latent_samples=20_000).terms(x, context=context).evidence
    assert torch.allclose(with_divergence, expected, atol=0.1)  # over 5 standard errors


@pytest.mark.parametrize("rule", [PowerRule(0), PowerRule(0.5), PowerRule(0, 1)], ids=repr)
@pytest.mark.parametrize("noise", [normal(X, 1.5), shifted], ids=["noise", "conditional noise"])
def test_fully_variational_nce_at_the_exact_posterior_is_nce(rule: PowerRule, noise: Any) -> None:
    model, exact, _, x, context = linear()
    y = torch.randn(ROWS, X)
    bound = FullyVariationalNCE(model, exact, noise, rule)(x, y, context=context)
    torch.testing.assert_close(bound, NCE(exact, noise, rule)(x, y, context=context))


class Bell(nn.Module):
    """log p⁰(x|c) = −(x − w c)² e^(−2ac)/2, whose log Z(c) = a c + log √2π."""

    normalized = False

    def __init__(self, w: float = 0.0, a: float = 0.0) -> None:
        super().__init__()
        self.w, self.a = nn.Parameter(torch.tensor(w)), nn.Parameter(torch.tensor(a))

    def log_prob(self, x: Tensor, context: Tensor) -> Tensor:
        return (-(x - self.w * context).square() * (-2 * self.a * context).exp() / 2).squeeze(-1)


def wide(context: Tensor) -> Distribution:
    return Independent(Normal(0.5 * context, 2.5), 1)


def maximized(objective: Objective, x: Tensor, context: Tensor, noise: Any) -> None:
    """Maximize J on one large batch, against noise that is drawn once."""
    count = int(objective.noise_samples)
    repeated = context.repeat_interleave(count, 0) if isinstance(objective, RankingNCE) else context.repeat(count, 1)
    y = noise(repeated).sample() if not isinstance(noise, Distribution) else noise.sample((len(repeated),))
    optimizer = torch.optim.LBFGS(objective.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = objective(x, y, context=context)
        loss.backward()
        return loss

    optimizer.step(closure)


@pytest.mark.parametrize("noise", [normal(1, 3.0), wide], ids=["noise", "conditional noise"])
@pytest.mark.parametrize("kind", ["ranking", "logarithmic", "power"])
def test_the_ratio_learned_is_that_of_p_given_c_and_noise_given_c(kind: str, noise: Any) -> None:
    """w, a and log Z(c) within 5 standard errors, about 0.02 each from 20,000 pairs."""
    torch.manual_seed(4)
    context = torch.rand(20_000, 1) * 2 - 1
    x = 1.5 * context + (0.6 * context).exp() * torch.randn(20_000, 1)
    model, log_z = Bell(), Amortized(nn.Linear(1, 1))
    rule = Logarithmic() if kind == "logarithmic" else PowerRule(0)
    objective: Any = RankingNCE(model, noise=noise, noise_samples=2) if kind == "ranking" else None
    objective = objective or NCE(model, noise, rule, noise_ratio=2.0, partition=log_z)
    maximized(objective, x, context, noise)
    assert abs(model.w.item() - 1.5) < 0.1
    assert abs(model.a.item() - 0.6) < 0.1
    c = torch.linspace(-1, 1, 5).unsqueeze(1)
    expected = model.a.item() * c[:, 0] + math.log(2 * math.pi) / 2
    if kind != "ranking":
        assert torch.allclose(objective.partition(c), expected, atol=0.1)
    for one, log_z_c in zip(c, expected, strict=True):
        estimate = objective.log_partition(20_000, context=one)
        assert abs(float(estimate.value - log_z_c)) < 5 * float(estimate.error)


def test_one_log_z_for_all_contexts_misleads_where_log_z_depends_on_them() -> None:
    """What the documentation says of a learned constant, and why ``Amortized`` exists."""
    torch.manual_seed(5)
    context = torch.rand(20_000, 1) * 2 - 1
    x = 1.5 * context + context.exp() * torch.randn(20_000, 1)
    model = Bell()
    maximized(NCE(model, normal(1, 3.0), partition="learned"), x, context, normal(1, 3.0))
    assert abs(model.a.item() - 1.0) > 0.2


def test_a_log_z_of_the_context_must_be_one_number_for_each() -> None:
    with pytest.raises(ValueError, match="one log Z for each of 5 contexts"):
        Amortized(mlp([C, 3]))(torch.zeros(5, C))
    objective = NCE(energy(WithContext, X + C), normal(X), partition=Amortized(mlp([C, 1])))
    with pytest.raises(RuntimeError, match="depends on the context"):
        objective.fitted_log_partition()
    with pytest.raises(ValueError, match="context must be given"):
        NCE(energy(lambda n: n, X), normal(X), partition=Amortized(mlp([C, 1])))(torch.randn(ROWS, X))


def test_an_objective_with_a_context_comes_back_from_a_file(tmp_path: Path) -> None:
    objective = NCE(energy(WithContext, X + C), normal(X), partition=Amortized(mlp([C, 4, 1])))
    loaded = fvnce.load(fvnce.save(tmp_path / "objective.safetensors", objective))
    x, y, context = torch.randn(ROWS, X), torch.randn(ROWS, X), torch.randn(ROWS, C)
    assert torch.equal(loaded(x, y, context=context), objective(x, y, context=context))


def test_an_objective_of_ones_own_says_that_it_takes_a_context() -> None:
    class Distance(Objective):
        takes_context = True

        def terms_of(self, batch: Batch) -> Terms:
            assert batch.context is not None
            values = -(batch.x - batch.context).square().sum(1)
            return Terms(-values.mean(), values.detach())

    assert float(Distance()(torch.ones(4, 2), context=torch.zeros(4, 2))) == 2.0


def test_a_missing_context_is_named() -> None:
    energy = EnergyModel(WithContext(mlp([X + C, 1])), reference=normal(X))
    with pytest.raises(ValueError, match=r"^context must be given"):
        NCE(energy, normal(X))(torch.zeros(ROWS, X))
