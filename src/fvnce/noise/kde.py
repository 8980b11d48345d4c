r"""Gaussian kernel densities, evaluated exactly over all centers.

p_n(x) = Σ_j w_j N(x; c_j, diag(h²)),    log p_n(x) = logsumexp_j(log w_j − |(x − c_j)/h|²/2) − Σ_k log h_k −
D/2 log 2π
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import _validation
from .._random import place
from ..io import register
from ._logsum import LONGEST_DISTANCE, Centers, log_sums
from .bandwidth import select_bandwidth
from .base import Noise

_FEW = 2**18


class KernelDensity(Noise):
    r"""Gaussian kernel density over R^D, or over arrays of any shape with D entries.

    ``log_prob`` sums over all centers, without a tree or truncation. It is evaluated in blocks: beyond inputs and
    results it needs about 128 MiB for any number of points and centers, and keeps up to 64 MiB between evaluations. The
    error is at most max(1e-3 nats, 2 ulp) in float32 and max(1e-8 nats, 6 ulp) in float64. The gradient is equally
    accurate; second derivatives raise an error.

    Args:
        centres: centers of the kernels, shape (n, D) or (n,) + event_shape; float32 and float64 are not copied.
        bandwidth: standard deviation of the kernel, a number or a tensor of shape (D,) or event_shape.
        weights: non-negative weights, shape (n,), divided by their sum; by default equal.

    Example:
        >>> noise = KernelDensity(torch.tensor([[0.0], [2.0]]), bandwidth=1.0)
        >>> noise.log_prob(torch.tensor([[1.0]]))
        tensor([-1.4189])
        >>> noise.draw(3, torch.Generator().manual_seed(0)).shape
        torch.Size([3, 1])
        >>> KernelDensity(torch.zeros(5, 3, 8, 8), bandwidth=1.0).log_prob(torch.zeros(2, 3, 8, 8)).shape
        torch.Size([2])
    """

    def __init__(self, centres: Tensor, bandwidth: float | Tensor, weights: Tensor | None = None) -> None:
        self.centres = _validation.samples("centres", centres).detach()
        size, event = self.centres.shape[0], self.centres.shape[1:]
        self.bandwidth = _validation.scale("bandwidth", bandwidth, event, self.centres).detach()
        self.weights: Tensor | None = None
        self.given_weights: Tensor | None = None
        self._cumulative: Tensor | None = None
        used, log_weights = self.centres.flatten(1), None
        if weights is not None:
            self.weights = _validation.weights("weights", weights, size, device=self.centres.device)
            self.given_weights = torch.as_tensor(weights, dtype=torch.float64, device=self.centres.device)
            self._cumulative = self.weights.cumsum(0)
            log_weights = self.weights.log()
            if bool((self.weights == 0).any()):
                some = self.weights > 0
                used, log_weights = used[some], log_weights[some]
        widths = self.bandwidth.flatten() if self.bandwidth.ndim else self.bandwidth
        self._geometry = Centers(used, widths, log_weights)
        self._log_constant = self._geometry.log_height
        if self.weights is None:
            self._log_constant -= math.log(size)
        super().__init__(event)

    def mapped(self, function: Callable[[Tensor], Tensor]) -> KernelDensity:
        """Return the density with ``function`` applied to its tensors, to change device or precision.

        Half precision is ignored: rounded centers would be a different density.
        """
        centers = function(self.centres)
        if centers.dtype not in (torch.float32, torch.float64):
            centers = self.centres.to(centers.device)
        if centers is self.centres:
            return self
        weights = None if self.given_weights is None else self.given_weights.to(centers.device)
        bandwidth = self.bandwidth.to(centers.device)
        return KernelDensity(centers, bandwidth, weights)

    @classmethod
    def from_data(
        cls, X: Tensor, bandwidth: float | str | Tensor = "scott", *, floor: float | None = None
    ) -> KernelDensity:
        """Fit a kernel density with a kernel on every row of X and a given or selected bandwidth.

        Args:
            X: rows.
            bandwidth: a width for all columns or for each, or the name of a rule of
                :func:`fvnce.noise.select_bandwidth`.
            floor: the smallest width, as in :func:`fvnce.noise.select_bandwidth`.

        >>> X = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
        >>> KernelDensity.from_data(X, "silverman").bandwidth.shape
        torch.Size([2])
        """
        data = _validation.samples("X", X)
        if isinstance(bandwidth, str):
            bandwidth = select_bandwidth(data, bandwidth, floor=floor)
        return cls(data, bandwidth)

    @property
    def mean(self) -> Tensor:
        """Mean of the density, shape event_shape."""
        centers = self.centres.double().flatten(1)
        weights = centers.new_full((len(centers),), 1.0 / len(centers)) if self.weights is None else self.weights
        return (weights @ centers).reshape(self.event_shape).to(self.centres.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return log p_n of points of shape (...) + event_shape; the result has shape (...)."""
        x = _validation.points("x", value, self.event_shape)
        x = x.to(torch.promote_types(x.dtype, self.centres.dtype))
        differentiated = x.requires_grad and torch.is_grad_enabled()
        if not differentiated and not _validation.values_are_hidden():
            return self._evaluate(x, False)[0]
        result: Tensor = _LogDensity.apply(x, self, differentiated)[0]  # type: ignore[no-untyped-call]
        return result

    def row_flops(self) -> float:
        """Return the number of operations for one row with all centers, an upper bound for draws."""
        return 2.0 * self.centres.numel()

    def draw(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Return n samples of shape (n,) + event_shape."""
        n = _validation.count("n", n, low=0)
        size, device = self.centres.shape[0], self.centres.device
        there = place(generator, device)
        if self._cumulative is None:
            index = torch.randint(size, (n,), generator=generator, device=there).to(device, non_blocking=True)
        else:
            level = torch.rand(n, generator=generator, dtype=torch.float64, device=there)
            level = level.to(device, non_blocking=True)
            # Rounding may leave the last cumulative weight slightly below 1, so that a level may exceed it.
            index = torch.searchsorted(self._cumulative, level * self._cumulative[-1], right=True)
            index = index.clamp_max(size - 1)
        shape = (n, *self.event_shape)
        noise = torch.randn(shape, generator=generator, dtype=self.centres.dtype, device=there)
        return noise.to(device, non_blocking=True).mul_(self.bandwidth).add_(self.centres[index])

    def draw_with_log_prob(self, n: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Draw n samples (n,) + event_shape and their log density (n,), without waiting for an accelerator."""
        x = self.draw(n, generator)
        return x, self._evaluate(x, False, drawn=True)[0]

    def jitter(self, x: Tensor) -> Tensor:
        """Return x + h ε: points perturbed like samples around their centers."""
        return x + (torch.randn_like(x) * self.bandwidth).to(x.dtype)

    def _evaluate(self, x: Tensor, slope: bool, *, drawn: bool = False) -> tuple[Tensor, Tensor]:
        # Checked here, as functional transforms have unwrapped the tensor at this point.
        lead, centers = x.shape[: x.ndim - len(self.event_shape)], self._geometry
        flat = (x if drawn else _validation.finite_rows("x", x)).reshape(lead.numel(), centers.width)
        if len(flat) * centers.raw.numel() <= _FEW:
            log_sum, drift = self._sum_differences(flat, slope)
        else:
            sums = log_sums(centers, flat, slope=slope, drawn=drawn)
            log_sum, drift = sums.value, sums.slope
        if not drawn and not _validation.are_deferred():
            far = ~(log_sum >= -0.5 * LONGEST_DISTANCE**2 * (1 + 1e-6))  # NaN where squares overflow
            if bool(far.any()):
                row = int(far.nonzero()[0])
                distance = float((-2.0 * log_sum[row]).sqrt())
                raise ValueError(
                    f"x must lie within 1e15 bandwidths of a center, found row {row} at {distance:.3g} bandwidths"
                )
        value = (log_sum + self._log_constant).to(x.dtype).reshape(lead)
        return value, x.new_empty(0) if drift is None else (drift.reshape(x.shape) / self.bandwidth).to(x.dtype)

    def _sum_differences(self, x: Tensor, slope: bool) -> tuple[Tensor, Tensor | None]:
        """Return log sums of points (q, D) from all differences at once, the fastest way for small inputs."""
        points, centers = x.double(), self._geometry
        if slope or centers.bandwidth.ndim or x.dtype == torch.float64:
            gap = (points[:, None] - centers.raw.double()).div_(centers.bandwidth)
            # Summed pairwise in float64: a running sum of a thousand squares has an error of ten ulp.
            squares = gap.square().sum(-1) if x.dtype == torch.float64 else torch.linalg.vecdot(gap, gap)
            scores = squares.mul_(-0.5)
        else:
            distance = torch.cdist(points, centers.raw.double(), compute_mode="donot_use_mm_for_euclid_dist")
            scores = distance.div_(centers.bandwidth).square_().mul_(-0.5)
        if centers.log_weights is not None:
            scores += centers.log_weights
        value = torch.logsumexp(scores, 1)
        if not slope:
            return value, None
        weights = (scores - value[:, None]).exp_()
        return value, torch.einsum("ij,ijk->ik", weights, gap).neg_().to(x.dtype)

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.centres.shape))
        bandwidth = f"tensor of shape {tuple(self.event_shape)}" if self.bandwidth.ndim else f"{self.bandwidth:g}"
        return f"KernelDensity(centres: {shape}, bandwidth: {bandwidth})"


