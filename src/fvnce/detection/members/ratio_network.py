r"""Ratio networks: p_θ = e^f p_n, relative to the noise, so that Δ⁰ = f; the anomaly is −f = log p_n/p_θ + const.

The loss is that of the power rule (α, 0) with a profiled log Z (docs/theory/objectives.md): with
A = E_data e^(αf) and B = E_noise e^((1+α)f) it is log B/(1+α) − (1/α) log A. α > 0 weighs data by (p_θ/p_n)^α and so
discounts the outliers that hide among them.

Networks are trained together, with one batched product for a layer of all of them, each on rows and noise of its own.
The loss is the mean of theirs, and AdamW moves a weight by its own gradient alone: no network affects another.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ... import _random
from ..._stats import log_mean_exp
from ..._validation import fields, listed, number, require, stored_array
from ...training.history import History
from ..blocks import in_blocks
from ..noise import Support, draw_mixture
from ..rows import Array, Folds, TrainingRows, with_bar
from .base import HeldOutScores, ImageShape, Member, MemberSettings, State, standard

#: Inputs are cut here: a row a thousand deviations away is an outlier, not a thousand times one.
INPUT_LIMIT = 4.0
#: Draws of the noise that networks are trained against, and the most numbers in them.
NOISE_ROWS, NOISE_NUMBERS = 2**14, 2**24
#: Epochs into which the steps are divided in the record of training.
EPOCHS = 10
#: The fraction of the steps in which the learning rate rises, before it falls as a cosine.
WARM_UP = 0.05
#: Points of the path along which a gradient is integrated.
PATH = 64


class RatioNetworks(Member):
    """M networks f that were trained from different starts; their anomaly is −f, standardized and averaged.

    Args:
        weights: of each layer, shape (M, inputs, outputs).
        biases: of each layer, shape (M, 1, outputs).
        centers: mean of −f over the training rows, one for each network.
        scales: its deviation.
    """

    name: ClassVar[str] = "network"
    sees_components: ClassVar[bool] = True
    exact = False  # integrated gradients are a quadrature

    def __init__(
        self, weights: Sequence[Tensor], biases: Sequence[Tensor], centers: list[float], scales: list[float]
    ) -> None:
        self.weights, self.biases = [w.double() for w in weights], [b.double() for b in biases]
        self.centers, self.scales = centers, scales

    @classmethod
    def fit(
        cls, rows: TrainingRows, settings: MemberSettings, seed: int, folds: Folds | None = None
    ) -> tuple[Self, HeldOutScores | None]:
        """Train against the mixture noise; with K folds network m is trained without fold m mod K."""
        width = rows.X.shape[1]
        n_noise = min(NOISE_ROWS, max(settings.batch_size, NOISE_NUMBERS // width))
        noise, noise_folds = draw_mixture(rows, settings, n_noise, seed, folds)
        # Every second draw: on the values of a column alone a network learns nothing of what lies between them.
        noise[::2] = Support.learn(rows).nearest(noise[::2])
        count = settings.n_networks if folds is None else max(settings.n_networks, folds.count)
        row_weights, allowed = torch.from_numpy(rows.weights).expand(count, -1), torch.ones(count, n_noise) > 0
        if folds is not None:
            left_out = (torch.arange(count) % folds.count)[:, None]
            row_weights, allowed = row_weights * (torch.from_numpy(folds.rows) != left_out), noise_folds != left_out
        weights, biases = initial_layers([width, *settings.hidden, 1], count, seed)
        history = train(weights, biases, torch.from_numpy(rows.X).float(), row_weights, noise, allowed, settings, seed)
        plain = cls(weights, biases, [0.0] * count, [1.0] * count)
        units = [standard(anomaly, rows.weights) for anomaly in plain._each(torch.from_numpy(rows.X)).numpy()]
        member = cls(weights, biases, [center for center, _ in units], [scale for _, scale in units])
        member.history = history
        if folds is None:
            return member, None
        return member, HeldOutScores.by(lambda X, f: member.anomaly_by(X, slice(f, None, folds.count)), rows, folds)

    def anomaly(self, X: Array) -> Array:
        """Return the mean over networks of (−f − center)/scale, in float64."""
        return self.anomaly_by(X, slice(None))

    def anomaly_by(self, X: Array, networks: slice) -> Array:
        """Return the mean over some of the networks."""
        mean: Array = self._each(torch.from_numpy(X))[networks].mean(0).numpy()
        return mean

    def _each(self, x: Tensor) -> Tensor:
        """Return (−f − center)/scale of each network, shape (M, n)."""
        count = len(self.centers)
        f = in_blocks(lambda block: forward(self.weights, self.biases, block.expand(count, *block.shape)).T, x).T
        centers, scales = (torch.tensor(values, dtype=x.dtype)[:, None] for values in (self.centers, self.scales))
        return (-f - centers) / scales

    def contributions(self, X: Array) -> Array:
        """Return integrated gradients from the typical row 0."""
        x = torch.from_numpy(X)
        total = torch.zeros_like(x)
        for step in range(PATH):
            at = (x * ((step + 0.5) / PATH)).requires_grad_()
            (slope,) = torch.autograd.grad(self._each(at).mean(0).sum(), at)
            total += slope
        return (x * total / PATH).numpy()

    @property
    def base(self) -> float:
        """The anomaly of the typical row."""
        return float(self.anomaly(np.zeros((1, self.weights[0].shape[1])))[0])

    def state(self) -> State:
        """Return the layers, and what standardizes the networks."""
        kinds = {"weights": self.weights, "biases": self.biases}
        arrays = {f"{kind}.{layer}": x.numpy() for kind, layers in kinds.items() for layer, x in enumerate(layers)}
        return {"centers": self.centers, "scales": self.scales}, arrays

    @classmethod
    def from_state(
        cls, content: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], width: int, image: ImageShape | None
    ) -> Self:
        """Make networks of layers that fit together, over ``width`` columns."""
        require(image is None, "have ratio networks over columns", "pixels")
        if "module" in content:
            content, arrays = _upgraded(content, arrays)
        centers, scales = fields(content, "ratio networks", centers=listed(number), scales=listed(_positive))
        count, layers, inputs = len(centers), len(arrays) // 2, width
        require(count > 0 and len(scales) == count, "have a center and a scale for each network", [count, len(scales)])
        names = {f"{kind}.{layer}" for layer in range(layers) for kind in ("weights", "biases")}
        require(layers > 0 and set(arrays) == names, "have weights and biases for each layer", sorted(arrays))
        weights, biases = ([arrays[f"{kind}.{i}"] for i in range(layers)] for kind in ("weights", "biases"))
        for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            outputs = 1 if layer == layers - 1 else np.shape(weight)[-1]
            stored_array(f"weights of layer {layer}", weight, np.float64, (count, inputs, outputs))
            stored_array(f"biases of layer {layer}", bias, np.float64, (count, 1, outputs))
            inputs = outputs
        return cls(list(map(torch.from_numpy, weights)), list(map(torch.from_numpy, biases)), centers, scales)


def _positive(name: str, value: Any) -> float:
    return number(name, value, low=0.0, open_low=True)


def _upgraded(content: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> State:
    """Return the state of today from that of version 0.2, which held each network as modules."""
    _, centers, scales = fields(content, "ratio networks", "module", "centres", "scales")
    layers = len(arrays) // (2 * max(1, len(centers)))
    stacked = {}
    for layer in range(layers):
        names = [f"state.{network}.1.{2 * layer}" for network in range(len(centers))]
        # Copies in the order of training: the last bit of a product depends on the order of its factors in memory.
        stacked[f"weights.{layer}"] = np.ascontiguousarray([arrays[f"{name}.weight"].T for name in names])
        stacked[f"biases.{layer}"] = np.array([arrays[f"{name}.bias"][None] for name in names])
    return {"centers": centers, "scales": scales}, stacked


def initial_layers(sizes: Sequence[int], count: int, seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """Draw the first weights and biases of ``count`` networks, uniform in ±1/√inputs as torch's own are.

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


