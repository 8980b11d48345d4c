"""How objectives behave in use: dead noise, extremes, transforms, state, and what they refuse."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Independent, MultivariateNormal, Normal, Uniform

from contracts import DOUBLE
from fvnce import (
    IWAE,
    NCE,
    SNCE,
    VAE,
    Autoencoder,
    CategoricalEncoder,
    ContinuousBernoulliDecoder,
    FullyVariationalNCE,
    GaussianDecoder,
    GaussianEncoder,
    KernelDensity,
    LatentVariableModel,
    Logarithmic,
    NoiseMixture,
    PointEncoder,
    PowerRule,
    VariationalNCE,
    mlp,
)
from fvnce.diagnostics import calibrate, diagnose
from fvnce.models import GaussianMixtureModel
from fvnce.objectives import Learned, Profiled
from fvnce.objectives.base import effective_share, ratio_statistics, statistics_of


def standard(d: int, scale: float = 1.0) -> Independent:
    return Independent(Normal(torch.zeros(d), torch.full((d,), scale)), 1)


ENCODERS = {
    "point": lambda: PointEncoder(mlp([6, 8, 2], nn.Tanh)),
    "gaussian": lambda: GaussianEncoder(mlp([6, 8, 4], nn.Tanh)),
}


def make(encoder="gaussian", rule=None, *, scale=0.5, **options):
    torch.manual_seed(0)
    model = LatentVariableModel(standard(2), GaussianDecoder(mlp([2, 8, 6], nn.Tanh), scale))
    return FullyVariationalNCE(model, ENCODERS[encoder](), standard(6, 2.0), rule or PowerRule(0), **options)


def gradients(objective, loss):
    objective.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in objective.named_parameters()}


# Dead noise is skipped and nothing changes.


@pytest.mark.parametrize("partition", ["fixed", "learned", "profiled"])
@pytest.mark.parametrize(
    "rule", [PowerRule(0), PowerRule(0.5), PowerRule(0, 1), 0.9 * PowerRule(0.1) + PowerRule(0)], ids=str
)
@pytest.mark.parametrize("encoder", ["point", "gaussian"])
@pytest.mark.parametrize("draws", [1, 3])
def test_skipping_dead_noise_changes_nothing(encoder, rule, partition, draws):
    """The same batch with and without the look-first path: values equal, gradients equal within rounding."""
    objective = make(encoder, rule, scale=0.05, partition=partition, latent_samples=draws)
    x = torch.randn(10, 6)
    y = torch.cat([0.1 * torch.randn(4, 6), 60 * torch.randn(30, 6)])  # four that count, thirty that cannot
    if partition == "learned":
        objective(x, y)
    results = []
    for share in (1.0, 0.0):
        objective.live_share.fill_(share)
        torch.manual_seed(1)
        loss = objective(x, y)
        results.append((loss.detach(), gradients(objective, loss), objective.live_share.item()))
    (loss_a, grads_a, live_a), (loss_b, grads_b, live_b) = results
    assert live_a == live_b < 0.5
    torch.testing.assert_close(loss_a, loss_b)
    for name, grad in grads_a.items():
        torch.testing.assert_close(grads_b[name], grad, rtol=1e-4, atol=1e-5 * float(grad.abs().max()) + 1e-12)


def test_parameters_that_no_live_sample_reaches_have_zero_gradients_not_none():
    objective = make(scale=0.02, noise_encoder=GaussianEncoder(mlp([6, 8, 4])))
    objective.live_share.fill_(0.0)
    objective(torch.randn(5, 6), 80 * torch.randn(7, 6)).backward()
    assert objective.live_share == 0
    for name, p in objective.named_parameters():
        assert p.grad is not None, name
    assert all((p.grad == 0).all() for p in objective.noise_encoder.parameters())


def test_an_encoder_that_cannot_be_taken_again_is_never_looked_at_first():
    model = LatentVariableModel(standard(2), GaussianDecoder(mlp([2, 8, 6]), 0.05))
    calls = []

    def encoder(x):
        calls.append(len(x))
        return MultivariateNormal(x[:, :2], torch.eye(2))

    objective = FullyVariationalNCE(model, encoder, standard(6, 2.0), PowerRule(0))
    for _ in range(3):
        objective(torch.randn(5, 6), 50 * torch.randn(7, 6)).backward()
    assert calls == [5, 7] * 3
    assert objective.live_share == 1


def test_the_most_important_noise_of_a_classical_rule_is_not_taken_for_dead():
    """At Δ = 200 the logarithmic rule has df1/dΔ = 0 in float32 but −df0/dΔ = 1."""
    for objective in (
        NCE(Direct(), standard(1)),
        SNCE(Direct(), standard(1), Logarithmic()),
        SNCE(Direct(), standard(1), PowerRule(1.0)),
    ):
        results = []
        for share in (1.0, 0.0):
            objective.live_share.fill_(share)
            loss = objective(torch.zeros(3, 1), torch.full((3, 1), 200.0), log_noise_noise=torch.zeros(3))
            results.append(gradients(objective, loss)["model.shift"])
        torch.testing.assert_close(results[0], results[1])
        assert results[0] > 0.4


@pytest.mark.parametrize("partition", ["fixed", "profiled"])
@pytest.mark.parametrize("name", ["fvnce", "vnce"])
def test_skipping_dead_noise_with_a_latent_that_is_summed_over(name, partition):
    """Also where q gives a value of the latent a probability of e^−130, whose Δ is then huge and counts for nothing."""
    if name == "vnce" and partition == "profiled":
        return
    torch.manual_seed(0)
    model = GaussianMixtureModel(torch.zeros(3), torch.tensor([[-1.0], [1.0], [0.5]]), torch.tensor([0.3, 0.3, 0.3]))
    logits = nn.Parameter(torch.tensor([0.0, 1.0, -130.0]))
    encoder = lambda x: torch.distributions.Categorical(logits=logits.expand(len(x), 3))  # noqa: E731
    noise = standard(1, 2.0)
    if name == "vnce":
        objective = VariationalNCE(model, encoder, noise)
    else:
        objective = FullyVariationalNCE(model, encoder, noise, PowerRule(0), partition=partition)
    x, y = torch.randn(10, 1), torch.cat([torch.randn(6, 1), 90 * torch.ones(20, 1)])
    grads = []
    for share in (1.0, 0.0):
        objective.live_share.fill_(share)
        loss = objective(x, y)
        grads.append(gradients(objective, loss))
    for key, grad in grads[0].items():
        torch.testing.assert_close(grads[1][key], grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [*(name for name in vars(nn) if "BatchNorm" in name or "Dropout" in name), "ReLU"])
def test_batch_statistics_and_dropout_are_computed_whole(name):
    """The encoder sees the data once and the noise once; without such a layer noise that counts is seen again."""
    torch.manual_seed(0)
    given = (8,) if "BatchNorm" in name and "Lazy" not in name else ()
    network, seen = mlp([6, 8, 2]), []
    network.beside = getattr(nn, name)(*given)  # found, though it is not asked for anything
    network.forward = lambda x: seen.append(len(x)) or network[2](network[1](network[0](x)))
    model = LatentVariableModel(standard(2), GaussianDecoder(mlp([2, 8, 6])))
    objective = FullyVariationalNCE(model, PointEncoder(network), standard(6, 2.0), PowerRule(0))
    objective.live_share.fill_(0.0)
    objective(torch.randn(5, 6), torch.randn(7, 6))
    assert seen == [5, 7] if name != "ReLU" else len(seen) == 3


def test_noise_outside_the_models_support_has_ratio_zero():
    """A continuous-Bernoulli model and Gaussian noise: f0(0) is finite and so are all gradients."""
    torch.manual_seed(0)
    model = LatentVariableModel(standard(2), ContinuousBernoulliDecoder(mlp([2, 8, 6])))
    for partition in ("fixed", "profiled"):
        objective = FullyVariationalNCE(
            model, GaussianEncoder(mlp([6, 4])), standard(6, 0.5), PowerRule(0), partition=partition
        )
        x, y = torch.rand(5, 6), torch.cat([torch.rand(2, 6), torch.randn(20, 6)])
        loss = objective(x, y)
        loss.backward()
        assert loss.isfinite()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in objective.parameters())
    with pytest.raises(ValueError, match="outside the model's support"):
        objective(torch.full((2, 6), 1.5), y)


def test_the_look_first_path_is_part_of_the_state():
    objective = make(scale=0.05)
    objective(torch.randn(5, 6), 50 * torch.randn(7, 6))
    assert objective.state_dict()["live_share"] == 0
    other = make(scale=0.05)
    other.load_state_dict(objective.state_dict())
    assert other.live_share == 0


# Statistics.


def test_statistics_against_their_definitions():
    delta_data = torch.tensor([3.0, 1.0, -2.0], dtype=DOUBLE)
    delta_noise = torch.tensor([-1.0, -60.0, -2000.0, 30.0], dtype=DOUBLE)
    alpha = 0.25
    found = ratio_statistics(PowerRule(alpha), delta_data[None], delta_noise[None])
    found = {name: value for name, (value,) in found.items()}
    threshold = torch.finfo(DOUBLE).eps * (alpha * delta_data).exp().mean()
    weights = ((1 + alpha) * delta_noise).clamp(max=10).exp()  # above the clip a slope is that at the clip
    assert found["live_noise"] == (weights >= threshold).double().mean() == 0.5
    assert found["zero_noise"] == 0.25
    assert found["ess_noise"] == pytest.approx(float(weights.sum() ** 2 / (4 * (weights**2).sum())), rel=1e-12)
    data_weights = (alpha * delta_data).exp()
    expected = float(data_weights.sum() ** 2 / (3 * (data_weights**2).sum()))
    assert found["ess_data"] == pytest.approx(expected, rel=1e-12)
    assert found["clipped_noise"] == 0.25
    assert found["clipped_data"] == 0


def test_effective_share_has_its_limits():
    assert effective_share(torch.full((7,), -900.0)) == pytest.approx(1.0)
    assert effective_share(torch.tensor([0.0, -900.0, -900.0, -900.0])) == pytest.approx(0.25)


@pytest.mark.parametrize("name", ["terms", "forward"])
def test_a_method_that_training_would_pass_over_is_refused(name):
    with pytest.raises(TypeError, match=rf"Penalised must define terms_of\(batch\), found {name}"):
        type("Penalised", (VAE,), {name: lambda self, x: x.mean()})


def test_terms_name_what_they_hold():
    terms = make().terms(torch.randn(9, 6), torch.randn(4, 6))
    assert terms.data.shape == terms.evidence.shape == terms.delta_data.shape == (9,)
    assert terms.noise.shape == terms.delta_noise.shape == (4,)
    assert {"data_term", "noise_term", "evidence", "live_noise", "ess_noise", "log_scale", "value"} <= set(
        terms.statistics
    )
    assert -terms.loss.item() == pytest.approx(terms.statistics["value"], rel=1e-6)


@pytest.mark.parametrize("partition", ["fixed", "profiled"])
def test_statistics_of_many_batches_are_those_of_each(partition):
    """But for the held-out value, which is that of the last alone; batches may differ in size."""
    objective = make(partition=partition)
    batches = [objective.terms(torch.randn(n, 6), torch.randn(4, 6)) for n in (9, 9, 5, 9)]
    found = statistics_of([terms.snapshot() for terms in batches])
    for number, (terms, named) in enumerate(zip(batches, found, strict=True)):
        expected = dict(terms.statistics)
        if partition == "profiled" and number < 3:
            del expected["value"]
        assert named == pytest.approx(expected, rel=1e-5)


def test_default_noise_batch_follows_the_ratio():
    for ratio, expected in ((1.0, 10), (0.05, 1), (2.5, 25)):
        assert len(make(noise_ratio=ratio).terms(torch.randn(10, 6)).noise) == expected


def test_cached_densities_are_used():
    objective = make(encoder="point")
    x, y = torch.randn(5, 6), torch.randn(5, 6)
    noise = objective.noise
    plain = objective(x, y)
    cached = objective(x, y, log_noise_x=noise.log_prob(x), log_noise_noise=noise.log_prob(y))
    torch.testing.assert_close(plain, cached)
    shifted = objective(x, y, log_noise_x=noise.log_prob(x) + 7, log_noise_noise=noise.log_prob(y))
    torch.testing.assert_close(shifted, plain + 7)


# Extremes.


class Direct(nn.Module):
    """A model without latents whose log-density is its input: Δ is what one says it is."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(()))

    def log_prob(self, x):
        return x[:, 0] + self.shift


