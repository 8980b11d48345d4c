r"""The density ratio by nearest neighbours, in closed form: there is nothing to train.

The density of the data is p̂(x) ∝ d(x)^(−D), with d(x) the mean distance to the k nearest reference rows
(:mod:`fvnce.detection.members.reference`). Told apart from a noise whose density is known as well, the ratio at which
every scoring rule has its optimum is that of the two densities. The noise is a geometric mean of three,

    p_n ∝ u^(1−a−b) · s^a · w^b,      (1/D) log p_n/p̂ = log d(x) − a log mean_i d(x_i) − b log ρ(x) + const,

- u uniform: what lies far from everything is strange.
- s the data, smoothed as far as the neighbours x_i of x reach, and so as dense at x as it is at them: what lies far for
  where it is, is strange (the local outlier factor).
- w the *conditional* noise of small random warps x′ of the same image, with log ρ(x) the mean of log |x′ − x|: a thick
  or detailed image lies far from its neighbours and from its own warps alike, which cancels
  (:mod:`fvnce.detection.members.warps`).

On images b = 0.4 and a = 0.7 r⁴, with r² the share of the variance of log d over the training images that their
neighbours' distances explain: s is trusted as far as it foretells the density of the data. Nine digits differ in
density (a ≈ 0.63), coats hardly do (a ≈ 0.23). On a table b = 0, and a = ½ on rows known to be clean; where outliers
may hide among the rows a = 0, since they are dense where they lie together. What a column adds is its share of the
squared differences from the neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from torch import Tensor

from ...serialization import fields
from ...training import History
from ..plan import Array, Folds, HeldOutScores, Plan, TrainingRows
from .base import Member, State, require, require_number, shares_of
from .image_code import ImageCode
from .reference import Reference
from .warps import Warps

#: Rows, and images, among which neighbours are looked for.
MOST_ROWS, MOST_IMAGES = 4096, 20_000
#: Smoothing of distances as a share of their mean: rows of tables repeat themselves, images do not.
OF_ROWS, OF_IMAGES = 0.3, 0.01
#: a on tables of clean rows; a on images whose neighbours explain everything, and b on images.
LOCAL, LOCAL_OF_IMAGES, WARPED = 0.5, 0.7, 0.4
#: k, where it is not set.
NEIGHBOURS_OF_ROWS, NEIGHBOURS_OF_IMAGES = 5, 10
#: Rows whose columns' shares are computed at a time.
AT_ONCE = 256


class NeighbourMember(Member):
    """log p_n/p̂ with p̂ by the nearest neighbours.

    Attributes:
        reference: the rows to which distances are taken.
        local: a.
        warped: b.
        code: the coordinates of images, or None for a table.
        warps: the conditional noise, or None for a table.
    """

    name: ClassVar[str] = "neighbours"
    sees_pixels: ClassVar[bool] = True
    averages_folds: ClassVar[bool] = True

    def __init__(
        self, reference: Reference, local: float, warped: float, code: ImageCode | None, warps: Warps | None
    ) -> None:
        self.reference, self.local, self.warped, self.code, self.warps = reference, local, warped, code, warps

    @classmethod
    def fit(cls, rows: TrainingRows, plan: Plan, seed: int) -> tuple[Self, list[History]]:
        """Keep rows to compare with; there is no network."""
        is_table = plan.image is None
        code = None if plan.image is None else ImageCode.learn(rows.X, rows.weights, plan.image, seed)
        reference = Reference.learn(
            rows.X if code is None else code.encode(rows.X),
            rows.weights,
            plan.neighbours or (NEIGHBOURS_OF_ROWS if is_table else NEIGHBOURS_OF_IMAGES),
            clean=plan.clean,
            most=MOST_ROWS if is_table else MOST_IMAGES,
            smoothing=OF_ROWS if is_table else OF_IMAGES,
            seed=seed,
        )
        if plan.image is None:
            return cls(reference, LOCAL if plan.clean else 0.0, 0.0, None, None), []
        local = LOCAL_OF_IMAGES * reference.explained() ** 2
        return cls(reference, local, WARPED, code, Warps.draw(plan.image, seed)), []

    @classmethod
    def fit_held_out(
        cls, rows: TrainingRows, plan: Plan, seed: int, folds: Folds
    ) -> tuple[Self, list[History], HeldOutScores]:
        """The same; a row is no neighbour of itself, and a known outlier is no reference row."""
        member, histories = cls.fit(rows, plan, seed)
        of_outliers = member.anomaly(rows.outliers) if len(rows.outliers) else np.empty(0)
        return member, histories, HeldOutScores(member.anomaly(rows.X), of_outliers)

    def anomaly(self, X: Array) -> Array:
        """(1/D) log p_n/p̂, zero where distances are those of the typical reference row."""
        z = X if self.code is None else self.code.encode(X)
        distance, around = self.reference.local(z)
        typical = self.reference.mean
        found = np.log(distance / typical) - self.local * np.log(around / typical)
        if self.code is not None and self.warps is not None:
            found -= self.warped * self.warps.log_distance(X, z, self.code, self.reference.smoothing)
        return np.asarray(found)

    def contributions(self, X: Array) -> Array:
        """The anomaly, divided by the columns' shares of the squared differences from the neighbours."""
        shares = [self._shares(X[low : low + AT_ONCE]) for low in range(0, max(len(X), 1), AT_ONCE)]
        return np.asarray(self.anomaly(X)[:, None] * np.concatenate(shares))

    def _shares(self, X: Array) -> Array:
        if self.code is not None:
            return self.code.at_pixels(X, self.reference.differences(self.code.encode(X)))
        return shares_of((self.reference.differences(X) ** 2).mean(1))

    def state(self) -> State:
        """Reference rows, exponents, and the code and warps of images."""
        content: dict[str, Any] = {"local": self.local, "warped": self.warped}
        numbers, tensors = self.reference.state()
        found = {f"reference.{name}": value for name, value in tensors.items()}
        if self.code is not None and self.warps is not None:
            found |= {f"code.{name}": value for name, value in self.code.state().items()}
            found["warps.grids"] = self.warps.grids
        return content | numbers, found

    @classmethod
    def from_state(
        cls, content: Mapping[str, Any], tensors: Mapping[str, Tensor], width: int, image: tuple[int, int, int] | None
    ) -> Self:
        """Reference rows over ``width`` columns, or over the coordinates of images."""
        local, warped, neighbours, smoothing = fields(
            content, "neighbours", "local", "warped", "neighbours", "smoothing"
        )
        for name, value in (("local", local), ("warped", warped)):
            require_number(f"{name} of neighbours", value)
            require(0 <= value <= 1, f"have an exponent of noise in [0, 1] as {name}", value)
        parts: dict[str, dict[str, Tensor]] = {"reference": {}, "code": {}, "warps": {}}
        for key, tensor in tensors.items():
            part, _, name = key.partition(".")
            require(part in parts, "have reference rows, a code and warps", key)
            parts[part][name] = tensor
        if image is None:
            require(not parts["code"] and not parts["warps"], "be of a table", "images")
            reference = Reference.from_state(neighbours, smoothing, parts["reference"], width)
            return cls(reference, local, warped, None, None)
        code = ImageCode.from_state(parts["code"], width, image)
        reference = Reference.from_state(neighbours, smoothing, parts["reference"], len(code.directions))
        return cls(reference, local, warped, code, Warps.from_state(parts["warps"], image))
