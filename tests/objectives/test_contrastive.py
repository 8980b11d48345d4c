"""What contrastive objectives share: dead noise, extremes, transforms, state, counts of noise, and what is refused."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Independent, MultivariateNormal, Normal, Uniform

from contracts import DOUBLE
from exact_models import GaussianMixtureModel
from fvnce import (
    IWAE,
    NCE,
    VAE,
    BernoulliDecoder,
    CategoricalEncoder,
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
    fit,
    load,
    mlp,
    save,
)
from fvnce.diagnostics import diagnose
from fvnce.models import ContinuousBernoulliDecoder
from fvnce.noise import BernoulliNoise
from fvnce.objectives import Learned, Profiled
from objective_problems import Bell, normal


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
    for fraction in (1.0, 0.0):
        objective.live_fraction.fill_(fraction)
        torch.manual_seed(1)
        loss = objective(x, y)
        results.append((loss.detach(), gradients(objective, loss), objective.live_fraction.item()))
    (loss_a, grads_a, live_a), (loss_b, grads_b, live_b) = results
    assert live_a == live_b < 0.5
    torch.testing.assert_close(loss_a, loss_b)
    for name, grad in grads_a.items():
        torch.testing.assert_close(grads_b[name], grad, rtol=1e-4, atol=1e-5 * float(grad.abs().max()) + 1e-12)


def test_parameters_that_no_live_sample_reaches_have_zero_gradients_not_none():
    objective = make(scale=0.02, noise_encoder=GaussianEncoder(mlp([6, 8, 4])))
    objective.live_fraction.fill_(0.0)
    objective(torch.randn(5, 6), 80 * torch.randn(7, 6)).backward()
    assert objective.live_fraction == 0
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
    assert objective.live_fraction == 1


def test_the_most_important_noise_of_a_classical_rule_is_not_taken_for_dead():
    """At Δ = 200 the logarithmic rule has df1/dΔ = 0 in float32 but −df0/dΔ = 1."""
    for objective in (
        NCE(Direct(), standard(1)),
        NCE(Direct(), standard(1), Logarithmic()),
        NCE(Direct(), standard(1), PowerRule(1.0)),
    ):
        results = []
        for fraction in (1.0, 0.0):
            objective.live_fraction.fill_(fraction)
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
    for fraction in (1.0, 0.0):
        objective.live_fraction.fill_(fraction)
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
    network.by_rows = True
    model = LatentVariableModel(standard(2), GaussianDecoder(mlp([2, 8, 6])))
    objective = FullyVariationalNCE(model, PointEncoder(network), standard(6, 2.0), PowerRule(0))
    objective.live_fraction.fill_(0.0)
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
    with pytest.raises(ValueError, match="found -inf at row"):
        objective(torch.full((2, 6), 1.5), y)


def test_the_look_first_path_is_part_of_the_state():
    objective = make(scale=0.05)
    objective(torch.randn(5, 6), 50 * torch.randn(7, 6))
    assert objective.state_dict()["live_fraction"] == 0
    other = make(scale=0.05)
    other.load_state_dict(objective.state_dict())
    assert other.live_fraction == 0


def test_a_state_of_version_0_2_is_loaded():
    objective = make(scale=0.05)
    objective(torch.randn(5, 6), 50 * torch.randn(7, 6))
    state = objective.state_dict()
    state["live_share"] = state.pop("live_fraction")
    other = make(scale=0.05)
    other.load_state_dict(state)
    assert other.live_fraction == 0
    assert "live_share" in state


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
    for partition, words in ((Learned(), "first batch"), (Profiled(momentum=0.9), "momentum must be 0")):
        objective = make("point", partition=partition)
        parameters, buffers = dict(objective.named_parameters()), dict(objective.named_buffers())
        with pytest.raises(RuntimeError, match=words):
            torch.func.grad(lambda p, o=objective, b=buffers: torch.func.functional_call(o, (p, b), (x, x)))(parameters)


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


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: make(rule=Logarithmic()), ValueError, "rule must .*found Logarithmic.*VariationalNCE"),
        (lambda: make(rule="power(0)"), TypeError, "rule must .*found 'power"),
        (lambda: make(latent_samples=0), ValueError, "latent_samples must .*found 0"),
        (lambda: make(noise_ratio=0), ValueError, "noise_ratio must .*found 0"),
        (lambda: make(partition="free"), ValueError, "partition must .*found 'free'"),
        (
            lambda: make(partition="profiled", log_scale=3),
            ValueError,
            "log_scale must .*'fixed', found 3",
        ),
        (
            lambda: make()(torch.randn(4, 5)),
            ValueError,
            r"x must have shape \(B, 6\).*found shape \(4, 5\)",
        ),
        (lambda: make()(torch.randn(4, 6), torch.randn(4, 7)), ValueError, r"x_noise must .*found shape \(4, 7\)"),
        (lambda: make()(torch.empty(0, 6)), ValueError, "x must .*found shape"),
        (lambda: make()([[0.0]]), TypeError, "x must .*found list"),
        (
            lambda: make()(torch.randn(4, 6), log_noise_x=torch.zeros(3)),
            ValueError,
            r"log_noise_x must .*4 rows, found shape \(3,\)",
        ),
        (
            lambda: make()(
                torch.tensor([[0.0] * 6, [0, 0, math.nan, 0, 0, 0]]), torch.zeros(1, 6), log_noise_x=torch.zeros(2)
            ),
            ValueError,
            "x must .*found nan at row 1, column 2",
        ),
        (
            lambda: make()(torch.zeros(2, 6), torch.zeros(2, 6), log_noise_x=torch.tensor([0.0, -math.inf])),
            ValueError,
            "noise must .*found log p_n = -inf at row 1",
        ),
        (
            lambda: FullyVariationalNCE(
                LatentVariableModel(standard(2), GaussianDecoder(mlp([2, 5]))),
                PointEncoder(mlp([6, 2])),
                standard(6),
                PowerRule(0),
            )(torch.randn(3, 6)),
            ValueError,
            r"x must .*\(5,\), found x of shape \(3, 6\)",
        ),
        (
            lambda: make(rule=PowerRule(0.5), variance_reduced=True),
            ValueError,
            r"variance_reduced=True: rule must .*found",
        ),
        (lambda: make(variance_reduced=True, log_scale=1.0), ValueError, "log_scale must .*found 1.0"),
        (lambda: make("point", variance_reduced=True)(torch.randn(2, 6)), ValueError, "encoder must .*found a det"),
        (
            lambda: FullyVariationalNCE(
                LatentVariableModel(standard(2), GaussianDecoder(mlp([2, 6]))),
                GaussianEncoder(mlp([6, 4])),
                Independent(Uniform(torch.zeros(6), torch.ones(6)), 1),
                PowerRule(0),
                variance_reduced=True,
            )(torch.rand(3, 6)),
            ValueError,
            "noise must .*found .*Uniform.*Normal",
        ),
        (
            lambda: FullyVariationalNCE(
                LatentVariableModel(standard(2), GaussianDecoder(mlp([2, 6]))),
                GaussianEncoder(mlp([6, 4])),
                Normal(torch.zeros(6), 1.0),
                PowerRule(0),
            ),
            ValueError,
            "noise must .*found batch shape.*Independent",
        ),
        (lambda: NCE(mlp([6, 1]), standard(6)), TypeError, "model must .*log_prob.*found Sequential"),
        (
            lambda: VariationalNCE(Direct(), PointEncoder(mlp([6, 2])), standard(6)),
            TypeError,
            "model must .*log_joint.*found Direct",
        ),
        (lambda: GaussianEncoder(mlp([6, 3]))(torch.zeros(1, 6)), ValueError, "even.*found 3"),
        (lambda: Profiled(momentum=1.0), ValueError, "momentum must .*found 1.0"),
        (lambda: Learned(lr_factor=0), ValueError, "lr_factor must .*found 0"),
        (
            lambda: NCE(Direct(), standard(1), partition="profiled"),
            ValueError,
            "rule must .*partition='profiled', found Logarithmic",
        ),
        (
            lambda: make()(torch.zeros(2, 6, dtype=torch.int64)),
            TypeError,
            "x must .*found dtype torch.int64",
        ),
        (lambda: make()(torch.randn(2, 6), log_noise_noise=torch.zeros(2)), ValueError, "log_noise_noise must"),
        (
            lambda: FullyVariationalNCE(
                Direct(), None, standard(1), PowerRule(0), noise_encoder=PointEncoder(mlp([1, 1]))
            ),
            ValueError,
            "noise_encoder must be None.*found",
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
            "x must .*found nan at row 0, column 0",
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
            "latent_samples must .*Categorical.*found 5",
        ),
        (
            lambda: LatentVariableModel(Normal(torch.zeros(2), 1.0), GaussianDecoder(mlp([2, 6]))),
            ValueError,
            "prior must .*found batch shape",
        ),
        (
            lambda: LatentVariableModel(
                Independent(Normal(torch.zeros(2, requires_grad=True), 1.0), 1), GaussianDecoder(mlp([2, 6]))
            ),
            ValueError,
            "prior must .*gradients, found",
        ),
        (lambda: mlp([3]), ValueError, "sizes must .*found"),
        (lambda: LatentVariableModel(None, mlp([2, 3])), TypeError, "prior must .*found None"),
        (lambda: GaussianDecoder(mlp([2, 3]), learned="each"), ValueError, "learned must .*found 'each'"),
        (lambda: GaussianDecoder(mlp([2, 3]), learned="per_dimension"), ValueError, "event_shape must"),
        (lambda: diagnose(VAE(None, None), torch.zeros(1, 1)), TypeError, "objective must .*found VAE"),
    ],
)
def test_what_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_a_diverged_model_is_named():
    objective = make("point")
    with torch.no_grad():
        objective.model.decoder.network[0].weight.fill_(math.nan)
    with pytest.raises(ValueError, match=r"must be finite, found nan at row 0 of x: .*model"):
        objective(torch.randn(3, 6), torch.randn(3, 6))


def test_a_discrete_encoder_with_too_many_values_is_refused():
    class Many(nn.Module):
        def log_joint(self, x, z):
            return z.float()

    with pytest.raises(ValueError, match=r"encoder must .*4096.*found Categorical"):
        FullyVariationalNCE(Many(), CategoricalEncoder(mlp([6, 5000])), standard(6), PowerRule(0))(torch.randn(2, 6))


@pytest.mark.usefixtures("double_precision")
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


@pytest.mark.usefixtures("double_precision")
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
        with pytest.raises(ValueError, match=r"noise_samples must .*found"):
            NCE(model, noise, noise_samples=wrong)


@pytest.mark.usefixtures("double_precision")
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


@pytest.mark.usefixtures("double_precision")
def test_log_z_tells_when_few_draws_carry_it():
    """A narrow model against broad noise: of 2,000 draws a handful lie on it."""
    trusted = NCE(Bell(1.0), normal(scale=2.0), PowerRule(0)).log_partition(2000)
    value, error = trusted
    assert trusted.trusted
    assert (value, error) == (trusted.value, trusted.error)
    assert abs(value - math.log(2 * math.pi) / 2) < 4 * error
    narrow = NCE(Bell(1e6), normal(scale=2.0), PowerRule(0))
    few = narrow.log_partition(2000)
    assert not few.trusted
    assert few.effective_samples < 100
    assert "not to be trusted" in repr(few)
    assert copy.deepcopy(few).effective_samples == few.effective_samples
    report = diagnose(narrow, torch.randn(500, 1) * 1e-3, samples=2000)
    assert not report.log_partition_trusted
    assert "not to be trusted" in str(report)
    assert any("not to be trusted" in advice for advice in report.advice)
    fine = diagnose(NCE(Bell(1.0), normal(scale=2.0), PowerRule(0)), torch.randn(500, 1))
    assert fine.log_partition_trusted
    assert "trusted" not in str(fine)


@pytest.mark.usefixtures("double_precision")
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
    with pytest.raises(ValueError, match=rf"encoder must .*\({width},\), found shape \(3,\)"):
        objective(torch.randn(4, 5))


@pytest.mark.usefixtures("double_precision")
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
    actual = half(x.to(dtype), y.to(dtype))
    assert actual.dtype == torch.float32
    assert actual.item() == pytest.approx(expected.item(), abs=0.1)
    actual.backward()
    assert all(p.grad.isfinite().all() for p in half.parameters() if p.grad is not None)
    assert half(x.to(dtype)).isfinite()
    assert half.log_partition(100).value.dtype == torch.float32
