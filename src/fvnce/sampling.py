r"""Langevin draws from a trained model, and annealed estimates of log Z as a second opinion. Training never uses them.

A Langevin step s' = s + (ε²/2) ∇ log p⁰(s) + ε η, η ~ N(0, I), of s = x or (x, z) is accepted with probability
min(1, p⁰(s') k(s|s') / p⁰(s) k(s'|s)), which leaves the model invariant for any step.

Annealed importance sampling (Neal 2001) moves chains along log f_t = (1 − t) log p_base + t log p⁰, t_i = (i/T)², with
a step under each f_t, and weighs them by log w = Σ_i (log f_{t_{i+1}} − log f_{t_i})(s_i): Z = E[w]. The square spends
more steps near a broad base, where a narrow model changes f_t most. Annealed NCE contrasts neighbors of such a path
instead (Eq. annealed). Chains lag behind their level, so its expectations weigh every chain by the w it has up to t,
which corrects any lag as the number of chains grows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributions import Distribution

from . import _validation
from ._random import place
from ._stats import LogPartition, effective_samples, error_of, estimate_log_mean
from .noise import draw

__all__ = ["Chain", "annealed_log_partition", "annealed_nce", "langevin"]

LogDensity = Callable[[Tensor], Tensor]
#: A potential scale reduction above which chains still depend on where they started.
MIXED_BELOW = 1.1


@dataclass(frozen=True)
class Chain:
    """Final states of Langevin chains, with checks of convergence.

    Attributes:
        x: draws of x.
        z: draws of the latent, or None.
        accepted: fraction of accepted proposals, a mean over chains: it does not show whether some never move.
        stuck: fraction of chains that accepted no proposal in the last half of the run; where the model falls steeply,
            chains that start in its tails stay there.
        r_hat: split R̂ (Gelman & Rubin 1992) of the last half, the largest over coordinates and their distances from
            the median: the spread of all draws over that within a quarter of a chain. NaN below 8 steps.

    >>> from torch.distributions import Independent, Normal
    >>> model = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> chain = langevin(model, torch.zeros(5, 2), steps=3)
    >>> chain.x.shape, chain.z, 0 <= chain.accepted <= 1, chain.mixed
    (torch.Size([5, 2]), None, True, False)
    """

    x: Tensor
    z: Tensor | None
    accepted: float
    stuck: float
    r_hat: float

    @property
    def mixed(self) -> bool:
        """Whether every chain moved and R̂ is below 1.1: without this, x are not draws of the model.

        It does not detect a mode that no chain visited.
        """
        return self.stuck == 0 and self.r_hat < MIXED_BELOW


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
    """Draw from a model by Langevin dynamics, one chain from every row of ``x``, and of ``z`` for a model with latents.

    Args:
        model: has ``log_prob(x)``, or ``log_joint(x, z)`` if ``z`` is given.
        x: starting points, shape (B, D) or (B,) + event_shape, such as draws of the noise.
        z: starting latents, shape (B, M) or any other that begins with B.
        steps: number of steps.
        step_size: ε.
        adjusted: False accepts every proposal: simpler, biased, and tolerant of energies with kinks.
        generator: seeds the chains; the global random state is used without one.

    >>> from torch.distributions import Independent, Normal
    >>> model = Independent(Normal(torch.tensor([3.0]), torch.tensor([0.5])), 1)
    >>> chain = langevin(model, torch.zeros(500, 1), step_size=0.4, generator=torch.Generator().manual_seed(0))
    >>> abs(float(chain.x.mean()) - 3.0) < 0.1, abs(float(chain.x.std()) - 0.5) < 0.1
    (True, True)
    """
    steps = _validation.count("steps", steps)
    step_size = _validation.number("step_size", step_size, low=0.0, open_low=True)
    state, log_density = _join(x, z), _log_density_of(model, x.shape[1:], None if z is None else z.shape[1:])
    taken, window = 0.0, steps // 4
    moved = torch.zeros(len(state), dtype=torch.bool, device=state.device)
    # Of each of the last two quarters: sums of the way from the start and of the distance from the chains' median when
    # they began (folded R̂, Vehtari et al. 2021: chains may agree in place and not in spread), and of their squares.
    start, sums = state.double(), state.new_zeros((2, 2, 2, *state.shape), dtype=torch.float64)
    for step in range(steps):
        if step == steps - 2 * window:
            median = state.double().median(0).values
        state, accepted = _langevin_step(log_density, state, step_size, adjusted=adjusted, generator=generator)
        taken += float(accepted.float().mean())
        if step >= steps // 2:
            moved |= accepted
        if step >= steps - 2 * window:
            ways = torch.stack([state - start, (state - median).abs()])
            sums[int(step >= steps - window)] += torch.stack([ways, ways.square()])
    origin = torch.stack([start, torch.zeros_like(start)])
    ends = _split(state, x.shape[1:], None if z is None else z.shape[1:])
    return Chain(*ends, taken / steps, float((~moved).float().mean()), _r_hat(origin, sums, window))


def _r_hat(origin: Tensor, sums: Tensor, window: int) -> float:
    """Return the largest split R̂, from sums over quarters of ``window`` steps, (2, 2, statistics, chains, width)."""
    if window < 2:
        return math.nan
    means, squares = (sums / window).unbind(1)
    within = ((squares - means.square()).clamp(min=0) * window / (window - 1)).mean((0, 2))
    between = (origin + means).transpose(1, 2).flatten(0, 1).var(0)
    return float(((window - 1) / window + between / within).sqrt().max())


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
    """Estimate log Z of an unnormalized model by annealed importance sampling, with its standard error (delta method).

    The estimate is ``trusted`` if 100 effective chains carry it.

    Args:
        model: has ``log_prob(x)``, or ``log_joint(x, z)`` if there is a ``latent_base``.
        base: a normalized distribution of x that covers the model and has a gradient, such as the noise.
        latent_base: a distribution of z, or an encoder from x to one, that covers the latents.
        chains: independent chains.
        temperatures: steps from the base to the model.
        step_size: ε of the first step; it grows or shrinks by a tenth as more or fewer than 60% are accepted.
        generator: seeds all draws.

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
    chains = _validation.count("chains", chains, low=2)
    temperatures = _validation.count("temperatures", temperatures)
    step_size = _validation.number("step_size", step_size, low=0.0, open_low=True)
    x, z = draw(base, chains, generator), None
    if isinstance(latent_base, Distribution):
        z = draw(latent_base, chains, generator).detach()
    elif latent_base is not None:
        z = draw(latent_base(x), 1, generator)[0].detach()
    shapes = x.shape[1:], None if z is None else z.shape[1:]

    def log_base(state: Tensor) -> Tensor:
        at_x, at_z = _split(state, *shapes)
        value: Tensor = base.log_prob(at_x)
        if at_z is None or latent_base is None:
            return value
        return value + (latent_base if isinstance(latent_base, Distribution) else latent_base(at_x)).log_prob(at_z)

    path = _Path(_geometric, log_base, _log_density_of(model, *shapes))
    *_, (_, state, log_w) = _anneal(path, _join(x, z), temperatures, step_size, generator)
    return estimate_log_mean(log_w.to(state.dtype))


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
    """Estimate log Z of an unnormalized model by NCE between neighbors of a path, with its standard error.

    The standard error (delta method) is over chains, which are independent. It accounts for the weights of chains and
    for levels that are part of two ratios, and is at least that of the mean weight. The effective samples are the
    fewest of any level: of the chains' weights, or where two neighbors overlap. With chains
    :func:`annealed_log_partition` has the smaller error for the same work; this one is for exact draws and for the
    arithmetic path.

    Args:
        model: has ``log_prob(x)``, the log of the unnormalized φ.
        noise: a normalized distribution of x: where the path begins.
        path: "geometric", f_t = p_n^(1−t) φ^t, or "arithmetic", f_t = cos²(πt/2) p_n + sin²(πt/2) e^(−c) φ.
        levels: steps from the noise to the model; 1 is NCE itself.
        samples: draws of each of the levels + 1 distributions.
        draws: exact draws of f_t from (t, n), if available; by default Langevin chains that start at the noise.
        pilot: c of the arithmetic path, a guess of log Z: any value is valid, a closer one more efficient. By
            default the estimate of the geometric path.
        steps: Langevin steps from one level to the next.
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
    _validation.distribution("noise", noise)
    _validation.choice("path", path, ("geometric", "arithmetic"))
    levels = _validation.count("levels", levels)
    samples = _validation.count("samples", samples, low=2)
    steps = _validation.count("steps", steps)
    step_size = _validation.number("step_size", step_size, low=0.0, open_low=True)
    mix, c = _geometric, 0.0
    if path == "arithmetic":
        if pilot is None and draws is not None:
            raise ValueError("pilot must be given where draws are, which depend on it, found None")
        if pilot is None:
            chains: dict[str, Any] = {"levels": levels, "samples": samples, "steps": steps, "step_size": step_size}
            pilot = float(annealed_nce(model, noise, generator=generator, **chains).value)
        mix, c = _arithmetic, _validation.number("pilot", pilot)
    log_noise, log_model = (_log_density_of(of, noise.event_shape) for of in (noise, model))
    between = _Path(mix, log_noise, lambda state: log_model(state) - c)
    populations: Iterable[tuple[float, Tensor, Tensor]]
    if draws is None:
        start = _join(draw(noise, samples, generator))
        populations = islice(_anneal(between, start, levels * steps, step_size, generator), 0, None, steps)
    else:
        exact = ((level / levels, _join(draws(level / levels, samples))) for level in range(levels + 1))
        populations = ((t, state, state.new_zeros(samples, dtype=torch.float64)) for t, state in exact)
    total, influence, overlap, carried = torch.zeros(()), torch.zeros(()), math.inf, math.inf
    for (low, below, log_w_below), (high, above, log_w_above) in pairwise(populations):
        with torch.no_grad():
            p_above, p_below = log_w_above.softmax(0), log_w_below.softmax(0)
            at_above = torch.where(p_above > 0, between.gain(above, low, high), 0.0)
            at_below = torch.where(p_below > 0, between.gain(below, low, high), 0.0)
            ratio = _log_ratio_of_constants(at_above, at_below, p_above, p_below)
            missed, taken = torch.sigmoid(ratio - at_above), torch.sigmoid(at_below - ratio)
            fraction = p_above @ missed
            slope = p_above @ (missed * (1 - missed)) + p_below @ (taken * (1 - taken))
            total = total + ratio
            influence = influence + samples * (p_below * (taken - fraction) - p_above * (missed - fraction)) / slope
            overlap, carried = min(overlap, 2 * float(fraction) * samples), min(carried, effective_samples(log_w_above))
    # A heavy tail of the weights is not in the spread of those seen. clamp keeps a NaN.
    error = (influence.std() / math.sqrt(samples)).clamp(min=error_of(samples, carried))
    value = torch.where(error.isfinite(), total + c, math.nan)
    return LogPartition(value.to(above.dtype), error.to(above.dtype), min(overlap, carried))


def _geometric(start: Tensor, end: Tensor, t: float) -> Tensor:
    # At an end the other density, which may be zero, has no part.
    return (1 - t) * start + t * end if 0 < t < 1 else (end if t else start)


def _arithmetic(start: Tensor, end: Tensor, t: float) -> Tensor:
    if t in (0.0, 1.0):
        return end if t else start
    angle = math.pi / 2 * t
    return torch.logaddexp(start + 2 * math.log(math.cos(angle)), end + 2 * math.log(math.sin(angle)))


@dataclass(frozen=True)
class _Path:
    """Densities f_t from one density to another, by ``mix`` of the two log-densities and t."""

    mix: Callable[[Tensor, Tensor, float], Tensor]
    log_start: LogDensity
    log_end: LogDensity

    def log_f(self, state: Tensor, t: float) -> Tensor:
        return self.mix(self.log_start(state), self.log_end(state), t)

    def gain(self, state: Tensor, low: float, high: float) -> Tensor:
        """Return log f_high − log f_low of every chain, in float64."""
        start, end = self.log_start(state), self.log_end(state)
        return (self.mix(start, end, high) - self.mix(start, end, low)).double()


def _anneal(
    path: _Path, state: Tensor, temperatures: int, step_size: float, generator: torch.Generator | None
) -> Iterator[tuple[float, Tensor, Tensor]]:
    """Move chains along a path; yield t = (i/T)², the chains after a step under f_t, and their log w up to t."""
    log_w = torch.zeros(len(state), dtype=torch.float64, device=state.device)
    yield 0.0, state, log_w
    for i in range(temperatures):
        low, high = (i / temperatures) ** 2, ((i + 1) / temperatures) ** 2
        with torch.no_grad():
            log_w = torch.where(log_w == -math.inf, log_w, log_w + path.gain(state, low, high))  # zero stays zero
        state, accepted = _langevin_step(partial(path.log_f, t=high), state, step_size, generator=generator)
        # The next step follows from all chains of this one: with many chains a constant.
        step_size *= 1.1 if float(accepted.float().mean()) > 0.6 else 1 / 1.1
        yield high, state, log_w


def _log_ratio_of_constants(above: Tensor, below: Tensor, p_above: Tensor, p_below: Tensor) -> Tensor:
    """Return the c at which as much of the upper sample is missed as of the lower is taken; all shape (n,)."""
    known = torch.cat([above, below])
    known = known[known.isfinite()]
    # A model that is zero at some of the noise lowers c by no more than the log of their number.
    low, high = known.min() - 50, known.max() + 50
    for _ in range(80):
        middle = (low + high) / 2
        too_high = p_above @ torch.sigmoid(middle - above) > p_below @ torch.sigmoid(below - middle)
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
    """Take one step of every chain, a row of ``state`` each; also return which proposals were accepted."""
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


def _value_and_slope(log_density: LogDensity, state: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        at = state.detach().requires_grad_()
        value = log_density(at)
        (slope,) = torch.autograd.grad(value.sum(), at)
    return value.detach(), slope


def _join(x: Tensor, z: Tensor | None = None) -> Tensor:
    """Join x and z to one vector for each chain."""
    _validation.samples("x", x)
    flat = x.flatten(1)
    return flat.detach() if z is None else torch.cat([flat, z.flatten(1)], -1).detach()


def _split(state: Tensor, x_shape: torch.Size, z_shape: torch.Size | None) -> tuple[Tensor, Tensor | None]:
    """Split the vectors of all chains into x and z of the given shapes."""
    x, z = state[:, : x_shape.numel()], state[:, x_shape.numel() :]
    return x.reshape(-1, *x_shape), None if z_shape is None else z.reshape(-1, *z_shape)


def _log_density_of(model: Any, x_shape: torch.Size, z_shape: torch.Size | None = None) -> LogDensity:
    """Return the model's log-density as a function of the vectors of all chains."""
    name = "log_prob" if z_shape is None else "log_joint"
    if not hasattr(model, name):
        raise TypeError(f"model must have {name}, found {type(model).__name__} without it")

    def log_density(state: Tensor) -> Tensor:
        x, z = _split(state, x_shape, z_shape)
        value: Tensor = model.log_prob(x) if z is None else model.log_joint(x, z)
        if value.shape != state.shape[:1]:
            raise ValueError(
                f"{name} must give one number for each row, shape ({len(state)},), found {tuple(value.shape)}; sum "
                "over the columns"
            )
        return value

    return log_density
