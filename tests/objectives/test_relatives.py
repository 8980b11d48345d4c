"""Conditional NCE and ranking NCE: values, gradients, maximisers and limits, and that they train and come back."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal
from torch.nn.functional import cross_entropy, softplus

import fvnce
from consistency import UnnormalisedLinearProblem, UnnormalisedMixtureProblem, check_rate
from exact_models import LinearGaussianModel
from fvnce import NCE, ConditionalNCE, EnergyModel, FullyVariationalNCE, PowerRule, RankingNCE, mlp
from fvnce.models import GaussianEncoder, RestrictedBoltzmannMachine
from fvnce.noise import BitFlips, GaussianSteps
from fvnce.objectives import Batch, BatchPart, Objective
from training_runs import digest, rows

pytestmark = pytest.mark.usefixtures("double_precision")


def normal(width: int, scale: float = 1.0) -> Independent:
    return Independent(Normal(torch.zeros(width), torch.full((width,), scale)), 1)


def energy(width: int = 2) -> EnergyModel:
    return EnergyModel(mlp([width, 6, 1], nn.SiLU), reference=normal(width, 1.5))


class Bell(nn.Module):
    """log φ = −θ x²/2 + shift, without its constant."""

    def __init__(self, precision: float = 1.0, shift: float = 0.0) -> None:
        super().__init__()
        self.precision, self.shift = nn.Parameter(torch.tensor(precision)), shift

    def log_prob(self, x: Tensor) -> Tensor:
        return -self.precision * x.square().sum(-1) / 2 + self.shift


class Uneven(nn.Module):
    """Steps that are wider away from 0, so that they are not symmetric."""

    def forward(self, x: Tensor) -> Distribution:
        return Independent(Normal(0.9 * x, 0.3 + 0.1 * x.abs()), 1)


class Nodes(Distribution):
    """Steps to given nodes, each of which is as probable."""

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, x: Tensor, nodes: Tensor) -> None:
        self.x, self.nodes = x, nodes
        super().__init__(x.shape[:1], x.shape[1:], validate_args=False)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return self.x + self.nodes.reshape(-1, 1, 1)


class ToNodes(nn.Module):
    symmetric = True

    def __init__(self, nodes: Tensor) -> None:
        super().__init__()
        self.nodes = nodes

    def forward(self, x: Tensor) -> Distribution:
        return Nodes(x, self.nodes)


def quantiles(n: int) -> Tensor:
    """Points of the standard normal, each as probable, of mean 0 and variance 1."""
    points = Normal(0.0, 1.0).icdf((torch.arange(n) + 0.5) / n)
    return points / points.square().mean().sqrt()


def test_conditional_is_its_formula_with_steps_that_are_not_symmetric() -> None:
    model, steps, x = energy(), Uneven(), torch.randn(5, 2)
    torch.manual_seed(1)
    u = steps(x).sample((3,))
    odds = (
        model.log_prob(x)
        + steps(x).log_prob(u)
        - torch.stack([model.log_prob(one) + steps(one).log_prob(x) for one in u])
    )
    torch.manual_seed(1)
    terms = ConditionalNCE(model, conditional=steps, steps=3).terms(x)
    torch.testing.assert_close(terms.loss, 2 * softplus(-odds).mean())
    torch.testing.assert_close(terms.data, -2 * softplus(-odds).mean(0))


@pytest.mark.parametrize("steps", [GaussianSteps(0.4), GaussianSteps(torch.tensor([0.2, 0.5])), BitFlips(0.3)])
def test_symmetric_steps_are_symmetric(steps: nn.Module) -> None:
    x, u = torch.randint(2, (2, 6, 2)).double()
    torch.testing.assert_close(steps(x).log_prob(u), steps(u).log_prob(x))


def test_bits_flip_as_often_as_they_are_told() -> None:
    """20,000 bits at p = 0.3: five standard deviations are 0.016, a false alarm in 2·10⁶."""
    x = torch.randint(2, (5000, 4)).double()
    torch.manual_seed(0)
    assert float((BitFlips(0.3)(x).sample() != x).double().mean()) == pytest.approx(0.3, abs=0.0163)
    with pytest.raises(ValueError, match=r"x must .*found 0\.5"):
        BitFlips()(torch.full((1, 2), 0.5))
    assert BitFlips()(torch.zeros(0, 4)).event_shape == (4,)
    with pytest.raises(ValueError, match=r"probability must .*found 1"):
        BitFlips(1.0)


@pytest.mark.parametrize("name", ["conditional", "ranking"])
def test_a_factor_of_the_model_changes_nothing(name: str) -> None:
    x, y = torch.randn(6, 1), 2 * torch.randn(18, 1)
    values = []
    for shift in (0.0, 700.0):
        torch.manual_seed(0)
        model = Bell(1.2, shift)
        objective = (
            ConditionalNCE(model) if name == "conditional" else RankingNCE(model, noise=normal(1, 2.0), noise_samples=3)
        )
        loss = objective(x) if name == "conditional" else objective(x, y)
        values.append((loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))))
    for one, other in zip(*values, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["conditional", "default steps", "ranking", "ranking, latents"])
def test_gradients_match_finite_differences(name: str) -> None:
    torch.manual_seed(3)
    model: nn.Module = energy()
    encoder = None
    if name == "ranking, latents":
        model, encoder = EnergyModel(mlp([3, 5, 1], nn.SiLU), reference=normal(2)), GaussianEncoder(mlp([2, 5, 2]))
    makers: dict[str, Callable[[], Objective]] = {
        "conditional": lambda: ConditionalNCE(model, conditional=Uneven(), steps=2),
        "default steps": lambda: ConditionalNCE(model),
        "ranking": lambda: RankingNCE(model, noise=normal(2, 2.0), noise_samples=4),
        "ranking, latents": lambda: RankingNCE(model, encoder, normal(2, 2.0), noise_samples=2, latent_samples=3),
    }
    objective = makers[name]()
    x, y = torch.randn(4, 2), 2 * torch.randn(16 if name == "ranking" else 8, 2)
    parameters = list(objective.parameters())

    def loss() -> Tensor:
        torch.manual_seed(7)
        return objective(x, y) if name.startswith("ranking") else objective(x)

    actual = torch.autograd.grad(loss(), parameters)
    for parameter, gradient in zip(parameters, actual, strict=True):
        index = int(gradient.abs().argmax())
        flat = parameter.data.view(-1)
        before, h = float(flat[index]), 1e-5
        flat[index] = before + h
        up = loss().item()
        flat[index] = before - h
        down = loss().item()
        flat[index] = before
        assert (up - down) / (2 * h) == pytest.approx(float(gradient.flatten()[index]), rel=1e-6, abs=1e-9)


def test_small_steps_are_score_matching() -> None:
    """2 log 2 + ε²/2 E[∇² log φ + |∇ log φ|²/2] + O(ε⁴): N(0, 1), log φ = −θx²/2, so −θ + θ²/2."""
    x, nodes, eps = quantiles(400).unsqueeze(1), quantiles(400), 0.03
    for precision in (0.6, 1.0, 1.5):
        loss = ConditionalNCE(Bell(precision), conditional=ToNodes(eps * nodes), steps=400)(x).item()
        limit = (loss - 2 * math.log(2)) / (eps**2 / 2)
        assert limit == pytest.approx(-precision + precision**2 / 2, abs=4e-3)


@pytest.mark.parametrize("step", [0.1, 1.0, 3.0])
def test_the_truth_is_the_maximiser_of_conditional_nce(step: float) -> None:
    """In the population, by quadrature: the slope in the precision is 0 at the truth and has its sign beside it."""
    x, nodes = quantiles(600).unsqueeze(1), step * quantiles(600)
    slopes = []
    for precision in (0.9, 1.0, 1.1):
        model = Bell(precision)
        (slope,) = torch.autograd.grad(
            ConditionalNCE(model, conditional=ToNodes(nodes), steps=600)(x), list(model.parameters())
        )
        slopes.append(float(slope))
    assert slopes[0] < 0 < slopes[2]
    assert abs(slopes[1]) < 0.05 * min(-slopes[0], slopes[2])


def test_default_steps_are_scaled_by_the_first_batch_and_kept() -> None:
    objective = ConditionalNCE(energy())
    x = torch.randn(50, 2) * torch.tensor([0.1, 10.0])
    objective.eval()(7 * x)  # what is only looked at decides nothing
    objective.train()(x)
    torch.testing.assert_close(objective.spread, x.std(0))
    objective(100 * x)
    torch.testing.assert_close(objective.spread, x.std(0))
    torch.manual_seed(0)
    u, _ = objective._step(x.repeat(2000, 1), None)
    moved = (u[0] - x.repeat(2000, 1)).std(0) / x.std(0)
    # 100,000 draws: five deviations of their spread are 1.1 %.
    torch.testing.assert_close(moved, torch.full((2,), 2.38 / math.sqrt(2)), rtol=0.011, atol=0)
    other = ConditionalNCE(energy())
    other.load_state_dict(objective.state_dict())
    torch.testing.assert_close(other.spread, x.std(0))
    constant = ConditionalNCE(energy())
    with pytest.raises(ValueError, match=r"x must .*found 3 equal rows.*conditional"):
        constant(torch.ones(3, 2))
    # A column that does not vary is not moved.
    constant(torch.cat([torch.ones(9, 1), torch.randn(9, 1)], 1))
    assert constant.spread[0] == 0


def test_a_step_out_of_the_models_support_is_told_apart_for_sure() -> None:
    box = Independent(torch.distributions.Uniform(torch.zeros(1), torch.ones(1), validate_args=False), 1)
    objective = ConditionalNCE(box, conditional=ToNodes(torch.tensor([5.0])))
    assert float(objective(torch.full((3, 1), 0.5))) == 0.0


def test_latents_that_are_summed_over_are_exact() -> None:
    machine = RestrictedBoltzmannMachine(torch.randn(4, 3), torch.randn(4), torch.randn(3))
    x, noise = machine.sample(6), fvnce.noise.BernoulliNoise(torch.full((4,), 0.5))
    for make in (
        lambda encoder: ConditionalNCE(machine, encoder, BitFlips(0.3)),
        lambda encoder: RankingNCE(machine, encoder, noise, noise_samples=2),
    ):
        values = []
        for encoder in (None, fvnce.models.BinaryEncoder(nn.Linear(4, 3))):
            torch.manual_seed(2)
            values.append(make(encoder)(x))
        torch.testing.assert_close(*values)


class ExactOnOneSide(nn.Module):
    """The posterior where x has the given sign, and one that is twice as wide elsewhere."""

    def __init__(self, model: LinearGaussianModel, sign: float) -> None:
        super().__init__()
        self.model, self.sign = model, sign

    def forward(self, x: Tensor) -> Distribution:
        exact = self.model.posterior(x)
        wide = torch.where(self.sign * x[:, :1] > 0, 1.0, 2.0)
        return Independent(Normal(exact.mean, exact.stddev * wide), 1)


@pytest.mark.parametrize("name", ["conditional", "ranking"])
@torch.no_grad()
def test_latents_that_are_drawn_bound_the_data_side_alone(name: str) -> None:
    """The datum at 1, noise at −1, 20,000 draws: data's latent drawn badly J is too low, the noise's so, too high.

    Both differences are more than ten of their standard errors, and with many draws they vanish.
    """
    model = LinearGaussianModel(torch.tensor([[1.0]]), torch.zeros(1), 0.7)
    x, y = torch.ones(20_000, 1), -torch.ones(20_000, 1)

    def earned(encoder: nn.Module | None, draws: int = 1) -> Tensor:
        if name == "ranking":
            return RankingNCE(model, encoder, normal(1, 2.0), latent_samples=draws).terms(x, y).data
        steps = ToNodes(torch.tensor([-2.0]))
        return ConditionalNCE(model, encoder, steps, latent_samples=draws).terms(x).data

    truth = earned(None)
    low, high = (earned(ExactOnOneSide(model, sign)) - truth for sign in (-1.0, 1.0))
    assert float(-low.mean()) > 10 * float(low.std()) / math.sqrt(20_000)
    assert float(high.mean()) > 10 * float(high.std()) / math.sqrt(20_000)
    for sign, one in ((-1.0, low), (1.0, high)):
        many = earned(ExactOnOneSide(model, sign), 50) - truth
        assert abs(float(many.mean())) < 0.1 * abs(float(one.mean()))


def test_ranking_is_a_cross_entropy_over_one_datum_and_its_noise() -> None:
    model, noise = energy(), normal(2, 2.0)
    x, y = torch.randn(5, 2), 2 * torch.randn(15, 2)
    logits = torch.cat(
        [
            (model.log_prob(x) - noise.log_prob(x)).unsqueeze(1),
            (model.log_prob(y) - noise.log_prob(y)).reshape(5, 3),
        ],
        1,
    )
    expected = cross_entropy(logits, torch.zeros(5, dtype=torch.long))
    torch.testing.assert_close(RankingNCE(model, noise=noise, noise_samples=3)(x, y), expected)
    for given, actual in ((x, 2), (x[:1], 4)):  # too few for one row, and more than belong to any
        with pytest.raises(ValueError, match=f"x_noise must .*found {actual}"):
            RankingNCE(model, noise=noise, noise_samples=3)(given, y[:actual])


def test_conditional_takes_no_noise() -> None:
    """Its noise are steps from the data: rows or densities that would be ignored are refused."""
    x = torch.randn(5, 2)
    for name in ("x_noise", "log_noise_x"):
        with pytest.raises(ValueError, match=f"{name} must be None.*found"):
            ConditionalNCE(energy())(x, **{name: torch.randn(5, 2) if name == "x_noise" else torch.zeros(5)})


def test_rows_that_are_not_finite_are_named_as_such() -> None:
    """And leave the steps of later batches as they were."""
    objective, x = ConditionalNCE(energy()), torch.randn(5, 2)
    broken = x.clone()
    broken[3, 1] = torch.nan
    with pytest.raises(ValueError, match=r"x must .*found nan at row 3, column 1"):
        objective(broken)
    assert objective(x).isfinite()


def test_infonce_is_ranking_with_the_marginal_as_noise() -> None:
    """Pairs (context, y) against the same context with the other y of the batch: the cross-entropy of the critic."""
    critic = EnergyModel(mlp([5, 7, 1], nn.SiLU))
    context, y = torch.randn(6, 3), torch.randn(6, 2)
    scores = torch.stack([critic.log_prob(torch.cat([context, y.roll(-k, 0)], 1)) for k in range(6)], 1)
    expected = cross_entropy(scores, torch.zeros(6, dtype=torch.long))
    pairs = torch.stack([torch.cat([context, y.roll(-k, 0)], 1) for k in range(6)], 1)
    objective = RankingNCE(critic, noise=normal(5), noise_samples=5)
    # The critic is the ratio itself, so both densities of the noise are 1.
    actual = objective(
        pairs[:, 0], pairs[:, 1:].flatten(0, 1), log_noise_x=torch.zeros(6), log_noise_noise=torch.zeros(30)
    )
    torch.testing.assert_close(actual, expected)


def test_a_constant_of_each_context_changes_no_ranking() -> None:
    """φ(y|context) may be off by a factor that depends on the context, if the noise keeps it; NCE has one log Z."""
    critic, factor = EnergyModel(mlp([5, 7, 1], nn.SiLU)), mlp([3, 4, 1], nn.SiLU)
    context, y, others = torch.randn(6, 3), torch.randn(6, 2), torch.randn(6, 4, 2)

    class Off(nn.Module):
        def log_prob(self, x: Tensor) -> Tensor:
            return critic.log_prob(x) + 3 * factor(x[:, :3]).squeeze(-1)

    pairs = torch.cat([context, y], 1)
    noise = torch.cat([context.unsqueeze(1).expand(-1, 4, -1), others], 2).flatten(0, 1)
    densities = {"log_noise_x": torch.zeros(6), "log_noise_noise": torch.zeros(24)}
    ranked = [
        RankingNCE(model, noise=normal(5), noise_samples=4)(pairs, noise, **densities) for model in (critic, Off())
    ]
    torch.testing.assert_close(*ranked)
    told = [NCE(model, normal(5), noise_ratio=4)(pairs, noise, **densities).item() for model in (critic, Off())]
    assert abs(told[0] - told[1]) > 0.01


def test_steps_do_not_see_the_weight_of_a_mode_that_they_do_not_reach() -> None:
    """Half of the data in each of two modes, 40 apart; the model gives them .73 and .27."""
    weights = nn.Parameter(torch.tensor([1.0, 0.0]))

    class Modes(nn.Module):
        def log_prob(self, x: Tensor) -> Tensor:
            return torch.logsumexp(weights.log_softmax(0) - (x - torch.tensor([-20.0, 20.0])) ** 2 / 2, 1)

    x = torch.cat([torch.randn(200, 1) - 20, torch.randn(200, 1) + 20])
    slopes = [
        torch.autograd.grad(objective(x), weights)[0].abs().max().item()
        for objective in (
            ConditionalNCE(Modes(), conditional=GaussianSteps(1.0)),
            RankingNCE(Modes(), noise=normal(1, 20.0), noise_samples=10),
        )
    ]
    assert slopes[0] < 1e-12 < 0.05 < slopes[1]


class Table(nn.Module):
    """Log-probabilities of states 0, 1, 2 …, up to a constant."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)

    def log_prob(self, x: Tensor) -> Tensor:
        return self.logits[x[:, 0].long()]


