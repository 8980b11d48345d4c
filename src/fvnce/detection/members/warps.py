r"""Small random warps: the conditional noise p_n(x′ | x) of images.

    x′(u) = x(u + A u + b + e(u)),    A, b Gaussian, e a smooth Gaussian field

A density ratio to a noise that starts from the image itself needs no noise that covers all images (conditional NCE).
The same few warps are taken of every image, so that its score follows from the image alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..plan import Array
from .base import require, require_array
from .image_code import AT_ONCE, ImageCode, resampled

#: How many, and the deviations of A, b and e in units of half an image.
COUNT, LINEAR, SHIFT, ELASTIC = 16, 0.1, 0.02, 0.05
#: Knots of the smooth field along a side.
KNOTS = 5
#: The most warps in a file, and the farthest place that one reads.
MOST, FARTHEST = 64, 100.0


@dataclass(frozen=True)
class Warps:
    """Where each warp reads an image.

    Attributes:
        grids: places in units of half an image, shape (W, height, width, 2), float32.
    """

    grids: Tensor

    @classmethod
    def draw(cls, image: tuple[int, int, int], seed: int) -> Self:
        """Warps of images of this shape.

        >>> Warps.draw((1, 8, 12), 0).grids.shape
        torch.Size([16, 8, 12, 2])
        """
        generator = torch.Generator().manual_seed(seed)
        maps = torch.eye(2, 3).repeat(COUNT, 1, 1)
        maps[:, :, :2] += LINEAR * torch.randn(COUNT, 2, 2, generator=generator)
        maps[:, :, 2] += SHIFT * torch.randn(COUNT, 2, generator=generator)
        knots = torch.randn(COUNT, 2, KNOTS, KNOTS, generator=generator)
        field = functional.interpolate(knots, size=image[1:], mode="bicubic", align_corners=True)
        grids = functional.affine_grid(maps, [COUNT, *image], align_corners=False)
        return cls((grids + ELASTIC * field.permute(0, 2, 3, 1)).contiguous())

    def log_distance(self, X: Array, z: Array, code: ImageCode, smoothing: float) -> Array:
        """log ρ: the mean of log |z(x′) − z(x)| over the warps of each image, shape (n,)."""
        found = np.zeros(len(X))
        for low in range(0, len(X), AT_ONCE):
            some = slice(low, low + AT_ONCE)
            for grid in self.grids:
                away = code.encode(resampled(X[some], code.image, grid[None])) - z[some]
                found[some] += np.log(np.sqrt((away**2).sum(1)) + smoothing)
        return found / len(self.grids)

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], image: tuple[int, int, int]) -> Self:
        """The warps of images of this shape."""
        require(set(tensors) == {"grids"}, "have the warps of images", sorted(tensors))
        grids = tensors["grids"]
        require(grids.ndim == 4 and 0 < len(grids) <= MOST, f"have 1 to {MOST} warps", list(grids.shape))
        require_array("grids of warps", grids.numpy(), np.float32, (len(grids), *image[1:], 2))
        farthest = float(grids.abs().max())
        require(farthest <= FARTHEST, f"have warps that read at most {FARTHEST:g} halves of an image away", farthest)
        return cls(grids)
