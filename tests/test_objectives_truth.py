"""Gradients that are right on the first batch, at small noise batches, to second order; weights apart from counts.

Statistical tests have fixed seeds; each holds if a mean of martingale differences lies within 4 standard errors of its
expectation, a false alarm in 16,000 were it drawn anew.
"""

import copy
import math

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Independent, Normal, Uniform

from fvnce import (
    IWAE,
    NCE,
    SNCE,
    VAE,
    BernoulliDecoder,
    BernoulliNoise,
    CategoricalEncoder,
    ContinuousBernoulliDecoder,
    FullyVariationalNCE,
    GaussianDecoder,
    GaussianEncoder,
    KernelDensity,
    LatentVariableModel,
    PointEncoder,
    PowerRule,
    VariationalNCE,
    fit,
    load,
    mlp,
    save,
)
from fvnce.diagnostics import diagnose
from fvnce.objectives import Learned, Profiled
from fvnce.objectives.profiled import Moving
from fvnce.objectives.ratios import LogRatio

DOUBLE = torch.float64
MIX = 0.9 * PowerRule(1) + 0.1 * PowerRule(0)


@pytest.fixture(autouse=True)
def in_float64():
    before = torch.get_default_dtype()
    torch.set_default_dtype(DOUBLE)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)


def normal(width=1, scale=1.0, loc=0.0):
    return Independent(Normal(torch.full((width,), loc), torch.full((width,), scale)), 1)


class Bell(nn.Module):
    """log p⁰ = −a x²/2, unnormalised."""

    def __init__(self, a=1.0):
        super().__init__()
        self.a = nn.Parameter(torch.tensor(a))

    def log_prob(self, x):
        return -self.a * x.square().sum(-1) / 2


class Tilt(nn.Module):
    """log p⁰ = θx − x²/2: N(θ, 1) without its constant."""

    def __init__(self, theta=1.0):
        super().__init__()
        self.theta = nn.Parameter(torch.tensor(theta))

    def log_prob(self, x):
        return self.theta * x[:, 0] - x[:, 0].square() / 2


class Curve(nn.Module):
    """log p⁰ = θ0 x + θ1 x² + θ2 sin x."""

    def __init__(self, theta=(0.3, -0.4, 0.2)):
        super().__init__()
        self.theta = nn.Parameter(torch.tensor(theta))

    def log_prob(self, x):
        x = x[:, 0]
        return self.theta[0] * x + self.theta[1] * x.square() + self.theta[2] * x.sin()


# A learned log Z.


@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_learned_log_z_has_the_gradient_of_both_terms_from_the_first_batch(call):
    """Logistic regression by hand: d loss/da = E_d[(1 − h) x²/2] − E_n[h x²/2], h = σ(Δ⁰ − log Z)."""
    model, noise = Bell(0.7), normal(scale=2.0)
    objective = NCE(model, noise, partition="learned")
    x, y = torch.randn(40, 1), noise.sample((60,))
    for _ in range(call):
        (found,) = torch.autograd.grad(objective(x, y), model.a)

    def classified(rows):
        with torch.no_grad():
            return (model.log_prob(rows) - noise.log_prob(rows) - objective.partition.log_z).sigmoid()

    by_hand = ((1 - classified(x)) * x[:, 0].square() / 2).mean() - (classified(y) * y[:, 0].square() / 2).mean()
    torch.testing.assert_close(found, by_hand)


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


@pytest.mark.parametrize("weighted", [False, True])
def test_no_mean_of_ratios_forgets_its_graph(weighted):
    """Asked for first where gradients are off, it has one all the same where they are on, and the other way round."""
    values = torch.randn(4, 3, requires_grad=True)
    ratio = LogRatio(values, torch.full((4, 3), -math.log(4)) if weighted else None)
    with torch.no_grad():
        assert not ratio.mean.requires_grad
    assert ratio.mean.requires_grad
    with torch.no_grad():
        assert not ratio.mean.requires_grad


@pytest.mark.parametrize("partition", ["fixed", "learned", "profiled"])
def test_a_look_in_inference_mode_leaves_nothing_behind_that_training_trips_over(partition):
    model = LatentVariableModel(normal(2), GaussianDecoder(mlp([2, 3])))
    objective = FullyVariationalNCE(
        model, GaussianEncoder(mlp([3, 4])), normal(3), PowerRule(0), partition=partition, latent_samples=2
    )
    x = torch.randn(5, 3)
    with torch.inference_mode():
        objective(x)
    objective(x).backward()
    assert all(p.grad is not None for p in objective.parameters())


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