@pytest.mark.parametrize("count", [1, 2])
def test_the_truth_is_the_maximiser_of_ranking_and_a_bound_holds_there(count: int) -> None:
    """All tuples of a finite space: the gradient at the truth is 0, and J + log(K + 1) ≤ KL(p_d‖p_n)."""
    data, noise = torch.tensor([3, 1, 2]), torch.tensor([1, 2, 1])
    states = torch.arange(3.0)
    p_d, p_n = data / data.sum(), noise / noise.sum()
    x, pools = states.repeat_interleave(data), [states.repeat_interleave(noise)] * count
    tuples = torch.cartesian_prod(x, *pools)
    log_n = p_n.log()
    arguments = {
        "log_noise_x": log_n[tuples[:, 0].long()],
        "log_noise_noise": log_n[tuples[:, 1:].flatten().long()],
    }
    model = Table(p_d.log() + 0.7)
    objective = RankingNCE(model, noise=normal(1), noise_samples=count)
    loss = objective(tuples[:, :1], tuples[:, 1:].reshape(-1, 1), **arguments)
    (gradient,) = torch.autograd.grad(loss, [model.logits])
    torch.testing.assert_close(gradient, torch.zeros(3), atol=1e-14, rtol=0)
    divergence = float((p_d * (p_d / p_n).log()).sum())
    assert 0 < -loss.item() + math.log(count + 1) < divergence