class Column(nn.Module):
    """An energy network that forgot to squeeze."""

    def log_prob(self, x):
        return x[:, :1]


@pytest.mark.parametrize("partition", ["fixed", "learned", "profiled"])
@pytest.mark.parametrize(
    "rule",
    [PowerRule(0), PowerRule(1 / 16), PowerRule(1), PowerRule(0, 1), PowerRule(0.5, 3), PowerRule(0.1) + PowerRule(0)],
    ids=str,
)
def test_finite_for_log_ratios_of_1e4_in_float32(rule, partition):
    objective = FullyVariationalNCE(Direct(), None, standard(1), rule, partition=partition)
    x = torch.tensor([[1e4], [-1e4], [0.0]])
    y = torch.tensor([[-1e4], [1e4], [3.0]])
    zeros = torch.zeros(3)
    loss = objective(x, y, log_noise_x=zeros, log_noise_noise=zeros)
    loss.backward()
    assert loss.isfinite()
    assert objective.model.shift.grad.isfinite()


@pytest.mark.parametrize("encoder", ["point", "gaussian"])
@pytest.mark.parametrize("partition", ["fixed", "profiled"])
@pytest.mark.parametrize("draws", [1, 64])
def test_batch_of_one_and_noise_equal_to_data(encoder, partition, draws):
    objective = make(encoder, partition=partition, latent_samples=draws)
    x = torch.randn(1, 6)
    loss = objective(x, x)
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad.isfinite().all() for p in objective.parameters())


