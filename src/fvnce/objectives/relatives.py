r"""Relatives of NCE in which a factor of p⁰ cancels, so that there is no log Z to learn.

Conditional NCE (Ceylan & Gutmann 2018) tells data from noise that starts at the data: every data point x is given a
step u ~ c(·|x), and asked is which of the two came first,

    J = −2 E log(1 + e^(−L)),      L = log p⁰(x) k(u|x) − log p⁰(u) k(x|u)                     (conditional NCE)

Both orders are told apart by the same G with its sign turned, so that J is the log-likelihood of a classifier, and
p⁰ ∝ p_d its maximiser wherever steps connect the data. Small Gaussian steps make it score matching.

Ranking NCE (Ma & Collins 2018) asks which of K + 1 points is the datum, the others being noise,

    J = E log r(x) / (r(x) + r(y_1) + … + r(y_K)),      r = p⁰/p_n,  y_k ~ p_n                       (ranking NCE)

p⁰ ∝ p_d is the maximiser for every K ≥ 1 if p_n covers p_d. As K grows the gradient becomes that of maximum likelihood.
InfoNCE (van den Oord et al. 2018) is the special case of a model of y given a context whose noise is the marginal of y:
r is then the critic, and J + log(K + 1) bounds the mutual information from below.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import softplus

from .. import _checks
from .._estimates import log_mean_exp
from ..noise.simple import Steps
from ..scoring import Logarithmic
from .base import Batch, BatchShare, ContrastInfo, Objective, Terms, gather, mean_over_data
from .contrastive import ContrastiveObjective, ObjectiveValue
from .ratios import BatchRatios, Encoder, check_finite, check_model, log_ratio

#: Steps of this many standard deviations over √D: those at which a random walk on a Gaussian mixes fastest.
STEP = 2.38


class ConditionalNCE(Objective):
    r"""Conditional NCE (Ceylan & Gutmann 2018): which of x and a step u away from it is the datum (Eq. conditional).

    The model need not be normalised, and there is no noise distribution to choose. What it cannot see is the weight of
    modes that no step connects.

    With latents p⁰(x) = E_q[p⁰(x, z)/q(z|x)] is estimated from draws. J is concave in p⁰(x), so that the data's side is
    a lower bound; in p⁰(u) it is convex, and no proper loss of pairs is concave in both (Eq. no_pairs). There it is an
    importance estimate, too high by what a finite number of draws leaves; a discrete latent is summed over, exactly.

    Args:
        model: ``log_prob(x)``, or ``log_joint(x, z)`` with an encoder; unnormalised or not.
        encoder: q(z|x), which must cover p_θ(z|x); None for a model without latents.
        conditional: from rows x to a distribution of steps, k(·|x). By default Gaussian steps of 2.38/√D standard
            deviations of each column, which the first batch tells; a column that does not vary there is not moved.
        steps: κ, steps taken from each data point.
        latent_samples: draws of the latent of x, and of u.

    >>> from fvnce import EnergyModel, mlp
    >>> from fvnce.noise import GaussianSteps
    >>> ConditionalNCE(EnergyModel(mlp([2, 16, 1])))(torch.randn(8, 2)).backward()
    >>> flat = torch.distributions.Independent(torch.distributions.Uniform(torch.zeros(1), 1e6), 1)
    >>> ConditionalNCE(flat, conditional=GaussianSteps(0.1))(torch.ones(4, 1))  # nothing to tell apart: 2 log 2
    tensor(1.3863)
    """

    spread: Tensor
    #: Whether the first batch is known, which the shape of ``spread`` does not show where rows are numbers.
    _measured = False

    def __init__(
        self,
        model: Any,
        encoder: Encoder | None = None,
        conditional: Steps | None = None,
        *,
        steps: int = 1,
        latent_samples: int = 1,
    ) -> None:
        super().__init__()
        check_model(model, encoder)
        self.model = model
        self.encoder = encoder
        self.conditional = conditional
        self.steps = _checks.count("steps", steps)
        self.latent_samples = _checks.count("latent_samples", latent_samples)
        # Part of the state: what the first batch showed decides the steps of all others.
        self.register_buffer("spread", torch.zeros(()))

    def terms_of(self, batch: Batch) -> Terms:
        """J on a batch; steps are drawn, and noise is refused."""
        x = _checks.rows("x", batch.x, tuple(batch.x.shape[1:]))
        for name in ("x_noise", "log_noise_x", "log_noise_noise"):
            if (given := getattr(batch, name)) is not None:
                raise ValueError(
                    f"{name} must be None for ConditionalNCE, whose noise are steps from x, found shape "
                    f"{tuple(given.shape)}; pass conditional to choose the steps"
                )
        earned = -2 * softplus(-self.log_odds(x, batch.share)).mean(0)
        return Terms(-mean_over_data(earned, batch.share), earned.detach())

    def log_odds(self, x: Tensor, share: BatchShare | None = None) -> Tensor:
        """G of each data point and each of its steps, shape (κ, B), at steps that are drawn now."""
        u, gained = self._step(x, share)
        log_phi = self._log_phi("x", x, may_be_zero=False)
        odds = log_phi - self._log_phi("u", u.flatten(0, 1), may_be_zero=True).reshape(self.steps, len(x))
        return odds if gained is None else odds + gained

    @torch.no_grad()
    def _step(self, x: Tensor, share: BatchShare | None) -> tuple[Tensor, Tensor | None]:
        """u, shape (κ, B, …), and log k(u|x) − log k(x|u), shape (κ, B), or None where k is symmetric."""
        if self.conditional is None:
            scale = self._spread(x, share).to(x) * (STEP / math.sqrt(x[0].numel()))
            return x + scale * torch.randn((self.steps, *x.shape), dtype=x.dtype, device=x.device), None
        forth = _checks.conditional(self.conditional(x), x)
        u = forth.sample((self.steps,)).to(x.dtype)
        if getattr(self.conditional, "symmetric", False):
            return u, None
        flat = u.flatten(0, 1)
        back = _checks.conditional(self.conditional(flat), flat)
        returned = back.log_prob(x.repeat(self.steps, *[1] * (x.dim() - 1)))
        return u, forth.log_prob(u) - returned.reshape(self.steps, len(x))

    def _log_phi(self, name: str, x: Tensor, *, may_be_zero: bool) -> Tensor:
        q = None if self.encoder is None else self.encoder(x)
        ratio = log_ratio(self.model, q, x, x.new_zeros(len(x)), self.latent_samples, marginal=True)
        # A step to where the model has no probability is told apart for sure, and has no gradient.
        return check_finite(name, x, ratio, may_be_zero=may_be_zero).mean

    @torch.no_grad()
    def _spread(self, x: Tensor, share: BatchShare | None) -> Tensor:
        """Standard deviations of the first batch's columns; a column that does not vary is not moved."""
        if self._measured or self.spread.dim():
            return self.spread
        if _checks.values_are_hidden():
            raise RuntimeError(
                "the steps are scaled by the first batch, which a traced call cannot do: call the objective once on a "
                "batch before compiling or transforming it, or pass conditional"
            )
        rows = gather(_checks.finite_rows("x", x), share)
        found = rows.std(0) if len(rows) > 1 else torch.zeros_like(x[0])
        if not bool((found > 0).any()):
            raise ValueError(
                f"x must vary for steps to be scaled by it, found {len(rows)} equal rows; pass conditional, such as "
                "fvnce.noise.GaussianSteps(0.1)"
            )
        if self.training:
            self.spread, self._measured = found, True
        return found

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        # Its shape is that of a row, which nobody knows before the first batch.
        saved = state_dict.get(prefix + "spread")
        if isinstance(saved, Tensor):
            self.spread = saved.new_zeros(saved.shape)
            self._measured = saved.dim() > 0 or bool(saved)
        super()._load_from_state_dict(state_dict, prefix, *arguments)


class RankingNCE(ContrastiveObjective):
    r"""Ranking NCE (Ma & Collins 2018; Eq. ranking): find the datum among K noise samples of its own.

    Noise rows i·K … (i+1)·K − 1 go with row i of the data; where there are fewer, they are used again from the first,
    and more are refused.

    With latents both kinds of ratio are estimated from draws. J is concave in r(x), so that the data's side is a lower
    bound; in the r(y_k) it is convex, and the estimate is too high by what a finite number of draws leaves. A bound on
    both sides exists, −log R ≥ 1 − c − e^(−c) R with R the sum of the ratios, and is, but for r(x) in R, rule (0, 0) of
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
    if not count <= len(noise) <= rows * count:
        raise ValueError(
            f"x_noise must hold at least the {count} noise samples of one row of x and at most the {rows * count} of "
            f"all, found {len(noise)}"
        )
    return noise[torch.arange(rows * count, device=noise.device) % len(noise)].reshape(rows, count)
