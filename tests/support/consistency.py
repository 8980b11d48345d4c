"""Problems whose truth is known, and the check that the error of an estimate falls like 1/√n."""

import math

import torch
from torch import nn
from torch.distributions import Categorical, Independent, Normal

from exact_models import GaussianMixtureModel, LinearGaussianModel

SMALL, LARGE, DATA_SETS = 900, 8100, 10


class UnnormalisedMixture(nn.Module):
    """log φ(x, z) = b_z − (x − m_z)²/2s_z² with b_0 = 0: a mixture of two Gaussians without its constants."""

    def __init__(self, b, means, scales):
        super().__init__()
        self.b, self.means, self.log_scales = nn.Parameter(b), nn.Parameter(means), nn.Parameter(scales.log())

    def _all(self, x):
        b = torch.cat([torch.zeros(1), self.b])
        return b - (x - self.means) ** 2 / (2 * (2 * self.log_scales).exp())

    def log_joint(self, x, z):
        return self._all(x).expand(*z.shape, -1).gather(-1, z.unsqueeze(-1)).squeeze(-1)

    def log_prob(self, x):
        return self._all(x).logsumexp(-1)

    def posterior(self, x):
        return Categorical(logits=self._all(x), validate_args=False)


class UnnormalisedLinear(LinearGaussianModel):
    """The linear-Gaussian model without any of its normalising constants."""

    def log_joint(self, x, z):
        residual = x - z @ self.weight.T - self.bias
        return -z.square().sum(-1) / 2 - residual.square().sum(-1) / (2 * (2 * self.log_scale).exp())

    def log_prob(self, x):
        q = self.posterior(x)
        return self.log_joint(x, q.mean) - q.log_prob(q.mean)

    def true_log_z(self):
        d, latent = self.weight.shape
        return (d + latent) / 2 * math.log(2 * math.pi) + d * self.log_scale


def normal(d, scale):
    return Independent(Normal(torch.zeros(d), torch.full((d,), scale)), 1)


class MixtureProblem:
    noise = staticmethod(lambda: normal(1, 2.5))

    def truth(self):
        return GaussianMixtureModel(torch.tensor([0.4, 0.0]), torch.tensor([[-1.5], [1.5]]), torch.tensor([0.7, 1.0]))

    def start(self):
        return GaussianMixtureModel(torch.tensor([0.3, 0.0]), torch.tensor([[-1.4], [1.4]]), torch.tensor([0.8, 0.9]))

    def error(self, model):
        truth = self.truth()
        return torch.cat(
            [
                (model.logits[0] - model.logits[1] - 0.4).reshape(1),
                (model.means - truth.means).flatten(),
                model.log_scales - truth.log_scales,
            ]
        ).detach()


class UnnormalisedMixtureProblem(MixtureProblem):
    def start(self):
        return UnnormalisedMixture(torch.tensor([-0.6]), torch.tensor([-1.4, 1.4]), torch.tensor([0.8, 0.9]))

    def error(self, model, log_z=None):
        probs = torch.tensor([0.4, 0.0]).softmax(0)
        scales = torch.tensor([0.7, 1.0])
        b = (probs[1] / scales[1]).log() - (probs[0] / scales[0]).log()
        errors = [model.b - b, model.means - torch.tensor([-1.5, 1.5]), model.log_scales - scales.log()]
        if log_z is not None:
            errors.append((log_z - (math.sqrt(2 * math.pi) * scales[0] / probs[0]).log()).reshape(1))
        return torch.cat(errors).detach()


class LinearProblem:
    noise = staticmethod(lambda: normal(2, 2.0))

    def truth(self):
        return LinearGaussianModel(torch.tensor([[1.0], [0.6]]), torch.tensor([0.3, -0.2]), 0.7)

    def start(self):
        return LinearGaussianModel(torch.tensor([[0.9], [0.7]]), torch.tensor([0.2, -0.1]), 0.8)

    def error(self, model, log_z=None):
        truth = self.truth()

        def covariance(m):
            return m.weight @ m.weight.T + (2 * m.log_scale).exp() * torch.eye(2)

        errors = [(covariance(model) - covariance(truth)).flatten(), model.bias - truth.bias]
        if log_z is not None:
            errors.append((log_z - model.true_log_z()).reshape(1))
        return torch.cat(errors).detach()


class UnnormalisedLinearProblem(LinearProblem):
    def start(self):
        return UnnormalisedLinear(torch.tensor([[0.9], [0.7]]), torch.tensor([0.2, -0.1]), 0.8)


class MaximumLikelihood(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, x_noise=None, **_):
        return -self.model.log_prob(x).mean()


def fitted(make, problem, n, seed):
    torch.manual_seed(seed)
    x, y = problem.truth().sample(n), problem.noise().sample((n,))
    model = problem.start()
    objective = make(model, problem.noise())
    log_noise = {"log_noise_x": problem.noise().log_prob(x), "log_noise_noise": problem.noise().log_prob(y)}
    optimiser = torch.optim.LBFGS(
        list(objective.parameters()), max_iter=60, tolerance_grad=1e-6, line_search_fn="strong_wolfe"
    )

    def closure():
        optimiser.zero_grad()
        loss = objective(x, y, **log_noise)
        loss.backward()
        return loss

    optimiser.step(closure)
    return objective, model


def check_rate(make, problem, with_log_z=False):
    typical = []
    for n in (SMALL, LARGE):
        errors = []
        for seed in range(DATA_SETS):
            objective, model = fitted(make, problem, n, seed)
            log_z = objective.fitted_log_partition() if with_log_z else None
            errors.append(problem.error(model) if log_z is None else problem.error(model, log_z))
        typical.append(torch.stack(errors).square().mean(1).sqrt().log().mean().exp().item())
    small, large = typical
    assert large < 0.08
    assert 1.7 < small / large < 5.25, typical
