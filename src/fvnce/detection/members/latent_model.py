r"""Latent-variable models: p_θ(x, z) with an encoder, against the density of the noise. The anomaly of a row is

    −log p_θ(x, g(x)) = |x − x̂|²/2σ² + |z|²/2 + const.

In hundreds of dimensions no noise sample is live against a density: on images what is left is the limit without noise,
an autoencoder or a VAE.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal

from ...models import GaussianDecoder, GaussianEncoder, LatentVariableModel, PointEncoder
from ...objectives import VAE, Autoencoder, FullyVariationalNCE, Objective, Profiled
from ...scoring import PowerRule
from ...serialization import describe, fields, rebuild
from ...training import History
from ..networks import SeededEncoder, image_pair, initialised, require_pair, table_pair, train_network
from ..noise import mixture_of
from ..plan import Array, Plan, TrainingRows
from ..stacked import in_blocks
from ..stored import require
from .base import Member, State


class LatentModel(Member):
    """A latent-variable model; its anomaly is −log p_θ(x, g(x)) per dimension of x."""

    stochastic: ClassVar[bool]
    sees_pixels: ClassVar[bool] = True
    reconstructs: ClassVar[bool] = True

    def __init__(self, encoder: nn.Module, decoder: GaussianDecoder) -> None:
        self.encoder, self.decoder = encoder.eval().double(), decoder.eval().double()

    @classmethod
    def fit(cls, rows: TrainingRows, plan: Plan, seed: int) -> tuple[Self, list[History]]:
        """Train it against the mixture of smoothed outliers and rows; on images, without noise."""
        outputs = 2 * plan.latent if cls.stochastic else plan.latent
        make = (
            partial(table_pair, rows.X.shape[1], plan.hidden, plan.latent, outputs)
            if plan.image is None
            else partial(image_pair, plan.image, plan.latent, outputs)
        )
        first, second = initialised(make, seed)
        encoder = SeededEncoder(first, seed) if cls.stochastic else PointEncoder(first)
        decoder = GaussianDecoder(second, learned="shared")
        prior = Independent(Normal(torch.zeros(plan.latent), torch.ones(plan.latent)), 1)
        model = LatentVariableModel(prior, decoder)
        objective: Objective
        if plan.image is not None:
            objective = VAE(model, encoder) if cls.stochastic else Autoencoder(model, encoder)
        else:
            noise = mixture_of(rows, plan, torch.Generator().manual_seed(seed))
            rule = PowerRule(alpha=plan.training.alpha)
            objective = FullyVariationalNCE(model, encoder, noise, rule, partition=Profiled(momentum=0))
        history = train_network(objective, rows.X, rows.weights, plan.training, seed)
        trained = GaussianEncoder(first) if cls.stochastic else encoder  # without the generators of the training
        return cls(trained.cpu(), decoder.cpu()), [history]

    def _parts(self, X: Array) -> tuple[Tensor, Tensor]:
        def parts(x: Tensor) -> Tensor:
            z = self.encoder(x).mean
            squares = (x - self.decoder(z).mean).square() / (2 * self.decoder.scale.square())
            return torch.cat([squares, z.square().sum(1, keepdim=True) / 2], 1)

        with torch.no_grad():
            found = in_blocks(parts, torch.from_numpy(X)) / X.shape[1]
        return found[:, :-1], found[:, -1]

    def anomaly(self, X: Array) -> Array:
        """|x − x̂|²/2σ² + |z|²/2, over D: the constants of the density do not change a ranking."""
        squares, code = self._parts(X)
        return np.asarray((squares.sum(1) + code).numpy())

    def contributions(self, X: Array) -> Array:
        """The squared error of each column."""
        return np.asarray(self._parts(X)[0].numpy())

    def rest(self, X: Array) -> Array:
        """The size of the code: |z|²/2D."""
        return np.asarray(self._parts(X)[1].numpy())

    def state(self) -> State:
        """Encoder and decoder."""
        module, tensors = describe(nn.Sequential(self.encoder, self.decoder))
        return {"module": module}, tensors

    @classmethod
    def from_state(
        cls, content: Mapping[str, Any], tensors: Mapping[str, Tensor], width: int, image: tuple[int, int, int] | None
    ) -> Self:
        """An encoder and a decoder of exactly the layers that :meth:`fit` gives them, whatever their sizes."""
        (module,) = fields(content, "a latent-variable model", "module")
        pair: list[Any] = list(rebuild(module, tensors, nn.Sequential))
        require(len(pair) == 2, "have an encoder and a decoder", len(pair))
        encoder, decoder = pair
        require_pair(encoder, decoder, width, image, stochastic=cls.stochastic)
        return cls(encoder, decoder)


class AutoencoderMember(LatentModel):
    """With a deterministic encoder."""

    name: ClassVar[str] = "autoencoder"
    stochastic: ClassVar[bool] = False


class VariationalMember(LatentModel):
    """With a stochastic encoder."""

    name: ClassVar[str] = "variational"
    stochastic: ClassVar[bool] = True
