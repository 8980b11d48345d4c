r"""Four densities in the plane whose value is known at every point, so that a divergence from them can be measured.

rings         radius from a mixture of Gaussians, angle uniform:   p(x) = f(|x|)/2π|x|
pinwheel      five Gaussian blades turned by an angle that grows with the radius, which leaves areas unchanged
checkerboard  uniform over eight unit squares
moons         two half circles with Gaussian noise: an integral over the angle, by midpoints
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Toy:
    """A density: n draws with a generator, and log p of points of shape (n, 2)."""

    sample: Callable[[int, torch.Generator], Tensor]
    log_prob: Callable[[Tensor], Tensor]


_RADII, _RING_SCALE = (0.8, 1.8, 2.8), 0.12


def _rings_sample(n: int, generator: torch.Generator) -> Tensor:
    radius = torch.tensor(_RADII)[torch.randint(3, (n,), generator=generator)]
    radius = radius + _RING_SCALE * torch.randn(n, generator=generator)
    angle = 2 * math.pi * torch.rand(n, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1)


def _rings_log_prob(x: Tensor) -> Tensor:
    radius = x.norm(dim=-1, keepdim=True)
    # A radius of the other sign is the opposite point; 0.8 is 6.7 standard deviations, but the formula is exact.
    parts = [_log_normal(sign * radius, torch.tensor(_RADII), _RING_SCALE) for sign in (1, -1)]
    total = torch.cat(parts, -1).logsumexp(-1)
    log_radius: Tensor = radius[..., 0].log()
    return total - math.log(3) - math.log(2 * math.pi) - log_radius


_BLADES, _SWIRL, _BLADE = 5, 0.7, (1.7, 0.4, 0.13)


def _turned(x: Tensor, angle: Tensor) -> Tensor:
    c, s = angle.cos(), angle.sin()
    return torch.stack([c * x[..., 0] - s * x[..., 1], s * x[..., 0] + c * x[..., 1]], -1)


def _pinwheel_sample(n: int, generator: torch.Generator) -> Tensor:
    centre, long, short = _BLADE
    u = torch.randn(n, 2, generator=generator) * torch.tensor([long, short]) + torch.tensor([centre, 0.0])
    blade = torch.randint(_BLADES, (n,), generator=generator)
    return _turned(u, 2 * math.pi / _BLADES * blade + _SWIRL * u.norm(dim=-1))


def _pinwheel_log_prob(x: Tensor) -> Tensor:
    centre, long, short = _BLADE
    parts = []
    for blade in range(_BLADES):
        u = _turned(x, -(2 * math.pi / _BLADES * blade + _SWIRL * x.norm(dim=-1)))
        parts.append(
            _log_normal(u[..., 0], torch.tensor(centre), long) + _log_normal(u[..., 1], torch.tensor(0.0), short)
        )
    return torch.stack(parts).logsumexp(0) - math.log(_BLADES)


def _checkerboard_sample(n: int, generator: torch.Generator) -> Tensor:
    column = torch.randint(4, (n,), generator=generator)
    row = 2 * torch.randint(2, (n,), generator=generator) + column % 2
    return torch.stack([column, row], 1) - 2 + torch.rand(n, 2, generator=generator)


def _checkerboard_log_prob(x: Tensor) -> Tensor:
    cell = x.floor()
    inside = (x.abs() < 2).all(-1) & (cell.sum(-1) % 2 == 0)
    return torch.where(inside, -math.log(8.0), -math.inf)


_MOON_SCALE = 0.12


def _moon_points(angle: Tensor, second: Tensor) -> Tensor:
    first = torch.stack([angle.cos(), angle.sin()], -1)
    other = torch.stack([1 - angle.cos(), 0.5 - angle.sin()], -1)
    return 1.4 * (torch.where(second[..., None], other, first) - torch.tensor([0.5, 0.25]))


def _moons_sample(n: int, generator: torch.Generator) -> Tensor:
    angle = math.pi * torch.rand(n, generator=generator)
    second = torch.rand(n, generator=generator) < 0.5
    return _moon_points(angle, second) + _MOON_SCALE * torch.randn(n, 2, generator=generator)


def _moons_log_prob(x: Tensor) -> Tensor:
    nodes = 400
    angle = math.pi * (torch.arange(nodes) + 0.5) / nodes
    centres = torch.cat([_moon_points(angle, torch.full((nodes,), flag)) for flag in (False, True)]).to(x)
    square = torch.cdist(x, centres).square() / (2 * _MOON_SCALE**2)
    return (-square).logsumexp(-1) - math.log(2 * nodes) - math.log(2 * math.pi * _MOON_SCALE**2)


def _log_normal(x: Tensor, mean: Tensor, scale: float) -> Tensor:
    return -((x - mean) / scale).square() / 2 - math.log(scale) - math.log(2 * math.pi) / 2


TOYS = {
    "rings": Toy(_rings_sample, _rings_log_prob),
    "pinwheel": Toy(_pinwheel_sample, _pinwheel_log_prob),
    "checkerboard": Toy(_checkerboard_sample, _checkerboard_log_prob),
    "moons": Toy(_moons_sample, _moons_log_prob),
}
