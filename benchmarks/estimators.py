"""Estimators of unnormalized models: error and error of log Z at equal processor time.

Run with

    python benchmarks/estimators.py --out results/bench/estimators.json

Every estimator trains the same model from the same start on the same rows, for the same processor seconds, with Adam
whose rate falls from 0.02 to 0 over them, on batches of 256. Noise is the Gaussian of the data's mean and covariance,
for bits independent ones with the data's frequencies. The error is KL(truth‖model) in nats on 20,000 fresh rows, with
the model's exact log Z, which maximum likelihood alone is allowed to use. Its log Z an estimator has from its own
parameter, where it learns one, and else from 10,000 noise samples. Problems are made anew for every seed.

Takes about 7 minutes of one core.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from fvnce import NCE, ConditionalNCE, PowerRule, RankingNCE, fit_gaussian
from fvnce.models import RestrictedBoltzmannMachine
from fvnce.noise import BernoulliNoise, BitFlips
from fvnce.paper.cells import made_by, write_json
from fvnce.scoring import Exponential

ROWS, HELD_OUT, BATCH, RATE = 2000, 20_000, 256, 0.02
HALF_LOG = 0.5 * math.log(2 * math.pi)


class Mean(nn.Module):
    """log φ = bᵀx − |x|²/2."""

    def __init__(self, b: Tensor) -> None:
        super().__init__()
        self.b = nn.Parameter(b)

    def log_prob(self, x: Tensor) -> Tensor:
        """Return log φ, the unnormalized log-density."""
        return x @ self.b - x.square().sum(-1) / 2

    def log_z(self) -> Tensor:
        """Return log Z in closed form."""
        return len(self.b) * HALF_LOG + self.b.square().sum() / 2


class Precision(nn.Module):
    """log φ = −|Lᵀx|²/2, L lower triangular with a positive diagonal."""

    def __init__(self, factor: Tensor) -> None:
        super().__init__()
        self.lower, self.log_diagonal = nn.Parameter(factor.tril(-1)), nn.Parameter(factor.diagonal().log())

    def log_prob(self, x: Tensor) -> Tensor:
        """Return log φ, the unnormalized log-density."""
        return -(x @ (self.lower.tril(-1) + self.log_diagonal.exp().diag())).square().sum(-1) / 2

    def log_z(self) -> Tensor:
        """Return log Z in closed form."""
        return len(self.log_diagonal) * HALF_LOG - self.log_diagonal.sum()


class Mixture(nn.Module):
    """log φ = log Σ_k exp(a_k − |x − m_k|²/2s_k²) in the plane, a_0 = 0."""

    def __init__(self, a: Tensor, means: Tensor, log_scales: Tensor) -> None:
        super().__init__()
        self.a, self.means, self.log_scales = nn.Parameter(a), nn.Parameter(means), nn.Parameter(log_scales)

    def _logits(self) -> Tensor:
        return torch.cat([self.a.new_zeros(1), self.a])

    def log_prob(self, x: Tensor) -> Tensor:
        """Return log φ, the unnormalized log-density."""
        distance = (x.unsqueeze(1) - self.means).square().sum(-1)
        return (self._logits() - distance / (2 * (2 * self.log_scales).exp())).logsumexp(1)

    def log_z(self) -> Tensor:
        """Return log Z in closed form."""
        return (self._logits() + 2 * self.log_scales + 2 * HALF_LOG).logsumexp(0)


class Sources(nn.Module):
    """Independent Laplace sources: log φ = −√2 Σ_j |b_jᵀx|."""

    def __init__(self, unmix: Tensor) -> None:
        super().__init__()
        self.unmix = nn.Parameter(unmix)

    def log_prob(self, x: Tensor) -> Tensor:
        """Return log φ, the unnormalized log-density."""
        return -math.sqrt(2) * (x @ self.unmix.T).abs().sum(-1)

    def log_z(self) -> Tensor:
        """Return log Z in closed form."""
        return len(self.unmix) * 0.5 * math.log(2) - self.unmix.det().abs().log()


class Ring(nn.Module):
    """log φ = −(|x| − m)²/2s² in the plane."""

    def __init__(self, radius: float, log_scale: float) -> None:
        super().__init__()
        self.radius, self.log_scale = nn.Parameter(torch.tensor(radius)), nn.Parameter(torch.tensor(log_scale))

    def log_prob(self, x: Tensor) -> Tensor:
        """Return log φ, the unnormalized log-density."""
        return self._at(x.norm(dim=-1))

    def _at(self, radius: Tensor) -> Tensor:
        return -(radius - self.radius).square() / (2 * (2 * self.log_scale).exp())

    def log_z(self) -> Tensor:
        """Return log Z by the trapezoidal rule in polar coordinates."""
        radius = torch.linspace(1e-6, 30, 6000).to(self.radius)
        return (2 * math.pi * radius[1]).log() + (self._at(radius) + radius.log()).logsumexp(0)


class Machine(RestrictedBoltzmannMachine):
    """Restricted Boltzmann machine with exact log Z."""

    def log_z(self) -> Tensor:
        """Return log Z by summing over all states."""
        return self.log_partition()


class Problem(NamedTuple):
    """Problem: the true distribution and the initial model."""

    truth: Any
    start: nn.Module
    draws: Callable[[int], Tensor]


def mean() -> Problem:
    """Ten dimensions, the mean at distance 2 from where the training starts."""
    b = nn.functional.normalize(torch.randn(10), dim=0) * 2
    return Problem(Mean(b), Mean(torch.zeros(10)), lambda n: b + torch.randn(n, 10))


def precision(width: int) -> Callable[[], Problem]:
    """A precision matrix of condition number about 10."""

    def make() -> Problem:
        basis = torch.linalg.qr(torch.randn(width, width))[0]
        matrix = (basis * torch.logspace(-0.5, 0.5, width)) @ basis.T
        factor = torch.linalg.cholesky((matrix + matrix.T) / 2)
        truth = Precision(factor)
        inverse = torch.linalg.inv(factor)
        return Problem(truth, Precision(torch.eye(width)), lambda n: torch.randn(n, width) @ inverse)

    return make


def mixture() -> Problem:
    """Three components, two of which touch."""
    log_scales = torch.tensor([-0.5, 0.0, -0.2])
    means = torch.tensor([[-2.0, 0.0], [1.5, 1.0], [1.0, -2.0]])
    a = torch.tensor([0.3, -0.4])
    truth = Mixture(a, means, log_scales)

    def draws(n: int) -> Tensor:
        weights = (truth._logits() + 2 * log_scales).softmax(0).detach()
        chosen = torch.multinomial(weights, n, replacement=True)
        return means[chosen] + log_scales.exp()[chosen, None] * torch.randn(n, 2)

    start = Mixture(torch.zeros(2), means + 0.5 * torch.randn(3, 2), torch.zeros(3))
    return Problem(truth, start, draws)


def sources() -> Problem:
    """Four independent Laplace sources, mixed."""
    unmix = torch.linalg.qr(torch.randn(4, 4))[0] + 0.2 * torch.randn(4, 4)
    inverse = torch.linalg.inv(unmix)

    def draws(n: int) -> Tensor:
        return torch.distributions.Laplace(0.0, 1 / math.sqrt(2)).sample((n, 4)) @ inverse.T

    return Problem(Sources(unmix), Sources(unmix + 0.2 * torch.randn(4, 4)), draws)


def machine() -> Problem:
    """Twelve visible and five hidden units."""
    truth = Machine(torch.randn(12, 5), 0.3 * torch.randn(12), 0.3 * torch.randn(5))
    start = Machine(0.1 * torch.randn(12, 5), torch.zeros(12), torch.zeros(5))
    return Problem(truth, start, truth.sample)


def ring() -> Problem:
    """A ring of radius 3 and width 0.3."""
    truth = Ring(3.0, math.log(0.3))
    grid = torch.linspace(1e-3, 8, 8000)
    weights = (truth._at(grid) + grid.log()).softmax(0).detach()

    def draws(n: int) -> Tensor:
        radius = grid[torch.multinomial(weights, n, replacement=True)] + 1e-3 * (torch.rand(n) - 0.5)
        return radius[:, None] * nn.functional.normalize(torch.randn(n, 2), dim=1)

    return Problem(truth, Ring(2.0, 0.0), draws)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "Gaussian mean, 10-D": mean,
    "Gaussian precision, 2-D": precision(2),
    "Gaussian precision, 16-D": precision(16),
    "Gaussian precision, 64-D": precision(64),
    "mixture, 2-D": mixture,
    "ICA, 4-D": sources,
    "RBM, 12 × 5": machine,
    "ring, 2-D": ring,
}


class Likelihood(nn.Module):
    """Maximum likelihood with the exact log Z."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Return the negative mean log-likelihood."""
        loss: Tensor = self.model.log_z() - self.model.log_prob(x).mean()
        return loss