def test_with_many_noise_samples_ranking_is_the_profiled_likelihood() -> None:
    """J + log K → E Δ⁰ − log E_n e^Δ⁰ at 1/K, and so does the gradient."""
    model, noise = energy(), normal(2, 2.0)
    x, y = torch.randn(1, 2), 2 * torch.randn(5000, 2)
    likelihood = FullyVariationalNCE(model, None, noise, PowerRule(0), partition="profiled")
    likelihood.eval()
    one, other = RankingNCE(model, noise=noise, noise_samples=5000)(x, y), likelihood(x, y)
    assert (one - other).item() == pytest.approx(math.log(5000), abs=2e-3)
    parameters = list(model.parameters())
    for a, b in zip(torch.autograd.grad(one, parameters), torch.autograd.grad(other, parameters), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=5e-3)


def test_ranking_knows_log_z_and_its_statistics() -> None:
    objective = RankingNCE(Bell(shift=3.0), noise=normal(1, 2.0), noise_samples=4)
    value, error = objective.log_partition(20_000, generator=torch.Generator().manual_seed(0))
    assert abs(float(value) - 3 - math.log(math.sqrt(2 * math.pi))) < 4 * float(error) < 0.1
    terms = objective.terms(torch.randn(50, 1))
    assert terms.noise is None
    assert terms.statistics["value"] == pytest.approx(-terms.loss.item())
    assert terms.statistics["log_scale"] == pytest.approx(float(value), abs=0.5)
    assert terms.statistics["live_noise"] > 0.9
    report = fvnce.diagnose(objective, torch.randn(500, 1))
    assert report.log_partition == pytest.approx(float(value), abs=0.2)
    assert report.calibration.error < 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    "problem", [UnnormalisedMixtureProblem(), UnnormalisedLinearProblem()], ids=lambda p: type(p).__name__
)
@pytest.mark.parametrize("name", ["conditional", "ranking"])
def test_consistency(name: str, problem: Any) -> None:
    class Steady(nn.Module):
        """The same steps at every evaluation, so that there is one function to minimise."""

        def __init__(self, inner: Objective) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor, y: Tensor, **densities: Tensor) -> Tensor:
            with torch.random.fork_rng():
                torch.manual_seed(5)
                return self.inner(x)

    def make(model: nn.Module, noise: Distribution) -> nn.Module:
        if name == "ranking":
            return RankingNCE(model, noise=noise)
        return Steady(ConditionalNCE(model, conditional=GaussianSteps(1.5)))

    check_rate(make, problem)


