r"""The networks of detectors: their shapes, the weights they begin with, and their training.

Torch's layers fill themselves from the global generator as they are made, which every thread of a process shares. Here
they are made without memory, then given some, and filled from a generator of their own with torch's distribution: with
k = 1/√(inputs of a unit), weights and biases are uniform in (−k, k).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from ..models import mlp
from ..noise import EmpiricalNoise
from ..objectives import Objective
from ..training import EarlyStopping, History, fit
from .plan import Array, TrainConfig
from .stacked import StackedRatios

#: Inputs of networks are cut here: a row a thousand deviations away is an outlier, not a thousand times one.
LIMIT = 4.0
#: Into how many epochs the steps are divided.
EPOCHS = 10

Made = TypeVar("Made")


def ratio_network(width: int, hidden: Sequence[int]) -> nn.Module:
    """f of a row with ``width`` columns."""
    return nn.Sequential(nn.Hardtanh(-LIMIT, LIMIT), mlp([width, *hidden, 1], nn.SiLU))


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
