r"""Piecewise-constant density ratios: forests that tell rows from noise, one member for each kind of noise.

On the cells C of a partition, the model p_θ = r_C p_n has the objective

    J = Σ_C  P_data(C) f1(r_C) + P_noise(C) f0(r_C),        maximal at  r_C = P_data(C) / P_noise(C)

for *every* proper scoring rule, because f0' = −r f1'. So a tree needs no training but the choice of its cells, and the
share of noise in a cell, μ_C = P_noise / (P_data + P_noise), is its exact answer. Cells come from extremely randomised
trees, whose Gini gain is the gain of J under the quadratic rule; the forest averages μ over trees.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn import config_context
from sklearn.tree import ExtraTreeRegressor
from torch import Tensor

from ...noise import draw
from ...training import History
from ..noise import box, draw_from_marginals, draw_mixture
from ..plan import Array, Folds, HeldOutScores, Plan, TrainingRows
from .base import Member
from .trees import RatioForest

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
        """What rows are told apart from, with weights and the fold whose rows each was made of, −1 for none."""

    @classmethod
    def _shape(cls, plan: Plan) -> dict[str, Any]:
        return {"leaf": plan.leaf, "features": "sqrt", "sample": None}


class OutlierForest(Forest):
    """Against the known outliers themselves."""

    name: ClassVar[str] = "outlier_forest"
    needs_outliers: ClassVar[bool] = True

    @classmethod
    def _noise(cls, rows: TrainingRows, plan: Plan, generator: torch.Generator, folds: Folds | None) -> Noise:
        of = np.full(len(rows.outliers), -1) if folds is None else folds.outliers
        return rows.outliers, rows.outlier_weights, of


class MixtureForest(Forest):
    """Against smoothed known outliers and smoothed rows."""

    name: ClassVar[str] = "mixture_forest"

    @classmethod
    def _noise(cls, rows: TrainingRows, plan: Plan, generator: torch.Generator, folds: Folds | None) -> Noise:
        return _drawn(*draw_mixture(rows, plan, _count(rows), generator, folds))


class BroadForest(Forest):
    """Against the box that holds the rows, with few rows and single columns in each tree."""

    name: ClassVar[str] = "broad_forest"

    @classmethod
    def _noise(cls, rows: TrainingRows, plan: Plan, generator: torch.Generator, folds: Folds | None) -> Noise:
        count = _count(rows)
        return _drawn(draw(box(torch.from_numpy(rows.X)), count, generator), torch.full((count,), -1))

    @classmethod
    def _shape(cls, plan: Plan) -> dict[str, Any]:
        return {"leaf": 1, "features": 1, "sample": BROAD_ROWS}


class MarginalForest(Forest):
    """Against the product of the columns' own distributions: which of them go together?"""

    name: ClassVar[str] = "marginal_forest"

    @classmethod
    def _noise(cls, rows: TrainingRows, plan: Plan, generator: torch.Generator, folds: Folds | None) -> Noise:
        X, weights, count = torch.from_numpy(rows.X), torch.from_numpy(rows.weights), _count(rows)
        if folds is None:
            return _drawn(draw_from_marginals(X, weights, count, generator), torch.full((count,), -1))
        # A draw is made of rows of one fold, and belongs to it.
        of, own = torch.from_numpy(folds.rows), torch.arange(count) % folds.count
        drawn = X.new_empty(count, X.shape[1])
        for fold in range(folds.count):
            here = own == fold
            drawn[here] = draw_from_marginals(X[of == fold], weights[of == fold], int(here.sum()), generator)
        return _drawn(drawn, own)


def _count(rows: TrainingRows) -> int:
    """As many draws as there are rows."""
    return max(len(rows.X), FEWEST_DRAWS)


def _drawn(draws: Tensor, folds: Tensor) -> Noise:
    return draws.double().numpy(), np.ones(len(draws)), folds.numpy()


