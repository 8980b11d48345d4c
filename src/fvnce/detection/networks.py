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
from torch.nn import functional
from torch.optim import AdamW, Optimizer
from torch.overrides import TorchFunctionMode

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
#: Sizes of the factors of a product are multiples of this.
EVEN = 16

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
    """``function`` of rows, in blocks of one size, with even products.

    >>> in_blocks(lambda rows: rows.sum(1), torch.ones(300, 2)).shape
    torch.Size([300])
    """
    filled = torch.cat([x, x.new_zeros(-len(x) % BLOCK, *x.shape[1:])]) if len(x) % BLOCK or not len(x) else x
    with EvenProducts():
        # Each block in memory of torch's own, which is aligned: the last bit may depend on where factors lie as well.
        return torch.cat([function(block.clone()) for block in filled.split(BLOCK)])[: len(x)]


class EvenProducts(TorchFunctionMode):
    """Products of matrices with zeros added until their sizes are multiples of :data:`EVEN`.

    Kernels take several rows and columns at a time, and what remains at the end by other code that may add in another
    order: the last bit of a row would depend on its place among the others. Where nothing remains, it does not.

    >>> with EvenProducts():
    ...     (torch.ones(2, 3) @ torch.ones(3, 4)).shape
    torch.Size([2, 4])
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Products are made even, everything else is left as it is."""
        if func is functional.linear and not kwargs:
            x, weight, *bias = args
            bias = [_even(b, 1) for b in bias if b is not None]
            return func(_even(x, 1), _even(weight, 2), *bias)[..., : len(weight)]
        if func is torch.baddbmm and not kwargs:
            bias, x, weight = args
            return func(_even(bias, 1), _even(x, 1), _even(weight, 2))[..., : weight.shape[-1]]
        if func in _MATMUL and args[0].ndim > 1 and args[1].ndim > 1:
            return func(_even(args[0], 1), _even(args[1], 2))[..., : args[1].shape[-1]]
        return func(*args, **(kwargs or {}))


_MATMUL = (torch.matmul, Tensor.matmul, Tensor.__matmul__)


def _even(x: Tensor, dims: int) -> Tensor:
    """With zeros at the end of its last dimensions."""
    wanted = [added for size in reversed(x.shape[-dims:]) for added in (0, -size % EVEN)]
    return functional.pad(x, wanted) if any(wanted) else x


def linear_layers(network: nn.Module) -> list[nn.Linear]:
    """Its linear layers, from the input on."""
    return [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
