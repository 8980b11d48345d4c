"""The calling convention that all objectives share."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from .. import _checks
from ..models import LatentVariableModel
from .batch import Batch
from .ratios import LogRatio
from .terms import Terms


class Objective(nn.Module):
    """A module from a data batch, and a noise batch where it needs one, to the loss −J.

    ``objective(x)`` draws its own noise. Where log p_n is expensive, noise and its density can be handed in,
    and so can the tabulated density of the data rows: ``objective(x, x_noise, log_noise_x=…, log_noise_noise=…)``.

    An objective of one's own defines :meth:`terms_of`, from which the two ways of calling it follow.

    >>> class Spread(Objective):
    ...     def terms_of(self, batch):
    ...         earned = -batch.x.square().sum(1)
    ...         return Terms(-earned.mean(), earned.detach())
    >>> Spread()(torch.ones(4, 3))
    tensor(3.)
    """

    noise: Distribution | None = None
    """p_n, or None where the objective has no noise term."""
    noise_ratio: float = 0.0
    """ν, how much more frequent noise is than data in what the classifier is told: the weight of the noise term."""
    noise_samples: float = 0.0
    """Noise samples drawn for each data sample."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # Training evaluates batches by terms_of: what another method added would be left out without a word.
        for name in ("terms", "forward"):
            if name in vars(cls):
                raise TypeError(f"{cls.__name__} must define terms_of(batch), found {name}, which is made from it")

    @abstractmethod
    def terms_of(self, batch: Batch) -> Terms:
        """The loss, the terms per sample, and statistics of a batch."""

    def terms(
        self,
        x: Tensor,
        x_noise: Tensor | None = None,
        *,
        log_noise_x: Tensor | None = None,
        log_noise_noise: Tensor | None = None,
    ) -> Terms:
        """The loss, the terms per sample, and statistics."""
        return self.terms_of(Batch(x, x_noise, log_noise_x, log_noise_noise))

    def forward(
        self,
        x: Tensor,
        x_noise: Tensor | None = None,
        *,
        log_noise_x: Tensor | None = None,
        log_noise_noise: Tensor | None = None,
    ) -> Tensor:
        """The loss −J, a scalar."""
        return self.terms_of(Batch(x, x_noise, log_noise_x, log_noise_noise)).loss

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Groups for an optimiser: all parameters at ``lr``, but a learned log Z at its own rate."""
        return [{"params": list(self.parameters()), "lr": lr}]


def prior_constant(model: Any, point: bool) -> float:
    """γ = max log p_Z for a deterministic encoder on a latent-variable model, else 0."""
    return model.highest_log_prior() if point and isinstance(model, LatentVariableModel) else 0.0


def check_finite(name: str, x: Tensor, ratio: LogRatio, log_noise: Tensor | None = None, *, may_be_zero: bool) -> bool:
    """Whether all log-ratios are known to be finite; those that must be and are not are traced to where they come from.

    A ratio of zero, Δ⁰ = −∞, is legitimate where the model gives a noise sample no probability.
    """
    if _checks.values_are_hidden():
        return False
    values = ratio.values.detach()
    if math.isfinite(float(values.sum())):  # one pass in the good case; a sum that overflows is looked at below
        return True
    good = (~values.isnan() & (values < torch.inf) if may_be_zero else values.isfinite()).all(0)
    if good.all():
        return False
    _checks.finite_rows(name, x)
    if log_noise is not None:
        _checks.finite_log_noise(name, log_noise)
    row = int((~good).nonzero()[0])
    raise ValueError(
        f"log p_θ(x, z) − log q(z|x) must be finite, found {float(values[:, row].max())} at row {row} of {name}: the "
        "model or the encoder has diverged, or the row lies outside the model's support"
    )
