r"""Relatives of NCE in which a factor of p⁰ cancels, so that there is no log Z to learn (docs/models/which-nce.md).

Conditional NCE (Ceylan & Gutmann 2018) distinguishes each data point x from a step y ~ k(·|x) away from it,

    J = −2 E log(1 + e^(−L)),      L = log p⁰(x) k(y|x) − log p⁰(y) k(x|y).                    (Eq. conditional)

Ranking NCE (Ma & Collins 2018) finds the data point among K + 1 points, the others being noise,

    J = E log r(x) / (r(x) + r(y_1) + … + r(y_K)),      r = p⁰/p_n,  y_k ~ p_n.                   (Eq. ranking)
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import softplus

from .. import _validation
from .._stats import log_mean_exp
from ..noise.simple import Steps
from ..scoring import Logarithmic
from .batch import Batch, BatchPart, LogRatio, Scalar, Terms, gather, mean_over_data
from .contrastive import ContrastiveObjective, NoiseLike
from .ratios import Encoder, ModelObjective, check_finite, check_model, log_ratio

#: The step in standard deviations, times √D, at which a random walk on a Gaussian mixes fastest.
STEP = 2.38


class ConditionalNCE(ModelObjective):
    r"""Conditional NCE (Ceylan & Gutmann 2018): data points against steps u away from them (Eq. conditional).

    The model need not be normalized, and there is no noise distribution to choose. The objective does not depend
    on the relative weights of modes that no step connects. With a context, x and u have the same one, and its log Z
    cancels as well.

    With latents p⁰(x) = E_q[p⁰(x, z)/q(z|x)] is estimated from draws. J is concave in p⁰(x), so that the data's side is
    a lower bound; in p⁰(u) it is convex, and no proper loss of pairs is concave in both (Eq. no_pairs). The side of u
    is estimated by importance sampling, too high with few draws; a discrete latent is summed over exactly.

    Args:
        model: ``log_prob(x)``, or ``log_joint(x, z)`` with an encoder; unnormalized or not.
        encoder: q(z|x), which must cover p_θ(z|x); None for a model without latents.
        conditional: from rows x to a distribution of steps, k(·|x), in the place of the noise. By default Gaussian
            steps of 2.38/√D standard deviations of each column of the first batch; a column that does not vary there
            is not moved.
        steps: κ, steps taken from each data point.
        latent_samples: draws of the latent of x, and of u.

    >>> from fvnce import EnergyModel, mlp
    >>> from fvnce.noise import GaussianSteps
    >>> ConditionalNCE(EnergyModel(mlp([2, 16, 1])))(torch.randn(8, 2)).backward()
    >>> flat = torch.distributions.Independent(torch.distributions.Uniform(torch.zeros(1), 1e6), 1)
    >>> ConditionalNCE(flat, conditional=GaussianSteps(0.1))(torch.ones(4, 1))  # equally likely: 2 log 2
    tensor(1.3863)
    """

    spread: Tensor

    def __init__(
        self,
        model: Any,
        encoder: Encoder | None = None,
        conditional: Steps | None = None,
        *,
        steps: int = 1,
        latent_samples: int = 1,
    ) -> None:
        super().__init__(model, encoder)
        check_model(model, encoder)
        self.conditional = conditional
        self.steps = _validation.count("steps", steps)
        self.latent_samples = _validation.count("latent_samples", latent_samples)
        # Part of the state: the first batch decides the steps of all others.
        self.register_buffer("spread", torch.zeros(()))

    def terms_of(self, batch: Batch) -> Terms:
        """Return J on a batch; steps are drawn, and noise is refused."""
        x = _validation.rows("x", batch.x, tuple(batch.x.shape[1:]))
        for name in ("x_noise", "log_noise_x", "log_noise_noise"):
            if (given := getattr(batch, name)) is not None:
                raise ValueError(
                    f"{name} must be None for ConditionalNCE, whose noise are steps from x, found shape "
                    f"{tuple(given.shape)}; pass conditional to choose the steps"
                )
        values = -2 * softplus(-self.log_odds(x, batch.part, batch.context)).mean(0)
        return Terms(-mean_over_data(values, batch.part), values.detach())

    def log_odds(self, x: Tensor, part: BatchPart | None = None, context: Tensor | None = None) -> Tensor:
        """Return L of each data point and each of its steps, shape (κ, B), at steps that are drawn now."""
        y, log_step_ratio = self._step(x, part)
        log_p = self._log_p("x", x, context, may_be_zero=False)
        repeated = None if context is None else context.repeat(self.steps, *[1] * (context.dim() - 1))
        odds = log_p - self._log_p("y", y.flatten(0, 1), repeated, may_be_zero=True).reshape(self.steps, len(x))
        return odds if log_step_ratio is None else odds + log_step_ratio

    @torch.no_grad()
    def _step(self, x: Tensor, part: BatchPart | None) -> tuple[Tensor, Tensor | None]:
        """Return y, shape (κ, B, …), and log k(y|x) − log k(x|y), shape (κ, B), or None where k is symmetric."""
        if self.conditional is None:
            scale = self._spread(x, part).to(x) * (STEP / math.sqrt(x[0].numel()))
            return x + scale * torch.randn((self.steps, *x.shape), dtype=x.dtype, device=x.device), None
        forth = _validation.conditional(self.conditional(x), x)
        y = forth.sample((self.steps,)).to(x.dtype)
        if getattr(self.conditional, "symmetric", False):
            return y, None
        flat = y.flatten(0, 1)
        back = _validation.conditional(self.conditional(flat), flat)
        returned = back.log_prob(x.repeat(self.steps, *[1] * (x.dim() - 1)))
        return y, forth.log_prob(y) - returned.reshape(self.steps, len(x))

    def _log_p(self, name: str, x: Tensor, context: Tensor | None, *, may_be_zero: bool) -> Tensor:
        q, context = self._encode(x, context), self._context_of("model", context)
        ratio = log_ratio(self.model, q, x, x.new_zeros(len(x)), self.latent_samples, marginal=True, context=context)
        return check_finite(name, x, ratio, may_be_zero=may_be_zero).mean

    @torch.no_grad()
    def _spread(self, x: Tensor, part: BatchPart | None) -> Tensor:
        """Return the standard deviations of the columns of the first batch."""
        if self.spread.dim() or bool(self.spread):  # rows may be numbers
            return self.spread
        if _validation.values_are_hidden():
            raise RuntimeError(
                "the first batch scales the steps, which a traced call cannot do: call the objective once on a batch "
                "before compiling or transforming it, or pass conditional"
            )
        rows = gather(_validation.finite_rows("x", x), part)
        spread = rows.std(0) if len(rows) > 1 else torch.zeros_like(x[0])
        if not bool((spread > 0).any()):
            raise ValueError(
                f"x must vary for steps to be scaled by it, found {len(rows)} equal rows; pass conditional, such as "
                "fvnce.noise.GaussianSteps(0.1)"
            )
        if self.training:
            self.spread = spread
        return spread

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        # Its shape is that of a row, which is unknown before the first batch.
        saved = state_dict.get(prefix + "spread")
        if isinstance(saved, Tensor):
            self.spread = saved.new_zeros(saved.shape)
        super()._load_from_state_dict(state_dict, prefix, *arguments)


class RankingNCE(ContrastiveObjective):
    r"""Ranking NCE (Ma & Collins 2018; Eq. ranking): find the data point among K noise samples.

    Noise rows i·K … (i+1)·K − 1 go with row i of the data; if there are fewer, they are reused from the first; more
    are an error. With a context they have that of row i, none may be reused, and log Z(u) cancels: a model p⁰(x|u) is
    learned up to a function of u.

    With latents both kinds of ratio are estimated from draws. J is concave in r(x), so that the data's side is a lower
    bound; in the r(y_k) it is convex, and the estimate is too high with few draws. A bound on both sides exists,
    −log R ≥ 1 − c − e^(−c) R with R the sum of the ratios; except for r(x) in R it is rule (0, 0) of
    :class:`~fvnce.objectives.FullyVariationalNCE`. A discrete latent is summed over exactly.

    Args:
        model: p_θ, unnormalized or not: ``log_prob(x)``, or ``log_joint(x, z)`` with an encoder.
        encoder: q(z|x), which must cover p_θ(z|x); None for a model without latents.
        noise: p_n, or a function from contexts to p_n(·|u).
        noise_samples: K.
        latent_samples: draws of each latent.

    >>> from torch.distributions import Independent, Normal
    >>> normal = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> RankingNCE(normal, noise=normal, noise_samples=3)(torch.zeros(4, 2))  # one of four equals: log 4
    tensor(1.3863)
    """

    _noise_is_marginal = True

    def __init__(
        self,
        model: Any,
        encoder: Encoder | None = None,
        noise: NoiseLike | None = None,
        noise_samples: int = 1,
        *,
        latent_samples: int = 1,
    ) -> None:
        given: tuple[Any, Any] = encoder, noise
        if isinstance(given[0], Distribution):
            text = "RankingNCE(model, noise, encoder) is deprecated and will be removed in the next version"
            warnings.warn(f"{text}; use RankingNCE(model, encoder, noise)", DeprecationWarning, stacklevel=2)
            given = given[::-1]
        count = _validation.count("noise_samples", noise_samples)
        super().__init__(model, *given, Logarithmic(), latent_samples=latent_samples, noise_ratio=count)
        self.noise_samples = count
        # The weight of a noise sample depends on its rivals, not on the logarithmic rule.
        self._can_skip = False

    def context_rows(self, noise_rows: int, rows: int) -> Tensor:
        """Return the row of data that each noise sample goes with."""
        count = int(self.noise_samples)
        if noise_rows != rows * count:
            each = f"{count} noise samples for each of the {rows} rows of x"
            raise ValueError(f"x_noise must hold {each} where there is a context, found {noise_rows}")
        return torch.arange(noise_rows) // count

    def terms_of_ratios(
        self, data: LogRatio, noise: LogRatio, evidence_offset: Scalar, part: BatchPart | None = None
    ) -> Terms:
        """Return J of log-ratios. Statistics are those of a classifier at the best c.

        The log-ratios of several processes are joined, because data and noise may be divided differently.
        """
        all_data, all_noise = data.gathered(part).mean, noise.gathered(part).mean
        values = all_data - torch.logaddexp(all_data, self._rivals(all_noise, len(all_data)).logsumexp(1))
        value, nu = values.mean(), self.noise_ratio
        shift = -log_mean_exp(all_noise.detach()) - math.log(nu)
        held_out_value = value.detach().item
        return Terms(
            -value, values.detach(), None, (data, noise), shift, evidence_offset, self.rule, nu, held_out_value
        )

    def _rivals(self, noise: Tensor, rows: int) -> Tensor:
        """Return the K noise samples of each data row, shape (rows, K), from the first again where they run out."""
        count = int(self.noise_samples)
        if not count <= len(noise) <= rows * count:
            raise ValueError(
                f"x_noise must hold at least the {count} noise samples of one row of x and at most the {rows * count} "
                f"of all, found {len(noise)}"
            )
        if len(noise) < rows * count:
            noise = noise[torch.arange(rows * count, device=noise.device) % len(noise)]
        return noise.reshape(rows, count)
