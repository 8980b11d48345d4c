"""Autoencoder, VAE, IWAE and log p(x), in float64, against closed forms and exact sums."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Categorical, MultivariateNormal

from fvnce import (
    IWAE,
    VAE,
    Autoencoder,
    FullyVariationalNCE,
    GaussianDecoder,
    GaussianEncoder,
    LatentVariableModel,
    PointEncoder,
    PowerRule,
    log_marginal,
    mlp,
)
from objective_problems import (
    Networks,
    Table,
    linear_gaussian,
    mixture,
    noise_for,
    standard,
)

pytestmark = pytest.mark.usefixtures("double_precision")


def test_closed_form_kl_agrees_with_the_sampled_one():
    nets = Networks()
    torch.manual_seed(2)
    x = nets.x[:1].repeat(20_000, 1)
    closed = VAE(nets.model, nets.encoder, closed_form=True).terms(x).evidence
    sampled = VAE(nets.model, nets.encoder, closed_form=False).terms(x).evidence
    error = torch.hypot(closed.std(), sampled.std()) / math.sqrt(len(x))
    assert (closed.mean() - sampled.mean()).abs() < 4.5 * error
    assert not torch.isclose(closed.std(), sampled.std(), rtol=0.01)  # two estimators, not one twice


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
    with pytest.raises(ValueError, match=r"latent_samples must .*Categorical.*found 10"):
        IWAE(table.model, table.encoder)(x)


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


def test_log_marginal_of_a_deterministic_encoder_is_refused():
    """p(x, g(x)) exceeds p(x) where the posterior is narrow, and so bounds nothing."""
    model = LatentVariableModel(standard(2), GaussianDecoder(nn.Linear(2, 3), 0.01))
    with pytest.raises(ValueError, match=r"^encoder must"):
        log_marginal(model, PointEncoder(nn.Linear(3, 2)), torch.zeros(4, 3))


@pytest.mark.parametrize("x", [np.zeros((4, 3)), torch.full((4, 3), torch.nan)], ids=["array", "nan"])
def test_log_marginal_names_what_is_wrong_with_x(x):
    model = LatentVariableModel(standard(2), GaussianDecoder(nn.Linear(2, 3)))
    with pytest.raises((TypeError, ValueError), match=r"^x must"):
        log_marginal(model, GaussianEncoder(nn.Linear(3, 4)), x)