def conditional(model: Any, noise: Distribution) -> nn.Module:
    """Conditional NCE with Gaussian steps, or with flips of bits."""
    return ConditionalNCE(model, conditional=BitFlips() if isinstance(noise, BernoulliNoise) else None)


ESTIMATORS: dict[str, Callable[[Any, Distribution], nn.Module]] = {
    "maximum likelihood": lambda model, noise: Likelihood(model),
    "NCE": lambda model, noise: NCE(model, noise, partition="learned"),
    "NCE, ν = 10": lambda model, noise: NCE(model, noise, noise_ratio=10, partition="learned"),
    "eNCE": lambda model, noise: NCE(model, noise, Exponential(), partition="learned"),
    "(0, 0), profiled": lambda model, noise: NCE(model, noise, PowerRule(0), partition="profiled"),
    "ranking, K = 1": lambda model, noise: RankingNCE(model, noise=noise),
    "ranking, K = 10": lambda model, noise: RankingNCE(model, noise=noise, noise_samples=10),
    "conditional": conditional,
}


def measured(make: Callable[[], Problem], estimator: str, seed: int, seconds: float) -> dict[str, float]:
    """Return the errors of one estimator on one problem."""
    torch.manual_seed(seed)
    problem = make()
    x, fresh = problem.draws(ROWS), problem.draws(HELD_OUT)
    bits = isinstance(problem.truth, Machine)
    noise: Distribution = BernoulliNoise(x.mean(0).clamp(0.02, 0.98)) if bits else fit_gaussian(x, "full")
    model: Any = problem.start
    objective = ESTIMATORS[estimator](model, noise)
    groups = getattr(objective, "parameter_groups", lambda lr: [{"params": list(objective.parameters())}])(RATE)
    optimiser = torch.optim.Adam(groups, RATE)
    rates = [group["lr"] for group in optimiser.param_groups]
    torch.manual_seed(1000 + seed)
    begun = time.process_time()
    steps = 0
    while (done := (time.process_time() - begun) / seconds) < 1:
        for group, rate in zip(optimiser.param_groups, rates, strict=True):
            group["lr"] = rate * (1 - done)
        optimiser.zero_grad()
        objective(x[torch.randint(ROWS, (BATCH,))]).backward()
        optimiser.step()
        steps += 1
    with torch.no_grad():
        log_z = float(model.log_z())
        truth = (problem.truth.log_prob(fresh) - problem.truth.log_z()).double()
        divergence = float((truth - model.log_prob(fresh).double() + log_z).mean())
    if estimator == "maximum likelihood":
        return {"kl": divergence, "log_z_error": 0.0, "steps": steps}
    if hasattr(objective, "partition") and any(True for _ in objective.partition.parameters()):  # type: ignore[union-attr, operator]
        estimated_log_z = float(objective.fitted_log_partition())  # type: ignore[operator]
    else:
        generator = torch.Generator().manual_seed(seed)
        estimated_log_z = float(NCE(model, noise, PowerRule(0)).log_partition(generator=generator).value)
    return {"kl": divergence, "log_z_error": estimated_log_z - log_z, "steps": steps}


