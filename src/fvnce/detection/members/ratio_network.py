r"""Ratio networks: p_θ = e^f p_n, relative to the noise, so that Δ⁰ = f; the anomaly is −f = log p_n/p_θ + const.

With A = E_data e^(αΔ⁰) and B = E_noise e^((1+α)Δ⁰), the loss is −(1/α) log A + log B/(1+α). α > 0 weighs data by
(p_θ/p_n)^α and so discounts the outliers that hide among them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from ...serialization import describe, fields, rebuild
from ...training import History
from ..networks import initialised, ratio_network, train_stacked, without_memory
from ..noise import draw_mixture
from ..plan import Array, Folds, HeldOutScores, Plan, TrainConfig, TrainingRows
from ..stacked import Stack, in_blocks, linear_layers
from ..stored import require, require_lengths, require_network, require_standardising
from ..support import Support
from .base import Member, State, standard

#: Draws of the noise that networks are trained against, and numbers in them at most.
POOL, NUMBERS = 2**14, 2**24
#: Points of the path along which a gradient is integrated.
PATH = 64


class RatioNetworks(Member):
    """Networks f that were trained alike from different starts; their anomaly is −f, standardised and averaged."""

    name: ClassVar[str] = "network"
    averages_folds: ClassVar[bool] = True

    def __init__(self, networks: list[nn.Module], centres: list[float], scales: list[float]) -> None:
        self.networks = [network.eval().double() for network in networks]
        self.centres, self.scales = centres, scales
        self._stack = Stack(self.networks).requires_grad_(False)

    @classmethod
    def fit(cls, rows: TrainingRows, plan: Plan, seed: int) -> tuple[Self, list[History]]:
        """Train them against the mixture of smoothed outliers and rows."""
        return cls._trained(rows, plan, seed, None)

    @classmethod
    def fit_held_out(
        cls, rows: TrainingRows, plan: Plan, seed: int, folds: Folds
    ) -> tuple[Self, list[History], HeldOutScores]:
        """Network m is trained without fold m mod K."""
        member, histories = cls._trained(rows, plan, seed, folds)
        held = HeldOutScores.by(lambda X, fold: member._by(X, slice(fold, None, folds.count)), rows, folds)
        return member, histories, held

    @classmethod
    def _trained(cls, rows: TrainingRows, plan: Plan, seed: int, folds: Folds | None) -> tuple[Self, list[History]]:
        pool = min(POOL, max(plan.training.batch_size, NUMBERS // rows.X.shape[1]))
        noise, of_noise = draw_mixture(rows, plan, pool, torch.Generator().manual_seed(seed), folds)
        # Every second draw: on the values of a column alone a network learns nothing of what lies between them.
        noise[::2] = Support.learn(rows).nearest(noise[::2])
        count = plan.networks if folds is None else max(plan.networks, folds.count)
        make = partial(ratio_network, rows.X.shape[1], plan.hidden)
        of = None if folds is None else (torch.from_numpy(folds.rows), of_noise)
        return cls.trained(make, rows.X, rows.weights, noise, plan.training, count, seed, of)

    @classmethod
    def trained(
        cls,
        make: Callable[[], nn.Module],
        rows: Array,
        weights: Array,
        noise: Tensor,
        how: TrainConfig,
        count: int,
        seed: int,
        folds: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Self, list[History]]:
        """``count`` networks against draws of the noise, each from its own start.

        Args:
            make: a network.
            rows: data, shape (n, D).
            weights: one for each row.
            noise: draws of p_n, shape (p, D).
            how: training.
            count: M.
            seed: of everything.
            folds: the fold of each row and of each draw: network m sees nothing of fold m mod K.
        """
        networks = [initialised(lambda: (make(),), seed + 7919 * member)[0] for member in range(count)]
        data, w = torch.from_numpy(rows).float(), torch.from_numpy(weights).expand(count, -1)
        allowed = torch.ones(count, len(noise), dtype=torch.bool)
        if folds is not None:
            of_row, of_noise = folds
            own = (torch.arange(count) % (int(of_row.max()) + 1))[:, None]
            w, allowed = w * (of_row != own), of_noise != own
        history = train_stacked(networks, data, w, noise, allowed, how, seed)
        plain = cls(networks, [0.0] * count, [1.0] * count)
        units = [standard(found, weights) for found in plain._parts(torch.from_numpy(rows)).numpy()]
        return cls(networks, [centre for centre, _ in units], [scale for _, scale in units]), [history]

    @torch.no_grad()
    def anomaly(self, X: Array) -> Array:
        """Mean over networks of (−f − centre)/scale, in float64."""
        return self._mean(torch.from_numpy(X)).numpy()

    @torch.no_grad()
    def _by(self, X: Array, networks: slice) -> Array:
        """The mean over some of them."""
        return self._parts(torch.from_numpy(X))[networks].mean(0).numpy()

    def _mean(self, x: Tensor) -> Tensor:
        return self._parts(x).mean(0)

    def _parts(self, x: Tensor) -> Tensor:
        """(−f − centre)/scale of each network, shape (M, n)."""
        count = len(self.networks)
        f = in_blocks(lambda block: self._stack(block.expand(count, *block.shape)).squeeze(-1).T, x).T
        centres, scales = (torch.tensor(values, dtype=x.dtype)[:, None] for values in (self.centres, self.scales))
        return (-f - centres) / scales

    @property
    def exact(self) -> bool:
        """Integrated gradients are a quadrature."""
        return False

    def contributions(self, X: Array) -> Array:
        """Integrated gradients from the typical row 0: they sum to ``anomaly(X) − base`` up to the quadrature."""
        x = torch.from_numpy(X)
        total = torch.zeros_like(x)
        for step in range(PATH):
            at = (x * ((step + 0.5) / PATH)).requires_grad_()
            (slope,) = torch.autograd.grad(self._mean(at).sum(), at)
            total += slope
        return (x * total / PATH).numpy()

    @property
    def base(self) -> float:
        """The anomaly of the typical row."""
        return float(self.anomaly(np.zeros((1, linear_layers(self.networks[0])[0].in_features)))[0])

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
            hidden = [layer.out_features for layer in linear_layers(network)[:-1]]
            require_network(network, without_memory(partial(ratio_network, width, hidden)))
        return cls(networks, centres, scales)
