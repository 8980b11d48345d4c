r"""Images in coordinates in which distances and ratios mean something.

*Neighbors* see z = V (S x − m): S moves the center of brightness to the middle and removes the slant, both by moments
(with brightness as a mass, u ← u + (cov(u, v)/var(v)) v for columns u and rows v); V are the directions in which
training images vary most. They are not standardized: directions that hold little must not count as much as others.
Straightening helps where images are slanted and shifted, as written digits are, and costs little elsewhere. Their
conditional noise are small random warps x′(u) = x(u + A u + b + e(u)), A and b Gaussian, e a smooth Gaussian field. The
same few warps are taken of every image, so that its score follows from the image alone.

*Other members* see principal components, z_k = v_k · (x − m), and ρ = log(|x − m|² − |z|² + ε), what no direction
holds, each standardized. Between pixels, a ratio distinguishes smoothed images from real ones by their grain; between
components, noise around a known outlier is an image much like it.
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

#: The most directions of a code, and of principal components.
DIRECTIONS, COMPONENTS = 64, 32
#: The most images from which directions are learned.
MAX_LEARNED = 5000
#: ε over the mean of |x − m|².
FLOOR = 1e-4
#: Less brightness, or less height, than this is none.
FAINT = 1e-3
#: Images that are resampled at a time.
RESAMPLED = 1024
#: How many warps, and the deviations of A, b and e in units of half an image.
WARPS, LINEAR, SHIFT, ELASTIC = 16, 0.1, 0.02, 0.05
#: Knots of the smooth field along a side.
KNOTS = 5
#: The most warps in a file, and the farthest place that one reads, in halves of an image.
MAX_WARPS, MAX_REACH = 64, 100.0


def _sample(rows: TrainingRows, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return some of the images, and their weights with sum one."""
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
    # In the layout that a file gives back: the last bit of a product depends on the order of its factors in memory.
    return mean, np.ascontiguousarray(directions), float((away**2).sum())


@dataclass(frozen=True)
class ImageCode:
    """Coordinates of straightened images.

    Attributes:
        image: (channels, height, width).
        mean: m, shape (D,).
        directions: V, orthonormal, shape (K, D).
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
        """Return each pixel's fraction of differences of coordinates, from shape (n, k, K) to (n, D)."""
        squares = np.stack([((row @ self.directions) ** 2).mean(0) for row in differences])
        return row_fractions(np.maximum(_mapped(squares, self.image, _inverse(_upright(X, self.image))), 0.0))

    def arrays(self) -> dict[str, Array]:
        """Return the arrays by name."""
        return {"mean": self.mean, "directions": self.directions}

    @classmethod
    def from_state(cls, arrays: Mapping[str, NDArray[Any]], width: int, image: ImageShape) -> Self:
        """Make the code of images of this shape from arrays that may be forged."""
        require(set(arrays) == {"mean", "directions"}, "have the code of images", sorted(arrays))
        _check_directions("code", arrays, width)
        return cls(image, **arrays)


def _check_directions(name: str, arrays: Mapping[str, NDArray[Any]], width: int) -> int:
    """Require a mean and at least one direction of ``width`` numbers, and return how many directions there are."""
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
    """Read flattened images at the places of a grid, shape (1 or n, H, W, 2) in halves of an image, zero outside."""
    import torch
    from torch.nn import functional

    x = torch.from_numpy(X).float().reshape(-1, *image)
    resampled = functional.grid_sample(x, grid.expand(len(x), -1, -1, -1), align_corners=False)
    return resampled.flatten(1).double().numpy()


def _mapped(X: Array, image: ImageShape, maps: Tensor) -> Array:
    """Read images through an affine map for each, shape (n, 2, 3)."""
    from torch.nn import functional

    parts = []
    for low in range(0, len(X), RESAMPLED):
        some = maps[low : low + RESAMPLED]
        grid = functional.affine_grid(some, [len(some), *image], align_corners=False)
        parts.append(_resampled(X[low : low + RESAMPLED], image, grid))
    return np.concatenate(parts)


def _upright(X: Array, image: ImageShape) -> Tensor:
    """Return the affine map of each image, from the places of the straight one to those of the image."""
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
        """Make the warps of images of this shape from arrays that may be forged."""
        require(set(arrays) == {"grids"}, "have the warps of images", sorted(arrays))
        shape = np.shape(arrays["grids"])
        require(len(shape) == 4 and 0 < shape[0] <= MAX_WARPS, f"have 1 to {MAX_WARPS} warps", shape)
        grids = stored_array("grids of warps", arrays["grids"], np.float32, (shape[0], *image[1:], 2))
        reach = float(np.abs(grids).max())
        require(reach <= MAX_REACH, f"have warps that read at most {MAX_REACH:g} halves of an image away", reach)
        return cls(grids)


@dataclass(frozen=True)
class PrincipalComponents:
    """Directions, and what standardizes the coordinates along them.

    Attributes:
        mean: m, shape (D,).
        directions: v, orthonormal, shape (K, D).
        floor: ε.
        center: means of the coordinates, shape (K + 1,).
        scale: their deviations, shape (K + 1,).
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

        A direction's part goes to pixels by their fraction of Σ|v_kp (x − m)_p|, the last by the squared residual.
        """
        away = X - self.mean
        total = np.zeros_like(X)
        for k, direction in enumerate(self.directions):
            total += parts[:, k, None] * row_fractions(np.abs(away * direction))
        rest = away - (away @ self.directions.T) @ self.directions
        return total + parts[:, -1, None] * row_fractions(rest**2)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return every number as an array by name."""
        named = {name: np.array(value) for name, value in vars(self).items()}
        return {"centre": named.pop("center"), **named}  # as version 0.2 spelled it

    @classmethod
    def from_state(cls, arrays: Mapping[str, NDArray[Any]], width: int) -> Self:
        """Make the components of images of ``width`` pixels from arrays that may be forged."""
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
    """A member that sees the principal components of an image."""

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
        """Train a member of a kind on components.

        With folds, a smaller one is trained without each, with components of its own. Its scores are brought to the
        mean and deviation that the whole member has over its training rows.
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
        """Whether contributions of the member are exact."""
        return self.member.exact

    @property
    def base(self) -> float:
        """The anomaly that all images start from."""
        return self.member.base

    @property
    def history(self) -> History | None:  # type: ignore[override]
        """The record of training of the member."""
        return self.member.history

    def anomaly(self, X: Array) -> Array:
        """Return the anomaly of the components."""
        return self.member.anomaly(self.pca.transform(X))

    def contributions(self, X: Array) -> Array:
        """Return the contributions of the components, distributed over the pixels."""
        return self.pca.at_pixels(self.member.contributions(self.pca.transform(X)), X)

    def state(self) -> State:
        """Return the state of the member, and the components."""
        content, arrays = self.member.state()
        return content, prefixed("pca", self.pca.arrays()) | prefixed("member", arrays)

    @classmethod
    def from_state(
        cls, kind: type[Member], content: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], width: int
    ) -> Self:
        """Make a member of a kind over the components of images of ``width`` pixels."""
        pca, member = part_of(arrays, "pca"), part_of(arrays, "member")
        require(len(arrays) == len(pca) + len(member), "have arrays of components and a member only", sorted(arrays))
        components = PrincipalComponents.from_state(pca, width)
        return cls(components, kind.from_state(content, member, len(components.center), None))