# Function transforms and compilation.


@pytest.mark.parametrize("partition", ["fixed", "profiled"])
@pytest.mark.parametrize("encoder", ["point", "gaussian"])
def test_replicas_under_vmap(encoder, partition):
    """vmap over stacked parameters gives what each replica gives alone."""
    objective = make(encoder, PowerRule(0.25), partition=partition)
    x, y = torch.randn(8, 6), torch.randn(8, 6)
    log_x, log_y = objective.noise.log_prob(x), objective.noise.log_prob(y)
    states = []
    for seed in range(3):
        torch.manual_seed(seed)
        states.append({k: v + 0.1 * torch.randn_like(v) for k, v in objective.named_parameters()})
    stacked = {k: torch.stack([s[k] for s in states]).detach() for k in states[0]}
    buffers = dict(objective.named_buffers())

    def loss(parameters):
        return torch.func.functional_call(
            objective, (parameters, buffers), (x, y), {"log_noise_x": log_x, "log_noise_noise": log_y}
        )

    values = torch.func.vmap(loss, randomness="different")(stacked)
    grads = torch.func.vmap(torch.func.grad(loss), randomness="different")(stacked)
    assert values.shape == (3,)
    if encoder == "point":  # deterministic, so comparable one by one
        for i, state in enumerate(states):
            torch.testing.assert_close(values[i], loss(state), rtol=1e-4, atol=1e-4)
            alone = torch.func.grad(loss)(state)
            for k in state:
                torch.testing.assert_close(grads[k][i], alone[k], rtol=1e-3, atol=1e-4)
    assert all(g.isfinite().all() for g in grads.values())


