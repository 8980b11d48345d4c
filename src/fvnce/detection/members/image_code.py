r"""Images in coordinates in which distances mean something: straightened, then by their principal components.

    z = V (S x − m)

S moves an image's centre of brightness to the middle and removes its slant, both by moments: with brightness as a mass,
u ← u + (cov(u, v)/var(v)) v for columns u and rows v. V are the directions in which training images vary most. They are
not standardised: directions that hold little must not count as much as those that hold much. Straightening is worth
much where images are slanted and shifted, as written digits are, and costs little where they are not, as clothes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from sklearn.utils.extmath import randomized_svd
from torch import Tensor
from torch.nn import functional

from ..networks import in_blocks
from ..plan import Array
from .base import require, require_array, shares_of

#: Directions, where there are images enough, and images from which they are learnt.
DIRECTIONS, MOST_IMAGES = 64, 5000
#: Less brightness, or less height, than this is none.
FAINT = 1e-3
#: Images that are resampled at a time.
AT_ONCE = 1024


@dataclass(frozen=True)
class ImageCode:
    """How an image becomes coordinates.

    Attributes:
        image: (channels, height, width).
        mean: m, shape (D,).
        directions: V, orthonormal, shape (K, D).
    """

    image: tuple[int, int, int]
    mean: Array
    directions: Array

    @classmethod
    def learn(cls, X: Array, weights: Array, image: tuple[int, int, int], seed: int) -> Self:
        """From weighted training images, flattened, shape (n, D)."""
        if len(X) > MOST_IMAGES:
            chosen = np.random.default_rng([seed, 81]).choice(len(X), MOST_IMAGES, replace=False)
            X, weights = X[chosen], weights[chosen]
        rows, share = straightened(X, image), weights / weights.sum()
        mean = share @ rows
        found = randomized_svd(np.sqrt(share)[:, None] * (rows - mean), min(DIRECTIONS, *X.shape), random_state=seed)[2]
        # In the layout that a file gives back: the last bit of a product depends on the order of its factors in memory.
        return cls(image, mean, np.ascontiguousarray(found))

    def encode(self, X: Array) -> Array:
        """Coordinates of flattened images, shape (n, K)."""
        directions = torch.from_numpy(self.directions)
        parts = []
        for low in range(0, max(len(X), 1), AT_ONCE):
            away = torch.from_numpy(straightened(X[low : low + AT_ONCE], self.image) - self.mean)
            parts.append(in_blocks(lambda rows: rows @ directions.T, away).numpy())
        return np.concatenate(parts)

    def at_pixels(self, X: Array, differences: Array) -> Array:
        """Which share of differences of coordinates, shape (n, k, K), each pixel of an image has, shape (n, D)."""
        found = np.stack([((row @ self.directions) ** 2).mean(0) for row in differences])
        return shares_of(np.maximum(_resampled(found, self.image, _inverse(_upright(X, self.image))), 0.0))

    def state(self) -> dict[str, Tensor]:
        """Both arrays."""
        return {"mean": torch.from_numpy(self.mean), "directions": torch.from_numpy(self.directions)}

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], width: int, image: tuple[int, int, int]) -> Self:
        """The code of images of this shape."""
        require({"mean", "directions"} == set(tensors), "have the code of images", sorted(tensors))
        mean, directions = tensors["mean"].numpy(), tensors["directions"].numpy()
        count = len(directions) if directions.ndim == 2 else 0
        require(count > 0, "have directions of a code", np.shape(directions))
        require_array("mean of a code", mean, np.float64, (width,))
        require_array("directions of a code", directions, np.float64, (count, width))
        return cls(image, mean, directions)


def straightened(X: Array, image: tuple[int, int, int]) -> Array:
    """Flattened images with their centre of brightness in the middle and without slant.

    >>> bar = np.zeros((8, 8))
    >>> bar[[1, 2, 3, 4], [5, 4, 3, 2]] = 1.0
    >>> straight = straightened(bar.reshape(1, -1), (1, 8, 8)).reshape(8, 8)
    >>> bool(straight.sum(0).max() > 1.5 * bar.sum(0).max())   # one column holds most of what was a diagonal
    True
    """
    return _resampled(X, image, _upright(X, image))


def resampled(X: Array, image: tuple[int, int, int], grid: Tensor) -> Array:
    """Flattened images read at the places of a grid, shape (1, H, W, 2) in units of half an image, zero outside."""
    parts = []
    for low in range(0, len(X), AT_ONCE):
        x = torch.from_numpy(X[low : low + AT_ONCE]).float().reshape(-1, *image)
        own = grid if len(grid) == 1 else grid[low : low + AT_ONCE]
        parts.append(functional.grid_sample(x, own.expand(len(x), -1, -1, -1), align_corners=False))
    return torch.cat(parts).flatten(1).double().numpy()


def _resampled(X: Array, image: tuple[int, int, int], maps: Tensor) -> Array:
    """The same by an affine map for each image, shape (n, 2, 3)."""
    parts = []
    for low in range(0, len(X), AT_ONCE):
        own = maps[low : low + AT_ONCE]
        grid = functional.affine_grid(own, [len(own), *image], align_corners=False)
        parts.append(resampled(X[low : low + AT_ONCE], image, grid))
    return np.concatenate(parts)


def _upright(X: Array, image: tuple[int, int, int]) -> Tensor:
    """The affine map of each image, from the places of the straight one to those of the image."""
    light = torch.from_numpy(np.maximum(X, 0.0)).float().reshape(-1, *image).sum(1)
    v, u = ((torch.arange(side) * 2 + 1) / side - 1 for side in image[1:])
    mass = light.sum((1, 2)).clamp(min=FAINT)
    rows, columns = light.sum(2), light.sum(1)
    mean_u, mean_v = (columns * u).sum(1) / mass, (rows * v).sum(1) / mass
    both = ((light * u).sum(2) * v).sum(1) / mass - mean_u * mean_v
    height = ((rows * v**2).sum(1) / mass - mean_v**2).clamp(min=FAINT)
    maps = torch.eye(2, 3).repeat(len(X), 1, 1)
    maps[:, 0, 1] = both / height
    maps[:, 0, 2] = mean_u
    maps[:, 1, 2] = mean_v
    return maps


def _inverse(maps: Tensor) -> Tensor:
    """The affine maps back."""
    inner = torch.linalg.inv(maps[:, :, :2])
    return torch.cat([inner, -inner @ maps[:, :, 2:]], 2)