def summary(runs: list[dict[str, float]]) -> dict[str, Any]:
    """Return means with standard errors, and the root mean square error of log Z."""
    n = len(runs)
    kl = [run["kl"] for run in runs]
    squares = [run["log_z_error"] ** 2 for run in runs]
    numbers: dict[str, Any] = {"kl": statistics.fmean(kl), "log_z": math.sqrt(statistics.fmean(squares))}
    if n > 1:
        numbers["kl_error"] = statistics.stdev(kl) / math.sqrt(n)
        # By the delta method, for the root of a mean.
        numbers["log_z_error"] = (
            statistics.stdev(squares) / math.sqrt(n) / (2 * numbers["log_z"]) if numbers["log_z"] else 0.0
        )
    return numbers | {"steps": statistics.median(run["steps"] for run in runs), "runs": runs}


def main() -> None:
    """Measure all estimators, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1.5, help="processor seconds of each training")
    parser.add_argument("--quick", action="store_true", help="two seeds of a few hundredths of a second")
    options = parser.parse_args()
    seeds, seconds = (2, 0.05) if options.quick else (options.seeds, options.seconds)
    torch.set_num_threads(1)
    begun = time.process_time()
    record: dict[str, Any] = {
        **made_by(" ".join(["python", *sys.argv])),
        "rows": ROWS,
        "batch_size": BATCH,
        "rate": RATE,
        "seeds": list(range(seeds)),
        "seconds": seconds,
        "problems": {},
    }
    for problem, make in PROBLEMS.items():
        record["problems"][problem] = {}
        for estimator in ESTIMATORS:
            numbers = summary([measured(make, estimator, seed, seconds) for seed in range(seeds)])
            record["problems"][problem][estimator] = numbers
            print(f"{problem:26} {estimator:20} KL {numbers['kl']:.4f}  log Z {numbers['log_z']:.4f}", flush=True)
        record["cpu_seconds"] = time.process_time() - begun
        if options.out is not None:
            write_json(options.out, record)


if __name__ == "__main__":
    main()
