"""Models, noise and encoders whose densities and posteriors are known, shared by the tests of the objectives."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Independent, Normal

from exact_models import GaussianMixtureModel, LinearGaussianModel
from fvnce import (
    BernoulliDecoder,
    GaussianDecoder,
    GaussianEncoder,
    LatentVariableModel,
    PowerRule,
    mlp,
)

RULES = [PowerRule(a, b, clip=None) for a in (0.0, 1 / 16, 0.5, 1.0) for b in (0.0, 1.0, 5.0)]


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
