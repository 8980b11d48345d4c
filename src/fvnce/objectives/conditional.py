r"""Conditional NCE (Ceylan & Gutmann 2018): data told from noise that starts at the data, so that no log Z is left.

Every data point x is given a step u ~ c(·|x), and asked is which of the two came first:

    J = −2 E log(1 + e^(−G)),      G = log φ(x) c(u|x) − log φ(u) c(x|u)                       (conditional NCE)

φ is known up to a factor, which G does not have. Both orders are told apart by the same G with its sign turned, so that
J is the log-likelihood of a classifier, and φ ∝ p_d its maximiser wherever steps connect the data. Small Gaussian steps
make it score matching.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from .. import _checks
from ..noise.simple import Steps
from .base import Objective, check_finite
from .batch import Batch, BatchShare, gather, mean_over_data
from .contrastive import LOWEST
from .ratios import Encoder, log_ratio
from .terms import Terms

#: Steps of this many standard deviations over √D: those at which a random walk on a Gaussian mixes fastest.
STEP = 2.38


class ConditionalNCE(Objective):
    r"""Conditional NCE (Ceylan & Gutmann 2018): which of x and a step u away from it is the datum (Eq. conditional).

    The model need not be normalised, and there is no noise distribution to choose. What it cannot see is the weight of
    modes that no step connects.

    With latents φ(x) = E_q[p_θ(x, z)/q(z|x)] is estimated from draws. J is concave in φ(x), so that the data's side is
    a lower bound; in φ(u) it is convex, and no proper loss of pairs is concave in both (Eq. no_pairs). There it is an
    importance estimate, too high by what a finite number of draws leaves; a discrete latent is summed over, exactly.

    Args:
        model: ``log_prob(x)``, or ``log_joint(x, z)`` with an encoder; unnormalised or not.
        encoder: q(z|x), which must cover p_θ(z|x); None for a model without latents.
        conditional: from rows x to a distribution of steps, c(·|x). By default Gaussian steps of 2.38/√D standard
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
        needed = "log_prob" if encoder is None else "log_joint"
        if not hasattr(model, needed):
            with_or_without = "without an encoder" if encoder is None else "with an encoder"
            raise TypeError(f"model must have {needed} {with_or_without}, found {type(model).__name__} without it")
        self.model = model
        self.encoder = encoder
        self.conditional = conditional
        self.steps = _checks.count("steps", steps)
        self.latent_samples = _checks.count("latent_samples", latent_samples)
        # Part of the state: what the first batch showed decides the steps of all others.
        self.register_buffer("spread", torch.zeros(()))

    def terms_of(self, batch: Batch) -> Terms:
        """J on a batch, of which only ``x`` is used; steps are drawn."""
        x = batch.x
        _checks.rows("x", x, tuple(x.shape[1:]))
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
        """u, shape (κ, B, …), and log c(u|x) − log c(x|u), shape (κ, B), or None where c is symmetric."""
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
        if check_finite(name, x, ratio, may_be_zero=may_be_zero):
            return ratio.mean
        # A step to where the model has no probability is told apart for sure, and has no gradient.
        return ratio.mean.clamp(min=LOWEST)

    @torch.no_grad()
    def _spread(self, x: Tensor, share: BatchShare | None) -> Tensor:
        """Standard deviations of the first batch's columns; a column that does not vary is not moved."""
        if self.spread.dim():
            return self.spread
        if _checks.values_are_hidden():
            raise RuntimeError(
                "the steps are scaled by the first batch, which a traced call cannot do: call the objective once on a "
                "batch before compiling or transforming it, or pass conditional"
            )
        rows = gather(x, share)
        found = rows.std(0) if len(rows) > 1 else torch.zeros_like(x[0])
        if not bool((found > 0).any()):
            raise ValueError(
                f"x must vary for steps to be scaled by it, found {len(rows)} equal rows; pass conditional, such as "
                "fvnce.noise.GaussianSteps(0.1)"
            )
        if self.training:
            self.spread = found
        return found

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        # Its shape is that of a row, which nobody knows before the first batch.
        saved = state_dict.get(prefix + "spread")
        if isinstance(saved, Tensor):
            self.spread = saved.new_zeros(saved.shape)
        super()._load_from_state_dict(state_dict, prefix, *arguments)