# Second derivatives.


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


RULES = [PowerRule(0), PowerRule(0.5), PowerRule(0, 1), PowerRule(0.5, 0.3), MIX, 2 * PowerRule(0.25) + PowerRule(1, 2)]


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("ratio", [1.0, 3.0])
def test_second_derivatives_of_a_profiled_objective(rule, ratio):
    """Those of the value at a c that moves along: the differences of its gradients, which at a held c they are not."""
    model, noise = Curve(), normal(scale=2.0)
    objective = SNCE(model, noise, rule, partition=Profiled(momentum=0), noise_ratio=ratio)
    x, y = torch.randn(30, 1), noise.sample((50,))

    def gradient(graph=False):
        return torch.autograd.grad(objective(x, y), model.theta, create_graph=graph)[0]

    expected = hessian_by_differences(model.theta, gradient)
    found = torch.stack([torch.autograd.grad(g, model.theta, retain_graph=True)[0] for g in gradient(graph=True)])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)
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
    found = torch.stack([torch.autograd.grad(g, logits, retain_graph=True)[0] for g in gradient(graph=True)])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


def test_second_derivatives_along_an_average_of_batches():
    """For (α, 0) they are those of the batch times its weight, as its gradient is; for other rules they are refused."""
    model, noise = Curve(), normal(scale=2.0)
    x = torch.randn(30, 1)
    found = []
    for momentum in (0, 0.9):
        objective = SNCE(model, noise, PowerRule(0.5), partition=Profiled(momentum=momentum))
        torch.manual_seed(1)
        for _ in range(3):
            y = noise.sample((20,))
            (gradient,) = torch.autograd.grad(objective(x, y), model.theta, create_graph=True)
        second = torch.stack([torch.autograd.grad(g, model.theta, retain_graph=True)[0] for g in gradient])
        found.append((gradient.detach(), second))
    weight = found[1][0][0] / found[0][0][0]
    assert abs(weight - 1) > 0.01
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, weight * one)
    objective = SNCE(model, noise, MIX, partition=Profiled(momentum=0.9))
    with pytest.raises(RuntimeError, match="momentum must be 0 for second derivatives"):
        torch.autograd.grad(objective(x, x), model.theta, create_graph=True)


# Small noise batches.


def gradients_at_the_truth(problem, rule, samples, steps, momentum=None, rows=16):
    torch.manual_seed(7)
    model, noise, data = {
        "bell": lambda: (Bell(1.0), normal(scale=10.0), normal()),
        "tilt": lambda: (Tilt(1.0), normal(), normal(loc=1.0)),
    }[problem]()
    objective = SNCE(model, noise, rule, partition=Profiled(momentum))
    found = []
    for _ in range(steps):
        x, y = data.sample((rows,)), noise.sample((samples,))
        found.append(torch.autograd.grad(objective(x, y), next(model.parameters()))[0])
    found = torch.stack(found)
    return float(found.mean()), float(found.std()) / math.sqrt(steps)


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


@pytest.mark.slow
@pytest.mark.parametrize("samples", [8, 32])
@pytest.mark.parametrize("rule", [PowerRule(0, 1), 0.9 * PowerRule(0.25) + 0.1 * PowerRule(0)], ids=str)
@pytest.mark.parametrize("problem", ["bell", "tilt"])
def test_other_rules_are_offered_the_same(problem, rule, samples):
    mean, error = gradients_at_the_truth(problem, rule, samples, 400, momentum=0.9)
    assert abs(mean) < 4 * error
    if samples == 8 and problem == "tilt":  # against the bell, batches that miss it make J explode
        mean, error = gradients_at_the_truth(problem, rule, samples, 200)
        assert abs(mean) > 4 * error


def test_a_batch_keeps_its_value_and_its_direction():
    """The moving average decides how much a batch counts, at most 10 times at a momentum of 0.9, and nothing else."""
    model, noise = Curve(), normal(scale=3.0)
    averaged = SNCE(model, noise, PowerRule(0.25), partition="profiled")
    alone = SNCE(model, noise, PowerRule(0.25), partition=Profiled(momentum=0))
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
    objective = SNCE(Curve(), normal(scale=3.0), PowerRule(0), partition="profiled")
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
    moving = Moving()
    for _ in range(100):
        moving.add(0.0, 0.0, 0.9)
    assert moving.weight(jump, 0.9) == pytest.approx(0.0 if jump < 0 else 10.0)
    for _ in range(25):
        moving.add(jump, jump, 0.9)
    assert 0.1 < moving.weight(jump, 0.9) < 10
    for _ in range(2000):
        moving.add(jump, jump, 0.9)
    assert moving.weight(jump, 0.9) == pytest.approx(1.0)