def forward(weights: Sequence[Tensor], biases: Sequence[Tensor], x: Tensor) -> Tensor:
    """Return f of each network, shape (M, n), at inputs of shape (M, n, D)."""
    x = functional.hardtanh(x, -INPUT_LIMIT, INPUT_LIMIT)
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        x = torch.baddbmm(bias, functional.silu(x) if layer else x, weight)
    return x.squeeze(-1)


def losses(data: Tensor, noise: Tensor, alpha: float) -> Tensor:
    """Return the loss of each network, shape (M,), from f at its data and at its noise, shapes (M, n) and (M, p)."""
    log_b = log_mean_exp((1 + alpha) * noise, 1) / (1 + alpha)
    return log_b - (data.mean(1) if alpha == 0 else log_mean_exp(alpha * data, 1) / alpha)


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
        weights: of each layer, shape (M, inputs, outputs).
        biases: of each layer, shape (M, 1, outputs).
        rows: data, shape (n, D).
        row_weights: how often each network sees each row, shape (M, n).
        noise: draws of p_n, shape (p, D).
        allowed: which of them each network may see, shape (M, p).
        settings: of the detector.
        seed: of the batches.
    """
    device, draw = _device(settings.device), BatchDraw.of(row_weights, allowed)
    rows, noise = rows.to(device), noise.to(device)
    parameters = [x.clone().to(device).requires_grad_() for x in (*weights, *biases)]
    layers = parameters[: len(weights)], parameters[len(weights) :]
    optimizer = torch.optim.AdamW(parameters, settings.learning_rate, weight_decay=settings.weight_decay, fused=True)
    generator = _random.generator(seed, _random.GLOBAL, 0, 0)
    history, started = History(), time.perf_counter()
    epochs, per_epoch, n = min(EPOCHS, settings.steps), max(1, settings.steps // EPOCHS), settings.batch_size
    for epoch in with_bar(range(epochs), epochs, "training", settings.verbose > 0):
        for step in range(epoch * per_epoch, (epoch + 1) * per_epoch):
            chosen, drawn = draw(n, generator)
            f = forward(*layers, torch.cat([rows[chosen.to(device)], noise[drawn.to(device)]], 1))
            loss = losses(f[:, :n], f[:, n:], settings.alpha).mean()
            optimizer.zero_grad()
            loss.backward()
            rate = settings.learning_rate * _schedule((step + 1) / (epochs * per_epoch))
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()
            history.steps.add(step=step, epoch=epoch, rows=n, lr=rate, loss=loss.item())
        mean = math.fsum(history.steps["loss"][-per_epoch:]) / per_epoch
        if not math.isfinite(mean):
            raise ValueError(f"learning_rate must keep the loss finite, found a loss of {mean} in epoch {epoch + 1}")
        seconds = time.perf_counter() - started
        history.epochs.add(epoch=epoch + 1, step=step + 1, lr=rate, loss=mean, seconds=seconds)
    for target, trained in zip((*weights, *biases), parameters, strict=True):
        target.copy_(trained.detach())
    return history


def _device(name: str) -> torch.device:
    return torch.device({"auto": "cuda" if torch.cuda.is_available() else "cpu", "gpu": "cuda"}.get(name, name))


def _schedule(done: float) -> float:
    """Return the factor of the learning rate when a fraction ``done`` of the steps is."""
    return done / WARM_UP if done < WARM_UP else 0.5 * (1 + math.cos(math.pi * (done - WARM_UP) / (1 - WARM_UP)))


@dataclass(frozen=True)
class BatchDraw:
    """Draws a batch for each network: rows by its weights, and noise among what it may see.

    Draws are made on the CPU: they are the same for every device, which may know no float64.

    Attributes:
        cumulative: sums of the weights of rows, shape (M, n).
        order: the draws of noise, those allowed first, shape (M, p).
        allowed: how many are allowed, shape (M, 1).
    """

    cumulative: Tensor
    order: Tensor
    allowed: Tensor

    @classmethod
    def of(cls, row_weights: Tensor, allowed: Tensor) -> Self:
        """Make it from how often each network sees each row, (M, n), and which noise it may see, (M, p)."""
        order = torch.argsort(~allowed, dim=1, stable=True)
        return cls(row_weights.cumsum(1), order, allowed.sum(1, keepdim=True))

    def __call__(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the numbers of rows and of draws of noise for each network, shape (M, size) each."""
        level = torch.rand(2, len(self.order), size, generator=generator, dtype=torch.float64)
        # Right of a row's own weight, so that a row of weight zero is never drawn.
        chosen = torch.searchsorted(self.cumulative, level[0] * self.cumulative[:, -1:], right=True)
        drawn = self.order.gather(1, (level[1] * self.allowed).long())
        return chosen.clamp_max(self.cumulative.shape[1] - 1), drawn
