r"""Trees as plain arrays, which a file can hold and a check can follow to every leaf; what they say is grown elsewhere
(:mod:`fvnce.detection.members.forest`).

Rows are led through them by scikit-learn's compiled code, which is 18 times as fast as NumPy. scikit-learn has no
public way to make a tree from arrays: what it takes to unpickle one is used, without a pickle. Where a version of it
has another form, NumPy leads the rows; both arrive at the same leaves, since both compare a float32 with a float64
threshold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..plan import Array
from .base import require, require_array

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

    def contributions(self, X: Array) -> Array:
        """How much each column moved μ on the way from the roots to the leaves, shape (n, D).

        Sums over columns to ``anomaly(X) − base``.
        """
        rows, size = X.astype(np.float32), max(1, PLACES // len(self.roots))
        return np.concatenate([self._moves(rows[low : low + size]) for low in range(0, max(len(rows), 1), size)])

    def _moves(self, rows: NDArray[np.float32]) -> Array:
        node = np.broadcast_to(self.roots, (len(rows), len(self.roots)))
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


def compiled_trees(
    roots: NDArray[np.int64],
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    feature: NDArray[np.int64],
    threshold: NDArray[np.float64],
) -> list[Any] | None:
    """scikit-learn's tree of each root, or None where this version of it makes none of these arrays.

    Compiled code follows an index wherever it leads, so arrays in which one leads out of its tree are refused here.

    Args:
        roots: first node of each tree; its nodes end where the next begins.
        left: node to go to if the feature is at most the threshold, its own number at a leaf.
        right: node to go to otherwise.
        feature: column that a node looks at.
        threshold: where it divides.

    >>> left, right = np.array([1, 1, 2]), np.array([2, 1, 2])
    >>> (tree,) = compiled_trees(np.array([0]), left, right, np.zeros(3, int), np.array([0.5, 0, 0]))
    >>> tree.apply(np.array([[0.0], [1.0]], dtype=np.float32))
    array([1, 2])
    """
    first, place = np.unique(roots, return_inverse=True)
    ends = np.append(first[1:], len(left))
    made = []
    for begin, end in zip(first.tolist(), ends.tolist(), strict=True):
        own = slice(begin, end)
        low, high = left[own] - begin, right[own] - begin
        if not _stays_inside(low, high) or int(feature[own].min()) < 0:
            raise ValueError(f"nodes {begin} to {end - 1} must lead to later nodes of the same tree, found others")
        tree = _compiled(low, high, feature[own], threshold[own])
        if tree is None:
            return None
        made.append(tree)
    return [made[index] for index in place.ravel()]


def _compiled(
    left: NDArray[np.int64], right: NDArray[np.int64], feature: NDArray[np.int64], threshold: NDArray[np.float64]
) -> Any:
    """scikit-learn's tree, whose leaves lead to no node instead of to themselves."""
    try:
        from sklearn.tree._tree import NODE_DTYPE, TREE_LEAF, TREE_UNDEFINED, Tree

        leaf = left == np.arange(len(left))
        nodes = np.zeros(len(left), dtype=NODE_DTYPE)
        nodes["left_child"] = np.where(leaf, TREE_LEAF, left)
        nodes["right_child"] = np.where(leaf, TREE_LEAF, right)
        nodes["feature"] = np.where(leaf, TREE_UNDEFINED, feature)
        nodes["threshold"] = threshold
        tree = Tree(int(feature.max()) + 1, np.ones(1, dtype=np.intp), 1)
        # Values are not asked for: the shares of a forest stand beside its trees.
        values = np.zeros((len(nodes), 1, 1))
        tree.__setstate__({"max_depth": 0, "node_count": len(nodes), "nodes": nodes, "values": values})
    except (ImportError, AttributeError, TypeError, ValueError, KeyError):
        return None
    return tree


def _stays_inside(left: NDArray[np.int64], right: NDArray[np.int64]) -> bool:
    own = np.arange(len(left))
    inner = left != own
    onward = np.concatenate([left[inner], right[inner]])
    later = (onward > np.tile(own[inner], 2)) & (onward < len(own))
    return bool(later.all()) and bool((right[~inner] == own[~inner]).all())
