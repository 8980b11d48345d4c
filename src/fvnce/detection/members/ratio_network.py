r"""Neural members: a ratio network, and a latent-variable model, both trained by profiled fully variational NCE.

* Ratio network: p_θ = e^f p_n, written relative to the noise, so that Δ⁰ = f. Its anomaly is −f = log p_n/p_θ + const.
* Latent-variable model: p_θ(x, z) with an encoder, against the density of the noise; its anomaly is
  −log p_θ(x, g(x)) = |x − x̂|²/2σ² + |z|²/2 + const.

In both, with A = E_data e^(αΔ⁰) and B = E_noise e^((1+α)Δ⁰), the loss is −(1/α) log A + log B/(1+α). α > 0 weighs data
by (p_θ/p_n)^α and so discounts the outliers that hide among them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal
from torch.optim import AdamW, Optimizer

from ...models import GaussianDecoder, GaussianEncoder, LatentVariableModel, PointEncoder
from ...objectives import VAE, Autoencoder, FullyVariationalNCE, Objective, Profiled
from ...scoring import PowerRule
from ...training import EarlyStopping, History, fit, randomness
from ..networks import initialised
from ..noise import BaseMeasure

Array = NDArray[np.float64]

#: Into how many epochs the steps are divided.
EPOCHS = 10
#: Points of the path along which a gradient is integrated.
PATH = 64


@dataclass(frozen=True)
class Schooling:
    """How networks are trained.

    Attributes:
        steps: of the optimiser.
        batch_size: rows of a step; as many noise samples.
        learning_rate: of AdamW, with a warm-up and a cosine decay.
        weight_decay: of AdamW.
        alpha: of the scoring rule.
        early_stopping: tenths of the steps without a better held-out loss after which to stop, or None.
        device: "cpu", "cuda", "auto", …
        precision: as Lightning Fabric has it.
        progress: show a bar.
    """

    steps: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    alpha: float
    early_stopping: int | None
    device: str
    precision: str | None
    progress: bool


class _Relative(nn.Module):
    """log p_θ relative to the noise: f."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def log_prob(self, x: Tensor) -> Tensor:
        value: Tensor = self.network(x)
        return value.squeeze(-1)


class _OwnDraws(GaussianEncoder):
    """A Gaussian encoder with generators of its own: one for training, one that begins anew at every validation."""

    def __init__(self, network: nn.Module, seed: int) -> None:
        super().__init__(network)
        self._for_training = randomness.generator(seed, randomness.GLOBAL, 0, 0)
        self._seed = seed
        self.train()

    def train(self, mode: bool = True) -> Self:
        """Choose the generator."""
        fresh = randomness.generator(self._seed, randomness.VALIDATION, 0, 0)
        self._generator = self._for_training if mode else fresh
        return super().train(mode)


class RatioNetworks:
    """Networks f that were trained alike from different starts; their anomaly is −f, standardised and averaged."""

    def __init__(self, networks: list[nn.Module], centres: list[float], scales: list[float]) -> None:
        self.networks = [network.eval().double() for network in networks]
        self.centres, self.scales = centres, scales

    @torch.no_grad()
    def anomaly(self, X: Array) -> Array:
        """Mean over networks of (−f − centre)/scale, in float64 so that a row's score does not depend on its batch."""
        return self._mean(_aligned(X)).numpy()

    def _mean(self, x: Tensor) -> Tensor:
        parts = [
            (-network(x).squeeze(-1) - centre) / scale
            for network, centre, scale in zip(self.networks, self.centres, self.scales, strict=True)
        ]
        return torch.stack(parts).mean(0)

    def contributions(self, X: Array) -> Array:
        """Integrated gradients from the typical row 0: they sum to ``anomaly(X) − base`` up to the quadrature."""
        x = _aligned(X)
        total = torch.zeros_like(x)
        for step in range(PATH):
            at = (x * ((step + 0.5) / PATH)).requires_grad_()
            (slope,) = torch.autograd.grad(self._mean(at).sum(), at)
            total += slope
        return (x * total / PATH).numpy()

    @property
    def base(self) -> float:
        """The anomaly of the typical row."""
        weight = next(p for p in self.networks[0].parameters() if p.dim() > 1)
        width = _inputs(self.networks[0], weight)
        return float(self.anomaly(np.zeros((1, width)))[0])


def _inputs(network: nn.Module, weight: Tensor) -> int:
    for layer in network.modules():
        if isinstance(layer, nn.Unflatten):
            return math.prod(layer.unflattened_size)
    return weight.shape[1]


