r"""Ratio networks: p_θ = e^f p_n, relative to the noise, so that Δ⁰ = f; the anomaly is −f = log p_n/p_θ + const.

With A = E_data e^(αΔ⁰) and B = E_noise e^((1+α)Δ⁰), the loss is −(1/α) log A + log B/(1+α). α > 0 weighs data by
(p_θ/p_n)^α and so discounts the outliers that hide among them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from ...noise import EmpiricalNoise
from ...objectives import FullyVariationalNCE, Profiled
from ...scoring import PowerRule
from ...serialization import describe, fields, rebuild
from ...training import History
from ..networks import aligned, initialised, ratio_network, train_network, without_memory
from ..noise import mixture_of
from ..plan import Array, Plan, TrainConfig, TrainingRows
from ..stored import require, require_lengths, require_network, require_standardising
from .base import Member, State

#: Points of the path along which a gradient is integrated.
PATH = 64


class _Relative(nn.Module):
    """log p_θ relative to the noise: f."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def log_prob(self, x: Tensor) -> Tensor:
        value: Tensor = self.network(x)
        return value.squeeze(-1)


class RatioNetworks(Member):
    """Networks f that were trained alike from different starts; their anomaly is −f, standardised and averaged."""

    name: ClassVar[str] = "network"

    def __init__(self, networks: list[nn.Module], centres: list[float], scales: list[float]) -> None:
        self.networks = [network.eval().double() for network in networks]
        self.centres, self.scales = centres, scales

    @classmethod
    def fit(cls, rows: TrainingRows, plan: Plan, seed: int) -> tuple[Self, list[History]]:
        """Train them against the mixture of smoothed outliers and rows."""
        noise = mixture_of(rows, plan, torch.Generator().manual_seed(seed))
        make = partial(ratio_network, rows.X.shape[1], plan.hidden)
        return cls.trained(make, rows.X, rows.weights, noise, plan.training, plan.networks, seed)

    @classmethod
    def trained(
        cls,
        make: Callable[[], nn.Module],
        rows: Array,
        weights: Array,
        noise: Distribution,
        how: TrainConfig,
        count: int,
        seed: int,
    ) -> tuple[Self, list[History]]:
        """``count`` networks against the noise, each from its own start."""
        networks, centres, scales, histories = [], [], [], []
        for member in range(count):
            (network,) = initialised(lambda: (make(),), seed + 7919 * member)
            objective = FullyVariationalNCE(
                _Relative(network),
                None,
                EmpiricalNoise(noise),
                PowerRule(alpha=how.alpha),
                partition=Profiled(momentum=0),
            )
            histories.append(train_network(objective, rows, weights, how, seed + 7919 * member))
            network = network.cpu().eval().double()
            with torch.no_grad():
                found = -network(aligned(rows)).squeeze(-1).numpy()
            centre = float(np.average(found, weights=weights))
            spread = math.sqrt(float(np.average((found - centre) ** 2, weights=weights)))
            networks.append(network)
            centres.append(centre)
            scales.append(spread if spread > 0 else 1.0)
        return cls(networks, centres, scales), histories

    @torch.no_grad()
    def anomaly(self, X: Array) -> Array:
        """Mean over networks of (−f − centre)/scale, in float64 so that a row's score does not depend on its batch."""
        return self._mean(aligned(X)).numpy()

    def _mean(self, x: Tensor) -> Tensor:
        parts = [
            (-network(x).squeeze(-1) - centre) / scale
            for network, centre, scale in zip(self.networks, self.centres, self.scales, strict=True)
        ]
        return torch.stack(parts).mean(0)

    @property
    def exact(self) -> bool:
        """Integrated gradients are a quadrature."""
        return False

    def contributions(self, X: Array) -> Array:
        """Integrated gradients from the typical row 0: they sum to ``anomaly(X) − base`` up to the quadrature."""
        x = aligned(X)
        total = torch.zeros_like(x)
        for step in range(PATH):
            at = (x * ((step + 0.5) / PATH)).requires_grad_()
            (slope,) = torch.autograd.grad(self._mean(at).sum(), at)
            total += slope
        return (x * total / PATH).numpy()

    @property
    def base(self) -> float:
        """The anomaly of the typical row."""
        width = next(layer.in_features for layer in self.networks[0].modules() if isinstance(layer, nn.Linear))
        return float(self.anomaly(np.zeros((1, width)))[0])

    def state(self) -> State:
        """The networks, and what standardises them."""
        module, tensors = describe(nn.Sequential(*self.networks))
        return {"module": module, "centres": self.centres, "scales": self.scales}, tensors

    @classmethod
    def from_state(
        cls, content: Mapping[str, Any], tensors: Mapping[str, Tensor], width: int, image: tuple[int, int, int] | None
    ) -> Self:
        """Networks of exactly the layers of :func:`fvnce.detection.networks.ratio_network`, whatever their sizes."""
        module, centres, scales = fields(content, "ratio networks", "module", "centres", "scales")
        require(image is None, "have ratio networks over columns", "pixels")
        networks = list(rebuild(module, tensors, nn.Sequential))
        require_lengths("networks", len(networks), centres, scales)
        require(len(networks) > 0, "have at least one ratio network", 0)
        require_standardising("networks", centres, scales)
        for network in networks:
            sizes = [layer.out_features for layer in network.modules() if isinstance(layer, nn.Linear)]
            (wanted,) = without_memory(partial(_alone, width, sizes[:-1]))
            require_network(network, wanted)
        return cls(networks, centres, scales)


def _alone(width: int, hidden: Sequence[int]) -> Sequence[nn.Module]:
    return [ratio_network(width, hidden)]
