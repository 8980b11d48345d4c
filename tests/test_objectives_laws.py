"""The laws of the objectives, in float64, against closed forms, exact sums and quadrature."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Independent, MultivariateNormal, Normal

from fvnce import (
    IWAE,
    NCE,
    SNCE,
    VAE,
    Autoencoder,
    BernoulliDecoder,
    BernoulliNoise,
    FullyVariationalNCE,
    GaussianDecoder,
    GaussianEncoder,
    LatentVariableModel,
    Logarithmic,
    PointEncoder,
    PowerRule,
    VariationalNCE,
    log_marginal,
    mlp,
)
from fvnce.models import DiagonalNormal, GaussianMixtureModel, LinearGaussianModel
from fvnce.objectives import Profiled

pytestmark = pytest.mark.usefixtures("double_precision")

RULES = [PowerRule(a, b, clip=None) for a in (0.0, 1 / 16, 0.5, 1.0) for b in (0.0, 1.0, 5.0)]
RULES.append(0.9 * PowerRule(1 / 64, clip=None) + 0.1 * PowerRule(0, clip=None))
every_rule = pytest.mark.parametrize("rule", RULES, ids=str)


def standard(d: int) -> Independent:
    return Independent(Normal(torch.zeros(d), torch.ones(d)), 1)


def linear_gaussian(seed: int = 0) -> LinearGaussianModel:
    generator = torch.Generator().manual_seed(seed)
    return LinearGaussianModel(torch.randn(3, 2, generator=generator) * 0.7, torch.randn(3, generator=generator), 0.8)


def mixture() -> GaussianMixtureModel:
    return GaussianMixtureModel(
        torch.tensor([0.3, -0.2, 0.0]),
        torch.tensor([[-1.0, 0.5], [1.0, 0.0], [0.0, -1.5]]),
        torch.tensor([0.7, 1.0, 0.5]),
    )


def noise_for(d: int) -> Independent:
    return Independent(Normal(torch.full((d,), 0.2), torch.full((d,), 1.6)), 1)


# The bound is tight at the posterior, and a bound elsewhere.


@every_rule
@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("ratio", [1.0, 2.5])
def test_tight_at_the_exact_posterior(rule, draws, ratio):
    """With q = p_θ(z|x), Δ does not depend on z, and fvNCE is S-NCE, sample by sample."""
    for model, exact_draws in ((linear_gaussian(), draws), (mixture(), 1)):
        d = 3 if isinstance(model, LinearGaussianModel) else 2
        x, y = model.sample(40), noise_for(d).sample((40,))
        bound = FullyVariationalNCE(
            model, model.posterior, noise_for(d), rule, latent_samples=exact_draws, noise_ratio=ratio
        ).terms(x, y)
        exact = SNCE(model, noise_for(d), rule, noise_ratio=ratio).terms(x, y)
        torch.testing.assert_close(bound.loss, exact.loss, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(bound.data, exact.data, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(bound.noise, exact.noise, rtol=1e-10, atol=1e-10)


@every_rule
def test_a_bound_for_every_other_encoder_of_full_support(rule):
    """Enumerated: Σ_z q f(Δ) ≤ f(log Σ_z q r) for both terms, at every point and for random q."""
    model = mixture()
    x, y = model.sample(50), noise_for(2).sample((50,))
    exact = SNCE(model, noise_for(2), rule).terms(x, y)
    for seed in range(5):
        logits = torch.randn(3, generator=torch.Generator().manual_seed(seed))
        bound = FullyVariationalNCE(
            model, lambda x, logits=logits: Categorical(logits=logits.expand(len(x), 3)), noise_for(2), rule
        ).terms(x, y)
        assert (bound.data <= exact.data + 1e-12 * exact.data.abs()).all()
        assert (bound.noise <= exact.noise + 1e-12 * exact.noise.abs()).all()
        # at α = 1 the encoder cancels from the data term
        assert (bound.data < exact.data - 1e-6).any() == (getattr(rule, "alpha", 0) != 1)
        assert -bound.loss <= -exact.loss


def test_a_noise_encoder_that_misses_mass_breaks_the_noise_bound():
    model = mixture()
    x, y = model.sample(50), noise_for(2).sample((200,))
    rule = PowerRule(0, clip=None)
    exact = SNCE(model, noise_for(2), rule).terms(x, y)

    class Blind(nn.Module):
        """Never looks at component 0."""

        def forward(self, x):
            return Categorical(probs=torch.tensor([0.0, 0.5, 0.5]).expand(len(x), 3), validate_args=False)

        def __call__(self, x):
            q = self.forward(x)
            q.enumerate_support = lambda: torch.tensor([1, 2]).unsqueeze(1).expand(2, len(x))
            return q

    bound = FullyVariationalNCE(model, Blind(), noise_for(2), rule).terms(x, y)
    assert (bound.data <= exact.data + 1e-12).all()  # the data term needs no support condition
    assert (bound.noise > exact.noise).all()
    assert bound.noise.mean() > exact.noise.mean() + 0.05


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule", [PowerRule(0, clip=None), PowerRule(0.5, clip=None), PowerRule(0, 1, clip=None)], ids=str
)
def test_more_draws_tighten_both_terms(rule):
    """E over draws of the K-sample bound grows in K, for data and for noise; false-alarm rate below 1e-3."""
    model = linear_gaussian()
    repeats = 3000
    x, y = model.sample(20).repeat(repeats, 1), noise_for(3).sample((20,)).repeat(repeats, 1)
    encoder = lambda x: DiagonalNormal(torch.zeros(len(x), 2), torch.tensor(1.1))  # noqa: E731
    means, errors = [], []
    for draws in (1, 2, 4, 16):
        with torch.no_grad():
            terms = FullyVariationalNCE(model, encoder, noise_for(3), rule, latent_samples=draws).terms(x, y)
        runs = torch.stack([terms.data.reshape(repeats, 20).mean(1), terms.noise.reshape(repeats, 20).mean(1)], 1)
        means.append(runs.mean(0))
        errors.append(runs.std(0) / math.sqrt(repeats))
    exact = SNCE(model, noise_for(3), rule).terms(x[:20], y[:20])
    means.append(torch.stack([exact.data.mean(), exact.noise.mean()]))
    errors.append(torch.zeros(2))
    for i in range(len(means) - 1):
        slack = 4 * torch.hypot(errors[i], errors[i + 1])
        assert (means[i + 1] >= means[i] - slack).all()
    grows = means[3] > means[0] + 4 * errors[0]
    # At (0, 0) the noise term is linear in r: unbiased for every K, so only the data term can grow.
    assert grows.tolist() == [True, rule != PowerRule(0, clip=None)]


# The instances.


class Networks:
    """A small latent-variable model with a Gaussian encoder."""

    def __init__(self, decoder: str = "gaussian", seed: int = 0) -> None:
        torch.manual_seed(seed)
        network = mlp([2, 8, 5], nn.Tanh)
        self.decoder = GaussianDecoder(network, 0.7) if decoder == "gaussian" else BernoulliDecoder(network)
        self.model = LatentVariableModel(standard(2), self.decoder)
        self.encoder = GaussianEncoder(mlp([5, 8, 4], nn.Tanh))
        self.x = torch.randn(16, 5) if decoder == "gaussian" else torch.bernoulli(torch.full((16, 5), 0.4))
        self.noise = noise_for(5)

    def parameters(self):
        return [*self.model.parameters(), *self.encoder.parameters()]

    def gradient(self, loss):
        grads = torch.autograd.grad(loss, self.parameters(), allow_unused=True, materialize_grads=True)
        return torch.cat([g.flatten() for g in grads])


def test_00_with_binary_noise_is_the_vae_in_expectation():
    """A Bernoulli decoder and binary noise: E_noise[r] = 1, summed over all 32 images, so −1 is exact."""
    nets = Networks("bernoulli")
    noise = BernoulliNoise(torch.full((5,), 0.45))
    images = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 5)
    rule = PowerRule(0, clip=None)
    sampled = FullyVariationalNCE(nets.model, nets.encoder, noise, rule)
    reduced = FullyVariationalNCE(nets.model, nets.encoder, noise, rule, variance_reduced=True)
    weights = noise.log_prob(images).exp()
    repeats = 4000
    with torch.no_grad():
        terms = sampled.terms(nets.x, images.repeat(repeats, 1))
    per_run = terms.noise.reshape(repeats, 32) @ weights
    assert abs(per_run.mean() + 1) < 5 * per_run.std() / math.sqrt(repeats)
    torch.manual_seed(1)
    a = reduced.terms(nets.x)
    torch.manual_seed(1)
    b = VAE(nets.model, nets.encoder).terms(nets.x)
    torch.testing.assert_close(-a.loss, b.evidence.mean() - noise.log_prob(nets.x).mean() - 1)


@pytest.mark.parametrize("decoder", ["gaussian"])
@pytest.mark.parametrize("ratio", [1.0, 3.0])
def test_00_is_the_vae_exactly_on_the_variance_reduced_path(decoder, ratio):
    """J^{0,0} = J_VAE − E log p_n − log ν − 1, value and gradient, given the same draw of z."""
    nets = Networks(decoder)
    fv = FullyVariationalNCE(
        nets.model, nets.encoder, nets.noise, PowerRule(0), noise_ratio=ratio, variance_reduced=True
    )
    vae = VAE(nets.model, nets.encoder)
    torch.manual_seed(5)
    loss_fv = fv(nets.x)
    torch.manual_seed(5)
    loss_vae = vae(nets.x)
    constant = nets.noise.log_prob(nets.x).mean() + math.log(ratio) + 1
    torch.testing.assert_close(loss_fv, loss_vae + constant, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(nets.gradient(loss_fv), nets.gradient(loss_vae), rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_00_is_the_vae_in_expectation_on_the_sampled_path():
    """Over draws of z and noise, mean loss and gradient agree within 5 standard errors of each component."""
    nets = Networks()
    sampled = FullyVariationalNCE(nets.model, nets.encoder, nets.noise, PowerRule(0, clip=None), noise_ratio=4.0)
    reduced = FullyVariationalNCE(nets.model, nets.encoder, nets.noise, PowerRule(0), variance_reduced=True)
    torch.manual_seed(1)
    runs = 4000
    differences = []
    for _ in range(runs):
        a, b = sampled(nets.x), reduced(nets.x)
        differences.append(
            torch.cat([(a - b).detach().reshape(1) - math.log(4.0), nets.gradient(a) - nets.gradient(b)])
        )
    stacked = torch.stack(differences)
    z = stacked.mean(0) / (stacked.std(0) / math.sqrt(runs) + 1e-12)
    assert z.abs().max() < 4.5


def test_closed_form_kl_agrees_with_the_sampled_one():
    nets = Networks()
    torch.manual_seed(2)
    x = nets.x[:1].repeat(20_000, 1)
    closed = VAE(nets.model, nets.encoder, closed_form=True).terms(x).evidence
    sampled = VAE(nets.model, nets.encoder, closed_form=False).terms(x).evidence
    error = torch.hypot(closed.std(), sampled.std()) / math.sqrt(len(x))
    assert (closed.mean() - sampled.mean()).abs() < 4.5 * error
    assert not torch.isclose(closed.std(), sampled.std(), rtol=0.01)  # two estimators, not one twice


def test_01_is_the_softplus_form():
    """(0,1): soft-plus(Δ) on data, soft-plus(Δ) − r on noise."""
    nets = Networks()
    y = nets.noise.sample((20,))
    torch.manual_seed(3)
    terms = FullyVariationalNCE(nets.model, nets.encoder, nets.noise, PowerRule(0, 1, clip=None)).terms(nets.x, y)
    softplus = lambda d: torch.logaddexp(d, torch.zeros(()))  # noqa: E731
    torch.testing.assert_close(terms.data, softplus(terms.delta_data))
    torch.testing.assert_close(terms.noise, softplus(terms.delta_noise) - terms.delta_noise.exp())


def test_10_is_a_weighted_squared_distance_on_an_enumerable_model():
    """J^{1,0} = −½ Σ (p_θ − p_d q)²/(p_n q) + ½ Σ (p_d q)²/(p_n q) on a finite space with tied encoders."""
    table = Table()
    rule = PowerRule(1, clip=None)
    exact_j = table.exact(rule)
    joint, p_d, p_n, q = table.joint(), table.p_d, table.p_n, table.q
    data_joint, noise_joint = p_d[:, None] * q, p_n[:, None] * q
    distance = ((joint - data_joint) ** 2 / noise_joint).sum()
    constant = (data_joint**2 / noise_joint).sum()
    # the project's constants: f1 = r − 1
    torch.testing.assert_close(exact_j, -distance / 2 + constant / 2 - 1)
    # and the last term is 1 + Pearson's χ²(p_θ ‖ p_n q)
    pearson = ((joint - noise_joint) ** 2 / noise_joint).sum()
    torch.testing.assert_close((noise_joint * (joint / noise_joint) ** 2).sum(), 1 + pearson)


def test_autoencoder_vae_fvnce_chain():
    """J_AE ≥ J_VAE ≥ J_fvNCE for a deterministic encoder, with γ in the reported terms and never in Δ."""
    torch.manual_seed(0)
    model = LatentVariableModel(standard(2), GaussianDecoder(mlp([2, 8, 5]), 0.7))
    encoder = PointEncoder(mlp([5, 8, 2]))
    x, noise = torch.randn(64, 5), noise_for(5)
    j_ae = -Autoencoder(model, encoder)(x)
    j_vae = -VAE(model, encoder)(x)
    terms = FullyVariationalNCE(model, encoder, noise, PowerRule(0, clip=None)).terms(x)
    j_fv = terms.evidence.mean() + terms.noise.mean()
    assert j_ae > j_vae > j_fv
    torch.testing.assert_close(terms.evidence.mean(), j_vae.detach())
    gamma = -math.log(2 * math.pi)  # of two standard normal dimensions
    z = encoder(x).mean
    torch.testing.assert_close(j_vae, j_ae + standard(2).log_prob(z).mean() - gamma)
    torch.testing.assert_close(terms.delta_data, (model.log_joint(x, z) - noise.log_prob(x)).detach())


def test_iwae_is_the_data_term_of_00_with_k_draws():
    nets = Networks()
    y = nets.noise.sample((8,))
    torch.manual_seed(4)
    a = IWAE(nets.model, nets.encoder, latent_samples=7).terms(nets.x)
    torch.manual_seed(4)
    b = FullyVariationalNCE(nets.model, nets.encoder, nets.noise, PowerRule(0), latent_samples=7).terms(nets.x, y)
    torch.testing.assert_close(a.evidence, b.evidence)
    torch.testing.assert_close(b.data, a.evidence - nets.noise.log_prob(nets.x))


# Enumerable models: Monte Carlo against exact sums.


class TableModel(nn.Module):
    """log p⁰(x, z) from a table over x in {0..nx−1}, z in {0..nz−1}; x enters as a column of floats."""

    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(logits)

    def log_joint(self, x, z):
        return self.normalised()[x[:, 0].long().expand(z.shape), z]

    def log_prob(self, x):
        return self.normalised().logsumexp(1)[x[:, 0].long()]

    def normalised(self):
        return self.logits.flatten().log_softmax(0).reshape(self.logits.shape)


class TableEncoder(nn.Module):
    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, x):
        return Categorical(logits=self.logits[x[:, 0].long()], validate_args=False)


class Counts(torch.distributions.Distribution):
    """A distribution over {0..n−1}, written as a column of floats."""

    arg_constraints = {}  # noqa: RUF012

    def __init__(self, probs):
        self.probs = probs
        super().__init__(torch.Size(), torch.Size([1]), validate_args=False)

    def sample(self, shape=()):
        return Categorical(self.probs).sample(shape).to(self.probs.dtype).unsqueeze(-1)

    def log_prob(self, x):
        return self.probs.log()[x[..., 0].long()]


class Table:
    """Data, noise, model and encoder on a 4 × 3 table."""

    def __init__(self, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.model = TableModel(torch.randn(4, 3, generator=generator))
        self.encoder = TableEncoder(torch.randn(4, 3, generator=generator))
        self.noise_encoder = TableEncoder(torch.randn(4, 3, generator=generator))
        self.p_d = torch.randn(4, generator=generator).softmax(0)
        self.p_n = torch.randn(4, generator=generator).softmax(0)
        self.q = self.encoder.logits.softmax(1).detach()

    def joint(self):
        return self.model.normalised().exp()

    def exact(self, rule, ratio=1.0, q0=None):
        q1, q0 = self.encoder.logits.softmax(1), self.encoder.logits.softmax(1) if q0 is None else q0
        d1 = (self.joint() / (self.p_n[:, None] * q1)).log() - math.log(ratio)
        d0 = (self.joint() / (self.p_n[:, None] * q0)).log() - math.log(ratio)
        data = (self.p_d[:, None] * q1 * rule.f1(d1)).sum()
        return data + ratio * (self.p_n[:, None] * q0 * rule.f0(d0)).sum()

    def parameters(self):
        return [self.model.logits, self.encoder.logits]


@every_rule
@pytest.mark.parametrize("ratio", [1.0, 2.0])
def test_monte_carlo_agrees_with_exact_sums(rule, ratio):
    """Value and gradient of fvNCE on drawn x, with z summed over, against the sum over all (x, z).

    The batch holds every x with its probability as a frequency, so the agreement is exact, not statistical.
    """
    table = Table()
    counts = torch.tensor([4, 3, 2, 1])
    table.p_d, table.p_n = counts / 10, counts.flip(0) / 10
    x = torch.arange(4.0).repeat_interleave(counts).unsqueeze(1)
    y = torch.arange(4.0).repeat_interleave(counts.flip(0)).unsqueeze(1)
    objective = FullyVariationalNCE(table.model, table.encoder, Counts(table.p_n), rule, noise_ratio=ratio)
    loss, exact = objective(x, y), table.exact(rule, ratio)
    torch.testing.assert_close(-loss, exact)
    ours = torch.autograd.grad(-loss, table.parameters())
    theirs = torch.autograd.grad(exact, table.parameters())
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_drawn_batches_agree_with_exact_sums():
    """The same with drawn x and noise: mean of value and gradient within 5 standard errors."""
    table = Table()
    rule = PowerRule(0.25, 0.5, clip=None)
    objective = FullyVariationalNCE(
        table.model, table.encoder, Counts(table.p_n), rule, noise_encoder=table.noise_encoder, noise_ratio=1.5
    )
    exact = table.exact(rule, 1.5, table.noise_encoder.logits.softmax(1))
    parameters = [*table.parameters(), table.noise_encoder.logits]
    truth = torch.cat([exact.detach().reshape(1)] + [g.flatten() for g in torch.autograd.grad(exact, parameters)])
    torch.manual_seed(0)
    samples = []
    for _ in range(200):
        x = Categorical(table.p_d).sample((320,)).double().unsqueeze(1)
        value = -objective(x)
        samples.append(
            torch.cat([value.detach().reshape(1)] + [g.flatten() for g in torch.autograd.grad(value, parameters)])
        )
    stacked = torch.stack(samples)
    z = (stacked.mean(0) - truth) / (stacked.std(0) / math.sqrt(len(stacked)))
    assert z.abs().max() < 5


def test_nce_and_vnce_agree_with_exact_sums():
    """On the table: NCE's value, and VNCE's, whose noise term is exact when z is summed over."""
    table = Table()
    counts = torch.tensor([4, 3, 2, 1])
    table.p_d, table.p_n = counts / 10, counts.flip(0) / 10
    x = torch.arange(4.0).repeat_interleave(counts).unsqueeze(1)
    y = torch.arange(4.0).repeat_interleave(counts.flip(0)).unsqueeze(1)
    nu = 2.0
    p = table.joint().sum(1)
    exact = (table.p_d * (p / (p + nu * table.p_n)).log()).sum() + nu * (
        table.p_n * (nu * table.p_n / (p + nu * table.p_n)).log()
    ).sum()
    torch.testing.assert_close(-NCE(table.model, Counts(table.p_n), noise_ratio=nu)(x, y), exact)
    torch.testing.assert_close(-SNCE(table.model, Counts(table.p_n), Logarithmic(), noise_ratio=nu)(x, y), exact)
    # VNCE: the data term is bounded with this q, the noise term is the exact one
    q, joint = table.encoder.logits.softmax(1), table.joint()
    ratio = joint / (nu * table.p_n[:, None] * q)
    bound = (table.p_d[:, None] * q * (ratio / (1 + ratio)).log()).sum() + nu * (
        table.p_n * (nu * table.p_n / (p + nu * table.p_n)).log()
    ).sum()
    vnce = -VariationalNCE(table.model, table.encoder, Counts(table.p_n), noise_ratio=nu)(x, y)
    torch.testing.assert_close(vnce, bound)
    assert bound < exact - 0.01
    for a, b in zip(
        torch.autograd.grad(vnce, table.parameters()), torch.autograd.grad(bound, table.parameters()), strict=True
    ):
        torch.testing.assert_close(a, b)


def test_the_elbo_agrees_with_exact_sums():
    """VAE on the table: Σ p_d q log(p_θ/q), value and gradient; IWAE refuses what it cannot draw."""
    table = Table()
    counts = torch.tensor([4, 3, 2, 1])
    x = torch.arange(4.0).repeat_interleave(counts).unsqueeze(1)
    q = table.encoder.logits.softmax(1)
    exact = ((counts / 10)[:, None] * q * (table.joint() / q).log()).sum()
    value = -VAE(table.model, table.encoder)(x)
    torch.testing.assert_close(value, exact)
    for a, b in zip(
        torch.autograd.grad(value, table.parameters()), torch.autograd.grad(exact, table.parameters()), strict=True
    ):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(log_marginal(table.model, table.encoder, x), table.model.log_prob(x).detach())
    with pytest.raises(ValueError, match="latent_samples must be 1 for an encoder whose Categorical latent is summed"):
        IWAE(table.model, table.encoder)(x)


def test_vnce_is_the_published_objective():
    """E_d E_q log[φ/(φ + ν p_n q)] + ν E_n log[ν p_n/(ν p_n + mean_k φ/q)], for given draws."""
    nets = Networks()
    y, nu, draws = nets.noise.sample((24,)), 1.5, 6
    torch.manual_seed(9)
    loss = VariationalNCE(
        nets.model, nets.encoder, nets.noise, latent_samples=2, importance_samples=draws, noise_ratio=nu
    )(nets.x, y)
    torch.manual_seed(9)
    q = nets.encoder(nets.x)
    z = q.rsample((2,))
    phi, p_n, q_z = nets.model.log_joint(nets.x, z).exp(), nets.noise.log_prob(nets.x).exp(), q.log_prob(z).exp()
    data = (phi / (phi + nu * p_n * q_z)).log().mean()
    q = nets.encoder(y)
    z = q.rsample((draws,))
    marginal = (nets.model.log_joint(y, z) - q.log_prob(z)).exp().mean(0)
    p_n = nets.noise.log_prob(y).exp()
    noise = (nu * p_n / (nu * p_n + marginal)).log().mean()
    torch.testing.assert_close(-loss, data + nu * noise)


# The partition function.


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


def test_a_rule_without_the_property_can_be_studied_and_is_then_no_bound():
    model = mixture()
    x, y = model.sample(50), noise_for(2).sample((200,))
    logits = torch.tensor([2.0, 0.0, -2.0])
    encoder = lambda x: Categorical(logits=logits.expand(len(x), 3))  # noqa: E731
    bound = FullyVariationalNCE(model, encoder, noise_for(2), Logarithmic(), allow_non_variational=True).terms(x, y)
    exact = SNCE(model, noise_for(2), Logarithmic()).terms(x, y)
    assert (bound.data <= exact.data + 1e-12).all()
    assert (bound.noise > exact.noise).all()


# The marginal.


def test_log_marginal_against_the_known_one():
    torch.manual_seed(0)
    model = linear_gaussian()
    x = model.sample(30)
    torch.testing.assert_close(log_marginal(model, model.posterior, x, latent_samples=3), model.log_prob(x).detach())
    mix = mixture()
    y = mix.sample(30)
    uniform = lambda x: Categorical(logits=torch.zeros(len(x), 3))  # noqa: E731
    torch.testing.assert_close(log_marginal(mix, uniform, y), mix.log_prob(y).detach())
    wide = lambda x: MultivariateNormal(torch.zeros(len(x), 2), 1.5 * torch.eye(2))  # noqa: E731
    estimates = torch.stack([log_marginal(model, wide, x, latent_samples=k) for k in (1, 100, 20_000)])
    gaps = (model.log_prob(x).detach() - estimates).mean(1)
    assert gaps[0] > 0.5 > gaps[1].abs()
    assert gaps[2].abs() < 0.02