def objectives() -> dict[str, Callable[[], Objective]]:
    return {
        "conditional": lambda: ConditionalNCE(energy(4), steps=2),
        "conditional, given steps": lambda: ConditionalNCE(energy(4), conditional=GaussianSteps(0.5)),
        "ranking": lambda: RankingNCE(energy(4), noise=normal(4, 2.0), noise_samples=3),
        "ranking, latents": lambda: RankingNCE(
            EnergyModel(mlp([6, 5, 1]), reference=normal(4)), GaussianEncoder(mlp([4, 5, 4])), normal(4, 2.0), 2
        ),
    }


@pytest.mark.parametrize("name", objectives())
def test_they_train_come_back_and_resume_to_the_bit(name: str, tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)

    def trained(epochs: list[int], folder: str) -> nn.Module:
        for last in epochs:
            torch.manual_seed(0)
            objective = objectives()[name]()
            history = fvnce.fit(
                objective,
                rows(60),
                validation=rows(20, seed=1),
                epochs=last,
                batch_size=16,
                seed=1,
                checkpoint_dir=tmp_path / folder,
                resume=True,
                progress=False,
            )
        assert history.epochs["val_loss"][-1] < history.epochs["val_loss"][0] + 0.5
        return objective

    whole, pieces = trained([4], "whole"), trained([2, 4], "pieces")
    assert digest(whole) == digest(pieces)
    fvnce.save(tmp_path / "objective", whole)
    again = fvnce.load(tmp_path / "objective")
    assert type(again) is type(whole)
    whole.eval()
    torch.manual_seed(4)
    expected = whole(rows(8))
    torch.manual_seed(4)
    assert torch.equal(again(rows(8)), expected)


