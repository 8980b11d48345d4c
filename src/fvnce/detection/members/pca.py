r"""Images by their principal components: coordinates along the directions in which training images vary most.

    z_k = v_k · (x − m),   k = 1 … K,        ρ = log(|x − m|² − |z|² + ε),

each standardised over the training images; ρ is what no direction holds. Between pixels, smoothed images are told from
real ones by their grain alone; between components, noise around a known outlier is an image much like it, and a ratio
has to tell what it shows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import torch
from sklearn.utils.extmath import randomized_svd
from torch import Tensor

from ...training import History
from ..networks import in_blocks
from ..plan import Array, Folds, HeldOutScores, Plan, TrainingRows
from .base import Member, Scorer, State, refitted, require, require_array, shares_of

#: K, where there are images enough.
COMPONENTS = 32
#: Images from which directions are learnt.
MOST_IMAGES = 5000
#: ε as a share of the mean of |x − m|².
FLOOR = 1e-4


@dataclass(frozen=True)
class PrincipalComponents:
    """The directions, and what standardises the coordinates along them.

    Attributes:
        mean: m, shape (D,).
        directions: v, orthonormal, shape (K, D).
        floor: ε.
        centre: means of the coordinates, shape (K + 1,).
        scale: their deviations, shape (K + 1,).
    """

    mean: Array
    directions: Array
    floor: float
    centre: Array
    scale: Array

    def transform(self, X: Array) -> Array:
        """Coordinates of flattened images, shape (n, K + 1)."""
        return (self._raw(X) - self.centre) / self.scale

    def at_pixels(self, parts: Array, X: Array) -> Array:
        """Contributions of components, shape (n, K + 1), as contributions of pixels with the same sum, shape (n, D).

        A direction's part goes to pixels by their share of Σ|v_kp (x − m)_p|, what is left by the squared residual.
        """
        away = X - self.mean
        found = np.zeros_like(X)
        for k, direction in enumerate(self.directions):
            found += parts[:, k, None] * shares_of(np.abs(away * direction))
        rest = away - (away @ self.directions.T) @ self.directions
        return found + parts[:, -1, None] * shares_of(rest**2)

    def state(self) -> dict[str, Tensor]:
        """Every number as a tensor."""
        return {name: torch.from_numpy(np.array(value)) for name, value in vars(self).items()}

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], width: int) -> Self:
        """The components of images of ``width`` pixels."""
        require(set(tensors) == {field.name for field in fields(cls)}, "have principal components", sorted(tensors))
        arrays = {name: value.numpy() for name, value in tensors.items() if name != "floor"}
        made = cls(floor=float(tensors["floor"]), **arrays)
        count = len(made.directions) if np.ndim(made.directions) == 2 else 0
        require(count > 0, "have directions of components", np.shape(made.directions))
        for name, shape in (
            ("mean", (width,)),
            ("directions", (count, width)),
            ("centre", (count + 1,)),
            ("scale", (count + 1,)),
        ):
            require_array(f"{name} of components", getattr(made, name), np.float64, shape)
        require(math.isfinite(made.floor) and made.floor > 0, "have a positive floor of components", made.floor)
        require(bool((made.scale > 0).all()), "have positive scales of components", made.scale.min())
        return made

    def _raw(self, X: Array) -> Array:
        away = X - self.mean
        directions = torch.from_numpy(self.directions)
        z = in_blocks(lambda rows: rows @ directions.T, torch.from_numpy(away)).numpy()
        left = (away**2).sum(1) - (z**2).sum(1)
        return np.column_stack([z, np.log(np.maximum(left, 0.0) + self.floor)])


def learn_components(X: Array, weights: Array, seed: int) -> PrincipalComponents:
    """The principal components of flattened training images, shape (n, D)."""
    if len(X) > MOST_IMAGES:
        chosen = np.random.default_rng([seed, 79]).choice(len(X), MOST_IMAGES, replace=False)
        X, weights = X[chosen], weights[chosen]
    share = weights / weights.sum()
    mean = share @ X
    away = np.sqrt(share)[:, None] * (X - mean)
    count = min(COMPONENTS, len(X), X.shape[1])
    # In the layout that a file gives back: the last bit of a product depends on the order of its factors in memory.
    directions = np.ascontiguousarray(randomized_svd(away, count, random_state=seed)[2])
    plain = PrincipalComponents(
        mean, directions, FLOOR * float((away**2).sum()) or 1.0, np.zeros(count + 1), np.ones(count + 1)
    )
    raw = plain.transform(X)
    centre = share @ raw
    scale = np.sqrt(share @ (raw - centre) ** 2)
    return PrincipalComponents(mean, directions, plain.floor, centre, np.where(scale > 1e-9, scale, 1.0))


@dataclass(frozen=True)
class PCAMember(Scorer):
    """A member that sees the principal components of an image."""

    pca: PrincipalComponents
    member: Member

    @classmethod
    def fit(
        cls, kind: type[Member], pca: PrincipalComponents, rows: TrainingRows, plan: Plan, seed: int
    ) -> tuple[Self, list[History]]:
        """A member of a kind, trained on the components of images."""
        member, histories = kind.fit(rows.transformed(pca.transform), plan, seed)
        return cls(pca, member), histories

    @classmethod
    def fit_held_out(
        cls, kind: type[Member], pca: PrincipalComponents, rows: TrainingRows, plan: Plan, seed: int, folds: Folds
    ) -> tuple[Self, list[History], HeldOutScores]:
        """The same, and held-out scores by members without a fold: they need components without it, too."""
        member, histories = cls.fit(kind, pca, rows, plan, seed)

        def fit(kept: TrainingRows, smaller: Plan, own: int) -> tuple[Self, list[History]]:
            return cls.fit(kind, learn_components(kept.X, kept.weights, own), kept, smaller, own)

        return member, histories, refitted(fit, member, rows, plan, seed, folds)

    @property
    def exact(self) -> bool:
        """As the member is."""
        return self.member.exact

    def anomaly(self, X: Array) -> Array:
        """That of the components."""
        return self.member.anomaly(self.pca.transform(X))

    def contributions(self, X: Array) -> Array:
        """Those of the components, at the pixels."""
        return self.pca.at_pixels(self.member.contributions(self.pca.transform(X)), X)

    def rest(self, X: Array) -> Array:
        """That of the member."""
        return self.member.rest(self.pca.transform(X))

    @property
    def base(self) -> float:
        """The anomaly that all images start from."""
        return self.member.base

    def state(self) -> State:
        """That of the member, and the components beside it."""
        content, tensors = self.member.state()
        own = {f"pca.{name}": value for name, value in self.pca.state().items()}
        return content, own | {f"member.{name}": value for name, value in tensors.items()}

    @classmethod
    def from_state(
        cls, kind: type[Member], content: Mapping[str, Any], tensors: Mapping[str, Tensor], width: int
    ) -> Self:
        """A member of a kind, over the components of images of ``width`` pixels."""
        parts: dict[str, dict[str, Tensor]] = {"pca": {}, "member": {}}
        for key, value in tensors.items():
            part, _, name = key.partition(".")
            require(part in parts, "have principal components for members on images", key)
            parts[part][name] = value
        pca = PrincipalComponents.from_state(parts["pca"], width)
        return cls(pca, kind.from_state(content, parts["member"], len(pca.centre), None))
