r"""What the log-ratios of a batch tell about the noise term.

A noise sample enters the gradient with weight −df0/dΔ, a data sample with df1/dΔ. For (α, 0) these are e^((1+α)Δ) and
e^(αΔ): a noise sample some hundred nats below the data has a weight that is exactly zero in float32, and a noise term
of such samples teaches nothing. So every batch is asked:

    live_noise     share of noise samples with −df0/dΔ ≥ ε · mean over data of df1/dΔ, ε the rounding unit
    zero_noise     share whose weight is exactly zero
    ess_noise      (Σw)²/(N Σw²) of the noise weights: 1 if all count alike, 1/N if one carries everything
    ess_data       the same of the data weights
    clipped_noise  share of noise samples above the clip of f0; clipped_data, of data samples above that of f1
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..scoring import ScoringRule


@torch.no_grad()
def ratio_statistics(rule: ScoringRule, delta_data: Tensor, delta_noise: Tensor) -> dict[str, Tensor]:
    """The six shares, for log-ratios Δ of shape (B,) and (N,). Above the clip a slope is that at the clip."""
    above1, above0 = rule.tangent_above
    capped1, capped0 = delta_data.clamp(max=above1), delta_noise.clamp(max=above0)
    log_data = rule.log_slope(capped1)[0]
    log_noise = capped0 + rule.log_slope(capped0)[0]
    threshold = log_data.logsumexp(0) - math.log(len(log_data)) + math.log(torch.finfo(log_noise.dtype).eps)
    return {
        "live_noise": _share(log_noise >= threshold),
        "zero_noise": _share(log_noise.exp() == 0),
        "ess_noise": effective_share(log_noise),
        "ess_data": effective_share(log_data),
        "clipped_noise": _share(delta_noise > above0),
        "clipped_data": _share(delta_data > above1),
    }


def effective_share(log_weights: Tensor) -> Tensor:
    """(Σw)²/(N Σw²), from log w."""
    log_weights = log_weights - log_weights.max()  # what follows is a small difference of sums
    squared_sum = 2 * log_weights.logsumexp(0)
    sum_of_squares = (2 * log_weights).logsumexp(0)
    return (squared_sum - sum_of_squares - math.log(len(log_weights))).exp()


def _share(condition: Tensor) -> Tensor:
    return condition.float().mean()
