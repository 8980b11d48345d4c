r"""Coordinates of images for members: straightened principal components for neighbors, and plain ones for others.

*Neighbors* see z = V (S x − m): S moves the center of brightness to the middle and removes the slant, both by moments
(with brightness as a mass, u ← u + (cov(u, v)/var(v)) v for columns u and rows v); V are the directions in which
training images vary most. They are not standardized, so directions of low variance have little weight. Straightening
helps for slanted and shifted images, such as handwritten digits, and does little harm elsewhere. The conditional noise
consists of small random warps x′(u) = x(u + A u + b + e(u)), A and b Gaussian, e a smooth Gaussian field. The same few
warps are applied to every image, so that its score depends on the image alone.

*Other members* see principal components, z_k = v_k · (x − m), and ρ = log(|x − m|² − |z|² + ε), the logarithm of the
residual, each standardized. On pixels, a ratio would distinguish smoothed images from real ones by their texture; on
components, noise around a known outlier resembles that image.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from ..._validation import require, stored_array
from ..products import project
from ..rows import Array, Folds, TrainingRows
from .base import (
    HeldOutScores,
    ImageShape,
    Member,
    MemberSettings,
    Scorer,
    State,
    part_of,
    prefixed,
    row_fractions,
    standard,
)

if TYPE_CHECKING:
    from torch import Tensor

    from ...training.history import History

#: Largest number of directions of a code, and of principal components.
DIRECTIONS, COMPONENTS = 64, 32
#: Largest number of images from which directions are learned.
MAX_LEARNED = 5000
#: ε divided by the mean of |x − m|².
FLOOR = 1e-4
#: Brightness and variance below this are treated as zero.
FAINT = 1e-3
#: Number of images that are resampled at a time.
RESAMPLED = 1024
#: Number of warps, and standard deviations of A, b and e in units of half an image.
WARPS, LINEAR, SHIFT, ELASTIC = 16, 0.1, 0.02, 0.05
#: Number of knots of the smooth field along a side.
KNOTS = 5
#: Largest number of warps in a file, and largest coordinate that a warp reads, in halves of an image.
MAX_WARPS, MAX_REACH = 64, 100.0


def _sample(rows: TrainingRows, rng: np.random.Generator) -> tuple[Array, Array]:
    """Sample images, and return them with weights of sum one."""
    X, weights = rows.X, rows.weights
    if len(X) > MAX_LEARNED:
        chosen = rng.choice(len(X), MAX_LEARNED, replace=False)
        X, weights = X[chosen], weights[chosen]
    return X, weights / weights.sum()


def _directions(X: Array, weights: Array, count: int, seed: int) -> tuple[Array, Array, float]:
    """Return the mean, the directions of most variance, orthonormal, shape (K, D), and the variance."""
    from sklearn.utils.extmath import randomized_svd

    mean = weights @ X
    away = np.sqrt(weights)[:, None] * (X - mean)
    directions = randomized_svd(away, min(count, *X.shape), random_state=seed)[2]
    # Use the memory layout of a loaded file, since the last bit of a product depends on the order in memory.
    return mean, np.ascontiguousarray(directions), float((away**2).sum())


@dataclass(frozen=True)
class ImageCode:
    """Coordinates of straightened images.

    Attributes:
        image: shape (channels, height, width).
        mean: mean m, shape (D,).
        directions: orthonormal directions V, shape (K, D).
    """

    image: ImageShape
    mean: Array
    directions: Array

    @classmethod
    def learn(cls, rows: TrainingRows, image: ImageShape, seed: int) -> Self:
        """Learn the directions from training images, flattened."""
        X, weights = _sample(rows, np.random.default_rng([seed, 81]))
        mean, directions, _ = _directions(straightened(X, image), weights, DIRECTIONS, seed)
        return cls(image, mean, directions)

    def encode(self, X: Array) -> Array:
        """Return coordinates of flattened images, shape (n, K)."""
        parts = [X[low : low + RESAMPLED] for low in range(0, max(len(X), 1), RESAMPLED)]
        return np.concatenate([project(straightened(part, self.image) - self.mean, self.directions) for part in parts])

    def at_pixels(self, X: Array, differences: Array) -> Array:
        """Return the fraction of each pixel in differences of coordinates, from shape (n, k, K) to (n, D)."""
        squares = np.stack([((row @ self.directions) ** 2).mean(0) for row in differences])
        return row_fractions(np.maximum(_mapped(squares, self.image, _inverse(_upright(X, self.image))), 0.0))

    def arrays(self) -> dict[str, Array]:
        """Return the arrays by name."""
        return {"mean": self.mean, "directions": self.directions}

    @classmethod
    def from_state(cls, arrays: Mapping[str, NDArray[Any]], width: int, image: ImageShape) -> Self:
        """Restore the code of images of this shape from arrays, which are checked."""
        require(set(arrays) == {"mean", "directions"}, "have the code of images", sorted(arrays))
        _check_directions("code", arrays, width)
        return cls(image, **arrays)


def _check_directions(name: str, arrays: Mapping[str, NDArray[Any]], width: int) -> int:
    """Require a mean and at least one direction of ``width`` numbers; return the number of directions."""
    stored_array(f"mean of a {name}", arrays["mean"], np.float64, (width,))
    shape = np.shape(arrays["directions"])
    require(len(shape) == 2 and shape[0] > 0, f"have directions of a {name}", shape)
    stored_array(f"directions of a {name}", arrays["directions"], np.float64, (shape[0], width))
    return len(arrays["directions"])


def straightened(X: Array, image: ImageShape) -> Array:
    """Move the center of brightness of flattened images to the middle, and remove their slant.

    >>> bar = np.zeros((8, 8))
    >>> bar[[1, 2, 3, 4], [5, 4, 3, 2]] = 1.0
    >>> straight = straightened(bar.reshape(1, -1), (1, 8, 8)).reshape(8, 8)
    >>> bool(straight.sum(0).max() > 1.5 * bar.sum(0).max())   # one column holds most of what was a diagonal
    True
    """
    return _mapped(X, image, _upright(X, image))


def _resampled(X: Array, image: ImageShape, grid: Tensor) -> Array:
    """Sample flattened images at a grid, shape (1 or n, H, W, 2), in halves of an image; zero outside."""
    import torch
    from torch.nn import functional

    x = torch.from_numpy(X).float().reshape(-1, *image)
    resampled = functional.grid_sample(x, grid.expand(len(x), -1, -1, -1), align_corners=False)
    return resampled.flatten(1).double().numpy()


def _mapped(X: Array, image: ImageShape, maps: Tensor) -> Array:
    """Transform images by one affine map each, shape (n, 2, 3)."""
    from torch.nn import functional

    parts = []
    for low in range(0, len(X), RESAMPLED):
        some = maps[low : low + RESAMPLED]
        grid = functional.affine_grid(some, [len(some), *image], align_corners=False)
        parts.append(_resampled(X[low : low + RESAMPLED], image, grid))
    return np.concatenate(parts)


def _upright(X: Array, image: ImageShape) -> Tensor:
    """Return the affine map of each image, from coordinates of the straightened image to the original ones."""
    import torch

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
    """Return the inverse of affine maps."""
    import torch

    inner = torch.linalg.inv(maps[:, :, :2])
    return torch.cat([inner, -inner @ maps[:, :, 2:]], 2)


@dataclass(frozen=True)
class Warps:
    """Small random warps, the conditional noise of images.

    Attributes:
        grids: places that each warp reads, in halves of an image, shape (W, height, width, 2), float32.
    """

    grids: NDArray[np.float32]

    @classmethod
    def draw(cls, image: ImageShape, seed: int) -> Self:
        """Draw warps of images of this shape.

        >>> Warps.draw((1, 8, 12), 0).grids.shape
        (16, 8, 12, 2)
        """
        import torch
        from torch.nn import functional

        generator = torch.Generator().manual_seed(seed)
        maps = torch.eye(2, 3).repeat(WARPS, 1, 1)
        maps[:, :, :2] += LINEAR * torch.randn(WARPS, 2, 2, generator=generator)
        maps[:, :, 2] += SHIFT * torch.randn(WARPS, 2, generator=generator)
        knots = torch.randn(WARPS, 2, KNOTS, KNOTS, generator=generator)
        field = functional.interpolate(knots, size=image[1:], mode="bicubic", align_corners=True)
        grids = functional.affine_grid(maps, [WARPS, *image], align_corners=False)
        return cls((grids + ELASTIC * field.permute(0, 2, 3, 1)).contiguous().numpy())

    def log_distance(self, X: Array, z: Array, code: ImageCode, smoothing: float) -> Array:
        """Return log ρ, the mean of log |z(x′) − z(x)| over the warps of each image, shape (n,)."""
        import torch

        total = np.zeros(len(X))
        for low in range(0, len(X), RESAMPLED):
            some = slice(low, low + RESAMPLED)
            for grid in torch.from_numpy(self.grids):
                away = code.encode(_resampled(X[some], code.image, grid[None])) - z[some]
                total[some] += np.log(np.sqrt((away**2).sum(1)) + smoothing)
        return total / len(self.grids)

    @classmethod
    def from_state(cls, arrays: Mapping[str, NDArray[Any]], image: ImageShape) -> Self:
        """Restore the warps of images of this shape from arrays, which are checked."""
        require(set(arrays) == {"grids"}, "have the warps of images", sorted(arrays))
        shape = np.shape(arrays["grids"])
        require(len(shape) == 4 and 0 < shape[0] <= MAX_WARPS, f"have 1 to {MAX_WARPS} warps", shape)
        grids = stored_array("grids of warps", arrays["grids"], np.float32, (shape[0], *image[1:], 2))
        reach = float(np.abs(grids).max())
        require(reach <= MAX_REACH, f"have warps that read at most {MAX_REACH:g} halves of an image away", reach)
        return cls(grids)


@dataclass(frozen=True)
class PrincipalComponents:
    """Principal components with standardized coordinates.

    Attributes:
        mean: mean m, shape (D,).
        directions: orthonormal directions v, shape (K, D).
        floor: floor ε of the squared residual.
        center: means of the coordinates, shape (K + 1,).
        scale: standard deviations of the coordinates, shape (K + 1,).
    """

    mean: Array
    directions: Array
    floor: float
    center: Array
    scale: Array

    @classmethod
    def learn(cls, rows: TrainingRows, seed: int, n_components: int = COMPONENTS) -> Self:
        """Learn the components of training images, flattened, or of a wide table."""
        X, weights = _sample(rows, np.random.default_rng([seed, 79]))
        mean, directions, variance = _directions(X, weights, n_components, seed)
        count = len(directions) + 1
        plain = cls(mean, directions, FLOOR * variance or 1.0, np.zeros(count), np.ones(count))
        raw = plain.transform(X)
        center = weights @ raw
        scale = np.sqrt(weights @ (raw - center) ** 2)
        return cls(mean, directions, plain.floor, center, np.where(scale > 1e-9, scale, 1.0))

    def transform(self, X: Array) -> Array:
        """Return coordinates of flattened images, shape (n, K + 1)."""
        away = X - self.mean
        z = project(away, self.directions)
        left = (away**2).sum(1) - (z**2).sum(1)
        raw = np.column_stack([z, np.log(np.maximum(left, 0.0) + self.floor)])
        return (raw - self.center) / self.scale

    def at_pixels(self, parts: Array, X: Array) -> Array:
        """Distribute contributions of components, shape (n, K + 1), over pixels, shape (n, D), with the same sum.

        Contributions of directions are divided in proportion to |v_kp (x − m)_p|, the last in proportion to the squared
        residual.
        """
        away = X - self.mean
        total = np.zeros_like(X)
        for k, direction in enumerate(self.directions):
            total += parts[:, k, None] * row_fractions(np.abs(away * direction))
        rest = away - (away @ self.directions.T) @ self.directions
        return total + parts[:, -1, None] * row_fractions(rest**2)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all attributes as arrays by name."""
        named = {name: np.array(value) for name, value in vars(self).items()}
        return {"centre": named.pop("center"), **named}  # spelling of version 0.2

    @classmethod
    def from_state(cls, arrays: Mapping[str, NDArray[Any]], width: int) -> Self:
        """Restore the components of images of ``width`` pixels from arrays, which are checked."""
        named = {"center" if name == "centre" else name: value for name, value in arrays.items()}
        require(set(named) == {field.name for field in fields(cls)}, "have principal components", sorted(arrays))
        count = _check_directions("principal component", named, width) + 1
        for name in ("center", "scale"):
            stored_array(f"{name} of components", named[name], np.float64, (count,))
        floor = float(stored_array("floor of components", named.pop("floor"), np.float64, ()))
        require(floor > 0, "have a positive floor of components", floor)
        require(bool((named["scale"] > 0).all()), "have positive scales of components", named["scale"].min())
        return cls(floor=floor, **named)


