r"""The networks of detectors: their shapes, the weights they begin with, and their training.

Torch's layers fill themselves from the global generator as they are made, which every thread of a process shares. Here
they are made without memory, then given some, and filled from a generator of their own with torch's distribution: with
k = 1/√(inputs of a unit), weights and biases are uniform in (−k, k).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from ..models import GaussianDecoder, GaussianEncoder, PointEncoder, convolutional_pair, mlp
from ..noise import EmpiricalNoise
from ..objectives import Objective
from ..training import EarlyStopping, History, fit, randomness
from .plan import Array, TrainConfig
from .stacked import StackedRatios
from .stored import require, require_network

#: Inputs of networks are cut here: a row a thousand deviations away is an outlier, not a thousand times one.
LIMIT = 4.0
#: Channels of the first feature map of images.
CHANNELS = 16
#: Into how many epochs the steps are divided.
EPOCHS = 10


def ratio_network(width: int, hidden: Sequence[int]) -> nn.Module:
    """f of a row with ``width`` columns."""
    return nn.Sequential(nn.Hardtanh(-LIMIT, LIMIT), mlp([width, *hidden, 1], nn.SiLU))


def table_pair(
    width: int, hidden: Sequence[int], latent: int, outputs: int, *, cut: bool = True
) -> tuple[nn.Module, nn.Module]:
    """From a row to ``outputs`` numbers about its code, and from a code of size ``latent`` to a row.

    Args:
        width: columns of a row.
        hidden: sizes of hidden layers.
        latent: size of a code.
        outputs: what the encoder says of it.
        cut: rows at ±4 before they are encoded.
    """
    encoder = mlp([width, *hidden, outputs], nn.SiLU)
    decoder = mlp([latent, *reversed(hidden), width], nn.SiLU)
    return (nn.Sequential(nn.Hardtanh(-LIMIT, LIMIT), encoder) if cut else encoder), decoder


def image_pair(image: tuple[int, int, int], latent: int, outputs: int) -> tuple[nn.Module, nn.Module]:
    """The same for flattened images of shape ``image``, by convolutions."""
    channels, height, across = image
    encoder, decoder = convolutional_pair(
        latent, channels=channels, width=CHANNELS, outputs=outputs, size=(height, across)
    )
    return nn.Sequential(nn.Unflatten(-1, image), encoder), nn.Sequential(decoder, nn.Flatten(-3))


class SeededEncoder(GaussianEncoder):
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


def initialised(make: Callable[[], Sequence[nn.Module]], seed: int) -> list[nn.Module]:
    """The modules that ``make`` makes, with weights that follow from the seed.

    >>> (first,), (second,) = (initialised(lambda: [nn.Linear(2, 3)], 0) for _ in range(2))
    >>> torch.equal(first.weight, second.weight)
    True
    """
    generator = torch.Generator().manual_seed(seed)
    return [_filled(module.to_empty(device="cpu"), generator) for module in without_memory(make)]


def without_memory(make: Callable[[], Sequence[nn.Module]]) -> Sequence[nn.Module]:
    """The modules that ``make`` makes, with the shapes of their tensors but not the tensors.

    >>> without_memory(lambda: [nn.Linear(10**6, 10**6)])[0].weight.shape
    torch.Size([1000000, 1000000])
    """
    with torch.device("meta"):
        return make()


def _filled(module: nn.Module, generator: torch.Generator) -> nn.Module:
    for layer in module.modules():
        own = dict(layer.named_parameters(recurse=False))
        if not own and not list(layer.buffers(recurse=False)):
            continue
        if not isinstance(layer, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
            raise TypeError(f"networks of the detector must be linear or convolutional, found {type(layer).__name__}")
        inputs = layer.weight[0].numel()
        with torch.no_grad():
            for name in ("weight", "bias"):
                own[name].uniform_(-1 / math.sqrt(inputs), 1 / math.sqrt(inputs), generator=generator)
    return module


def train_network(objective: Objective, rows: Array, weights: Array, how: TrainConfig, seed: int) -> History:
    """Train an objective whose parts draw from generators of their own, on weighted rows."""
    generator = torch.Generator().manual_seed(seed)
    kept, held_out = _held_out(len(rows), how, generator)
    wanted = max(1, how.steps // EPOCHS) * how.batch_size
    # Rows are drawn by weight once, which makes a weight of 2 the same as two rows.
    chosen = kept[torch.multinomial(torch.from_numpy(weights)[kept], wanted, replacement=True, generator=generator)]
    x = torch.from_numpy(rows).float()
    validation = None if held_out is None else x[held_out]
    return _train(objective, x[chosen], validation, how, seed, _pool(objective, EPOCHS * wanted))


def train_stacked(
    networks: Sequence[nn.Module],
    rows: Tensor,
    weights: Tensor,
    noise: Tensor,
    allowed: Tensor,
    how: TrainConfig,
    seed: int,
) -> History:
    """Train networks side by side; see :class:`~fvnce.detection.stacked.StackedRatios` for what they are trained on."""
    generator = torch.Generator().manual_seed(seed)
    kept, held_out = _held_out(len(rows), how, generator)
    seen = torch.zeros_like(weights)
    seen[:, kept] = weights[:, kept]
    objective = StackedRatios(networks, rows, seen, noise, allowed, how.alpha, seed)
    wanted = max(1, how.steps // EPOCHS) * how.batch_size
    history = _train(objective, torch.zeros(wanted, dtype=torch.long), held_out, how, seed, None)
    objective.cpu().float().stack.copy_to(networks)
    return history


def _held_out(count: int, how: TrainConfig, generator: torch.Generator) -> tuple[Tensor, Tensor | None]:
    """Numbers of the rows to train on, and of those to validate on, if training may stop early."""
    if how.early_stopping is None or count < 20:
        return torch.arange(count), None
    order = torch.randperm(count, generator=generator)
    return order[count // 10 :], order[: count // 10]


def _train(
    objective: nn.Module, rows: Tensor, validation: Tensor | None, how: TrainConfig, seed: int, noise_pool: int | None
) -> History:
    def optimiser(groups: list[dict[str, Any]]) -> Optimizer:
        return AdamW(groups, lr=how.learning_rate, weight_decay=how.weight_decay, fused=True)

    return fit(
        objective,
        rows,
        validation=validation,
        epochs=min(EPOCHS, how.steps),
        batch_size=how.batch_size,
        optimizer=optimiser,
        lr=how.learning_rate,
        schedule="warmup-cosine",
        seed=seed,
        seed_globals=False,
        noise_pool=noise_pool,
        early_stopping=None if validation is None else EarlyStopping(how.early_stopping or 1),
        accelerator=how.device,
        precision=how.precision,
        progress=how.progress,
    )


def _pool(objective: Objective, rows: int) -> int | None:
    """As many noise rows as training takes, drawn in one go; 8,192 at most where each needs its density."""
    if objective.noise is None:
        return None
    return rows if isinstance(objective.noise, EmpiricalNoise) else min(rows, 8192)


def aligned(X: NDArray[Any]) -> Tensor:
    """X in memory of torch's own, which is aligned: the last bit of a product may depend on where its factors lie."""
    return torch.from_numpy(X).clone()


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
    first, second = (
        [layer for layer in module.modules() if isinstance(layer, nn.Linear)] for module in (encoder, decoder)
    )
    require(bool(first) and bool(second), "have linear layers in a latent-variable model", "none")
    outputs, latent = first[-1].out_features, second[0].in_features
    require(outputs == latent * (2 if stochastic else 1), "have one code for encoder and decoder", [outputs, latent])
    hidden = [layer.out_features for layer in first[:-1]]

    def expected() -> Sequence[nn.Module]:
        pair = (
            table_pair(width, hidden, latent, outputs, cut=cut) if image is None else image_pair(image, latent, outputs)
        )
        wrapped = GaussianEncoder(pair[0]) if stochastic else PointEncoder(pair[0])
        return wrapped, GaussianDecoder(pair[1], learned="shared")

    for found, wanted in zip((encoder, decoder), without_memory(expected), strict=True):
        require_network(found, wanted)
    return latent