def smoothed(
    X: Tensor, bandwidth: float | str | Tensor, *, max_centres: int = 10_000, generator: torch.Generator | None = None
) -> KernelDensity:
    """Return a kernel density on at most ``max_centres`` rows of X, chosen at random.

    As a component of a mixture it makes the noise cover the data, which keeps objectives bounded.

    Args:
        X: rows, shape (n, D) or (n,) + event_shape.
        bandwidth: standard deviation of the kernel, a number or one for each column.
        max_centres: maximum number of kernels.
        generator: for the choice of rows; by default torch's global one.

    >>> X = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
    >>> smoothed(X, 0.5, max_centres=30, generator=torch.Generator().manual_seed(0)).centres.shape
    torch.Size([30, 2])
    """
    data = _validation.samples("X", X)
    limit = _validation.count("max_centres", max_centres)
    if len(data) > limit:
        chosen = torch.randperm(len(data), generator=generator, device=place(generator, data.device))[:limit]
        data = data[chosen.sort().values.to(data.device)]
    return KernelDensity.from_data(data, bandwidth)


# Weights are saved as given, before normalization.
register(KernelDensity, stand_ins={"weights": lambda noise: noise.given_weights}, retired=("block_bytes",))


class _LogDensity(torch.autograd.Function):
    """Log density and its gradient, computed together so that the gradient reuses the tiles of the sum."""

    @staticmethod
    def forward(x: Tensor, density: KernelDensity, slope: bool) -> tuple[Tensor, Tensor]:
        return density._evaluate(x, slope)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[0], output[1])

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        x, slope = ctx.saved_tensors
        wide = upstream.reshape(upstream.shape + (1,) * (x.ndim - upstream.ndim))
        return wide * _Slope.apply(x, slope), None, None  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, density: KernelDensity, slope: bool
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int | None]]:
        front = x.movedim(in_dims[0] or 0, 0)
        out = _LogDensity.apply(front, density, slope)  # type: ignore[no-untyped-call]
        return out, (0, 0 if slope else None)


class _Slope(torch.autograd.Function):
    """The gradient as a function of x, so that differentiating it again raises an error instead of giving zero."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, slope: Tensor) -> Tensor:
        return slope.view_as(slope)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError("KernelDensity.log_prob has no second derivatives; use first derivatives only")
