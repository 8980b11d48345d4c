r"""Ranking NCE (Ma & Collins 2018): which of K + 1 points is the datum, the others being noise.

    J = E log r(x) / (r(x) + r(y_1) + … + r(y_K)),      r = φ/p_n,  y_k ~ p_n                        (ranking NCE)

A factor of φ cancels, so there is no log Z to learn, and φ ∝ p_d is the maximiser for every K ≥ 1. As K grows the
gradient becomes that of maximum likelihood. InfoNCE (van den Oord et al. 2018) is the special case of a model of y
given a context whose noise is the marginal of y: r is then the critic, and J + log(K + 1) bounds the mutual
information from below.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from .. import _checks
from .._estimates import log_mean_exp
from ..scoring import Logarithmic
from .contrastive import ContrastiveObjective, ObjectiveValue
from .ratios import BatchRatios, Encoder
from .terms import ContrastInfo, Terms


class RankingNCE(ContrastiveObjective):
    r"""Ranking NCE (Ma & Collins 2018; Eq. ranking): find the datum among K noise samples of its own.

    Noise rows i·K … (i+1)·K − 1 go with row i of the data; where there are fewer, they are used again from the first.

    With latents both kinds of ratio are estimated from draws. J is concave in r(x), so that the data's side is a lower
    bound; in the r(y_k) it is convex, and the estimate is too high by what a finite number of draws leaves. A bound on
    both sides exists, −log s ≥ 1 − log c − s/c, and is rule (0, 0) of
    :class:`~fvnce.objectives.FullyVariationalNCE`. A discrete latent is summed over, exactly.

    Args:
        model: p_θ, unnormalised or not: ``log_prob(x)``, or ``log_joint(x, z)`` with an encoder.
        noise: p_n.
        encoder: q(z|x), which must cover p_θ(z|x); None for a model without latents.
        noise_samples: K.
        latent_samples: draws of each latent.

    >>> from torch.distributions import Independent, Normal
    >>> normal = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> RankingNCE(normal, normal, noise_samples=3)(torch.zeros(4, 2))  # one of four that are alike: log 4
    tensor(1.3863)
    """

    _noise_is_marginal = True

    def __init__(
        self,
        model: Any,
        noise: Distribution,
        encoder: Encoder | None = None,
        noise_samples: int = 1,
        *,
        latent_samples: int = 1,
    ) -> None:
        count = _checks.count("noise_samples", noise_samples)
        super().__init__(model, encoder, noise, Logarithmic(), latent_samples=latent_samples, noise_ratio=count)
        self.noise_samples = count
        # What a noise sample weighs is for its rivals to say, and not for the logarithmic rule.
        self._can_skip = False

    def value_of(self, ratios: BatchRatios) -> ObjectiveValue:
        """J of log-ratios. Those of several processes are put together, as data and noise need not be cut alike."""
        data = ratios.data.gathered(ratios.share).mean
        noise = ratios.noise.gathered(ratios.share).mean
        rivals = _rivals(noise, len(data), int(self.noise_samples))
        earned = data - torch.logaddexp(data, rivals.logsumexp(1))
        shift = -log_mean_exp(noise.detach()) - math.log(self.noise_ratio)
        return ObjectiveValue(earned.mean(), earned.detach(), noise.new_zeros(len(noise)), shift)

    def terms_of_ratios(self, ratios: BatchRatios) -> Terms:
        """J of log-ratios that are already computed. Statistics are those of a classifier at the best c."""
        found = self.value_of(ratios)

        def evidence() -> Tensor:
            return ratios.data.mean.detach() + ratios.evidence_offset

        def deltas() -> tuple[Tensor, Tensor]:
            return ratios.data.mean.detach() + found.shift, ratios.noise.mean.detach() + found.shift

        info = ContrastInfo(self.rule, self.noise_ratio, found.shift, True, found.value.item)
        return Terms(-found.value, found.data, None, evidence, deltas, info)


def _rivals(noise: Tensor, rows: int, count: int) -> Tensor:
    """The K noise samples of each data row, shape (rows, K), from the first again where they run out."""
    if len(noise) == rows * count:
        return noise.reshape(rows, count)
    if len(noise) < count:
        raise ValueError(f"x_noise must hold at least the {count} noise samples of one row of x, found {len(noise)}")
    return noise[torch.arange(rows * count, device=noise.device) % len(noise)].reshape(rows, count)