@pytest.mark.parametrize("rule", [PowerRule(0), PowerRule(0, 1)], ids=str)
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


# How much noise is drawn, and how much it weighs.


def test_noise_is_counted_by_samples_and_weighed_by_ratio():
    model, noise = Bell(), normal(scale=2.0)
    objective = NCE(model, noise, noise_ratio=50.0, noise_samples=2)
    assert len(objective.terms(torch.randn(6, 1)).noise) == 12
    assert len(NCE(model, noise, noise_ratio=3.0).terms(torch.randn(6, 1)).noise) == 18
    x, y = torch.randn(6, 1), noise.sample((12,))
    data, other = (model.log_prob(rows) - noise.log_prob(rows) - math.log(50) for rows in (x, y))
    by_hand = -torch.nn.functional.logsigmoid(data).mean() - 50 * torch.nn.functional.logsigmoid(-other).mean()
    torch.testing.assert_close(objective(x, y), by_hand)
    for wrong in (0, -1.0, math.inf):
        with pytest.raises(ValueError, match="noise_samples must be a finite number > 0"):
            NCE(model, noise, noise_samples=wrong)


def test_training_draws_as_many_as_asked_and_a_file_remembers(tmp_path):
    model = LatentVariableModel(normal(2), GaussianDecoder(mlp([2, 3])))
    objective = FullyVariationalNCE(
        model, GaussianEncoder(mlp([3, 4])), normal(3, 2.0), PowerRule(0), noise_ratio=5.0, noise_samples=2.0
    ).float()
    seen = []
    terms_of = objective.terms_of

    def looking(batch):
        seen.append((len(batch.x), len(batch.x_noise)))
        return terms_of(batch)

    objective.terms_of = looking
    fit(objective, torch.randn(20, 3), validation=torch.randn(8, 3), epochs=1, batch_size=10, progress=False)
    del objective.terms_of
    assert seen == [(10, 20), (10, 20)]
    save(tmp_path / "objective.safetensors", objective)
    again = load(tmp_path / "objective.safetensors")
    assert (again.noise_ratio, again.noise_samples) == (5.0, 2.0)


# States 0 … 4 with probabilities in twentieths, so that 20 rows are the whole distribution.
P_DATA, P_NOISE = (2, 3, 8, 5, 2), (4, 4, 4, 4, 4)


class States(nn.Module):
    """A normalised model of five states: logits θ0 k + θ1 k²."""

    def __init__(self, theta=(0.2, -0.1)):
        super().__init__()
        self.theta = nn.Parameter(torch.tensor(theta))

    def log_prob(self, x):
        k = torch.arange(5.0)
        return (self.theta[0] * k + self.theta[1] * k.square()).log_softmax(0)[x[:, 0].long()]


def states(counts):
    return torch.arange(5.0).repeat_interleave(torch.tensor(counts)).unsqueeze(1)


def test_noisier_nce_is_maximum_likelihood_up_to_one_over_m():
    """g_M − g_ML = (E_d[r ∇] − E_θ[r ∇])/M + O(1/M²), its square O(1/M²); at the truth it is 0 for every M."""
    model = States()
    log_noise = torch.full((20,), -math.log(5))

    def gradient(m, x):
        objective = NCE(model, normal(), noise_ratio=m, noise_samples=1)
        value = objective(x, states(P_NOISE), log_noise_x=log_noise, log_noise_noise=log_noise)
        return torch.autograd.grad(value, model.theta)[0]

    x = states(P_DATA)
    (likelihood,) = torch.autograd.grad(-model.log_prob(x).mean(), model.theta)
    every = torch.arange(5.0).unsqueeze(1)
    slopes = torch.stack([torch.autograd.grad(model.log_prob(row[None])[0], model.theta)[0] for row in every])
    p = model.log_prob(every).exp().detach()
    ratio = 5 * p
    first = ((torch.tensor(P_DATA) / 20 - p) * ratio) @ slopes
    for m in (1e3, 1e4, 1e5):
        torch.testing.assert_close(m * (gradient(m, x) - likelihood), first, rtol=20 / m, atol=1e-8)
    # The truth: data weighted by p_θ itself.
    for m in (0.5, 10.0):
        delta = (ratio / m).log()
        mean = (p * (1 - delta.sigmoid())) @ slopes - m * (delta.sigmoid() / 5) @ slopes
        assert mean.abs().max() < 1e-12


