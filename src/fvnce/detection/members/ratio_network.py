r"""Ratio networks: p_θ = e^f p_n, relative to the noise, so that Δ⁰ = f; the anomaly is −f = log p_n/p_θ + const.

They are trained with torch (:mod:`fvnce.detection.members.network_training`) and evaluated with NumPy, so scoring does
not need torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ..._validation import fields, listed, number, require, stored_array
from ..products import even, in_blocks
from ..rows import Array, Folds, TrainingRows
from .base import LEAST_SCALE, HeldOutScores, ImageShape, Member, MemberSettings, State, standard

#: Limit in deviations at which inputs are clipped.
INPUT_LIMIT = 4.0
#: Number of draws of noise that networks are trained against, and largest number of values in them.
NOISE_ROWS, NOISE_NUMBERS = 2**14, 2**24
#: Number of rows that are evaluated at a time, a multiple of the size of a block.
ROWS = 1024
#: Number of points for integrating gradients.
PATH = 64


class RatioNetworks(Member):
    """M networks f with different initial weights; the anomaly is the mean of −f after standardization.

    Args:
        weights: weights of each layer, shape (M, inputs, outputs).
        biases: biases of each layer, shape (M, 1, outputs).
        centers: mean of −f over the training rows for each network.
        scales: standard deviation of −f over the training rows for each network.
    """

    name: ClassVar[str] = "network"
    sees_components: ClassVar[bool] = True
    exact = False  # integrated gradients have a quadrature error

    def __init__(
        self, weights: Sequence[Array], biases: Sequence[Array], centers: list[float], scales: list[float]
    ) -> None:
        self.weights, self.biases = list(weights), list(biases)
        self.centers, self.scales = centers, scales

    @classmethod
    def fit(
        cls, rows: TrainingRows, settings: MemberSettings, seed: int, folds: Folds | None = None
    ) -> tuple[Self, HeldOutScores | None]:
        """Train networks against the mixture noise; with K folds, network m is trained without fold m mod K."""
        import torch

        from ..noise import Support, draw_mixture
        from .network_training import initial_layers, train

        width = rows.X.shape[1]
        n_noise = min(NOISE_ROWS, max(settings.batch_size, NOISE_NUMBERS // width))
        noise, noise_folds = draw_mixture(rows, settings, n_noise, seed, folds)
        # Every second draw only: from occurring values alone a network would learn nothing about values between them.
        noise[::2] = Support.learn(rows).nearest(noise[::2])
        count = settings.n_networks if folds is None else max(settings.n_networks, folds.count)
        row_weights, allowed = torch.from_numpy(rows.weights).expand(count, -1), torch.ones(count, n_noise) > 0
        if folds is not None:
            left_out = (torch.arange(count) % folds.count)[:, None]
            row_weights, allowed = row_weights * (torch.from_numpy(folds.rows) != left_out), noise_folds != left_out
        weights, biases = initial_layers([width, *settings.hidden, 1], count, seed)
        history = train(weights, biases, torch.from_numpy(rows.X).float(), row_weights, noise, allowed, settings, seed)
        layers = [x.double().numpy() for x in weights], [x.double().numpy() for x in biases]
        units = [
            standard(anomaly, rows.weights) for anomaly in cls(*layers, [0.0] * count, [1.0] * count)._each(rows.X)
        ]
        member = cls(*layers, [center for center, _ in units], [scale for _, scale in units])
        member.history = history
        if folds is None:
            return member, None
        return member, HeldOutScores.by(lambda X, f: member.anomaly_by(X, slice(f, None, folds.count)), rows, folds)

    def anomaly(self, X: Array) -> Array:
        """Return the mean over networks of (−f − center)/scale, in float64."""
        return self.anomaly_by(X, slice(None))

    def anomaly_by(self, X: Array, networks: slice) -> Array:
        """Return the mean of (−f − center)/scale over some of the networks."""
        # Add one by one, since the order of sums in NumPy may depend on the number of rows.
        chosen = self._each(X)[networks]
        return np.asarray(sum(chosen) / len(chosen))

    @cached_property
    def _layers(self) -> list[tuple[Array, Array]]:
        """Weights and biases of each layer, padded for products in blocks, with an axis for blocks."""
        return [(even(w, 2)[:, None], even(b, 1)[:, None]) for w, b in zip(self.weights, self.biases, strict=True)]

    def _each(self, X: Array) -> Array:
        """Return (−f − center)/scale of each network, shape (M, n)."""
        parts = [self._forward(in_blocks(X[low : low + ROWS]))[-1][..., 0] for low in range(0, max(len(X), 1), ROWS)]
        f = np.concatenate([part.reshape(len(part), -1) for part in parts], 1)[:, : len(X)]
        centers, scales = np.array(self.centers)[:, None], np.array(self.scales)[:, None]
        return np.ascontiguousarray((-f - centers) / scales)

    def _forward(self, blocks: Array) -> list[Array]:
        """Return the pre-activations of each layer for rows in blocks, each of shape (M, blocks, 16, …)."""
        outputs: list[Array] = []
        x = np.clip(blocks, -INPUT_LIMIT, INPUT_LIMIT)[None]
        for weight, bias in self._layers:
            outputs.append((outputs[-1] * _sigmoid(outputs[-1]) if outputs else x) @ weight + bias)
        return outputs

    def _slope(self, X: Array) -> Array:
        """Return the gradient of the mean over networks of (−f − center)/scale, shape (n, D)."""
        *hidden, last = self._forward(in_blocks(X))
        gradient = np.zeros_like(last)
        gradient[..., 0] = -1 / (np.array(self.scales)[:, None, None] * len(self.scales))
        for (weight, _), output in zip(self._layers[:0:-1], reversed(hidden), strict=True):
            gate = _sigmoid(output)
            gradient = gradient @ weight.swapaxes(-1, -2) * (gate * (1 + output * (1 - gate)))
        gradient = (gradient @ self._layers[0][0].swapaxes(-1, -2)).sum(0).reshape(-1, even(X, 1).shape[1])
        return np.asarray(gradient[: len(X), : X.shape[1]] * (np.abs(X) < INPUT_LIMIT))

    def contributions(self, X: Array) -> Array:
        """Return integrated gradients from the baseline row 0."""
        return X * sum(self._slope(X * ((step + 0.5) / PATH)) for step in range(PATH)) / PATH

    @property
    def base(self) -> float:
        """Anomaly of the baseline row 0."""
        return float(self.anomaly(np.zeros((1, self.weights[0].shape[1])))[0])

    def state(self) -> State:
        """Return the layers, centers and scales as state."""
        kinds = {"weights": self.weights, "biases": self.biases}
        arrays = {f"{kind}.{layer}": x for kind, layers in kinds.items() for layer, x in enumerate(layers)}
        return {"centers": self.centers, "scales": self.scales}, arrays

    @classmethod
    def from_state(
        cls, content: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], width: int, image: ImageShape | None
    ) -> Self:
        """Restore networks over ``width`` columns; check that their layers fit together."""
        require(image is None, "have ratio networks over columns", "pixels")
        if "module" in content:
            content, arrays = _upgraded(content, arrays)
        centers, scales = fields(
            content, "ratio networks", centers=listed(number), scales=listed(partial(number, low=LEAST_SCALE))
        )
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
        return cls(weights, biases, centers, scales)


def _upgraded(content: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> State:
    """Convert the state of version 0.2, which stored each network as modules, to the current one."""
    _, centers, scales = fields(content, "ratio networks", "module", "centres", "scales")
    layers = len(arrays) // (2 * max(1, len(centers)))
    stacked = {}
    for layer in range(layers):
        names = [f"state.{network}.1.{2 * layer}" for network in range(len(centers))]
        # Copy in the memory order of training, since the last bit of a product depends on it.
        stacked[f"weights.{layer}"] = np.ascontiguousarray([arrays[f"{name}.weight"].T for name in names])
        stacked[f"biases.{layer}"] = np.array([arrays[f"{name}.bias"][None] for name in names])
    return {"centers": centers, "scales": scales}, stacked


def _sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):  # e^1000 overflows, and its inverse is 0
        return np.asarray(1 / (1 + np.exp(-x)))
