r"""Piecewise-constant density ratios: a forest of random partitions.

On the cells C of a partition, the model p_θ = r_C p_n has the objective

    J = Σ_C  P_data(C) f1(r_C) + P_noise(C) f0(r_C),        maximal at  r_C = P_data(C) / P_noise(C)

for *every* proper scoring rule, because f0' = −r f1'. So a tree needs no training but the choice of its cells, and the
share of noise in a cell, μ_C = P_noise / (P_data + P_noise), is its exact answer. Cells come from extremely randomised
trees, whose Gini gain is the gain of J under the quadratic rule; the forest averages μ over trees.

Trees are kept as plain arrays, which a file can hold and a check can follow to every leaf. Rows are led through them by
scikit-learn's compiled trees where they can be made of these arrays (:mod:`fvnce.detection.members.compiled`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
import torch
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn import config_context
from sklearn.tree import ExtraTreeRegressor
from torch import Tensor

from ..plan import Array
from ..stored import require, require_array
from .compiled import compiled_trees

#: Places of rows in trees that are followed at a time.
PLACES = 2**20
#: The deepest tree in a file; honest ones are a few hundred deep at most, and every level costs a step for each row.
MAX_DEPTH = 10_000


@dataclass(frozen=True)
class RatioForest:
    """Trees side by side in flat arrays.

    Attributes:
        roots: first node of each tree, shape (T,).
        left: node to go to if the feature is at most the threshold, its own number at a leaf.
        right: node to go to otherwise.
        feature: column that a node looks at, 0 at a leaf.
        threshold: where it divides.
        share: μ, the share of noise among what reached the node.
    """

    roots: NDArray[np.int64]
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    feature: NDArray[np.int64]
    threshold: Array
    share: Array

    def anomaly(self, X: Array) -> Array:
        """μ averaged over the trees, shape (n,)."""
        return self.anomaly_by(X, slice(None))

    def anomaly_by(self, X: Array, trees: slice) -> Array:
        """μ averaged over some of the trees."""
        rows = np.ascontiguousarray(X, dtype=np.float32)
        total, count = np.zeros(len(rows)), 0
        # Tree by tree, so that the sum of a row has one order whatever rows are beside it.
        for leaf in self._leaves(rows, trees):
            total += self.share[leaf]
            count += 1
        return total / count

    def _leaves(self, rows: NDArray[np.float32], trees: slice) -> Iterator[NDArray[np.int64]]:
        """The leaf that each row arrives at, one array for each tree."""
        if rows.shape[1] < self._columns:  # compiled trees would read what lies beside the rows
            raise ValueError(f"X must have at least {self._columns} columns, found {rows.shape[1]}")
        if self._compiled is not None:
            for root, tree in zip(self.roots[trees].tolist(), self._compiled[trees], strict=True):
                yield root + tree.apply(rows)
            return
        for root in self.roots[trees]:
            node = np.full((len(rows), 1), root)
            while not np.array_equal(new := self._step(rows, node), node):
                node = new
            yield node[:, 0]

    @cached_property
    def _compiled(self) -> list[Any] | None:
        return compiled_trees(self.roots, self.left, self.right, self.feature, self.threshold)

    @cached_property
    def _columns(self) -> int:
        return int(self.feature.max()) + 1

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What the forest is made of, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __getstate__(self) -> dict[str, Any]:
        return self.arrays()  # compiled trees are made of them anew

    def _parts(self, n: int) -> list[tuple[int, int]]:
        """Rows in parts that a forest of many trees has the memory for; one empty part of no rows."""
        size = max(1, PLACES // len(self.roots))
        return [(low, min(low + size, n)) for low in range(0, max(n, 1), size)]

    def contributions(self, X: Array) -> Array:
        """How much each column moved μ on the way from the roots to the leaves, shape (n, D).

        Sums over columns to ``anomaly(X) − base``.
        """
        rows = X.astype(np.float32)
        return np.concatenate([self._moves(rows[low:high]) for low, high in self._parts(len(X))])

    def _moves(self, rows: NDArray[np.float32]) -> Array:
        node = self._start(rows)
        found = np.zeros(rows.shape)
        index = np.arange(len(rows))[:, None]
        while True:
            new = self._step(rows, node)
            if np.array_equal(new, node):
                return found / len(self.roots)
            np.add.at(found, (index, self.feature[node]), self.share[new] - self.share[node])
            node = new

    @property
    def base(self) -> float:
        """μ at the roots."""
        return float(self.share[self.roots].mean())

    def _start(self, rows: NDArray[np.float32]) -> NDArray[np.int64]:
        return np.broadcast_to(self.roots, (len(rows), len(self.roots)))

    def _step(self, rows: NDArray[np.float32], node: NDArray[np.int64]) -> NDArray[np.int64]:
        values = np.take_along_axis(rows, self.feature[node], 1)
        return np.where(values <= self.threshold[node], self.left[node], self.right[node])

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Nothing but arrays."""
        return {}, {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in self.arrays().items()}

    @classmethod
    def from_state(
        cls, content: Mapping[str, Any], tensors: Mapping[str, Tensor], width: int, image: tuple[int, int, int] | None
    ) -> Self:
        """Trees over rows with ``width`` columns, in which every row arrives at a leaf."""
        wanted = {field.name for field in fields(cls)}
        require(not content and set(tensors) == wanted, "be the member that it is named", sorted(tensors))
        require(image is None, "have forests over columns", "pixels")
        forest = cls(**{name: value.numpy() for name, value in tensors.items()})
        forest._check(width)
        return forest

    def _check(self, width: int) -> None:
        count = len(self.share)
        for name in ("roots", "left", "right", "feature"):
            shape = (len(self.roots) if name == "roots" else count,)
            require_array(f"{name} of a forest", getattr(self, name), np.int64, shape)
        require_array("threshold of a forest", self.threshold, np.float64, (count,))
        require_array("share of a forest", self.share, np.float64, (count,))
        outside = self.share[(self.share < 0) | (self.share > 1)]
        require(len(outside) == 0, "have shares in [0, 1]", outside[:1], of="a forest")
        wrong = self.feature[(self.feature < 0) | (self.feature >= width)]
        require(len(wrong) == 0, f"look at columns 0 to {width - 1}", wrong[:1], of="a forest")
        self._check_ways(count)

    def _check_ways(self, count: int) -> None:
        """Every node but the roots is reached from one earlier node, so that no way is endless."""
        own = np.arange(count)
        inner = self.left != own
        two = bool(((self.right != own) == inner).all())
        require(two, "have two ways on from a node or none", "one", of="a forest")
        onward = np.concatenate([self.left[inner], self.right[inner]])
        later = (onward > np.tile(own[inner], 2)) & (onward < count)
        require(bool(later.all()), "lead from each node to later ones", onward[~later][:1], of="a forest")
        roots = self.roots
        inside = len(roots) > 0 and bool(((roots >= 0) & (roots < count)).all()) and len(np.unique(roots)) == len(roots)
        require(inside, "have roots among its nodes, each once", roots[:3], of="a forest")
        is_root = np.zeros(count, dtype=bool)
        is_root[roots] = True
        once = bool((np.bincount(onward, minlength=count) == ~is_root).all())
        require(once, "lead to each node from one other, and to no root", "otherwise", of="a forest")
        tree = np.cumsum(is_root)
        apart = bool(is_root[0]) and bool((tree[onward] == np.tile(tree[inner], 2)).all())
        require(apart, "have each tree in one piece", "nodes of another between", of="a forest")
        level, depth = roots, 0
        while len(level):
            require(depth <= MAX_DEPTH, f"have at most {MAX_DEPTH:,} levels", "more", of="a forest")
            level = level[inner[level]]
            level, depth = np.concatenate([self.left[level], self.right[level]]), depth + 1


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
    parts: dict[str, list[NDArray[np.generic]]] = {
        name: [] for name in ("left", "right", "feature", "threshold", "share")
    }
    roots, first = [], 0
    for tree in trees:
        own = np.arange(tree.node_count)
        leaf = tree.children_left < 0
        roots.append(first)
        parts["left"].append(np.where(leaf, own, tree.children_left) + first)
        parts["right"].append(np.where(leaf, own, tree.children_right) + first)
        parts["feature"].append(np.where(leaf, 0, tree.feature))
        parts["threshold"].append(np.where(leaf, 0.0, tree.threshold))
        parts["share"].append(np.clip(tree.value[:, 0, 0], 0.0, 1.0))
        first += tree.node_count
    left, right, feature = (np.concatenate(parts[name]).astype(np.int64) for name in ("left", "right", "feature"))
    threshold, share = (np.concatenate(parts[name]).astype(np.float64) for name in ("threshold", "share"))
    return RatioForest(np.array(roots, dtype=np.int64), left, right, feature, threshold, share)
