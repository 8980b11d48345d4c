r"""A contrastive objective on a whole set, and what can be compared across rules.

A profiled objective takes the log of a mean over noise. The mean of that log over batches is another number, too large;
so the log-ratios of all batches are put together and every log-mean-exp is taken once.

Losses of different rules are in different units. Two criteria are not:

    bound       E_data[Δ⁰] − c − e^(−c) E_noise[e^Δ⁰] + 1
    log_loss    E_data[log(1 + e^(−Δ))] + ν E_noise[log(1 + e^Δ)],    Δ = Δ⁰ − c − log ν

The first is the α = 0 bound on E_data[log p_θ/p_n], best at c = log E_noise[e^Δ⁰]; the second is the logarithmic loss
of the classifier that the model implies.

c is the objective's own where it is fixed or learned; where it is profiled out, each half of the noise is judged at the
c of the other half.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.functional import softplus

from .._estimates import log_mean_exp
from .base import BatchShare, Terms, gather
from .contrastive import ContrastiveObjective
from .profiled import Profiled
from .ratios import BatchRatios, LogRatio

Batches = Iterable[tuple[Tensor, Tensor]]


@torch.no_grad()
def evaluate(objective: ContrastiveObjective, data: Batches, noise: Batches) -> Terms:
    """The terms of the objective over all batches, as if they were one; with several processes, over all of theirs.

    Args:
        objective: in evaluation mode, unless its own state shall change.
        data: pairs (x, log p_n(x)).
        noise: pairs (x, log p_n(x)) of noise samples.
    """
    ratios, offsets = [], []
    for x, log_noise in data:
        ratios.append(objective.data_log_ratio(x, log_noise))
        offsets.append(objective.evidence_offset(ratios[-1], log_noise))
    if not ratios:
        raise ValueError("data must hold at least one batch, found none")
    contrary = [objective.noise_log_ratio(x, log_noise) for x, log_noise in noise]
    share = BatchShare()
    offset = gather(torch.cat(offsets), share)
    whole = BatchRatios(_joined(ratios).gathered(share), _joined(contrary).gathered(share), offset)
    return objective.terms_of_ratios(whole)


@torch.no_grad()
def comparable(objective: ContrastiveObjective, terms: Terms) -> dict[str, float]:
    """The two criteria, from the terms of a whole set."""
    if terms.delta_data is None or terms.delta_noise is None:
        return {}
    nu = objective.noise_ratio
    own = terms.statistics["log_scale"]
    data = terms.delta_data.double() + own + math.log(nu)
    noise = terms.delta_noise.double() + own + math.log(nu)
    pairs = [(noise, own)]
    if isinstance(objective.partition, Profiled) and len(noise) > 1:
        one, other = noise[::2], noise[1::2]
        pairs = [(one, float(log_mean_exp(other))), (other, float(log_mean_exp(one)))]
    bounds, losses = [], []
    for judged, c in pairs:
        bounds.append(data.mean() - c - (log_mean_exp(judged) - c).exp() + 1)
        shift = c + math.log(nu)
        losses.append(softplus(shift - data).mean() + nu * softplus(judged - shift).mean())
    return {"bound": float(sum(bounds)) / len(pairs), "log_loss": float(sum(losses)) / len(pairs)}


def _joined(ratios: list[LogRatio]) -> LogRatio:
    """One log-ratio of all batches; draws that are averaged inside f are averaged first."""
    if any(ratio.log_weights is None for ratio in ratios):
        return LogRatio(torch.cat([ratio.mean for ratio in ratios]).unsqueeze(0))
    weights = [ratio.log_weights for ratio in ratios if ratio.log_weights is not None]
    return LogRatio(torch.cat([ratio.values for ratio in ratios], 1), torch.cat(weights, 1))
