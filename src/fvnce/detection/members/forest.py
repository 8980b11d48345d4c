"""Forests that tell rows from noise (:mod:`fvnce.detection.members.trees`), one member for each kind of noise.

==================  ============================================================================
``outlier_forest``  the known outliers themselves
``mixture_forest``  smoothed known outliers and smoothed rows
``broad_forest``    uniform over the box that holds the rows
``marginal_forest`` the product of the columns' own distributions
==================  ============================================================================
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from ...noise import draw
from ...training import History
from ..noise import box, draw_from_marginals, mixture_of
from ..plan import Array, Plan, TrainingRows
from .base import Member
from .trees import RatioForest, grow_forest

#: A forest that sees few rows needs enough draws all the same.
FEWEST_DRAWS = 256
#: Rows of a tree of the broad forest; few, so that outliers do not hide one another.
BROAD_ROWS = 64


class Forest(RatioForest, Member):
    """A forest of one kind of noise."""

    @classmethod
    def fit(cls, rows: TrainingRows, plan: Plan, seed: int) -> tuple[Self, list[History]]:
        """Grow the trees; there is no network."""
        noise, weights = cls._noise(rows, plan, torch.Generator().manual_seed(seed))
        shape = cls._shape(plan)
        grown = grow_forest(rows.X, rows.weights, noise, weights, trees=plan.trees, seed=seed, **shape)
        return cls(**grown.arrays()), []

    @classmethod
    @abstractmethod
    def _noise(cls, rows: TrainingRows, plan: Plan, generator: torch.Generator) -> tuple[Array, Array]:
        """What rows are told apart from, with weights."""

    @classmethod
    def _shape(cls, plan: Plan) -> dict[str, Any]:
        return {"leaf": plan.leaf, "features": "sqrt", "sample": None}


class OutlierForest(Forest):
    """Against the known outliers."""

    name: ClassVar[str] = "outlier_forest"
    needs_outliers: ClassVar[bool] = True

    @classmethod
    def _noise(cls, rows: TrainingRows, plan: Plan, generator: torch.Generator) -> tuple[Array, Array]:
        return rows.outliers, rows.outlier_weights


class DrawnForest(Forest):
    """Against draws, as many as there are rows."""

    @classmethod
    def _noise(cls, rows: TrainingRows, plan: Plan, generator: torch.Generator) -> tuple[Array, Array]:
        count = max(len(rows.X), FEWEST_DRAWS)
        return cls._draw(rows, plan, count, generator).double().numpy(), np.ones(count)

    @classmethod
    @abstractmethod
    def _draw(cls, rows: TrainingRows, plan: Plan, count: int, generator: torch.Generator) -> Tensor:
        """``count`` draws of p_n."""


class MixtureForest(DrawnForest):
    """Against smoothed known outliers and smoothed rows."""

    name: ClassVar[str] = "mixture_forest"

    @classmethod
    def _draw(cls, rows: TrainingRows, plan: Plan, count: int, generator: torch.Generator) -> Tensor:
        return draw(mixture_of(rows, plan, generator), count, generator)


class BroadForest(DrawnForest):
    """Against the box, with few rows and single columns in each tree."""

    name: ClassVar[str] = "broad_forest"

    @classmethod
    def _draw(cls, rows: TrainingRows, plan: Plan, count: int, generator: torch.Generator) -> Tensor:
        return draw(box(torch.from_numpy(rows.X)), count, generator)

    @classmethod
    def _shape(cls, plan: Plan) -> dict[str, Any]:
        return {"leaf": 1, "features": 1, "sample": BROAD_ROWS}


class MarginalForest(DrawnForest):
    """Against columns that know nothing of one another."""

    name: ClassVar[str] = "marginal_forest"

    @classmethod
    def _draw(cls, rows: TrainingRows, plan: Plan, count: int, generator: torch.Generator) -> Tensor:
        return draw_from_marginals(torch.from_numpy(rows.X), torch.from_numpy(rows.weights), count, generator)
