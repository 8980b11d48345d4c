r"""Training of ratio networks on the mixture noise.

The loss is that of the power rule (α, 0) with a profiled log Z (Eq. profiled): with
A = E_data e^(αf) and B = E_noise e^((1+α)f) it is log B/(1+α) − (1/α) log A. α > 0 weighs data by (p_θ/p_n)^α and so
discounts the outliers that hide among them.

Networks are trained together, with one batched product for each layer, each network on its own rows and noise. AdamW
updates each weight by the slope of the loss of its own network, so networks are independent.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor

from ... import _random
from ..._stats import log_mean_exp
from ...training.history import History
from ..rows import with_bar
from .base import MemberSettings
from .ratio_network import INPUT_LIMIT

#: Number of epochs that steps are divided into in the training history.
EPOCHS = 10
#: Fraction of the steps in which the learning rate increases, before a cosine decay.
WARM_UP = 0.05


def initial_layers(sizes: Sequence[int], count: int, seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """Draw initial weights and biases of ``count`` networks, uniform in ±1/√inputs as in torch.

    Torch's layers would draw from the global generator, which all threads of a process share.
    """
    generators = [torch.Generator().manual_seed(seed + 7919 * network) for network in range(count)]
    weights, biases = [], []
    for inputs, outputs in pairwise(sizes):
        limit = 1 / math.sqrt(inputs)
        drawn = [
            [torch.empty(shape).uniform_(-limit, limit, generator=g) for shape in ((outputs, inputs), (1, outputs))]
            for g in generators
        ]
        weights.append(torch.stack([weight.T for weight, _ in drawn]))
        biases.append(torch.stack([bias for _, bias in drawn]))
    return weights, biases


def losses(data: Tensor, noise: Tensor, alpha: float) -> Tensor:
    """Return the loss of each network, shape (M,), from f at its data and noise, shapes (M, n) and (M, p)."""
    log_b = log_mean_exp((1 + alpha) * noise, 1) / (1 + alpha)
    return log_b - (data.mean(1) if alpha == 0 else log_mean_exp(alpha * data, 1) / alpha)


def slopes(
    weights: Sequence[Tensor], biases: Sequence[Tensor], x: Tensor, n: int, alpha: float
) -> tuple[Tensor, list[Tensor]]:
    """Return the loss of each network, shape (M,), and its slope in each weight and bias.

    They are written out, as autograd takes a third more time. The slope of the loss in f is a softmax over the batch,
    +softmax((1+α)f) at the noise and −softmax(αf) at the data.

    Args:
        weights: weights of each layer, shape (M, inputs, outputs).
        biases: biases of each layer, shape (M, 1, outputs).
        x: clipped data, then noise, shape (M, n + p, D).
        n: number of rows of data.
        alpha: α of the rule.
    """
    inputs, gates, last = [x], [], len(weights) - 1
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        x = torch.baddbmm(bias, inputs[-1], weight)
        if layer < last:
            gates.append(x.sigmoid())
            inputs.append(x * gates[-1])
    data, noise = x[:, :n, 0], x[:, n:, 0]
    slope = torch.cat([-(alpha * data).softmax(1), ((1 + alpha) * noise).softmax(1)], 1)[:, :, None]
    of_weights, of_biases = [], []
    for layer in range(last, -1, -1):
        of_weights.append(inputs[layer].mT @ slope)
        of_biases.append(slope.sum(1, keepdim=True))
        if layer:  # d(xσ)/dx = σ + xσ(1 − σ), σ the sigmoid of x
            gate = gates[layer - 1]
            slope = (slope @ weights[layer].mT).mul_(torch.addcmul(gate, inputs[layer], 1 - gate))
    return losses(data, noise, alpha), [*of_weights[::-1], *of_biases[::-1]]


def train(
    weights: list[Tensor],
    biases: list[Tensor],
    rows: Tensor,
    row_weights: Tensor,
    noise: Tensor,
    allowed: Tensor,
    settings: MemberSettings,
    seed: int,
) -> History:
    """Train networks in place.

    Args:
        weights: weights of each layer, shape (M, inputs, outputs).
        biases: biases of each layer, shape (M, 1, outputs).
        rows: data, shape (n, D).
        row_weights: weight of each row for each network, shape (M, n).
        noise: draws of p_n, shape (p, D).
        allowed: mask of the draws that each network may use, shape (M, p).
        settings: settings of the detector.
        seed: seed of the batches.
    """
    device, draw = _device(settings.device), BatchDraw.of(row_weights, allowed)
    rows, noise = rows.to(device), noise.to(device)
    rows, noise = (x.clamp(-INPUT_LIMIT, INPUT_LIMIT) for x in (rows, noise))
    parameters = [x.clone().to(device) for x in (*weights, *biases)]
    layers = parameters[: len(weights)], parameters[len(weights) :]
    optimizer = torch.optim.AdamW(parameters, settings.learning_rate, weight_decay=settings.weight_decay, fused=True)
    generator = _random.generator(seed, _random.GLOBAL, 0, 0)
    history, started = History(), time.perf_counter()
    epochs, per_epoch, n = min(EPOCHS, settings.steps), max(1, settings.steps // EPOCHS), settings.batch_size
    for epoch in with_bar(range(epochs), epochs, "training", settings.verbose > 0):
        for step in range(epoch * per_epoch, (epoch + 1) * per_epoch):
            chosen, drawn = draw(n, generator)
            batch = torch.cat([rows[chosen.to(device)], noise[drawn.to(device)]], 1)
            loss, found = slopes(*layers, batch, n, settings.alpha)
            for parameter, slope in zip(parameters, found, strict=True):
                parameter.grad = slope
            rate = settings.learning_rate * _schedule((step + 1) / (epochs * per_epoch))
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()
            history.steps.add(step=step, epoch=epoch, rows=n, lr=rate, loss=loss.mean().item())
        mean = math.fsum(history.steps["loss"][-per_epoch:]) / per_epoch
        if not math.isfinite(mean):
            raise ValueError(f"learning_rate must keep the loss finite, found a loss of {mean} in epoch {epoch + 1}")
        seconds = time.perf_counter() - started
        history.epochs.add(epoch=epoch + 1, step=step + 1, lr=rate, loss=mean, seconds=seconds)
    for target, trained in zip((*weights, *biases), parameters, strict=True):
        target.copy_(trained)
    return history


def _device(name: str) -> torch.device:
    return torch.device({"auto": "cuda" if torch.cuda.is_available() else "cpu", "gpu": "cuda"}.get(name, name))


def _schedule(done: float) -> float:
    """Return the factor of the learning rate after a fraction ``done`` of the steps."""
    return done / WARM_UP if done < WARM_UP else 0.5 * (1 + math.cos(math.pi * (done - WARM_UP) / (1 - WARM_UP)))


@dataclass(frozen=True)
class BatchDraw:
    """Sampler of batches for each network: rows by weight, and noise among the allowed draws.

    Draws are made on the CPU, so that they are equal for every device, also for one without float64.

    Attributes:
        cumulative: cumulative weights of rows, shape (M, n).
        order: indices of the draws of noise, allowed ones first, shape (M, p).
        allowed: number of allowed draws, shape (M, 1).
    """

    cumulative: Tensor
    order: Tensor
    allowed: Tensor

    @classmethod
    def of(cls, row_weights: Tensor, allowed: Tensor) -> Self:
        """Make a sampler from weights of rows, (M, n), and masks of allowed noise, (M, p), of each network."""
        order = torch.argsort(~allowed, dim=1, stable=True)
        return cls(row_weights.cumsum(1), order, allowed.sum(1, keepdim=True))

    def __call__(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the indices of rows and of draws of noise for each network, shape (M, size) each."""
        level = torch.rand(2, len(self.order), size, generator=generator, dtype=torch.float64)
        # Search on the right side, so that a row of weight zero is never drawn.
        chosen = torch.searchsorted(self.cumulative, level[0] * self.cumulative[:, -1:], right=True)
        drawn = self.order.gather(1, (level[1] * self.allowed).long())
        return chosen.clamp_max(self.cumulative.shape[1] - 1), drawn
