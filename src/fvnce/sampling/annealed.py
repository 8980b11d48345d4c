r"""log Z by annealed importance sampling (Neal 2001): a second opinion where no exact value is known.

    log f_t = (1 − t) log p_base + t log p⁰,    t = 0 … 1,
    log w = Σ_i (t_{i+1} − t_i)(log p⁰ − log p_base)(s_i),    Z = E[w],

where s_i has taken a Langevin step under f_{t_i}. With one temperature it is the importance estimate of the noise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from .. import _checks
from .._estimates import LogPartition, log_mean_exp
from ..noise import draw
from .chains import join, langevin_step, split


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
        a, b = split(s, x, z)
        value: Tensor = base.log_prob(a)
        if b is None or latent_base is None:
            return value
        q = latent_base if isinstance(latent_base, Distribution) else latent_base(a)
        return value + q.log_prob(b)

    def log_target(s: Tensor) -> Tensor:
        a, b = split(s, x, z)
        value: Tensor = model.log_prob(a) if b is None else model.log_joint(a, b)
        return value

    state = join(x, z)
    log_w = torch.zeros(chains, dtype=state.dtype, device=state.device)
    for i in range(temperatures):
        t = (i + 1) / temperatures
        with torch.no_grad():
            log_w += (log_target(state) - log_base(state)) / temperatures
        if i + 1 == temperatures:
            break

        def tempered(s: Tensor, t: float = t) -> Tensor:
            return (1 - t) * log_base(s) + t * log_target(s)

        state, accepted = langevin_step(tempered, state, step_size, generator=generator)
        # The step of the next temperature follows from all chains of this one: with many chains a constant.
        step_size *= 1.1 if float(accepted.float().mean()) > 0.6 else 1 / 1.1
    return log_mean_exp(log_w)
