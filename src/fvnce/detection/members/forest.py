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
from numpy.typing import NDArray
from torch import Tensor

from ...noise import draw
from ...training import History
from ..noise import box, draw_from_marginals, draw_mixture
from ..plan import Array, Folds, HeldOutScores, Plan, TrainingRows
from .base import Member
from .trees import RatioForest, grow_forest

#: What rows are told apart from: its rows, their weights, their folds.
Noise = tuple[Array, Array, NDArray[np.int64]]
#: A forest that sees few rows needs enough draws all the same.
FEWEST_DRAWS = 256
#: Rows of a tree of the broad forest; few, so that outliers do not hide one another.
BROAD_ROWS = 64


class Forest(RatioForest, Member):
    """A forest of one kind of noise."""

    averages_folds: ClassVar[bool] = True

    @classmethod
    def fit(cls, rows: TrainingRows, plan: Plan, seed: int) -> tuple[Self, list[History]]:
        """Grow the trees; there is no network."""
        return cls._grown(rows, plan, seed, None), []

    @classmethod
    def fit_held_out(
        cls, rows: TrainingRows, plan: Plan, seed: int, folds: Folds
    ) -> tuple[Self, list[History], HeldOutScores]:
        """Tree t is grown without fold t mod K: a K-th of the forest has not seen a row."""
        forest = cls._grown(rows, plan, seed, folds)
        held = HeldOutScores.by(lambda X, fold: forest.anomaly_by(X, slice(fold, None, folds.count)), rows, folds)
        return forest, [], held

    @classmethod
    def _grown(cls, rows: TrainingRows, plan: Plan, seed: int, folds: Folds | None) -> Self:
        noise, weights, of_noise = cls._noise(rows, plan, torch.Generator().manual_seed(seed), folds)
        grown = grow_forest(
            rows.X,
            rows.weights,
            noise,
            weights,
            trees=plan.trees if folds is None else max(plan.trees, folds.count),
            seed=seed,
            folds=None if folds is None else (folds.rows, of_noise),
            jobs=plan.jobs,
            **cls._shape(plan),
        )
        return cls(**grown.arrays())

    @classmethod
    @abstractmethod
    def _noise(cls, rows: TrainingRows, plan: Plan, generator: torch.Generator, folds: Folds | None) -> Noise:
        """What rows are told apart from, with weights and folds."""

    @classmethod
    def _shape(cls, plan: Plan) -> dict[str, Any]:
        return {"leaf": plan.leaf, "features": "sqrt", "sample": None}


class OutlierForest(Forest):
    """Against the known outliers."""

    name: ClassVar[str] = "outlier_forest"
    needs_outliers: ClassVar[bool] = True

    @classmethod
    def _noise(cls, rows: TrainingRows, plan: Plan, generator: torch.Generator, folds: Folds | None) -> Noise:
        of = np.full(len(rows.outliers), -1) if folds is None else folds.outliers
        return rows.outliers, rows.outlier_weights, of


class DrawnForest(Forest):
    """Against draws, as many as there are rows."""

    @classmethod
    def _noise(cls, rows: TrainingRows, plan: Plan, generator: torch.Generator, folds: Folds | None) -> Noise:
        count = max(len(rows.X), FEWEST_DRAWS)
        drawn, of = cls._draw(rows, plan, count, generator, folds)
        return drawn.double().numpy(), np.ones(len(drawn)), of.numpy()

    @classmethod
    @abstractmethod
    def _draw(
        cls, rows: TrainingRows, plan: Plan, count: int, generator: torch.Generator, folds: Folds | None
    ) -> tuple[Tensor, Tensor]:
        """``count`` draws of p_n, and the fold whose rows each was made of, −1 for none."""


class MixtureForest(DrawnForest):
    """Against smoothed known outliers and smoothed rows."""

    name: ClassVar[str] = "mixture_forest"

    @classmethod
    def _draw(
        cls, rows: TrainingRows, plan: Plan, count: int, generator: torch.Generator, folds: Folds | None
    ) -> tuple[Tensor, Tensor]:
        return draw_mixture(rows, plan, count, generator, folds)


class BroadForest(DrawnForest):
    """Against the box, with few rows and single columns in each tree."""

    name: ClassVar[str] = "broad_forest"

    @classmethod
    def _draw(
        cls, rows: TrainingRows, plan: Plan, count: int, generator: torch.Generator, folds: Folds | None
    ) -> tuple[Tensor, Tensor]:
        return draw(box(torch.from_numpy(rows.X)), count, generator), torch.full((count,), -1)

    @classmethod
    def _shape(cls, plan: Plan) -> dict[str, Any]:
        return {"leaf": 1, "features": 1, "sample": BROAD_ROWS}


class MarginalForest(DrawnForest):
    """Against columns that know nothing of one another."""

    name: ClassVar[str] = "marginal_forest"

    @classmethod
    def _draw(
        cls, rows: TrainingRows, plan: Plan, count: int, generator: torch.Generator, folds: Folds | None
    ) -> tuple[Tensor, Tensor]:
        X, weights = torch.from_numpy(rows.X), torch.from_numpy(rows.weights)
        if folds is None:
            return draw_from_marginals(X, weights, count, generator), torch.full((count,), -1)
        # A draw is made of rows of one fold, and belongs to it.
        of, own = torch.from_numpy(folds.rows), torch.arange(count) % folds.count
        drawn = X.new_empty(count, X.shape[1])
        for fold in range(folds.count):
            here = own == fold
            drawn[here] = draw_from_marginals(X[of == fold], weights[of == fold], int(here.sum()), generator)
        return drawn, own