# The tracer makes an instance of autograd.Function, which torch itself warns about.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("encoder", ["point", "gaussian"])
@pytest.mark.parametrize("partition", ["fixed", "profiled", "learned"])
@pytest.mark.slow
def test_compiled(partition, encoder):
    """torch.compile (traced whole, run eagerly, so that no C++ compiler is needed) changes no value and no gradient."""
    objective = make(encoder, PowerRule(0.25), partition=partition)
    x, y = torch.randn(8, 6), torch.randn(8, 6)
    kwargs = {"log_noise_x": objective.noise.log_prob(x), "log_noise_noise": objective.noise.log_prob(y)}
    objective(x, y, **kwargs)
    if partition == "profiled":  # a compiled call keeps no average of earlier batches, and neither does a first one
        objective.partition.load_state_dict(Profiled().state_dict())
    results = []
    for function in (objective, torch.compile(objective, backend="eager", fullgraph=True)):
        torch.manual_seed(3)
        loss = function(x, y, **kwargs)
        results.append((loss.detach(), gradients(objective, loss)))
    torch.testing.assert_close(results[0][0], results[1][0])
    for name, grad in results[0][1].items():
        torch.testing.assert_close(results[1][1][name], grad, rtol=1e-4, atol=1e-5)


def test_what_changes_with_every_call_is_refused_under_a_transform():
    x = torch.randn(4, 6)
    for partition, words in ((Learned(), "call the objective once"), (Profiled(momentum=0.9), "momentum must be 0")):
        objective = make("point", partition=partition)
        parameters, buffers = dict(objective.named_parameters()), dict(objective.named_buffers())
        with pytest.raises(RuntimeError, match=words):
            torch.func.grad(lambda p, o=objective, b=buffers: torch.func.functional_call(o, (p, b), (x, x)))(parameters)


