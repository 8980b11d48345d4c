"""What an objective computes on a batch: its terms per sample, and statistics on request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Terms:
    """The terms of an objective on a batch. Everything but ``loss`` is for looking at and carries no graph.

    Attributes:
        loss: −J, a scalar with its graph.
        data: what each data sample earns, shape (B,).
        noise: what each noise sample earns, shape (N,), or None without noise.
        evidence: log p_θ(x, z) − log q(z|x) of each data sample, less γ for a deterministic encoder. It is the
            data term of (0, 0) up to log p_n, in which autoencoder, VAE and fvNCE can be compared.
        delta_data: Δ of each data sample, or None without noise.
        delta_noise: Δ of each noise sample, or None without noise.
    """

    loss: Tensor
    data: Tensor
    evidence: Tensor
    noise: Tensor | None = None
    delta_data: Tensor | None = None
    delta_noise: Tensor | None = None
    _more: Callable[[], dict[str, Tensor]] | None = field(default=None, repr=False)

    @cached_property
    def statistics(self) -> dict[str, Tensor]:
        """Named scalars, computed when first asked for."""
        with torch.no_grad():
            named = {"data_term": self.data.mean(), "evidence": self.evidence.mean()}
            if self.noise is not None:
                named["noise_term"] = self.noise.mean()
            return named | (self._more() if self._more is not None else {})
