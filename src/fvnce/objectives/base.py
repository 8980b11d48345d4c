"""The calling convention that all objectives share."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from ..models import LatentVariableModel
from ..models.distributions import PointMass
from .terms import Terms


class Objective(nn.Module):
    """A module from a data batch, and a noise batch where it needs one, to the loss −J.

    ``objective(x)`` draws its own noise. Where log p_n is expensive, noise and its density can be handed in,
    and so can the tabulated density of the data rows: ``objective(x, x_noise, log_noise_x=…, log_noise_noise=…)``.
    """

    noise: Distribution | None = None
    """p_n, or None where the objective has no noise term."""
    noise_ratio: float = 0.0
    """ν, noise samples per data sample."""

    @abstractmethod
    def terms(
        self,
        x: Tensor,
        x_noise: Tensor | None = None,
        *,
        log_noise_x: Tensor | None = None,
        log_noise_noise: Tensor | None = None,
    ) -> Terms:
        """The loss, the terms per sample, and statistics."""

    def forward(
        self,
        x: Tensor,
        x_noise: Tensor | None = None,
        *,
        log_noise_x: Tensor | None = None,
        log_noise_noise: Tensor | None = None,
    ) -> Tensor:
        """The loss −J, a scalar."""
        return self.terms(x, x_noise, log_noise_x=log_noise_x, log_noise_noise=log_noise_noise).loss

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Groups for an optimiser: all parameters at ``lr``, but a learned log Z at its own rate."""
        return [{"params": list(self.parameters()), "lr": lr}]


def prior_constant(model: Any, encoder: Any, x: Tensor) -> float:
    """γ = max log p_Z for a deterministic encoder on a latent-variable model, else 0."""
    if isinstance(model, LatentVariableModel) and encoder is not None and _is_point(encoder, x):
        return model.highest_log_prior()
    return 0.0


def _is_point(encoder: Any, x: Tensor) -> bool:
    from ..models import PointEncoder

    if isinstance(encoder, PointEncoder):
        return True
    if isinstance(encoder, nn.Module) and type(encoder).__module__.startswith("fvnce."):
        return False
    with torch.no_grad():
        return isinstance(encoder(x[:1]), PointMass)
