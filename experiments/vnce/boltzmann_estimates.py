r"""The restricted Boltzmann machine of `boltzmann`: data as counts over its states, and every estimate of it.

With 2^D visible states data are shares of these states, log Z is a sum and the divergence from the truth is exact. All
data sets of a size are estimated in one batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, softplus

from fvnce.models import BinaryEncoder, BinaryVector, RestrictedBoltzmannMachine
from fvnce.models.distributions import binary_states
from fvnce.noise import BernoulliNoise, NoiseMixture
from fvnce.objectives import FullyVariationalNCE, VariationalNCE
from fvnce.scoring import Logarithmic, PowerRule, ScoringRule

from . import lbfgs
from .estimation import Side, best_estimate, covariance, coverage, maximise

RULES: dict[str, ScoringRule] = {
    "NCE = VNCE": Logarithmic(),
    "fvNCE (0, 0)": PowerRule(0, clip=None),
    "fvNCE (1/4, 0)": PowerRule(0.25, clip=None),
    "fvNCE (1/2, 0)": PowerRule(0.5, clip=None),
    "fvNCE (1, 0)": PowerRule(1, clip=None),
}


@dataclass(frozen=True)
class Settings:
    """The machine and how often it is estimated."""

    visible: int = 8
    """Visible units."""
    hidden: int = 2
    """Hidden units."""
    weight_scale: float = 1.5
    """Standard deviation of the true weights; biases have half of it."""
    sizes: tuple[int, ...] = (3000, 10_000, 30_000)
    """Data samples."""
    noise_ratio: float = 4.0
    """ν, noise samples per data sample."""
    runs: int = 60
    """Data sets for each size."""
    divergence_steps: int = 100
    """Updates of contrastive divergence."""
    scratch_steps: int = 60
    """Steps of the runs that start from small random weights."""
    seed: int = 2
    """For everything."""


@dataclass(frozen=True)
class Problem:
    """The truth, and data sets as shares of the visible states, shape (R, 2^D)."""

    truth: Tensor
    states: Tensor
    probabilities: Tensor
    data: Tensor
    noise: Tensor
    log_noise: Tensor
    size: int


def machine(settings: Settings) -> RestrictedBoltzmannMachine:
    """The true machine, in float64."""
    generator = torch.Generator().manual_seed(settings.seed)
    d, m, scale = settings.visible, settings.hidden, settings.weight_scale
    weight, visible, hidden = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((d, m), (d,), (m,))
    )
    return RestrictedBoltzmannMachine(scale * weight, scale / 2 * visible, scale / 2 * hidden)


def packed(model: RestrictedBoltzmannMachine) -> Tensor:
    """(W, a, b, log Z) as one vector."""
    parts = (model.weight.flatten(), model.visible, model.hidden, model.log_partition().reshape(1))
    return torch.cat(parts).detach()


def side(states: Tensor, theta: Tensor, weight: Tensor, log_noise: Tensor, hidden: int) -> Side:
    """Δ⁰ − c of every state and its gradient in (W, a, b, c); θ has shape (R, k)."""
    d, m = states.shape[1], hidden
    w, a, b, c = theta.split([d * m, d, m, 1], 1)
    field = b[:, None] + states @ w.reshape(-1, d, m)
    delta = (states @ a.T).T + softplus(field).sum(-1) - c - log_noise
    mean = field.sigmoid()
    rows = states.expand(len(theta), -1, -1)
    products = (rows[..., :, None] * mean[..., None, :]).flatten(2)
    return Side(delta, torch.cat([products, rows, mean, torch.full_like(rows[..., :1], -1.0)], -1), weight)


def problem(settings: Settings, size: int) -> Problem:
    """Data sets of one size; the noise of each has the frequencies of its own data."""
    truth = machine(settings)
    generator = torch.Generator().manual_seed(1000 * settings.seed + size)
    states = binary_states(settings.visible).double()
    with torch.no_grad():
        probabilities = truth.log_prob(states).softmax(0)
    data = _counts(probabilities.expand(settings.runs, -1), size, generator)
    frequencies = (data @ states * size + 1) / (size + 2)
    log_noise = _log_noise(frequencies, states)
    noise = _counts(log_noise.exp(), round(settings.noise_ratio * size), generator)
    return Problem(packed(truth), states, probabilities, data, noise, log_noise, size)


def _log_noise(frequencies: Tensor, states: Tensor) -> Tensor:
    """log p_n of all states: half independent units, half coin flips."""
    independent = frequencies.log() @ states.T + (1 - frequencies).log() @ (1 - states.T)
    return torch.logaddexp(independent, independent.new_tensor(-states.shape[1] * math.log(2.0))) - math.log(2.0)


def _counts(probabilities: Tensor, size: int, generator: torch.Generator) -> Tensor:
    drawn = torch.multinomial(probabilities, size, replacement=True, generator=generator)
    return torch.zeros_like(probabilities).scatter_add_(1, drawn, probabilities.new_full(drawn.shape, 1 / size))


def compare(settings: Settings, size: int) -> dict[str, Any]:
    """Every method on the data sets of one size: divergences, coverage, log Z."""
    known = problem(settings, size)
    numbers: dict[str, Any] = {}
    count = settings.runs
    near = known.truth.expand(count, -1)
    nu = settings.noise_ratio
    shifted = known.log_noise + math.log(nu)  # the rule compares p_θ with ν p_n
    generator = torch.Generator().manual_seed(settings.seed)
    scratch = 0.3 * torch.randn(count, near.shape[1], generator=generator, dtype=torch.float64)
    scratch[:, -1] = math.log(2.0) * (settings.visible + settings.hidden)

    def sides(theta: Tensor) -> tuple[Side, Side]:
        return (
            side(known.states, theta, known.data, shifted, settings.hidden),
            side(known.states, theta, known.noise, shifted, settings.hidden),
        )

    likelihood = _likelihood(known, settings)
    numbers["MLE"] = _divergences(known, settings, maximise(likelihood, near[:, :-1], steps=60))
    numbers["MLE"]["from_scratch"] = _median(
        known, settings, maximise(likelihood, scratch[:, :-1], steps=settings.scratch_steps)
    )
    for name, rule in RULES.items():
        theta = best_estimate(rule, sides, [near], nu, steps=60)
        row = _divergences(known, settings, theta[:, :-1])
        both = sides(theta)
        errors = covariance(rule, *both, nu, size).diagonal(dim1=1, dim2=2).sqrt()
        row["coverage"] = coverage(theta, near, errors)
        row |= _log_partition(known, settings, theta, both[1])
        row["from_scratch"] = _median(
            known, settings, best_estimate(rule, sides, [scratch], nu, steps=settings.scratch_steps)[:, :-1]
        )
        numbers[name] = row
    for sweeps in (1, 10):
        theta = _contrastive_divergence(known, settings, sweeps, near[:, :-1])
        numbers[f"CD-{sweeps}"] = _divergences(known, settings, theta)
        again = _contrastive_divergence(known, settings, sweeps, scratch[:, :-1])
        numbers[f"CD-{sweeps}"]["from_scratch"] = _median(known, settings, again)
    return numbers


def _log_model(known: Problem, settings: Settings, theta: Tensor) -> tuple[Tensor, Tensor]:
    """log p_θ of every state, shape (R, 2^D), and the gradient of log p⁰."""
    zeros = theta.new_zeros(len(theta), 1)
    at = side(known.states, torch.cat([theta, zeros], 1), known.data, zeros, settings.hidden)
    return at.delta.log_softmax(1), at.gradient[..., :-1]


def _likelihood(known: Problem, settings: Settings) -> Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]:
    """The exact log-likelihood, its score, and the Fisher information."""

    def evaluate(theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_p, gradient = _log_model(known, settings, theta)
        p = log_p.exp()
        mean = torch.einsum("rs,rsk->rk", p, gradient)
        score = torch.einsum("rs,rsk->rk", known.data, gradient) - mean
        fisher = (gradient * p[..., None]).transpose(1, 2) @ gradient - mean[:, :, None] * mean[:, None]
        return (known.data * log_p).sum(1), score, fisher

    return evaluate


def _contrastive_divergence(known: Problem, settings: Settings, sweeps: int, start: Tensor) -> Tensor:
    """The expected CD update, E_data[g] − E_{data after k Gibbs sweeps}[g], in units of the Fisher information."""
    d, m = settings.visible, settings.hidden
    hidden = binary_states(m).double()
    theta, parts = start.clone(), [d * m, d, m]
    for step in range(settings.divergence_steps):
        w, a, b = theta.split(parts, 1)
        weight = w.reshape(-1, d, m)
        log_p, gradient = _log_model(known, settings, theta)
        up = _product_of_bits(b[:, None] + known.states @ weight, hidden)
        down = _product_of_bits(a[:, None] + hidden @ weight.transpose(1, 2), known.states)
        after = known.data[:, None]
        for _ in range(sweeps):
            after = after @ up @ down
        score = torch.einsum("rs,rsk->rk", known.data - after[:, 0], gradient)
        p = log_p.exp()
        mean = torch.einsum("rs,rsk->rk", p, gradient)
        fisher = (gradient * p[..., None]).transpose(1, 2) @ gradient - mean[:, :, None] * mean[:, None]
        fisher.diagonal(dim1=1, dim2=2).add_(0.01)
        update = torch.linalg.solve(fisher, score)
        theta = theta + update.clamp(-0.3, 0.3) / (1 + step / 50)
    return theta


def _product_of_bits(logits: Tensor, states: Tensor) -> Tensor:
    """Probabilities of all states, shape (R, n, 2^bits), for bits with these logits."""
    return (logits @ states.T + logsigmoid(-logits).sum(-1, keepdim=True)).exp()


def _divergences(known: Problem, settings: Settings, theta: Tensor) -> dict[str, Any]:
    kl = _divergence(known, settings, theta)
    levels = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    return {
        "kl_mean": float(kl.mean()),
        "kl_error": float(kl.std() / math.sqrt(len(kl))),
        "kl_deciles": [float(v) for v in kl.quantile(levels)],
    }


def _divergence(known: Problem, settings: Settings, theta: Tensor) -> Tensor:
    """Return KL(p*‖p_θ) by summing over all states."""
    log_p, _ = _log_model(known, settings, theta)
    return (known.probabilities * (known.probabilities.log() - log_p)).sum(1)


def _median(known: Problem, settings: Settings, theta: Tensor) -> float:
    return float(_divergence(known, settings, theta).median())


def _log_partition(known: Problem, settings: Settings, theta: Tensor, noise: Side) -> dict[str, Any]:
    """log Z of the fitted model from noise samples, with its standard error, against enumeration."""
    log_w = noise.delta + theta[:, -1:] + math.log(settings.noise_ratio)
    mean = (log_w + noise.weight.log()).logsumexp(1)
    ratio = (log_w - mean[:, None]).exp()
    error = ((noise.weight * ratio.square()).sum(1) - 1).clamp(min=0).div(settings.noise_ratio * known.size - 1).sqrt()
    exact = (log_w + known.log_noise).logsumexp(1)
    gap = mean - exact
    return {
        "log_partition_gap": [float(v) for v in gap],
        "log_partition_mean_error": float(gap.abs().mean()),
        "log_partition_largest_in_errors": float((gap.abs() / error).max()),
        "log_partition_within_3_errors": float((gap.abs() <= 3 * error).double().mean()),
        "fitted_log_scale_mean_error": float((theta[:, -1] - exact).abs().mean()),
    }


class _HalfBlind(nn.Module):
    """Linear logits from the first half of v."""

    def __init__(self, model: RestrictedBoltzmannMachine) -> None:
        super().__init__()
        self.seen = len(model.visible) // 2
        self.weight = nn.Parameter(model.weight.detach()[: self.seen].clone())
        self.bias = nn.Parameter(model.hidden.detach() + model.weight.detach()[self.seen :].sum(0) / 2)

    def forward(self, v: Tensor) -> Tensor:
        """Logits of the hidden units."""
        return self.bias + v[..., : self.seen] @ self.weight


def learned_encoder(settings: Settings) -> dict[str, dict[str, float]]:
    """Train θ, log Z and a linear encoder together; return KL(p*‖p_θ) and that of the exact posterior."""
    one = problem(replace(settings, runs=1), settings.sizes[0])
    rows = [
        one.states.repeat_interleave((share[0] * count).round().long(), 0)
        for share, count in ((one.data, one.size), (one.noise, settings.noise_ratio * one.size))
    ]
    coins = torch.full((settings.visible,), 0.5, dtype=torch.float64)
    noise = NoiseMixture([BernoulliNoise((rows[0].sum(0) + 1) / (one.size + 2)), BernoulliNoise(coins)])
    shifted = one.log_noise + math.log(settings.noise_ratio)

    def sides(theta: Tensor) -> tuple[Side, Side]:
        return (
            side(one.states, theta, one.data, shifted, settings.hidden),
            side(one.states, theta, one.noise, shifted, settings.hidden),
        )

    divergences = {}
    for name, rule in (("VNCE", Logarithmic()), ("fvNCE (0, 0)", PowerRule(0, clip=None))):
        model, network = machine(settings), nn.Linear(settings.visible, settings.hidden, dtype=torch.float64)
        with torch.no_grad():
            network.weight.copy_(model.weight.T)
            network.bias.copy_(model.hidden)
        encoder = BinaryEncoder(network)
        objective = (
            FullyVariationalNCE(model, encoder, noise, rule, partition="learned", noise_ratio=settings.noise_ratio)
            if rule.variational
            else VariationalNCE(model, encoder, noise, partition="learned", noise_ratio=settings.noise_ratio)
        ).double()
        lbfgs(lambda o=objective: o(rows[0], rows[1]), list(objective.parameters()), 100)  # type: ignore[misc]
        exact = best_estimate(rule, sides, [one.truth[None]], settings.noise_ratio, steps=200)
        divergences[name] = {
            "learned_encoder": float(_divergence(one, settings, packed(model)[None, :-1])[0]),
            "exact_posterior": float(_divergence(one, settings, exact[:, :-1])[0]),
        }
    return divergences


def crude_encoder(settings: Settings) -> dict[str, float]:
    """KL(p*‖p_θ) with infinite data and an encoder that sees half of v: the price of a bad bound."""
    truth = machine(settings)
    states, hidden = binary_states(settings.visible).double(), binary_states(settings.hidden).double()
    with torch.no_grad():
        p = truth.log_prob(states).softmax(0)
    frequencies = p @ states
    log_noise = _log_noise(frequencies[None], states)[0]
    nu = settings.noise_ratio
    divergences = {}
    for name, rule in RULES.items():
        model = machine(settings)
        blind = _HalfBlind(model)
        log_z = truth.log_partition().detach().clone().requires_grad_()

        def loss(
            model: RestrictedBoltzmannMachine = model,
            blind: _HalfBlind = blind,
            log_z: Tensor = log_z,
            rule: ScoringRule = rule,
        ) -> Tensor:
            joint = model.log_joint(states, hidden[:, None].expand(-1, len(states), -1))
            log_q = BinaryVector(blind(states)).log_prob(hidden[:, None])
            delta = joint - log_q - log_noise - log_z - math.log(nu)
            weights = log_q.exp()
            data, noise = (weights * rule.f1(delta)).sum(0), (weights * rule.f0(delta)).sum(0)
            if not rule.variational:
                noise = rule.f0(joint.logsumexp(0) - log_noise - log_z - math.log(nu))
            return -(p * data).sum() - nu * (log_noise.exp() * noise).sum()

        lbfgs(loss, [*model.parameters(), *blind.parameters(), log_z], 500)
        with torch.no_grad():
            divergences[name] = float((p * (p.log() - model.log_prob(states).log_softmax(0))).sum())
    independent = states @ frequencies.log() + (1 - states) @ (1 - frequencies).log()
    divergences["independent units"] = float((p * (p.log() - independent)).sum())
    return divergences
