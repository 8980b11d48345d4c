r"""What the networks of detectors share: the weights they begin with, their training, and scores in blocks of rows.

Torch's layers fill themselves from the global generator as they are made, which every thread of a process shares. Here
they are made without memory, then given some, and filled from a generator of their own with torch's distribution: with
k = 1/√(inputs of a unit), weights and biases are uniform in (−k, k).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from .. import _random
from ..training import EarlyStopping, History, fit
from .plan import TrainConfig

#: Inputs of networks are cut here: a row a thousand deviations away is an outlier, not a thousand times one.
LIMIT = 4.0
#: Into how many epochs the steps are divided.
EPOCHS = 10
#: Rows of a product. Always as many, the last block filled up: products of another shape may differ in the last bit,
#: and the score of a row must not depend on the rows beside it.
BLOCK = 256

Made = TypeVar("Made")


def initialised(make: Callable[[], Sequence[nn.Module]], seed: int) -> list[nn.Module]:
    """The modules that ``make`` makes, with weights that follow from the seed.

    >>> (first,), (second,) = (initialised(lambda: [nn.Linear(2, 3)], 0) for _ in range(2))
    >>> torch.equal(first.weight, second.weight)
    True
    """
    generator = torch.Generator().manual_seed(seed)
    return [_filled(module.to_empty(device="cpu"), generator) for module in without_memory(make)]


def without_memory(make: Callable[[], Made]) -> Made:
    """The module or modules that ``make`` makes, with the shapes of their tensors but not the tensors.

    >>> without_memory(lambda: nn.Linear(10**6, 10**6)).weight.shape
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


def hold_out(count: int, how: TrainConfig, generator: torch.Generator) -> tuple[Tensor, Tensor | None]:
    """Numbers of the rows to train on, and of those to validate on, if training may stop early."""
    if how.early_stopping is None or count < 20:
        return torch.arange(count), None
    order = torch.randperm(count, generator=generator)
    return order[count // 10 :], order[: count // 10]


def train(
    objective: nn.Module, rows: Tensor, validation: Tensor | None, how: TrainConfig, seed: int, noise_pool: int | None
) -> History:
    """Train an objective whose parts draw from generators of their own."""

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


class OwnDraws(nn.Module):
    """A module that draws from generators of its own: one for training, one that begins anew at every validation."""

    _generator: torch.Generator | None

    def begin(self, seed: int) -> None:
        """Seed both, and choose that of training."""
        self._for_training = _random.generator(seed, _random.GLOBAL, 0, 0)
        self._seed = seed
        self.train()

    def train(self, mode: bool = True) -> Self:
        """Choose the generator."""
        fresh = _random.generator(self._seed, _random.VALIDATION, 0, 0)
        self._generator = self._for_training if mode else fresh
        return super().train(mode)


def in_blocks(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """``function`` of rows, in blocks of one size.

    >>> in_blocks(lambda rows: rows.sum(1), torch.ones(300, 2)).shape
    torch.Size([300])
    """
    filled = torch.cat([x, x.new_zeros(-len(x) % BLOCK, *x.shape[1:])]) if len(x) % BLOCK or not len(x) else x
    # Each block in memory of torch's own, which is aligned: the last bit may depend on where factors lie as well.
    return torch.cat([function(block.clone()) for block in filled.split(BLOCK)])[: len(x)]


def linear_layers(network: nn.Module) -> list[nn.Linear]:
    """Its linear layers, from the input on."""
    return [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
