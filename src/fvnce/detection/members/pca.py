r"""Images as principal codes: coordinates along the directions in which training images vary most, and what is left.

    z_k = v_k · (x − m),   k = 1 … K,        ρ = log(|x − m|² − |z|² + ε),

each standardised over the training images. Between pixels, smoothed images are told from real ones by their grain
alone; between codes, noise around a known outlier is an image much like it, and a ratio has to tell what it shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.extmath import randomized_svd
from torch import Tensor

if TYPE_CHECKING:
    from ..ensemble import RatioMember

Array = NDArray[np.float64]

#: K, where there are images enough.
CODES = 32
#: Images from which directions are learnt.
MOST_IMAGES = 5000
#: ε as a share of the mean of |x − m|².
FLOOR = 1e-4


@dataclass(frozen=True)
class PrincipalCodes:
    """The directions, and what standardises the codes.

    Attributes:
        mean: m, shape (D,).
        directions: v, orthonormal, shape (K, D).
        floor: ε.
        centre: means of the codes, shape (K + 1,).
        scale: their deviations, shape (K + 1,).
    """

    mean: Array
    directions: Array
    floor: float
    centre: Array
    scale: Array

    def encode(self, X: Array) -> Array:
        """Codes of flattened images, shape (n, K + 1)."""
        return (self._raw(X) - self.centre) / self.scale

    def at_pixels(self, parts: Array, X: Array) -> Array:
        """Contributions of codes, shape (n, K + 1), as contributions of pixels with the same sum, shape (n, D).

        A direction's part goes to pixels by their share of Σ|v_kp (x − m)_p|, what is left by the squared residual.
        """
        away = X - self.mean
        found = np.zeros_like(X)
        for k, direction in enumerate(self.directions):
            found += parts[:, k, None] * _shares(np.abs(away * direction))
        rest = away - (away @ self.directions.T) @ self.directions
        return found + parts[:, -1, None] * _shares(rest**2)

    def tensors(self) -> dict[str, Tensor]:
        """For a file."""
        return {name: torch.from_numpy(np.array(value)) for name, value in vars(self).items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> PrincipalCodes:
        """From a file."""
        arrays = {name: value.numpy() for name, value in tensors.items() if name != "floor"}
        return cls(floor=float(tensors["floor"]), **arrays)

    def _raw(self, X: Array) -> Array:
        away = X - self.mean
        z = away @ self.directions.T
        left = (away**2).sum(1) - (z**2).sum(1)
        return np.column_stack([z, np.log(np.maximum(left, 0.0) + self.floor)])


def learn_codes(X: Array, weights: Array, seed: int) -> PrincipalCodes:
    """The codes of flattened training images, shape (n, D)."""
    if len(X) > MOST_IMAGES:
        chosen = np.random.default_rng([seed, 79]).choice(len(X), MOST_IMAGES, replace=False)
        X, weights = X[chosen], weights[chosen]
    share = weights / weights.sum()
    mean = share @ X
    away = np.sqrt(share)[:, None] * (X - mean)
    count = min(CODES, len(X), X.shape[1])
    directions = randomized_svd(away, count, random_state=seed)[2]
    plain = PrincipalCodes(
        mean, directions, FLOOR * float((away**2).sum()) or 1.0, np.zeros(count + 1), np.ones(count + 1)
    )
    raw = plain.encode(X)
    centre = share @ raw
    scale = np.sqrt(share @ (raw - centre) ** 2)
    return PrincipalCodes(mean, directions, plain.floor, centre, np.where(scale > 1e-9, scale, 1.0))


@dataclass(frozen=True)
class OnCodes:
    """A member that looks at the codes of an image."""

    codes: PrincipalCodes
    member: RatioMember

    def anomaly(self, X: Array) -> Array:
        """That of the codes."""
        return self.member.anomaly(self.codes.encode(X))

    def contributions(self, X: Array) -> Array:
        """Those of the codes, at the pixels."""
        return self.codes.at_pixels(self.member.contributions(self.codes.encode(X)), X)

    @property
    def base(self) -> float:
        """The anomaly that all images start from."""
        return self.member.base


def _shares(values: Array) -> Array:
    total = values.sum(1, keepdims=True)
    return np.where(total > 0, values / np.where(total > 0, total, 1.0), 1 / values.shape[1])
