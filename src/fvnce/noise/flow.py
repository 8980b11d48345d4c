r"""Normalizing flows of zuko as noise, on standardized rows.

log p_n(x) = log p_flow((x − m)/s) − Σ_k log s_k
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from .. import _validation
from .._random import place, preserve_rng_state
from ..io import Kind, add
from .base import Noise

#: Families of flows: neural splines, masked autoregressive, coupling.
FAMILIES = ("NSF", "MAF", "NICE")


class FlowNoise(Noise):
    """Normalizing flow with fixed weights as noise; :func:`fvnce.training.fit_flow` fits one to data. Needs zuko.

    The flow is evaluated in the precision of its weights. An objective moves it between devices and saves its weights,
    but never trains them.

    Args:
        kind: the family, ``"NSF"``, ``"MAF"`` or ``"NICE"``.
        shift: m, shape (D,).
        scale: s > 0, shape (D,).
        transforms: number of transforms.
        hidden: widths of the hidden layers of each transform.
        flow: a trained module of :func:`make_flow`, whose weights become fixed; by default one with new weights.

    >>> noise = FlowNoise("NICE", torch.zeros(2), torch.ones(2), transforms=1, hidden=(8,))
    >>> noise.log_prob(noise.sample((5,))).shape
    torch.Size([5])
    """

    def __init__(
        self,
        kind: str,
        shift: Tensor,
        scale: Tensor,
        *,
        transforms: int = 3,
        hidden: tuple[int, ...] = (64, 64),
        flow: nn.Module | None = None,
    ) -> None:
        self.kind, self.transforms, self.hidden = kind, transforms, tuple(hidden)
        self.shift = _validation.floating("shift", shift).detach()
        self.scale = _validation.scale("scale", scale, tuple(self.shift.shape), self.shift).detach()
        made = make_flow(kind, len(self.shift), transforms, self.hidden) if flow is None else flow
        self.flow = made.requires_grad_(False).eval()
        super().__init__(self.shift.shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return log p_n of points of shape (..., D); the result has shape (...)."""
        x = _validation.points("x", value, self.event_shape).to(self.shift.dtype)
        x = x if _validation.values_are_hidden() else _validation.finite_rows("x", x)
        density: Tensor = self.flow().log_prob((x - self.shift) / self.scale)
        return density - self.scale.log().sum()

    @torch.no_grad()
    def draw(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw n samples of shape (n, D): standard normal draws through the inverse flow."""
        shape = (_validation.count("n", n, low=0), *self.event_shape)
        there = place(generator, self.shift.device)
        z = torch.randn(shape, generator=generator, dtype=self.shift.dtype, device=there).to(
            self.shift, non_blocking=True
        )
        if not n:  # splines fail on an empty batch
            return z
        inverse: Tensor = self.flow().transform.inv(z)
        return inverse * self.scale + self.shift

    def __repr__(self) -> str:
        return f"FlowNoise({self.kind} over {len(self.shift)} dimensions, {self.transforms} transforms)"


def make_flow(kind: str, features: int, transforms: int, hidden: tuple[int, ...]) -> nn.Module:
    """Make a flow with new weights, drawn from torch's global generator."""
    _validation.choice("kind", kind, FAMILIES)
    made: nn.Module = getattr(_zuko().flows, kind)(features, transforms=transforms, hidden_features=hidden)
    return made


def _zuko() -> Any:
    # Importing zuko turns off validation of all torch distributions; restore it.
    validates = Distribution._validate_args
    try:
        import zuko
    except ImportError:
        raise ImportError("zuko must be installed for flows as noise, found it missing; pip install zuko") from None
    finally:
        Distribution.set_default_validate_args(validates)
    return zuko


def _arguments(noise: FlowNoise) -> dict[str, Any]:
    settings = {"kind": noise.kind, "transforms": noise.transforms, "hidden": noise.hidden}
    weights = tuple(noise.flow.state_dict().items())
    return {**settings, "shift": noise.shift, "scale": noise.scale, "weights": weights}


def _build(weights: tuple[tuple[str, Tensor], ...], transforms: int, hidden: tuple[int, ...], **rest: Any) -> FlowNoise:
    # A forged file must not make the reader allocate layers that the file does not hold.
    numbers = transforms * sum(inputs * outputs for inputs, outputs in pairwise(hidden))
    held = sum(value.numel() for _, value in weights)
    if max(numbers, transforms, *hidden) > held:
        raise ValueError(f"hidden must be layers that the file holds, found {hidden} for {held} weights")
    with preserve_rng_state():
        noise = FlowNoise(transforms=transforms, hidden=hidden, **rest)
    noise.flow.load_state_dict({name: value.clone() for name, value in weights}, assign=True)
    noise.flow.requires_grad_(False)
    return noise


add(Kind("FlowNoise", FlowNoise, _arguments, _build))