@dataclass(frozen=True)
class OnComponents(Scorer):
    """Member that is applied to principal components."""

    pca: PrincipalComponents
    member: Member

    @classmethod
    def fit(
        cls,
        kind: type[Member],
        pca: PrincipalComponents,
        rows: TrainingRows,
        settings: MemberSettings,
        seed: int,
        folds: Folds | None = None,
    ) -> tuple[Self, HeldOutScores | None]:
        """Train a member of this class on components.

        With folds, a smaller member is trained without each fold, with its own components. Its scores are rescaled to
        the mean and deviation of the whole member over its training rows.
        """
        whole = cls(pca, kind.fit(rows.transformed(pca.transform), settings, seed)[0])
        if folds is None:
            return whole, None
        center, scale = standard(whole.anomaly(rows.X), rows.weights)
        others = []
        for fold in range(folds.count):
            kept, own_seed = rows.without(folds.rows == fold, folds.outliers == fold), seed + 1 + fold
            components = PrincipalComponents.learn(kept, own_seed, len(pca.directions))
            other, _ = cls.fit(kind, components, kept, settings.smaller(), own_seed)
            others.append((other, *standard(other.anomaly(kept.X), kept.weights)))

        def anomaly(X: Array, fold: int) -> Array:
            other, own_center, own_scale = others[fold]
            return (other.anomaly(X) - own_center) / own_scale * scale + center

        return whole, HeldOutScores.by(anomaly, rows, folds)

    @property
    def exact(self) -> bool:  # type: ignore[override]
        """Whether contributions of the member sum to the anomaly up to rounding."""
        return self.member.exact

    @property
    def base(self) -> float:
        """Base value that contributions are added to."""
        return self.member.base

    @property
    def history(self) -> History | None:  # type: ignore[override]
        """Training history of the member, if any."""
        return self.member.history

    def anomaly(self, X: Array) -> Array:
        """Return the anomaly of the components."""
        return self.member.anomaly(self.pca.transform(X))

    def contributions(self, X: Array) -> Array:
        """Return the contributions of the components, distributed over the pixels."""
        return self.pca.at_pixels(self.member.contributions(self.pca.transform(X)), X)

    def state(self) -> State:
        """Return the states of the member and the components."""
        content, arrays = self.member.state()
        return content, prefixed("pca", self.pca.arrays()) | prefixed("member", arrays)

    @classmethod
    def from_state(
        cls, kind: type[Member], content: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], width: int
    ) -> Self:
        """Restore a member of this class over the components of images of ``width`` pixels."""
        pca, member = part_of(arrays, "pca"), part_of(arrays, "member")
        require(len(arrays) == len(pca) + len(member), "have arrays of components and a member only", sorted(arrays))
        components = PrincipalComponents.from_state(pca, width)
        return cls(components, kind.from_state(content, member, len(components.center), None))