# Moving and saving.


def test_priors_and_noise_follow_the_module():
    objective = make().double()
    assert objective.model.prior.base_dist.loc.dtype == DOUBLE
    assert objective.noise.base_dist.scale.dtype == DOUBLE
    assert objective(torch.randn(3, 6, dtype=DOUBLE)).dtype == DOUBLE


@pytest.mark.parametrize("noise", ["kernel", "mixture", "transformed"])
def test_every_noise_follows_the_module(noise):
    """Cast to float64 it gives what the same noise gives that was made in float64."""

    def make_noise(dtype):
        torch.manual_seed(0)
        centres = torch.randn(50, 6).to(dtype)
        kernel = KernelDensity(centres, 0.5)
        normal = Independent(Normal(centres[0], torch.ones(6, dtype=dtype)), 1)
        if noise == "kernel":
            return kernel
        if noise == "mixture":
            return NoiseMixture([kernel, normal], [0.3, 0.7])
        affine = torch.distributions.AffineTransform(centres[1], torch.full((6,), 2.0, dtype=dtype), event_dim=1)
        return torch.distributions.TransformedDistribution(normal, [affine])

    model = LatentVariableModel(standard(2), GaussianDecoder(mlp([2, 6])))
    objective = FullyVariationalNCE(model, PointEncoder(mlp([6, 2])), make_noise(torch.float32), PowerRule(0)).double()
    x = torch.randn(3, 6, dtype=DOUBLE)
    assert objective(x).dtype == DOUBLE
    torch.testing.assert_close(objective.noise.log_prob(x), make_noise(DOUBLE).log_prob(x), rtol=1e-12, atol=1e-12)


# Every objective, one convention.


