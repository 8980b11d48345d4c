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
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..scoring import ScoringRule


@torch.no_grad()
def ratio_statistics(rule: ScoringRule, delta_data: Tensor, delta_noise: Tensor) -> dict[str, float]:
    """The six shares, for log-ratios Δ of shape (B,) and (N,). Above the clip a slope is that at the clip."""
    above1, above0 = rule.tangent_above
    delta_data, delta_noise = delta_data.cpu(), delta_noise.cpu()
    log_data = rule.log_slope(_capped(delta_data, above1))[0]
    capped = _capped(delta_noise, above0)
    log_noise = capped + rule.log_slope(capped)[0]
    zero = log_noise.exp() == 0
    epsilon = math.log(torch.finfo(log_noise.dtype).eps)
    # On a few hundred numbers numpy's operations cost a third of torch's.
    log_mean_data, ess_data = _log_mean_and_share(log_data.numpy())
    log_weights = log_noise.numpy()
    _, ess_noise = _log_mean_and_share(log_weights)
    return {
        "live_noise": _share(log_weights >= log_mean_data + epsilon),
        "zero_noise": _share(zero.numpy()),
        "ess_noise": ess_noise,
        "ess_data": ess_data,
        "clipped_noise": 0.0 if above0 == math.inf else _share(delta_noise.numpy() > above0),
        "clipped_data": 0.0 if above1 == math.inf else _share(delta_data.numpy() > above1),
    }


def effective_share(log_weights: Tensor) -> float:
    """(Σw)²/(N Σw²), from log w."""
    return _log_mean_and_share(log_weights.detach().cpu().numpy())[1]


def _log_mean_and_share(log_weights: np.ndarray[Any, Any]) -> tuple[float, float]:
    """log of the mean weight, and the effective share."""
    top = log_weights.max()
    weights = np.exp(log_weights - top)
    total = float(weights.sum())
    count = len(log_weights)
    return float(top) + math.log(total / count), total * total / (count * float(weights.dot(weights)))


def _capped(delta: Tensor, above: float) -> Tensor:
    return delta if above == math.inf else delta.clamp(max=above)


def _share(condition: np.ndarray[Any, Any]) -> float:
    return int(np.count_nonzero(condition)) / condition.size