def test_a_part_of_a_batch_is_weighed_by_its_size() -> None:
    """As in data-parallel training; what two processes find together is tested with two processes."""
    objective, x = objectives()["conditional, given steps"](), torch.randn(6, 4)
    torch.manual_seed(0)
    whole = objective.terms_of(Batch(x)).loss
    torch.manual_seed(0)
    torch.testing.assert_close(objective.terms_of(Batch(x, part=BatchPart(data=0.5))).loss, 0.5 * whole)
    with pytest.warns(DeprecationWarning, match=r"Batch\.part"):
        assert Batch(x, part=BatchPart(data=0.5)).share == BatchPart(data=0.5)
    with pytest.warns(DeprecationWarning, match="BatchPart"):
        assert fvnce.objectives.BatchShare is BatchPart


def test_mistakes_are_named() -> None:
    with pytest.raises(TypeError, match=r"model must .*log_joint.*found Bell"):
        ConditionalNCE(Bell(), GaussianEncoder(mlp([1, 2])))
    with pytest.raises(TypeError, match=r"x must .*found dtype torch\.int64"):
        ConditionalNCE(Bell())(torch.zeros(3, 1, dtype=torch.int64))
    with pytest.raises(TypeError, match=r"conditional must .*found Tensor"):
        ConditionalNCE(Bell(), conditional=lambda x: x)(torch.zeros(3, 1))  # type: ignore[arg-type, return-value]
    with pytest.raises(ValueError, match=r"conditional must .*found batch shape \(3, 1\)"):
        ConditionalNCE(Bell(), conditional=lambda x: Normal(x, 1.0))(torch.zeros(3, 1))
    with pytest.raises(TypeError, match=r"noise_samples must .*found 1.5"):
        RankingNCE(Bell(), noise=normal(1), noise_samples=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"must be finite, found nan at row"):
        ConditionalNCE(NCE(Bell(math.nan), normal(1)).model)(torch.randn(3, 1))