@pytest.mark.parametrize("name", ["VAE", "IWAE", "Autoencoder", "NCE", "SNCE", "VariationalNCE", "FullyVariationalNCE"])
def test_one_calling_convention(name):
    torch.manual_seed(0)
    model = LatentVariableModel(standard(2), GaussianDecoder(mlp([2, 6])))
    encoder = GaussianEncoder(mlp([6, 4]))
    mixture = GaussianMixtureModel(torch.zeros(2), torch.randn(2, 6), torch.ones(2))
    objective = {
        "VAE": lambda: VAE(model, encoder),
        "IWAE": lambda: IWAE(model, encoder),
        "Autoencoder": lambda: Autoencoder(model, encoder),
        "NCE": lambda: NCE(mixture, standard(6)),
        "SNCE": lambda: SNCE(mixture, standard(6), PowerRule(0.5)),
        "VariationalNCE": lambda: VariationalNCE(model, encoder, standard(6)),
        "FullyVariationalNCE": lambda: FullyVariationalNCE(model, encoder, standard(6), PowerRule(0)),
    }[name]()
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    for arguments, keywords in (
        ((x,), {}),
        ((x, y), {}),
        ((x, y), {"log_noise_x": standard(6).log_prob(x), "log_noise_noise": standard(6).log_prob(y)}),
    ):
        loss = objective(*arguments, **keywords)
        assert loss.shape == ()
        loss.backward()
        terms = objective.terms(*arguments, **keywords)
        assert all(math.isfinite(v) for v in terms.statistics.values())
    assert sum(len(g["params"]) for g in objective.parameter_groups(0.1)) == len(list(objective.parameters()))


