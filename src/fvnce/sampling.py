r"""Markov chains, for pictures of a trained model and for a second opinion on log Z. Training never uses them.

Langevin draws from an unnormalised model, with or without latents:

    s' = s + (ε²/2) ∇ log p⁰(s) + ε η,   η ~ N(0, I),   s = x or (x, z),

accepted with probability min(1, p⁰(s') k(s|s') / p⁰(s) k(s'|s)) so that the model is left invariant whatever the step.

log Z by annealed importance sampling (Neal 2001), where no exact value is known:

    log f_t = (1 − t) log p_base + t log p⁰,    t = 0 … 1,
    log w = Σ_i (t_{i+1} − t_i)(log p⁰ − log p_base)(s_i),    Z = E[w],

where s_i has taken a Langevin step under f_{t_i}. With one temperature it is the importance estimate of the noise.

Annealed NCE (Chehab et al. 2023) contrasts neighbours of such a path instead, each ratio of constants by NCE:

    E_{t+1}[σ(c − Δ)] = E_t[σ(Δ − c)],      Δ = log f_{t+1} − log f_t,      log Z = Σ c.

In one step the error grows exponentially with the distance of base and model, along a path polynomially.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributions import Distribution

from . import _checks
from ._estimates import LogPartition, estimate_log_mean
from ._random import place
from .noise import draw

__all__ = ["Chain", "annealed_log_partition", "annealed_nce", "langevin"]

LogDensity = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Chain:
    """Where the chains ended.

    Attributes:
        x: draws of x.
        z: draws of the latent, or None.
        accepted: share of the proposals that were taken; 0.4 to 0.8 is healthy.

    >>> from torch.distributions import Independent, Normal
    >>> model = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> chain = langevin(model, torch.zeros(5, 2), steps=3)
    >>> chain.x.shape, chain.z, 0 <= chain.accepted <= 1
    (torch.Size([5, 2]), None, True)
    """

    x: Tensor
    z: Tensor | None
    accepted: float


def langevin(
    model: Any,
    x: Tensor,
    z: Tensor | None = None,
    *,
    steps: int = 200,
    step_size: float = 0.1,
    adjusted: bool = True,
    generator: torch.Generator | None = None,
) -> Chain:
    """Run one chain from every row of ``x``, and of ``z`` for a model with latents.

    Args:
        model: has ``log_prob(x)``, or ``log_joint(x, z)`` if ``z`` is given.
        x: starting points, shape (B, D) or (B,) + event_shape; draws of the noise will do.
        z: starting latents, shape (B, M) or any other that begins with B.
        steps: how many.
        step_size: ε.
        adjusted: False takes every proposal: simpler, biased, and tolerant of energies with kinks.
        generator: seeds the chains; the global random state is used without one.

    >>> from torch.distributions import Independent, Normal
    >>> model = Independent(Normal(torch.tensor([3.0]), torch.tensor([0.5])), 1)
    >>> chain = langevin(model, torch.zeros(500, 1), step_size=0.4, generator=torch.Generator().manual_seed(0))
    >>> abs(float(chain.x.mean()) - 3.0) < 0.1, abs(float(chain.x.std()) - 0.5) < 0.1
    (True, True)
    """
    steps = _checks.count("steps", steps)
    step_size = _checks.number("step_size", step_size, low=0.0, open_low=True)
    needed = "log_prob" if z is None else "log_joint"
    if not hasattr(model, needed):
        raise TypeError(f"model must have {needed}, found {type(model).__name__} without it")
    state, log_density = _join(x, z), _log_density_of(model, x, z)
    taken = 0.0
    for _ in range(steps):
        state, accepted = _langevin_step(log_density, state, step_size, adjusted=adjusted, generator=generator)
        taken += float(accepted.float().mean())
    return Chain(*_split(state, x, z), accepted=taken / steps)


def annealed_log_partition(
    model: Any,
    base: Distribution,
    latent_base: Distribution | Callable[[Tensor], Distribution] | None = None,
    *,
    chains: int = 1000,
    temperatures: int = 100,
    step_size: float = 0.3,
    generator: torch.Generator | None = None,
) -> LogPartition:
    """log Z of an unnormalised model and its standard error (delta method), ``trusted`` if 100 chains carry it.

    Args:
        model: has ``log_prob(x)``, or ``log_joint(x, z)`` if there is a ``latent_base``.
        base: a normalised distribution of x that covers the model and has a gradient, such as the noise.
        latent_base: a distribution of z, or an encoder from x to one, that covers the latents.
        chains: independent chains.
        temperatures: steps from the base to the model.
        step_size: ε of the first step; it grows or shrinks by a tenth as more or fewer than 60% are accepted.
        generator: seeds everything.

    >>> import math
    >>> from torch.distributions import Independent, Normal
    >>> class Bell(torch.nn.Module):
    ...     def log_prob(self, x):
    ...         return -((x - 4) ** 2).sum(-1) / 2
    >>> base = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> value, error = annealed_log_partition(Bell(), base, generator=torch.Generator().manual_seed(0))
    >>> bool((value - math.log(2 * math.pi)).abs() < 4 * error), bool(error < 0.2)
    (True, True)
    """
    chains = _checks.count("chains", chains, low=2)
    temperatures = _checks.count("temperatures", temperatures)
    step_size = _checks.number("step_size", step_size, low=0.0, open_low=True)
    x = draw(base, chains, generator)
    z = None
    if latent_base is not None:
        q = latent_base if isinstance(latent_base, Distribution) else latent_base(x)
        z = draw(q, chains, generator) if isinstance(latent_base, Distribution) else draw(q, 1, generator)[0]
        z = z.detach()

    def log_base(s: Tensor) -> Tensor:
        a, b = _split(s, x, z)
        value: Tensor = base.log_prob(a)
        if b is None or latent_base is None:
            return value
        q = latent_base if isinstance(latent_base, Distribution) else latent_base(a)
        return value + q.log_prob(b)

    state, log_target = _join(x, z), _log_density_of(model, x, z)
    log_w = torch.zeros(chains, dtype=state.dtype, device=state.device)
    for i in range(temperatures):
        t = (i + 1) / temperatures
        with torch.no_grad():
            log_w += (log_target(state) - log_base(state)) / temperatures
        if i + 1 == temperatures:
            break

        def tempered(s: Tensor, t: float = t) -> Tensor:
            return (1 - t) * log_base(s) + t * log_target(s)

        state, accepted = _langevin_step(tempered, state, step_size, generator=generator)
        # The step of the next temperature follows from all chains of this one: with many chains a constant.
        step_size *= 1.1 if float(accepted.float().mean()) > 0.6 else 1 / 1.1
    return estimate_log_mean(log_w)


def annealed_nce(
    model: Any,
    noise: Distribution,
    *,
    path: Literal["geometric", "arithmetic"] = "geometric",
    levels: int = 10,
    samples: int = 1000,
    draws: Callable[[float, int], Tensor] | None = None,
    pilot: float | None = None,
    steps: int = 10,
    step_size: float = 0.3,
    generator: torch.Generator | None = None,
) -> LogPartition:
    """log Z of an unnormalised model by NCE between neighbours of a path, and its standard error (delta method).

    The standard error is over chains, which are independent, and counts that every level takes part in two ratios. The
    effective samples are those where the two neighbours that overlap least do.

    Args:
        model: has ``log_prob(x)``, the log of the unnormalised φ.
        noise: a normalised distribution of x: where the path begins.
        path: "geometric", f_t = p_n^(1−t) φ^t, or "arithmetic", f_t = cos²(πt/2) p_n + sin²(πt/2) e^(−c) φ.
        levels: steps from the noise to the model; 1 is NCE itself.
        samples: draws of each of the levels + 1 distributions.
        draws: exact draws of f_t from (t, n), where there are such; by default Langevin chains that start at the noise.
        pilot: c of the arithmetic path, a guess at log Z: any is right, the nearer the better. By default the estimate
            of the geometric path.
        steps: Langevin steps at each level.
        step_size: of the first; it adapts as in :func:`annealed_log_partition`.
        generator: seeds everything but ``draws``.

    >>> from torch.distributions import Independent, Normal
    >>> class Bell(torch.nn.Module):
    ...     def log_prob(self, x):
    ...         return -((x - 4) ** 2).sum(-1) / 2
    >>> base = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> value, error = annealed_nce(Bell(), base, generator=torch.Generator().manual_seed(0))
    >>> bool((value - math.log(2 * math.pi)).abs() < 4 * error), bool(error < 0.2)
    (True, True)
    """
    _checks.distribution("noise", noise)
    _checks.choice("path", path, ("geometric", "arithmetic"))
    levels = _checks.count("levels", levels)
    samples = _checks.count("samples", samples, low=2)
    steps = _checks.count("steps", steps)
    step_size = _checks.number("step_size", step_size, low=0.0, open_low=True)
    if not hasattr(model, "log_prob"):
        raise TypeError(f"model must have log_prob, found {type(model).__name__} without it")
    c = 0.0
    if path == "arithmetic":
        if pilot is None and draws is not None:
            raise ValueError("pilot must be given where draws are, which depend on it, found None")
        if pilot is None:
            first = annealed_nce(
                model, noise, levels=levels, samples=samples, steps=steps, step_size=step_size, generator=generator
            )
            pilot = float(first.value)
        c = _checks.number("pilot", pilot)

    def log_f(x: Tensor, t: float) -> Tensor:
        start: Tensor = noise.log_prob(x)
        end: Tensor = model.log_prob(x) - c
        if t in (0.0, 1.0):
            return end if t else start
        if path == "geometric":
            return (1 - t) * start + t * end
        angle = math.pi / 2 * t
        return torch.logaddexp(start + 2 * math.log(math.cos(angle)), end + 2 * math.log(math.sin(angle)))

    below = draw(noise, samples, generator) if draws is None else draws(0.0, samples)
    total = below.new_zeros((), dtype=torch.float64)
    influence = below.new_zeros(samples, dtype=torch.float64)
    overlap = 1.0
    for level in range(levels):
        low, high = level / levels, (level + 1) / levels
        above = below if draws is None else draws(high, samples)

        def at_level(s: Tensor, t: float = high) -> Tensor:
            return log_f(s, t)

        for _ in range(steps if draws is None else 0):
            above, accepted = _langevin_step(at_level, above, step_size, generator=generator)
            step_size *= 1.1 if float(accepted.float().mean()) > 0.6 else 1 / 1.1
        with torch.no_grad():
            at_above, at_below = ((log_f(x, high) - log_f(x, low)).double() for x in (above, below))
            ratio = _log_ratio_of_constants(at_above, at_below)
            missed, taken = torch.sigmoid(ratio - at_above), torch.sigmoid(at_below - ratio)
            slope = (missed * (1 - missed)).mean() + (taken * (1 - taken)).mean()
            total = total + ratio
            influence += (taken - missed) / slope
            overlap = min(overlap, 2 * float(missed.mean()))
        below = above
    error = influence.std() / math.sqrt(samples)
    return LogPartition((total + c).to(below.dtype), error.to(below.dtype), samples * overlap)


def _log_ratio_of_constants(above: Tensor, below: Tensor) -> Tensor:
    """The c at which as much of the upper sample is missed as of the lower is taken, by bisection; both shape (n,)."""
    low = torch.minimum(above.min(), below.min()) - 1
    high = torch.maximum(above.max(), below.max()) + 1
    for _ in range(80):
        middle = (low + high) / 2
        too_high = torch.sigmoid(middle - above).mean() > torch.sigmoid(below - middle).mean()
        low, high = torch.where(too_high, low, middle), torch.where(too_high, middle, high)
    return (low + high) / 2


def _langevin_step(
    log_density: LogDensity,
    state: Tensor,
    step_size: float,
    *,
    adjusted: bool = True,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """One step of every chain, a row of ``state`` each, and which proposals were taken."""
    value, slope = _value_and_slope(log_density, state)
    drift = 0.5 * step_size**2
    there = place(generator, state.device)
    noise = torch.randn(state.shape, generator=generator, dtype=state.dtype, device=there).to(state.device)
    proposal = state + drift * slope + step_size * noise
    if not adjusted:
        return proposal, torch.ones_like(value, dtype=torch.bool)
    new_value, new_slope = _value_and_slope(log_density, proposal)
    forth = noise.square().sum(-1)
    back = (state - proposal - drift * new_slope).square().sum(-1) / step_size**2
    log_accept = new_value - value - (back - forth) / 2
    level = torch.rand(value.shape, generator=generator, dtype=value.dtype, device=there).log().to(value.device)
    accepted = level < log_accept  # a NaN is not taken
    return torch.where(accepted.unsqueeze(-1), proposal, state), accepted


def _join(x: Tensor, z: Tensor | None) -> Tensor:
    """x and z side by side, one vector for each chain."""
    _checks.samples("x", x)
    flat = x.flatten(1)
    return flat.detach() if z is None else torch.cat([flat, z.flatten(1)], -1).detach()


def _split(state: Tensor, x: Tensor, z: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """And apart again, in the shapes of x and z."""
    width = x[0].numel()
    return state[:, :width].reshape(x.shape), None if z is None else state[:, width:].reshape(z.shape)


def _log_density_of(model: Any, x: Tensor, z: Tensor | None) -> LogDensity:
    """The model's log-density of x and z side by side."""

    def log_density(state: Tensor) -> Tensor:
        a, b = _split(state, x, z)
        value: Tensor = model.log_prob(a) if b is None else model.log_joint(a, b)
        return value

    return log_density


def _value_and_slope(log_density: LogDensity, state: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        at = state.detach().requires_grad_()
        value = log_density(at)
        (slope,) = torch.autograd.grad(value.sum(), at)
    return value.detach(), slope