@pytest.mark.slow
def test_the_variance_of_noisier_nce():
    """Of n noise samples it is Var[M r/(M + r) ∇]/n, at most (M/n) E_θ[∇²]: the factor is at most min(r, M).

    Where E_n[r²] is finite it stays below Var[r ∇]/n. Where r has tails P(r > t) ~ t^(−κ) with κ < 2 it grows like
    M^(2−κ): for N(0, 4) against N(0, 1), κ = 4/3.
    """
    model, n = States(), 20
    log_noise = torch.full((20,), -math.log(5))
    every = torch.arange(5.0).unsqueeze(1)
    slopes = torch.stack([torch.autograd.grad(model.log_prob(row[None])[0], model.theta)[0][0] for row in every])
    ratio = 5 * model.log_prob(every).exp().detach()
    for m in (1.0, 30.0):
        objective = NCE(model, normal(), noise_ratio=m, noise_samples=1)
        found = []
        for _ in range(1500):
            y = torch.randint(5, (n, 1)).to(DOUBLE)
            value = objective(states(P_DATA), y, log_noise_x=log_noise, log_noise_noise=log_noise)
            found.append(torch.autograd.grad(value, model.theta)[0][0])
        per_sample = m * ratio / (m + ratio) * slopes
        exact = per_sample.var(correction=0).item()
        found = torch.stack(found)
        spread = (found - found.mean()).square()
        assert abs(spread.mean().item() - exact / n) < 4 * spread.std().item() / math.sqrt(1500)
        assert exact <= min(m * (ratio / 5 * slopes.square()).sum(), (ratio * slopes).square().mean())
    x = torch.linspace(-40, 40, 400_001)
    p_noise = normal().log_prob(x.unsqueeze(1)).exp()
    r = (normal(scale=2.0).log_prob(x.unsqueeze(1)) - normal().log_prob(x.unsqueeze(1))).exp()

    def variance(m):
        factor = m * r / (m + r)
        return float(torch.trapezoid(p_noise * factor.square(), x) - torch.trapezoid(p_noise * factor, x) ** 2)

    assert all(variance(m) < m for m in (10.0, 1e3, 1e5))
    rate = math.log(variance(1e10) / variance(1e7)) / math.log(1e3)
    assert rate == pytest.approx(2 - 4 / 3, abs=0.05)


# log Z, and whom to trust.


def test_log_z_tells_when_few_draws_carry_it():
    """A narrow model against broad noise: of 2,000 draws a handful lie on it."""
    trusted = SNCE(Bell(1.0), normal(scale=2.0), PowerRule(0)).log_partition(2000)
    value, error = trusted
    assert trusted.trusted
    assert (value, error) == (trusted.value, trusted.error)
    assert abs(value - math.log(2 * math.pi) / 2) < 4 * error
    narrow = SNCE(Bell(1e6), normal(scale=2.0), PowerRule(0))
    few = narrow.log_partition(2000)
    assert not few.trusted
    assert few.effective_samples < 100
    assert "not to be trusted" in repr(few)
    assert copy.deepcopy(few).effective_samples == few.effective_samples
    report = diagnose(narrow, torch.randn(500, 1) * 1e-3, samples=2000)
    assert not report.log_partition_trusted
    assert "not to be trusted" in str(report)
    assert any("not to be trusted" in advice for advice in report.advice)
    fine = diagnose(SNCE(Bell(1.0), normal(scale=2.0), PowerRule(0)), torch.randn(500, 1))
    assert fine.log_partition_trusted
    assert "trusted" not in str(fine)


def test_the_bound_of_a_profiled_objective_is_studied_without_the_clip():
    """It ignores the clip, so with a low clip the gaps are those without one."""
    model = LatentVariableModel(normal(2), GaussianDecoder(mlp([2, 3]), scale=0.3))
    encoder, x = GaussianEncoder(mlp([3, 4])), torch.randn(50, 3)
    gaps = []
    for clip in (0.0, None):
        objective = FullyVariationalNCE(
            model, encoder, normal(3, 2.0), PowerRule(0.25, clip=clip), partition="profiled"
        )
        report = diagnose(objective, x, generator=torch.Generator().manual_seed(0))
        gaps.append((report.gap_data, report.gap_noise))
    assert gaps[0] == gaps[1]