# What is refused, and how it is said.


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: make(rule=Logarithmic()), ValueError, "double-ELBO property, found Logarithmic.*VariationalNCE"),
        (lambda: make(rule="power(0)"), TypeError, "rule must be a scoring rule"),
        (lambda: make(latent_samples=0), ValueError, "latent_samples must be an integer >= 1, found 0"),
        (lambda: make(noise_ratio=0), ValueError, "noise_ratio must be a finite number > 0, found 0"),
        (lambda: make(partition="free"), ValueError, "partition must be one of 'fixed', 'learned', 'profiled'"),
        (
            lambda: make(partition="profiled", log_scale=3),
            ValueError,
            "log_scale must be 0 unless partition is 'fixed'",
        ),
        (
            lambda: make()(torch.randn(4, 5)),
            ValueError,
            r"x must have shape \(B, 6\) to match the noise, found shape \(4, 5\)",
        ),
        (lambda: make()(torch.randn(4, 6), torch.randn(4, 7)), ValueError, "x_noise must have shape"),
        (lambda: make()(torch.empty(0, 6)), ValueError, "x must hold at least one row"),
        (lambda: make()([[0.0]]), TypeError, "x must be a torch.Tensor, found list"),
        (
            lambda: make()(torch.randn(4, 6), log_noise_x=torch.zeros(3)),
            ValueError,
            r"log_noise_x must hold one log-density for each of the 4 rows, found shape \(3,\)",
        ),
        (
            lambda: make()(
                torch.tensor([[0.0] * 6, [0, 0, math.nan, 0, 0, 0]]), torch.zeros(1, 6), log_noise_x=torch.zeros(2)
            ),
            ValueError,
            "x must be finite, found nan at row 1, column 2",
        ),
        (
            lambda: make()(torch.zeros(2, 6), torch.zeros(2, 6), log_noise_x=torch.tensor([0.0, -math.inf])),
            ValueError,
            "the noise must cover x, found log p_n = -inf at row 1; mix in a component",
        ),
        (
            lambda: FullyVariationalNCE(
                LatentVariableModel(standard(2), GaussianDecoder(mlp([2, 5]))),
                PointEncoder(mlp([6, 2])),
                standard(6),
                PowerRule(0),
            )(torch.randn(3, 6)),
            ValueError,
            r"rows of the shape that the decoder gives, \(5,\), found x of shape \(3, 6\); change the decoder",
        ),
        (
            lambda: make(rule=PowerRule(0.5), variance_reduced=True),
            ValueError,
            r"variance_reduced=True: rule must be \(0, 0\)",
        ),
        (lambda: make(variance_reduced=True, log_scale=1.0), ValueError, "log_scale must be 0"),
        (lambda: make("point", variance_reduced=True)(torch.randn(2, 6)), ValueError, "encoder must be stochastic"),
        (
            lambda: FullyVariationalNCE(
                LatentVariableModel(standard(2), GaussianDecoder(mlp([2, 6]))),
                GaussianEncoder(mlp([6, 4])),
                Independent(Uniform(torch.zeros(6), torch.ones(6)), 1),
                PowerRule(0),
                variance_reduced=True,
            )(torch.rand(3, 6)),
            ValueError,
            "noise must cover the model, found .*Uniform.* for a decoder that gives Normal",
        ),
        (
            lambda: FullyVariationalNCE(
                LatentVariableModel(standard(2), GaussianDecoder(mlp([2, 6]))),
                GaussianEncoder(mlp([6, 4])),
                Normal(torch.zeros(6), 1.0),
                PowerRule(0),
            ),
            ValueError,
            "noise must be one distribution over whole rows.*Independent",
        ),
        (lambda: NCE(mlp([6, 1]), standard(6)), TypeError, "model must have log_prob without an encoder"),
        (
            lambda: VariationalNCE(Direct(), PointEncoder(mlp([6, 2])), standard(6)),
            TypeError,
            "model must have log_joint with an encoder",
        ),
        (lambda: GaussianEncoder(mlp([6, 3]))(torch.zeros(1, 6)), ValueError, "even number of outputs.*found 3"),
        (lambda: Profiled(momentum=1.0), ValueError, "momentum must be below 1"),
        (lambda: Learned(lr_factor=0), ValueError, "lr_factor must be a finite number > 0"),
        (
            lambda: NCE(Direct(), standard(1), partition="profiled"),
            ValueError,
            "partition='profiled' needs a rule with the double-ELBO property",
        ),
        (
            lambda: make()(torch.zeros(2, 6, dtype=torch.int64)),
            TypeError,
            "x must be a floating-point tensor, found dtype",
        ),
        (lambda: make()(torch.randn(2, 6), log_noise_noise=torch.zeros(2)), ValueError, "must come with x_noise"),
        (
            lambda: FullyVariationalNCE(
                Direct(), None, standard(1), PowerRule(0), noise_encoder=PointEncoder(mlp([1, 1]))
            ),
            ValueError,
            "noise_encoder must be None for a model without latents",
        ),
        (
            lambda: NCE(Column(), standard(6))(torch.randn(7, 6)),
            ValueError,
            r"log_prob must .*\(7,\), found shape \(7, 1\)",
        ),
        (
            lambda: VAE(LatentVariableModel(standard(2), GaussianDecoder(mlp([2, 6]))), GaussianEncoder(mlp([6, 4])))(
                torch.full((2, 6), math.nan)
            ),
            ValueError,
            "x must be finite, found nan at row 0, column 0",
        ),
        (
            lambda: FullyVariationalNCE(
                LatentVariableModel(standard(2), GaussianDecoder(mlp([2, 6]))),
                CategoricalEncoder(mlp([6, 3])),
                standard(6),
                PowerRule(0),
                latent_samples=5,
            )(torch.randn(2, 6)),
            ValueError,
            "latent_samples must be 1 for an encoder whose Categorical latent is summed over, found 5",
        ),
        (
            lambda: LatentVariableModel(Normal(torch.zeros(2), 1.0), GaussianDecoder(mlp([2, 6]))),
            ValueError,
            "prior must be one distribution over whole rows",
        ),
        (
            lambda: LatentVariableModel(
                Independent(Normal(torch.zeros(2, requires_grad=True), 1.0), 1), GaussianDecoder(mlp([2, 6]))
            ),
            ValueError,
            "prior must not hold tensors that require gradients",
        ),
        (lambda: mlp([3]), ValueError, "sizes must hold at least an input and an output size"),
        (lambda: LatentVariableModel(None, mlp([2, 3])), TypeError, "prior must be a torch distribution"),
        (lambda: GaussianDecoder(mlp([2, 3]), learned="each"), ValueError, "learned must be one of None, 'shared'"),
        (lambda: GaussianDecoder(mlp([2, 3]), learned="per_dimension"), ValueError, "event_shape must be given"),
        (lambda: diagnose(VAE(None, None), torch.zeros(1, 1)), TypeError, "objective must have a noise term"),
    ],
)
def test_what_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_a_diverged_model_is_named():
    objective = make("point")
    with torch.no_grad():
        objective.model.decoder.network[0].weight.fill_(math.nan)
    with pytest.raises(ValueError, match="found nan at row 0 of x: the model or the encoder has diverged"):
        objective(torch.randn(3, 6), torch.randn(3, 6))