def grow_forest(
    rows: Array,
    weights: Array,
    noise: Array,
    noise_weights: Array,
    *,
    trees: int,
    leaf: int,
    features: str | int,
    sample: int | None,
    seed: int,
    folds: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
    jobs: int | None = None,
) -> RatioForest:
    """A forest that tells rows from noise, both given the same total weight.

    Args:
        rows: data, shape (n, D).
        weights: one for each row.
        noise: draws of p_n, or known outliers, shape (m, D).
        noise_weights: one for each draw.
        trees: how many.
        leaf: fewest samples in a cell.
        features: columns tried for a split, a number or "sqrt".
        sample: data rows of a tree, with as many of noise, drawn anew for each; None for all.
        seed: of the partitions.
        folds: the fold of each row and of each draw, −1 for none: tree t sees nothing of fold t mod K.
        jobs: threads, as joblib counts them.
    """
    X = np.concatenate([rows, noise]).astype(np.float32)
    kind = np.repeat([0.0, 1.0], [len(rows), len(noise)])
    weight = np.concatenate([weights, noise_weights])
    fold = None if folds is None else np.concatenate(folds)
    parts = [
        _Part.of(X[keep], kind[keep], weight[keep])
        for keep in ([slice(None)] if fold is None else [fold != own for own in range(int(fold.max()) + 1)])
    ]
    # As scikit-learn's forests seed their trees.
    seeds = np.random.RandomState(seed).randint(2**31 - 1, size=trees)
    grow = partial(_grow_tree, sample=sample, shape={"min_samples_leaf": leaf, "max_features": features})
    jobs_of = (delayed(grow)(parts[tree % len(parts)], int(own)) for tree, own in enumerate(seeds))
    return _flat(Parallel(n_jobs=jobs, prefer="threads")(jobs_of))


@dataclass(frozen=True)
class _Part:
    """What some of the trees see: both kinds with the same total weight.

    Attributes:
        X: rows, then draws.
        kind: 0 for rows, 1 for draws.
        weight: of each, its mean 1.
        cumulative: sums of the weights from the first on, the last of them 1.
    """

    X: NDArray[np.float32]
    kind: Array
    weight: Array
    cumulative: Array

    @classmethod
    def of(cls, X: NDArray[np.float32], kind: Array, weight: Array) -> Self:
        totals = np.bincount(kind.astype(np.int64), weight, minlength=2)
        weight = weight / totals[kind.astype(np.int64)]
        cumulative = np.cumsum(weight / weight.sum())
        return cls(X, kind, weight * (len(X) / weight.sum()), cumulative / cumulative[-1])


def _grow_tree(part: _Part, seed: int, *, sample: int | None, shape: Mapping[str, Any]) -> Any:
    """One tree on all of a part, or on samples of both kinds drawn by their share of the weight, with replacement.

    Its target is 1 for noise: the mean of a cell is μ, and the gain in squared error half that of Gini. Samples are
    drawn here because scikit-learn's own bootstrap does not always: before 1.9 it draws evenly and weighs what it drew,
    so that a value which a thousand rows have in common is in as few trees as one that occurs once.
    """
    X, kind, weight = part.X, part.kind, part.weight
    if sample is not None:
        levels = np.random.RandomState(seed).random_sample(min(2 * sample, len(X)))
        there, counts = np.unique(np.searchsorted(part.cumulative, levels, side="right"), return_counts=True)
        X, kind, weight = X[there], kind[there], counts.astype(np.float64)
    with config_context(skip_parameter_validation=True):  # asked once for all trees, by the detector's own settings
        tree = ExtraTreeRegressor(random_state=seed, **shape)
        return tree.fit(X, kind, sample_weight=weight, check_input=False).tree_


def _flat(trees: Sequence[Any]) -> RatioForest:
    sizes = [tree.node_count for tree in trees]
    roots = np.cumsum([0, *sizes])[:-1]
    own, first = np.arange(sum(sizes)), np.repeat(roots, sizes)
    names = ("children_left", "children_right", "feature", "threshold")
    left, right, feature, threshold = (np.concatenate([getattr(tree, name) for tree in trees]) for name in names)
    leaf = left < 0
    return RatioForest(
        roots=roots.astype(np.int64),
        left=np.where(leaf, own, left + first).astype(np.int64),
        right=np.where(leaf, own, right + first).astype(np.int64),
        feature=np.where(leaf, 0, feature).astype(np.int64),
        threshold=np.where(leaf, 0.0, threshold).astype(np.float64),
        share=np.concatenate([np.clip(tree.value[:, 0, 0], 0.0, 1.0) for tree in trees]).astype(np.float64),
    )
