"""log Z fixed, learned and maximized out: values, gradients to second order, and averages over small batches.

Statistical tests have fixed seeds; each holds if a mean of martingale differences lies within 4 standard errors of its
expectation, a false alarm in 16,000 were it drawn anew.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Independent, Normal

from fvnce import (
    NCE,
    FullyVariationalNCE,
    GaussianDecoder,
    GaussianEncoder,
    LatentVariableModel,
    PowerRule,
    VariationalNCE,
    fit,
    mlp,
)
from fvnce.models import DiagonalNormal
from fvnce.objectives import Learned, Profiled
from fvnce.objectives.partition import MovingAverage
from objective_problems import Bell, Curve, Tilt, every_rule, linear_gaussian, mixture, noise_for, normal, standard

pytestmark = pytest.mark.usefixtures("double_precision")


class Scaled(nn.Module):
    """A model multiplied by e^c."""

    def __init__(self, model, c):
        super().__init__()
        self.model, self.c = model, c

    def log_joint(self, x, z):
        return self.model.log_joint(x, z) + self.c

    def log_prob(self, x):
        return self.model.log_prob(x) + self.c


@every_rule
@pytest.mark.parametrize("ratio", [1.0, 3.0])
def test_profiled_is_the_maximum_over_c(rule, ratio):
    """c* found by closed form or root maximises J over a fine grid of fixed c, and J there is the reported value."""
    torch.manual_seed(0)
    model = linear_gaussian()
    x, y = model.sample(30), noise_for(3).sample((50,))
    profiled = FullyVariationalNCE(
        Scaled(model, 4.0), model.posterior, noise_for(3), rule, partition="profiled", noise_ratio=ratio
    )
    profiled(x, y)
    c = profiled.fitted_log_partition().item()

    def value(at):
        fixed = FullyVariationalNCE(
            Scaled(model, 4.0), model.posterior, noise_for(3), rule, log_scale=-at, noise_ratio=ratio
        )
        return -fixed(x, y).item()

    best = value(c)
    grid = [value(c + step) for step in (-2, -0.5, -0.1, -0.01, 0.01, 0.1, 0.5, 2)]
    assert best >= max(grid) - 1e-10 * abs(best)
    assert grid == sorted(grid[:4]) + sorted(grid[4:], reverse=True)  # unimodal


@every_rule
def test_profiled_gradient_is_that_of_j_at_its_best_c(rule):
    """Envelope theorem: the gradient equals that of J at fixed c*, up to the positive factor of the log form."""
    torch.manual_seed(0)
    model = linear_gaussian()
    x, y = model.sample(30), noise_for(3).sample((50,))
    profiled = FullyVariationalNCE(model, model.posterior, noise_for(3), rule, partition="profiled")
    gradient = torch.autograd.grad(profiled(x, y), list(model.parameters()))
    fixed = FullyVariationalNCE(
        model, model.posterior, noise_for(3), rule, log_scale=-profiled.fitted_log_partition().item()
    )
    reference = torch.autograd.grad(fixed(x, y), list(model.parameters()))
    a, b = torch.cat([g.flatten() for g in gradient]), torch.cat([g.flatten() for g in reference])
    cosine = torch.nn.functional.cosine_similarity(a, b, dim=0)
    assert cosine.item() == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("alpha", [0.0, 1e-6, 0.25, 1.0])
def test_the_profiled_form_is_the_gamma_divergence(alpha):
    """(1/α) log A − log B/(1+α), and at α = 0 its limit; invariant to the scale of the model."""
    torch.manual_seed(0)
    model = linear_gaussian()
    x, y = model.sample(30), noise_for(3).sample((50,))
    rule = PowerRule(alpha)
    objective = FullyVariationalNCE(model, model.posterior, noise_for(3), rule, partition="profiled")
    d = model.log_prob(x) - noise_for(3).log_prob(x)
    n = model.log_prob(y) - noise_for(3).log_prob(y)
    log_b = ((1 + alpha) * n).logsumexp(0) - math.log(50)
    expected = d.mean() if alpha == 0 else ((alpha * d).logsumexp(0) - math.log(30)) / alpha
    torch.testing.assert_close(-objective(x, y), expected - log_b / (1 + alpha), rtol=1e-8, atol=1e-8)
    scaled = FullyVariationalNCE(Scaled(model, 123.0), model.posterior, noise_for(3), rule, partition="profiled")
    torch.testing.assert_close(scaled(x, y), objective(x, y), rtol=1e-7, atol=1e-7)


def test_profiled_needs_no_clip():
    """Both terms are log-mean-exps: finite for |Δ| of 1e4 in float32."""
    for alpha in (0.0, 1 / 16, 1.0):
        x = torch.tensor([[1e2], [-1e2], [3.0]], dtype=torch.float32, requires_grad=True)
        y = torch.tensor([[-1.2e2], [0.0], [1.41e2]], dtype=torch.float32)

        class Quadratic(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.ones((), dtype=torch.float32))

            def log_prob(self, x):
                return self.weight * x[:, 0] ** 2

        model = Quadratic()
        noise = Independent(Normal(torch.zeros(1, dtype=torch.float32), torch.ones(1, dtype=torch.float32)), 1)
        loss = FullyVariationalNCE(model, None, noise, PowerRule(alpha), partition="profiled")(
            x, y, log_noise_x=torch.zeros(3, dtype=torch.float32), log_noise_noise=torch.zeros(3, dtype=torch.float32)
        )
        loss.backward()
        assert loss.isfinite()
        assert model.weight.grad.isfinite()


@pytest.mark.slow
def test_held_out_value_does_not_flatter():
    """With 64 noise samples and sd(Δ) = 3 the plain profiled value is 0.78 nats too high; at a c from other samples
    it is, in expectation, a lower bound."""
    torch.manual_seed(0)

    class Gaussian(nn.Module):
        def log_prob(self, x):
            return 3 * x[:, 0]

    noise = standard(1)
    objective = FullyVariationalNCE(Gaussian(), None, noise, PowerRule(0, clip=None), partition="profiled")
    x = torch.zeros(64, 1)
    zeros = torch.zeros(64)
    plain, held_out = [], []
    for _ in range(1500):
        terms = objective.terms(x, torch.randn(64, 1), log_noise_x=zeros, log_noise_noise=zeros)
        plain.append(-terms.loss.item())
        held_out.append(terms.statistics["value"] + 1)
    truth = -4.5  # E_data[Δ] − log E_noise[e^Δ] = 0 − 9/2
    assert np.mean(plain) - truth == pytest.approx(0.78, abs=0.15)
    # Its expectation is that of −c − e^(4.5−c) + 1 over c of 32 samples, which a simulation can average exactly.
    c = torch.stack([(3 * torch.randn(32)).logsumexp(0) - math.log(32) for _ in range(20000)])
    expected = (-c - (4.5 - c).exp() + 1).mean().item()
    assert expected < truth
    error = np.std(held_out) / math.sqrt(len(held_out))
    assert np.mean(held_out) == pytest.approx(expected, abs=6 * error)


@pytest.mark.slow
def test_held_out_value_does_not_flatter_for_positive_alpha():
    """With few data rows c* is chosen on them too; judged on other rows, at most max_c J results."""
    alpha, scale = 1.0, 0.7
    rule = PowerRule(alpha, clip=None)

    class Tilt(nn.Module):
        def log_prob(self, x):
            return scale * x[:, 0]

    # data ~ N(0.3, 1), noise ~ N(0, 1): A = E_d e^(αΔ), B = E_n e^((1+α)Δ) in closed form
    a = math.exp(alpha * scale * 0.3 + (alpha * scale) ** 2 / 2)
    b = math.exp(((1 + alpha) * scale) ** 2 / 2)
    c = math.log(b) - math.log(a)
    best = (a * math.exp(-alpha * c) - 1) / alpha - b * math.exp(-(1 + alpha) * c) / (1 + alpha)
    objective = FullyVariationalNCE(Tilt(), None, standard(1), rule, partition="profiled")
    values = []
    for _ in range(2000):
        x, y = 0.3 + torch.randn(6, 1), torch.randn(200, 1)
        terms = objective.terms(x, y, log_noise_x=torch.zeros(6), log_noise_noise=torch.zeros(200))
        values.append(terms.statistics["value"])
    error = np.std(values) / math.sqrt(len(values))
    assert np.mean(values) < best + 4 * error


@pytest.mark.slow
def test_momentum_reduces_the_bias_of_the_gradient():
    """The gradient of −log mean e^(θx) at θ = 2 is −2 in truth, nearer 0 from a batch of 16, less so with momentum."""
    torch.manual_seed(0)

    class Tilt(nn.Module):
        def __init__(self):
            super().__init__()
            self.theta = nn.Parameter(torch.tensor(2.0))

        def log_prob(self, x):
            return self.theta * x[:, 0]

    zeros = torch.zeros(16)

    def mean_gradient(momentum):
        model = Tilt()
        objective = FullyVariationalNCE(model, None, standard(1), PowerRule(0), partition=Profiled(momentum=momentum))
        grads = []
        for _ in range(1500):
            loss = objective(torch.zeros(16, 1), torch.randn(16, 1), log_noise_x=zeros, log_noise_noise=zeros)
            grads.append(torch.autograd.grad(loss, model.theta)[0].item())
        return float(np.mean(grads[300:]))

    plain, averaged = mean_gradient(0.0), mean_gradient(0.99)
    assert abs(averaged - 2.0) < 0.5 * abs(plain - 2.0)


def test_log_partition_is_the_truth_whatever_the_rule():
    """A scaled normalised model has log Z = c; the estimate is within 4 standard errors, for α > 0 as well."""
    torch.manual_seed(0)
    model = linear_gaussian()
    for rule in (PowerRule(0), PowerRule(0.5), PowerRule(0, 1)):
        for encoder in (model.posterior, lambda x: DiagonalNormal(torch.zeros(len(x), 2), torch.tensor(1.2))):
            objective = FullyVariationalNCE(Scaled(model, 3.0), encoder, noise_for(3), rule, partition="profiled")
            value, error = objective.log_partition(20_000)
            assert abs(value.item() - 3.0) < 4 * error.item()
            assert 0 < error < 0.1
    state = torch.random.get_rng_state()
    one = objective.log_partition(2_000, generator=torch.Generator().manual_seed(1))
    two = objective.log_partition(2_000, generator=torch.Generator().manual_seed(1))
    assert one == two
    assert torch.equal(state, torch.random.get_rng_state())
    assert one != objective.log_partition(2_000)


def test_standard_error_of_log_partition_is_right():
    """The spread of repeated estimates matches the reported error."""
    torch.manual_seed(0)
    model = mixture()
    objective = FullyVariationalNCE(model, model.posterior, noise_for(2), PowerRule(0))
    results = [objective.log_partition(500) for _ in range(400)]
    values, errors = (torch.stack(column) for column in zip(*results, strict=True))
    assert values.std().item() == pytest.approx(errors.mean().item(), rel=0.15)


def test_a_learned_log_z_starts_at_its_estimate_and_has_its_own_rate():
    torch.manual_seed(0)
    model = linear_gaussian()
    objective = FullyVariationalNCE(
        Scaled(model, 5.0), model.posterior, noise_for(3), PowerRule(0), partition="learned"
    )
    x, y = model.sample(20), noise_for(3).sample((50,))
    objective(x, y)
    delta = model.log_prob(y) + 5.0 - noise_for(3).log_prob(y)
    expected = (delta.logsumexp(0) - math.log(50)).detach()
    torch.testing.assert_close(objective.fitted_log_partition(), expected)
    objective(x, noise_for(3).sample((50,)))
    torch.testing.assert_close(objective.fitted_log_partition(), expected)  # started once
    groups = objective.parameter_groups(0.01)
    assert [g["lr"] for g in groups] == [0.01, 0.1]
    assert sum(len(g["params"]) for g in groups) == len(list(objective.parameters()))


MIX = 0.9 * PowerRule(1) + 0.1 * PowerRule(0)


@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_learned_log_z_has_the_gradient_of_both_terms_from_the_first_batch(call):
    """Logistic regression by hand: d loss/da = E_d[(1 − h) x²/2] − E_n[h x²/2], h = σ(Δ⁰ − log Z)."""
    model, noise = Bell(0.7), normal(scale=2.0)
    objective = NCE(model, noise, partition="learned")
    x, y = torch.randn(40, 1), noise.sample((60,))
    for _ in range(call):
        (actual,) = torch.autograd.grad(objective(x, y), model.a)

    def classified(rows):
        with torch.no_grad():
            return (model.log_prob(rows) - noise.log_prob(rows) - objective.partition.log_z).sigmoid()

    by_hand = ((1 - classified(x)) * x[:, 0].square() / 2).mean() - (classified(y) * y[:, 0].square() / 2).mean()
    torch.testing.assert_close(actual, by_hand)


@pytest.mark.parametrize("draws", [1, 5])
@pytest.mark.parametrize("kind", ["fvNCE", "VNCE"])
def test_the_first_gradient_with_latents_is_that_of_finite_differences(kind, draws):
    model = LatentVariableModel(normal(2), GaussianDecoder(mlp([2, 3])))
    encoder, noise = GaussianEncoder(mlp([3, 4])), normal(3, 1.5)
    made = {
        "fvNCE": lambda: FullyVariationalNCE(
            model, encoder, noise, PowerRule(0.25), partition="learned", latent_samples=draws
        ),
        "VNCE": lambda: VariationalNCE(
            model, encoder, noise, partition="learned", latent_samples=draws, importance_samples=draws
        ),
    }[kind]()
    x, y = torch.randn(20, 3), noise.sample((30,))

    def loss():
        torch.manual_seed(5)
        return made(x, y)

    first = torch.autograd.grad(loss(), list(model.decoder.parameters()))
    for weight, gradient in zip(model.decoder.parameters(), first, strict=True):
        entry = weight.data.view(-1)
        for i in range(0, len(entry), 2):
            values = []
            for step in (1e-5, -1e-5):
                entry[i] += step
                values.append(loss().item())
                entry[i] -= step
            assert gradient.view(-1)[i].item() == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("how", ["in place", "data", "start", "start at zero"])
def test_a_log_z_that_was_set_is_kept(how):
    start = {"start": 3.0, "start at zero": 0.0}.get(how)
    objective = NCE(Bell(), normal(scale=2.0), partition=Learned(start=start))
    log_z = objective.partition.log_z
    if how == "in place":
        with torch.no_grad():
            log_z.copy_(torch.tensor(3.0))
    elif how == "data":
        log_z.data.fill_(3.0)
    for _ in range(2):
        objective(torch.randn(5, 1))
    assert log_z.item() == (0.0 if how == "start at zero" else 3.0)


def hessian_by_differences(parameter, gradient, h=1e-5):
    rows = []
    for i in range(len(parameter)):
        both = []
        for step in (h, -h):
            parameter.data[i] += step
            both.append(gradient())
            parameter.data[i] -= step
        rows.append((both[0] - both[1]) / (2 * h))
    return torch.stack(rows)


SECOND_ORDER = [
    PowerRule(0),
    PowerRule(0.5),
    PowerRule(0, 1),
    PowerRule(0.5, 0.3),
    MIX,
    2 * PowerRule(0.25) + PowerRule(1, 2),
]


@pytest.mark.slow
@pytest.mark.parametrize("rule", SECOND_ORDER, ids=str)
@pytest.mark.parametrize("ratio", [1.0, 3.0])
def test_second_derivatives_of_a_profiled_objective(rule, ratio):
    """Those of the value at a c that moves along: the differences of its gradients, which at a held c they are not."""
    model, noise = Curve(), normal(scale=2.0)
    objective = NCE(model, noise, rule, partition=Profiled(momentum=0), noise_ratio=ratio)
    x, y = torch.randn(30, 1), noise.sample((50,))

    def gradient(graph=False):
        return torch.autograd.grad(objective(x, y), model.theta, create_graph=graph)[0]

    expected = hessian_by_differences(model.theta, gradient)
    actual = torch.stack([torch.autograd.grad(g, model.theta, retain_graph=True)[0] for g in gradient(graph=True)])
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(gradient(graph=True).detach(), gradient(), rtol=1e-12, atol=1e-13)

    def transformed(theta):
        values = {"model.theta": theta}
        return torch.func.functional_call(objective, values, (x, y))

    transformed_twice = torch.func.jacrev(torch.func.grad(transformed))(model.theta.detach())
    torch.testing.assert_close(transformed_twice, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("rule", [PowerRule(0, 1), MIX], ids=str)
def test_second_derivatives_where_latents_are_summed(rule):
    """The weights q(z|x) are parameters as well."""
    model = LatentVariableModel(Categorical(logits=torch.zeros(3)), GaussianDecoder(nn.Embedding(3, 2)))
    logits = nn.Parameter(torch.tensor([0.3, -0.2, 0.5]))
    noise = normal(2, 2.0)
    objective = FullyVariationalNCE(
        model, lambda x: Categorical(logits=logits * x[:, :1]), noise, rule, partition="profiled"
    )
    x, y = torch.randn(20, 2), noise.sample((30,))

    def gradient(graph=False):
        return torch.autograd.grad(objective(x, y), logits, create_graph=graph)[0]

    expected = hessian_by_differences(logits, gradient)
    actual = torch.stack([torch.autograd.grad(g, logits, retain_graph=True)[0] for g in gradient(graph=True)])
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-8)


def test_second_derivatives_along_an_average_of_batches():
    """They are those of the batch times its weight, as its gradient is."""
    model, noise = Curve(), normal(scale=2.0)
    x = torch.randn(30, 1)
    actual = []
    for momentum in (0, 0.9):
        objective = NCE(model, noise, PowerRule(0.5), partition=Profiled(momentum=momentum))
        torch.manual_seed(1)
        for _ in range(3):
            y = noise.sample((20,))
            (gradient,) = torch.autograd.grad(objective(x, y), model.theta, create_graph=True)
        second = torch.stack([torch.autograd.grad(g, model.theta, retain_graph=True)[0] for g in gradient])
        actual.append((gradient.detach(), second))
    weight = actual[1][0][0] / actual[0][0][0]
    assert abs(weight - 1) > 0.01
    for one, other in zip(*actual, strict=True):
        torch.testing.assert_close(other, weight * one)


def test_other_rules_have_no_average():
    with pytest.raises(ValueError, match=r"momentum must be 0 .*found 0\.9"):
        NCE(Curve(), normal(), MIX, partition=Profiled(momentum=0.9))
    assert Profiled().load_state_dict({"last": torch.zeros(()), "moving": torch.arange(4.0)})  # of 0.2


def gradients_at_the_truth(problem, rule, samples, steps, momentum=None, rows=16):
    torch.manual_seed(7)
    model, noise, data = {
        "bell": lambda: (Bell(1.0), normal(scale=10.0), normal()),
        "tilt": lambda: (Tilt(1.0), normal(), normal(loc=1.0)),
    }[problem]()
    objective = NCE(model, noise, rule, partition=Profiled(momentum))
    actual = []
    for _ in range(steps):
        x, y = data.sample((rows,)), noise.sample((samples,))
        actual.append(torch.autograd.grad(objective(x, y), next(model.parameters()))[0])
    actual = torch.stack(actual)
    return float(actual.mean()), float(actual.std()) / math.sqrt(steps)


@pytest.mark.slow
@pytest.mark.parametrize("samples", [8, 32, 128])
@pytest.mark.parametrize("alpha", [0.0, 0.5])
@pytest.mark.parametrize("problem", ["bell", "tilt"])
def test_the_mean_gradient_at_the_truth_is_zero_whatever_the_noise_batch(problem, alpha, samples):
    alpha = alpha / 2 if problem == "tilt" else alpha  # there the weights e^((1+α)Δ) are log-normal
    mean, error = gradients_at_the_truth(problem, PowerRule(alpha), samples, 1500)
    assert abs(mean) < 4 * error
    if samples == 8:  # all batches equal, as with momentum 0, lead away from the truth: J rises, the loss falls
        mean, error = gradients_at_the_truth(problem, PowerRule(alpha), samples, 500, momentum=0)
        assert mean < -8 * error


def test_a_batch_keeps_its_value_and_its_direction():
    """The moving average decides how much a batch counts, at most 10 times at a momentum of 0.9, and nothing else."""
    model, noise = Curve(), normal(scale=3.0)
    averaged = NCE(model, noise, PowerRule(0.25), partition="profiled")
    alone = NCE(model, noise, PowerRule(0.25), partition=Profiled(momentum=0))
    weights = []
    for _ in range(50):
        x, y = torch.randn(8, 1), noise.sample((8,))
        one, other = alone(x, y), averaged(x, y)
        assert one.item() == other.item()
        one, other = (torch.autograd.grad(value, model.theta)[0] for value in (one, other))
        weights.append(float(other[0] / one[0]))
        torch.testing.assert_close(other, weights[-1] * one)
    assert weights[0] == pytest.approx(1.0)
    assert min(weights) < 0.8
    assert 1.2 < max(weights) <= 10


def test_an_average_is_of_training_alone():
    """Neither evaluation nor a look without gradients moves it, and in evaluation nothing is weighed."""
    objective = NCE(Curve(), normal(scale=3.0), PowerRule(0), partition="profiled")
    x = torch.randn(8, 1)
    objective(x)
    before = objective.partition.moving.clone()
    objective.eval()(x)
    with torch.no_grad():
        objective.train()(x)
    assert torch.equal(before, objective.partition.moving)
    objective(x)
    assert not torch.equal(before, objective.partition.moving)


@pytest.mark.parametrize("jump", [-200.0, 200.0])
def test_an_average_does_not_fall_behind_a_model_that_moves(jump):
    """After P has changed by 200 nats at once, batches count between a tenth and ten times within 25 steps."""
    moving = MovingAverage()
    for _ in range(100):
        moving.add(0.0, 0.9)
    assert moving.weight(jump, 0.9) == pytest.approx(0.0 if jump < 0 else 10.0)
    for _ in range(25):
        moving.add(jump, 0.9)
    assert 0.1 < moving.weight(jump, 0.9) < 10
    for _ in range(2000):
        moving.add(jump, 0.9)
    assert moving.weight(jump, 0.9) == pytest.approx(1.0)


@pytest.mark.parametrize("rule", [PowerRule(0), 0.5 * PowerRule(0.25)], ids=str)
def test_a_run_continues_to_the_bit_with_its_average(rule, tmp_path):
    def made():
        torch.manual_seed(3)
        model = LatentVariableModel(normal(2), GaussianDecoder(mlp([2, 3])))
        encoder = GaussianEncoder(mlp([3, 4]))
        return FullyVariationalNCE(model, encoder, normal(3, 2.0), rule, partition=Profiled(momentum=0.8)).float()

    x = torch.randn(30, 3)
    how = {"batch_size": 10, "seed": 1, "progress": False}
    never = made()
    fit(never, x, epochs=4, **how)
    fit(made(), x, epochs=2, checkpoint_dir=tmp_path, **how)
    again = made()
    fit(again, x, epochs=4, checkpoint_dir=tmp_path, resume=True, **how)
    assert again.partition.moving[0] == 12
    for name, value in never.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