def test_a_discrete_encoder_with_too_many_values_is_refused():
    class Many(nn.Module):
        def log_joint(self, x, z):
            return z.float()

    with pytest.raises(ValueError, match="at most 4096 values, found Categorical"):
        FullyVariationalNCE(Many(), CategoricalEncoder(mlp([6, 5000])), standard(6), PowerRule(0))(torch.randn(2, 6))


# Diagnostics of a trained objective.


def test_diagnose_a_perfect_model():
    """Data from the model itself: log Z = 0, calibrated, no gap at the posterior."""
    torch.manual_seed(0)
    model = GaussianMixtureModel(torch.zeros(2), torch.tensor([[-1.0, 0.0], [1.0, 0.0]]), torch.tensor([0.8, 0.8]))
    noise = standard(2, 1.8)
    objective = FullyVariationalNCE(model, model.posterior, noise, PowerRule(0, clip=None))
    report = diagnose(objective, model.sample(20_000), bins=8)
    assert report.live_noise > 0.95
    assert report.zero_noise == 0.0
    assert abs(report.gap_data) < 1e-4
    assert abs(report.log_partition) < 4 * report.log_partition_error
    assert report.calibration.error < 0.02
    assert not report.advice
    assert "log Z" in str(report)


def test_diagnose_sees_a_bad_encoder():
    """The gap is from one draw to many whatever K the objective trains with, and the true one for a summed latent."""
    gaps = []
    for draws in (1, 64):
        objective = make(scale=1.0, latent_samples=draws)
        report = diagnose(
            objective, torch.randn(400, 6), latent_samples=200, generator=torch.Generator().manual_seed(0)
        )
        gaps.append(report.gap_data)
    assert min(gaps) > 0.05
    assert gaps[0] == pytest.approx(gaps[1], rel=0.3)
    model = GaussianMixtureModel(torch.zeros(2), torch.tensor([[-2.0], [2.0]]), torch.tensor([0.5, 0.5]))
    x = torch.tensor([[-2.0], [2.0]]).repeat(50, 1)
    noise = standard(1, 2.0)
    blind = lambda x: torch.distributions.Categorical(logits=torch.zeros(len(x), 2))  # noqa: E731
    report = diagnose(FullyVariationalNCE(model, blind, noise, PowerRule(0)), x)
    log_joint = torch.stack([model.log_joint(x, torch.full((100,), k)) for k in (0, 1)])
    exact = (model.log_prob(x) - (log_joint - math.log(0.5)).mean(0)).mean().item()
    assert report.gap_data == pytest.approx(exact, rel=1e-4)
    assert exact > 10


def test_diagnose_is_reproducible():
    objective = make(scale=1.0)
    x = torch.randn(50, 6)
    reports = [diagnose(objective, x, generator=torch.Generator().manual_seed(3)) for _ in range(2)]
    assert str(reports[0]) == str(reports[1])


def test_diagnose_says_that_the_noise_term_is_dead():
    objective = make(scale=0.02)
    report = diagnose(objective, 0.1 * torch.randn(50, 6), samples=200)
    assert report.live_noise < 0.01
    assert report.zero_noise > 0.9
    assert any("the noise term is dead" in advice for advice in report.advice)
    assert "! the noise term is dead" in str(report)


def test_calibration_of_a_wrong_classifier_shows():
    torch.manual_seed(0)
    logits = torch.randn(40_000, dtype=DOUBLE)
    labels = torch.bernoulli(logits.sigmoid()).bool()
    right = calibrate(logits[labels], logits[~labels], float((~labels).sum() / labels.sum()))
    assert right.error < 0.01
    wrong = calibrate(3 * logits[labels], 3 * logits[~labels], float((~labels).sum() / labels.sum()))
    assert wrong.error > 0.08
    assert wrong.log_loss > right.log_loss
