r"""The paper's two-parameter family of double-ELBO rules, with its corrected f0.

With r = e^Δ, for 0 ≤ α ≤ 1 and β ≥ 0,

    f1 = ((r+β)^α − 1)/α,      f0 = β((r+β)^α − 1)/α − ((r+β)^(1+α) − β)/(1+α),

whose constants are chosen so that α → 0 has a limit, log(r+β) and β log(r+β) − r. The derivatives are

    df1/dΔ = r (r+β)^(α−1),    df0/dΔ = −r² (r+β)^(α−1).

(0,0) is the variational autoencoder's rule, (1,0) least squares; at β = 0 the family is the density power
divergence with base measure p_n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import _validation
from .rule import SmoothRule, number_text, with_slope

#: e^75 · 1e4 is still a float32: with a clip in this range every |Δ| ≤ 1e4 gives finite values and gradients.
MAX_CLIP = 75.0


@dataclass(frozen=True)
class PowerRule(SmoothRule):
    r"""The rule (α, β) of the paper's family.

    Args:
        alpha: α in [0, 1]. 0 is maximum likelihood, larger values weight a data sample by r^α.
        beta: β ≥ 0. Above 0, data samples with r ≪ β cease to matter.
        clip: T of the paper's clipped exponential: f0 continues along its tangent above Δ = T/(1+α) and f1 above
            Δ = T/α. It keeps a wild log-ratio from overflowing. The price: above T/(1+α) the pair is neither
            compatible nor concave, so neither proper nor a bound; :func:`~fvnce.scoring.check_double_elbo` reports
            that Δ as ``valid_below``. ``None`` is the exact rule.

    >>> rule = PowerRule(alpha=0.0, beta=0.0)
    >>> delta = torch.tensor([-1.0, 0.0, 1.0])
    >>> rule.f1(delta), rule.f0(delta)  # log r and −r
    (tensor([-1.,  0.,  1.]), tensor([-0.3679, -1.0000, -2.7183]))
    >>> str(PowerRule(1 / 64))
    'power(1/64)'
    """

    alpha: float = 0.0
    beta: float = 0.0
    clip: float | None = 10.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", _validation.number("alpha", self.alpha, low=0.0, high=1.0))
        object.__setattr__(self, "beta", _validation.number("beta", self.beta, low=0.0))
        if self.clip is not None:
            clip = _validation.number("clip, if not None,", self.clip, low=0.0, high=MAX_CLIP)
            object.__setattr__(self, "clip", clip)
            # At α = 0, f1 = log(r+β) needs no clip.
            above1 = clip / self.alpha if self.alpha else math.inf
            object.__setattr__(self, "tangent_above", (above1, clip / (1 + self.alpha)))

    @property
    def variational(self) -> bool:
        """True for the whole family."""
        return True

    def unclipped(self) -> PowerRule:
        """Return the exact rule, without clip."""
        return PowerRule(self.alpha, self.beta, clip=None)

    def log_slope(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Return Δ + (α−1) log(r+β), and 1 + (α−1) r/(r+β)."""
        with torch.no_grad():
            if self.beta == 0:
                return self._log_slope1(delta), torch.full_like(delta, self.alpha)
            share = torch.sigmoid(delta - math.log(self.beta))
            return self._log_slope1(delta), 1 + (self.alpha - 1) * share

    def _value(self, outcome: int, delta: Tensor) -> Tensor:
        u = delta if self.beta == 0 else self._log_r_plus_beta(delta)
        if outcome == 1:
            return u if self.alpha == 0 else torch.expm1(self.alpha * u) / self.alpha
        power = torch.exp((1 + self.alpha) * u)
        if self.beta == 0:
            return -power / (1 + self.alpha)
        value = self.beta * self._value(1, delta) - (power - self.beta) / (1 + self.alpha)
        # Where the power overflows, so may the lower one; their difference is −∞ and not ∞ − ∞.
        return torch.where(power == math.inf, -power, value)

    def _slope(self, outcome: int, delta: Tensor) -> Tensor:
        if outcome == 1:
            return torch.exp(self._log_slope1(delta))
        if self.beta == 0:
            return -torch.exp((1 + self.alpha) * delta)
        delta = _below_infinity(delta)
        return -torch.exp(2 * delta + (self.alpha - 1) * self._log_r_plus_beta(delta))

    def _log_slope1(self, delta: Tensor) -> Tensor:
        if self.beta == 0:
            return torch.zeros_like(delta) if self.alpha == 0 else self.alpha * delta  # 0·∞ is not 0
        delta = _below_infinity(delta)
        return delta + (self.alpha - 1) * self._log_r_plus_beta(delta)

    def _log_r_plus_beta(self, delta: Tensor) -> Tensor:
        log_beta = math.log(self.beta)
        # The derivative of logaddexp as torch writes it is ∞/∞ in second order at Δ ≪ 0; a sigmoid is not.
        u = torch.logaddexp(delta, delta.new_full((), log_beta))
        return with_slope(delta, u, torch.sigmoid(delta - log_beta))

    def __str__(self) -> str:
        arguments = [number_text(self.alpha)]
        if self.beta != 0:
            arguments.append(number_text(self.beta))
        if self.clip != 10.0:
            arguments.append(f"clip={'none' if self.clip is None else number_text(self.clip)}")
        return f"power({', '.join(arguments)})"


def _below_infinity(delta: Tensor) -> Tensor:
    """Return Δ with the largest number for ∞, so that Δ − log(r+β) is 0 there and not ∞ − ∞."""
    return delta.clamp(max=torch.finfo(delta.dtype).max)