class LatentModel:
    """A latent-variable model; its anomaly is −log p_θ(x, g(x)) per dimension of x."""

    def __init__(self, encoder: nn.Module, decoder: GaussianDecoder) -> None:
        self.encoder, self.decoder = encoder.eval().double(), decoder.eval().double()

    def _parts(self, X: Array) -> tuple[Tensor, Tensor]:
        x = _aligned(X)
        with torch.no_grad():
            z = self.encoder(x).mean
            rebuilt = self.decoder(z).mean
            squares = (x - rebuilt).square() / (2 * self.decoder.scale.square())
        return squares / X.shape[1], z.square().sum(1) / (2 * X.shape[1])

    def anomaly(self, X: Array) -> Array:
        """|x − x̂|²/2σ² + |z|²/2, over D: the constants of the density do not change a ranking."""
        squares, code = self._parts(X)
        return np.asarray((squares.sum(1) + code).numpy())

    def contributions(self, X: Array) -> Array:
        """The squared error of each column."""
        return np.asarray(self._parts(X)[0].numpy())

    def code(self, X: Array) -> Array:
        """The part that belongs to no column: |z|²/2D."""
        return np.asarray(self._parts(X)[1].numpy())


def train_ratio_networks(
    make: Callable[[], nn.Module],
    rows: Array,
    weights: Array,
    noise: Distribution,
    how: Schooling,
    count: int,
    seed: int,
) -> tuple[RatioNetworks, list[History]]:
    """``count`` networks against the noise, each from its own start."""
    networks, centres, scales, histories = [], [], [], []
    for member in range(count):
        (network,) = initialised(lambda: (make(),), seed + 7919 * member)
        objective = FullyVariationalNCE(
            _Relative(network), None, BaseMeasure(noise), PowerRule(alpha=how.alpha), partition=Profiled(momentum=0)
        )
        histories.append(_train(objective, rows, weights, how, seed + 7919 * member))
        network = network.cpu().eval().double()
        with torch.no_grad():
            found = -network(_aligned(rows)).squeeze(-1).numpy()
        centre = float(np.average(found, weights=weights))
        spread = math.sqrt(float(np.average((found - centre) ** 2, weights=weights)))
        networks.append(network)
        centres.append(centre)
        scales.append(spread if spread > 0 else 1.0)
    return RatioNetworks(networks, centres, scales), histories


def train_latent_model(
    make: Callable[[], tuple[nn.Module, nn.Module]],
    latent: int,
    rows: Array,
    weights: Array,
    noise: Distribution | None,
    how: Schooling,
    seed: int,
    *,
    stochastic: bool,
) -> tuple[LatentModel, list[History]]:
    """A latent-variable model against the noise; without noise, the autoencoder or VAE that is its limit."""
    first, second = initialised(make, seed)
    encoder = _OwnDraws(first, seed) if stochastic else PointEncoder(first)
    decoder = GaussianDecoder(second, learned="shared")
    prior = Independent(Normal(torch.zeros(latent), torch.ones(latent)), 1)
    model = LatentVariableModel(prior, decoder)
    objective: Objective
    if noise is None:
        objective = VAE(model, encoder) if stochastic else Autoencoder(model, encoder)
    else:
        objective = FullyVariationalNCE(
            model, encoder, noise, PowerRule(alpha=how.alpha), partition=Profiled(momentum=0)
        )
    history = _train(objective, rows, weights, how, seed)
    trained = GaussianEncoder(first) if stochastic else encoder  # without the generators of the training
    return LatentModel(trained.cpu(), decoder.cpu()), [history]


def _train(objective: Objective, rows: Array, weights: Array, how: Schooling, seed: int) -> History:
    generator = torch.Generator().manual_seed(seed)
    x, w = torch.from_numpy(rows).float(), torch.from_numpy(weights)
    held_out = None
    if how.early_stopping is not None and len(x) >= 20:
        order = torch.randperm(len(x), generator=generator)
        cut = len(x) // 10
        held_out, kept = x[order[:cut]], order[cut:]
        x, w = x[kept], w[kept]
    wanted = max(1, how.steps // EPOCHS) * how.batch_size
    # Rows are drawn by weight once, which makes a weight of 2 the same as two rows.
    chosen = torch.multinomial(w, wanted, replacement=True, generator=generator)

    def optimiser(groups: list[dict[str, Any]]) -> Optimizer:
        return AdamW(groups, lr=how.learning_rate, weight_decay=how.weight_decay, fused=True)

    return fit(
        objective,
        x[chosen],
        validation=held_out,
        epochs=min(EPOCHS, how.steps),
        batch_size=how.batch_size,
        optimizer=optimiser,
        lr=how.learning_rate,
        schedule="warmup-cosine",
        seed=seed,
        seed_globals=False,
        noise_pool=_pool(objective, EPOCHS * wanted),
        early_stopping=None if held_out is None else EarlyStopping(how.early_stopping or 1),
        accelerator=how.device,
        precision=how.precision,
        progress=how.progress,
    )


def _pool(objective: Objective, rows: int) -> int | None:
    """As many noise rows as training takes, drawn in one go; 8,192 at most where each needs its density."""
    if objective.noise is None:
        return None
    return rows if isinstance(objective.noise, BaseMeasure) else min(rows, 8192)


def _aligned(X: Array) -> Tensor:
    """X in memory of torch's own, which is aligned: the last bit of a product may depend on where its factors lie."""
    return torch.from_numpy(X).clone()
