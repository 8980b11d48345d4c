"""NCE and its variational forms, in float64, against closed forms, exact sums and quadrature."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Independent, Uniform

from exact_models import LinearGaussianModel
from fvnce import (
    NCE,
    VAE,
    FullyVariationalNCE,
    GaussianEncoder,
    LatentVariableModel,
    Logarithmic,
    PowerRule,
    VariationalNCE,
    mlp,
)
from fvnce.models import ContinuousBernoulliDecoder, DiagonalNormal
from fvnce.noise import BernoulliNoise
from objective_problems import Counts, Networks, Table, every_rule, linear_gaussian, mixture, noise_for, normal

pytestmark = pytest.mark.usefixtures("double_precision")


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
        exact = NCE(model, noise_for(d), rule, noise_ratio=ratio).terms(x, y)
        torch.testing.assert_close(bound.loss, exact.loss, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(bound.data, exact.data, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(bound.noise, exact.noise, rtol=1e-10, atol=1e-10)


@every_rule
def test_a_bound_for_every_other_encoder_of_full_support(rule):
    """Enumerated: Σ_z q f(Δ) ≤ f(log Σ_z q r) for both terms, at every point and for random q."""
    model = mixture()
    x, y = model.sample(50), noise_for(2).sample((50,))
    exact = NCE(model, noise_for(2), rule).terms(x, y)
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
    exact = NCE(model, noise_for(2), rule).terms(x, y)

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
    exact = NCE(model, noise_for(3), rule).terms(x[:20], y[:20])
    means.append(torch.stack([exact.data.mean(), exact.noise.mean()]))
    errors.append(torch.zeros(2))
    for i in range(len(means) - 1):
        slack = 4 * torch.hypot(errors[i], errors[i + 1])
        assert (means[i + 1] >= means[i] - slack).all()
    grows = means[3] > means[0] + 4 * errors[0]
    # At (0, 0) the noise term is linear in r: unbiased for every K, so only the data term can grow.
    assert grows.tolist() == [True, rule != PowerRule(0, clip=None)]


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
    torch.testing.assert_close(-NCE(table.model, Counts(table.p_n), Logarithmic(), noise_ratio=nu)(x, y), exact)
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


def test_a_rule_without_the_property_can_be_studied_and_is_then_no_bound():
    model = mixture()
    x, y = model.sample(50), noise_for(2).sample((200,))
    logits = torch.tensor([2.0, 0.0, -2.0])
    encoder = lambda x: Categorical(logits=logits.expand(len(x), 3))  # noqa: E731
    bound = FullyVariationalNCE(model, encoder, noise_for(2), Logarithmic(), allow_non_variational=True).terms(x, y)
    exact = NCE(model, noise_for(2), Logarithmic()).terms(x, y)
    assert (bound.data <= exact.data + 1e-12).all()
    assert (bound.noise > exact.noise).all()


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
        actual = []
        for _ in range(1500):
            y = torch.randint(5, (n, 1)).to(torch.float64)
            value = objective(states(P_DATA), y, log_noise_x=log_noise, log_noise_noise=log_noise)
            actual.append(torch.autograd.grad(value, model.theta)[0][0])
        per_sample = m * ratio / (m + ratio) * slopes
        exact = per_sample.var(correction=0).item()
        actual = torch.stack(actual)
        spread = (actual - actual.mean()).square()
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
        with pytest.raises(ValueError, match=r"noise must .*found"):
            objective(x)