# What is refused, and half precision.


@pytest.mark.parametrize("kind", ["fvNCE", "IWAE", "VAE", "point", "three and one"])
def test_latents_of_another_shape_than_the_prior_are_refused(kind):
    class Sums(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = nn.Linear(1, 5)

        def forward(self, z):
            return normal_at(self.network(z.sum(-1, keepdim=True)))

    def normal_at(loc):
        return Independent(Normal(loc, torch.ones(())), 1)

    width = 1 if kind == "three and one" else 2
    model = LatentVariableModel(normal(width), Sums())
    encoder = PointEncoder(nn.Linear(5, 3)) if kind == "point" else GaussianEncoder(nn.Linear(5, 6))
    if kind == "three and one":
        encoder = lambda x: normal_at(x[:, :3])  # noqa: E731
    objective = {
        "IWAE": lambda: IWAE(model, encoder),
        "VAE": lambda: VAE(model, encoder),
    }.get(kind, lambda: FullyVariationalNCE(model, encoder, normal(5), PowerRule(0)))()
    with pytest.raises(ValueError, match=rf"latents of the prior's shape \({width},\), found shape \(3,\)"):
        objective(torch.randn(4, 5))


@pytest.mark.parametrize(
    ("low", "high", "covers"), [(0.0, 1.0, True), (-1.0, 2.0, True), (0.0, 0.5, False), (0.2, 1.0, False)]
)
def test_variance_reduction_wants_noise_on_the_whole_interval(low, high, covers):
    model = LatentVariableModel(normal(2), ContinuousBernoulliDecoder(mlp([2, 3])))
    noise = Independent(Uniform(torch.full((3,), low), torch.full((3,), high)), 1)
    objective = FullyVariationalNCE(model, GaussianEncoder(mlp([3, 4])), noise, PowerRule(0), variance_reduced=True)
    x = 0.25 + 0.2 * torch.rand(5, 3)
    if covers:
        assert objective(x).isfinite()
    else:
        with pytest.raises(ValueError, match="noise must cover the model"):
            objective(x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("partition", ["fixed", "learned", "profiled"])
@pytest.mark.parametrize("kind", ["gaussian", "point", "binary", "classes", "kernel"])
def test_an_objective_in_half_precision(kind, partition, dtype):
    """Networks work in it, log-densities do not: the loss is that of a float32 twin, up to rounding of them."""
    noise = {
        "kernel": lambda: KernelDensity(torch.randn(20, 4), 0.8),
        "binary": lambda: BernoulliNoise(torch.full((4,), 0.4)),
    }
    decoder = BernoulliDecoder(mlp([2, 4])) if kind == "binary" else GaussianDecoder(mlp([2, 4]), scale=0.7)
    encoder = {"point": lambda: PointEncoder(mlp([4, 2])), "classes": lambda: CategoricalEncoder(mlp([4, 3]))}
    prior = normal(2)
    if kind == "classes":
        prior, decoder = Categorical(logits=torch.zeros(3)), GaussianDecoder(nn.Embedding(3, 4), scale=0.7)
    objective = FullyVariationalNCE(
        LatentVariableModel(prior, decoder),
        encoder.get(kind, lambda: GaussianEncoder(mlp([4, 4])))(),
        noise.get(kind, lambda: normal(4, 1.7))(),
        PowerRule(0.25),
        partition=partition,
    )
    wide, half = copy.deepcopy(objective).float(), copy.deepcopy(objective).to(dtype)
    x = (torch.rand(12, 4) < 0.5).float() if kind == "binary" else torch.randn(12, 4).float()
    y = (torch.rand(12, 4) < 0.5).float() if kind == "binary" else 1.7 * torch.randn(12, 4).float()
    torch.manual_seed(1)
    expected = wide(x, y)
    torch.manual_seed(1)
    found = half(x.to(dtype), y.to(dtype))
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(expected.item(), abs=0.1)
    found.backward()
    assert all(p.grad.isfinite().all() for p in half.parameters() if p.grad is not None)
    assert half(x.to(dtype)).isfinite()
    assert half.log_partition(100).value.dtype == torch.float32
