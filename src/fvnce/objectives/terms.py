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
    """

    loss: Tensor
    data: Tensor
    noise: Tensor | None = None
    _evidence: Callable[[], Tensor] | None = field(default=None, repr=False)
    _deltas: Callable[[], tuple[Tensor, Tensor | None]] | None = field(default=None, repr=False)
    _more: Callable[[], dict[str, float]] | None = field(default=None, repr=False)

    # A training step asks for none of these, so each is computed when it is first asked for.

    @cached_property
    def evidence(self) -> Tensor:
        """log p_θ(x, z) − log q(z|x) of each data sample, less γ for a deterministic encoder, shape (B,).

        It is the data term of (0, 0) up to log p_n, in which autoencoder, VAE and fvNCE can be compared.
        """
        return self.data if self._evidence is None else self._evidence()

    @property
    def delta_data(self) -> Tensor | None:
        """Δ of each data sample, or None without noise."""
        return self._both_deltas[0]

    @property
    def delta_noise(self) -> Tensor | None:
        """Δ of each noise sample, or None without noise."""
        return self._both_deltas[1]

    @cached_property
    def _both_deltas(self) -> tuple[Tensor | None, Tensor | None]:
        return (None, None) if self._deltas is None else self._deltas()

    @cached_property
    def statistics(self) -> dict[str, float]:
        """Named numbers."""
        with torch.no_grad():
            named = {"data_term": self.data.mean().item(), "evidence": self.evidence.mean().item()}
            if self.noise is not None:
                named["noise_term"] = self.noise.mean().item()
            return named | (self._more() if self._more is not None else {})
