r"""Latent-variable models: p_θ(x, z) with an encoder, against the density of the noise. How their networks and their
objective are put together, and the members that they are. The anomaly of a row is

    −log p_θ(x, g(x)) = |x − x̂|²/2σ² + |z|²/2 + const.

In hundreds of dimensions no noise sample is live against a density: on images what is left is the limit without noise,
an autoencoder or a VAE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal

from ...models import (
    GaussianDecoder,
    GaussianEncoder,
    LatentVariableModel,
    PointEncoder,
    convolutional_pair,
    mlp,
)
from ...objectives import VAE, Autoencoder, FullyVariationalNCE, Objective, Profiled
from ...scoring import PowerRule
from ...serialization import describe, fields, rebuild
from ...training import History
from ..networks import EPOCHS, LIMIT, OwnDraws, hold_out, in_blocks, initialised, linear_layers, train, without_memory
from ..noise import mixture_noise
from ..plan import Array, Plan, TrainConfig, TrainingRows
from .base import Member, State, require, require_network

#: Channels of the first feature map of images.
CHANNELS = 16


def network_pair(
    width: int, image: tuple[int, int, int] | None, hidden: Sequence[int], latent: int, outputs: int, *, cut: bool
) -> tuple[nn.Module, nn.Module]:
    """From a row to ``outputs`` numbers about its code, and from a code of size ``latent`` to a row.

    Args:
        width: columns of a row.
        image: (channels, height, width) for convolutions over rows that are flattened images.
        hidden: sizes of hidden layers, without convolutions.
        latent: size of a code.
        outputs: what the encoder says of it.
        cut: rows of a table at ±4 before they are encoded.
    """
    if image is None:
        encoder = mlp([width, *hidden, outputs], nn.SiLU)
        decoder = mlp([latent, *reversed(hidden), width], nn.SiLU)
        return (nn.Sequential(nn.Hardtanh(-LIMIT, LIMIT), encoder) if cut else encoder), decoder
    first, second = convolutional_pair(latent, channels=image[0], width=CHANNELS, outputs=outputs, size=image[1:])
    return nn.Sequential(nn.Unflatten(-1, image), first), nn.Sequential(second, nn.Flatten(-3))


class SeededEncoder(OwnDraws, GaussianEncoder):
    """A Gaussian encoder whose codes in training follow a seed."""

    def __init__(self, network: nn.Module, seed: int) -> None:
        super().__init__(network)
        self.begin(seed)

    def trained(self) -> GaussianEncoder:
        """The same network without the generators of the training."""
        return GaussianEncoder(self.network)


def seeded_pair(
    width: int,
    image: tuple[int, int, int] | None,
    hidden: Sequence[int],
    latent: int,
    *,
    stochastic: bool,
    seed: int,
    cut: bool = True,
) -> tuple[SeededEncoder | PointEncoder, GaussianDecoder]:
    """An encoder and a decoder whose weights and draws follow from the seed."""
    outputs = 2 * latent if stochastic else latent
    first, second = initialised(lambda: network_pair(width, image, hidden, latent, outputs, cut=cut), seed)
    return SeededEncoder(first, seed) if stochastic else PointEncoder(first), GaussianDecoder(second, learned="shared")


def latent_objective(
    encoder: GaussianEncoder | PointEncoder,
    decoder: GaussianDecoder,
    latent: int,
    noise: Distribution | None,
    **options: Any,
) -> Objective:
    """Fully variational NCE of codes of size ``latent`` with these options; without noise, a VAE or an autoencoder."""
    model = LatentVariableModel(Independent(Normal(torch.zeros(latent), torch.ones(latent)), 1), decoder)
    if noise is not None:
        return FullyVariationalNCE(model, encoder, noise, **options)
    return VAE(model, encoder) if isinstance(encoder, GaussianEncoder) else Autoencoder(model, encoder)


def require_pair(
    encoder: nn.Module,
    decoder: nn.Module,
    width: int,
    image: tuple[int, int, int] | None,
    *,
    stochastic: bool,
    cut: bool = True,
) -> int:
    """Refuse an encoder and a decoder read from a file that are not such a pair; the size of their code."""
    first, second = linear_layers(encoder), linear_layers(decoder)
    require(bool(first) and bool(second), "have linear layers in a latent-variable model", "none")
    outputs, latent = first[-1].out_features, second[0].in_features
    require(outputs == latent * (2 if stochastic else 1), "have one code for encoder and decoder", [outputs, latent])
    hidden = [layer.out_features for layer in first[:-1]]

    def expected() -> Sequence[nn.Module]:
        one, other = network_pair(width, image, hidden, latent, outputs, cut=cut)
        return GaussianEncoder(one) if stochastic else PointEncoder(one), GaussianDecoder(other, learned="shared")

    for found, wanted in zip((encoder, decoder), without_memory(expected), strict=True):
        require_network(found, wanted)
    return latent


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
        encoder, decoder = seeded_pair(
            rows.X.shape[1], plan.image, plan.hidden, plan.latent, stochastic=cls.stochastic, seed=seed
        )
        noise = mixture_noise(rows, plan, torch.Generator().manual_seed(seed)) if plan.image is None else None
        how = {"rule": PowerRule(alpha=plan.training.alpha), "partition": Profiled(momentum=0)}
        objective = latent_objective(encoder, decoder, plan.latent, noise, **how)
        history = _train(objective, rows, plan.training, seed)
        trained = encoder.trained() if isinstance(encoder, SeededEncoder) else encoder
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


def _train(objective: Objective, rows: TrainingRows, how: TrainConfig, seed: int) -> History:
    generator = torch.Generator().manual_seed(seed)
    kept, held_out = hold_out(len(rows.X), how, generator)
    wanted = max(1, how.steps // EPOCHS) * how.batch_size
    # Rows are drawn by weight once, which makes a weight of 2 the same as two rows.
    weights = torch.from_numpy(rows.weights)[kept]
    chosen = kept[torch.multinomial(weights, wanted, replacement=True, generator=generator)]
    x = torch.from_numpy(rows.X).float()
    # As many noise rows as training takes, drawn in one go; 8,192 at most, since each needs its density.
    pool = None if objective.noise is None else min(EPOCHS * wanted, 8192)
    return train(objective, x[chosen], None if held_out is None else x[held_out], how, seed, pool)
