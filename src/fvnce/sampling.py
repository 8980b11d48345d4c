r"""Markov chains, for pictures of a trained model and for a second opinion on log Z. Training never uses them.

Langevin draws from an unnormalised model, with or without latents:

    s' = s + (ε²/2) ∇ log p⁰(s) + ε η,   η ~ N(0, I),   s = x or (x, z),

accepted with probability min(1, p⁰(s') k(s|s') / p⁰(s) k(s'|s)) so that the model is left invariant whatever the step.

log Z by annealed importance sampling (Neal 2001), where no exact value is known:

    log f_t = (1 − t) log p_base + t log p⁰,    t = 0 … 1,
    log w = Σ_i (t_{i+1} − t_i)(log p⁰ − log p_base)(s_i),    Z = E[w],

where s_i has taken a Langevin step under f_{t_i}. With one temperature it is the importance estimate of the noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from . import _checks
from ._estimates import LogPartition, estimate_log_mean
from .noise import draw

__all__ = ["Chain", "annealed_log_partition", "langevin"]

LogDensity = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Chain:
    """Where the chains ended.

    Attributes:
        x: draws of x.
        z: draws of the latent, or None.
        accepted: share of the proposals that were taken; 0.4 to 0.8 is healthy.
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
    noise = torch.randn(state.shape, generator=generator, dtype=state.dtype, device=state.device)
    proposal = state + drift * slope + step_size * noise
    if not adjusted:
        return proposal, torch.ones_like(value, dtype=torch.bool)
    new_value, new_slope = _value_and_slope(log_density, proposal)
    forth = noise.square().sum(-1)
    back = (state - proposal - drift * new_slope).square().sum(-1) / step_size**2
    log_accept = new_value - value - (back - forth) / 2
    level = torch.rand(value.shape, generator=generator, dtype=value.dtype, device=value.device).log()
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
