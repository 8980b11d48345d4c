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

Numbers = np.ndarray[Any, Any]


@torch.no_grad()
def ratio_statistics(rule: ScoringRule, delta_data: Tensor, delta_noise: Tensor) -> dict[str, list[float]]:
    """The six shares of S batches, for log-ratios Δ of shape (S, B) and (S, N).

    Above the clip a slope is that at the clip.
    """
    above1, above0 = rule.tangent_above
    delta_data, delta_noise = delta_data.cpu(), delta_noise.cpu()
    log_data = rule.log_slope(_capped(delta_data, above1))[0]
    capped = _capped(delta_noise, above0)
    log_noise = capped + rule.log_slope(capped)[0]
    zero = log_noise.exp() == 0
    epsilon = math.log(torch.finfo(log_noise.dtype).eps)
    # On a few numbers numpy's operations cost a third of torch's.
    log_mean_data, ess_data = _log_mean_and_share(log_data.numpy())
    log_weights = log_noise.numpy()
    _, ess_noise = _log_mean_and_share(log_weights)
    none = [0.0] * len(log_weights)
    return {
        "live_noise": _share(log_weights >= (log_mean_data + epsilon)[:, None]),
        "zero_noise": _share(zero.numpy()),
        "ess_noise": ess_noise.tolist(),
        "ess_data": ess_data.tolist(),
        "clipped_noise": none if above0 == math.inf else _share(delta_noise.numpy() > above0),
        "clipped_data": none if above1 == math.inf else _share(delta_data.numpy() > above1),
    }


def effective_share(log_weights: Tensor) -> float:
    """(Σw)²/(N Σw²), from log w, shape (N,)."""
    return float(_log_mean_and_share(log_weights.detach().cpu().numpy()[None])[1][0])


def _log_mean_and_share(log_weights: Numbers) -> tuple[Numbers, Numbers]:
    """log of the mean weight, and the effective share, of each row."""
    top = log_weights.max(1)
    weights = np.exp(log_weights - top[:, None])
    total = weights.sum(1)
    count = log_weights.shape[1]
    return top + np.log(total / count), total * total / (count * np.square(weights).sum(1))


def _capped(delta: Tensor, above: float) -> Tensor:
    return delta if above == math.inf else delta.clamp(max=above)


def _share(condition: Numbers) -> list[float]:
    shares: list[float] = (np.count_nonzero(condition, axis=1) / condition.shape[1]).tolist()
    return shares
