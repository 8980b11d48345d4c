r"""Forests: piecewise-constant density ratios between rows and noise, one member for each kind of noise.

On the cells C of a partition, the model p_θ = r_C p_n has the objective

    J = Σ_C  P_data(C) f1(r_C) + P_noise(C) f0(r_C),        maximal at  r_C = P_data(C) / P_noise(C)

for *every* proper scoring rule, because f0' = −r f1'. So training a tree is only the choice of its cells: the
share of noise in a cell, μ_C = P_noise / (P_data + P_noise), is the exact optimum. Cells come from extremely randomized
trees, whose Gini gain is the gain of J under the quadratic rule; the forest averages μ over trees. Random thresholds
of a column with a long tail are seldom within its bulk. So against known outliers every second tree draws them by rank.

Trees are stored as plain arrays, which can be validated completely; the left child of a node follows it, since
scikit-learn grows trees depth first. For many rows its compiled code finds the leaves, 18 times as fast as NumPy.
scikit-learn has no public function to make a tree from arrays, so ``__setstate__`` is used, without pickle; if a
version has another format, NumPy finds the same leaves.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ..._validation import require, stored_array
from ..rows import Array, Folds, TrainingRows
from .base import WIDE, HeldOutScores, ImageShape, Member, MemberSettings, Scorer, State

#: Largest number of rows times trees that are processed at a time.
MAX_PLACES = 2**20
#: Largest number of rows for which NumPy, which processes all trees at once, is used instead of compiled code; the
#: second limit holds while scikit-learn is not imported, which takes a second.
FEW_ROWS, FEW_ROWS_AT_START = 16, 4096
#: Largest depth of a tree in a file; version 0.2 made trees with a few hundred levels.
MAX_DEPTH = 10_000
#: Largest depth of a tree grown by ``fit``: without a limit, scoring of large tables took four times as long and files
#: were up to 20 times as large, without a gain in average precision.
GROWN_DEPTH = 8
#: Smallest number of draws of noise, for tables with few rows.
MIN_DRAWS = 256
#: Rows sampled for a tree of the isolation forest, few so that outliers do not mask one another; depth; most trees.
ISOLATION_ROWS, ISOLATION_DEPTH, ISOLATION_TREES = 256, 8, 100


@dataclass(frozen=True)
class RatioForest(Scorer):
    """Trees in concatenated flat arrays.

    Attributes:
        roots: first node of each tree, shape (T,).
        right: child node if the feature is above the threshold, otherwise the next node is the child; a leaf has its
            own index.
        feature: column that a node compares, 0 at a leaf.
        threshold: value that it compares with, in single precision like the rows.
        share: μ, the share of noise among the samples in the node, in single precision.
    """

    roots: NDArray[Any]
    right: NDArray[Any]
    feature: NDArray[Any]
    threshold: NDArray[Any]
    share: NDArray[Any]

    def anomaly(self, X: Array) -> Array:
        """Return μ averaged over the trees, shape (n,)."""
        return self.anomaly_by(X, slice(None))

    def anomaly_by(self, X: Array, trees: slice) -> Array:
        """Return μ averaged over some of the trees."""
        rows, roots = np.ascontiguousarray(X, dtype=np.float32), self.roots[trees]
        if rows.shape[1] < self._columns:  # compiled trees would read out of bounds
            raise ValueError(f"X must have at least {self._columns} columns, found {rows.shape[1]}")
        few = FEW_ROWS if "sklearn.tree" in sys.modules else FEW_ROWS_AT_START
        compiled = None if len(rows) <= few else self._compiled
        # Add tree by tree, so that the order of the sum does not depend on the other rows.
        if compiled is not None:
            # Processors predict branches better if similar rows follow one another.
            some = rows.take(np.arange(16) % rows.shape[1], 1)
            order = np.argsort(np.packbits(some > some.mean(0), axis=1).view(np.uint16)[:, 0], kind="stable")
            rows, total = rows[order], np.zeros(len(rows))
            for root, tree in zip(roots.tolist(), compiled[trees], strict=True):
                total += self.share[root:].take(tree.apply(rows))
            result = np.empty(len(rows))
            result[order] = total / len(roots)
            return result
        size = max(1, MAX_PLACES // len(roots))
        parts = [self._leaves(rows[low : low + size], roots) for low in range(0, max(len(rows), 1), size)]
        return np.concatenate([np.cumsum(self.share[leaf], axis=1, dtype=np.float64)[:, -1] for leaf in parts]) / len(
            roots
        )

    def _leaves(self, rows: NDArray[np.float32], roots: NDArray[Any]) -> NDArray[np.int64]:
        """Return the leaf of each row in each tree, shape (n, T)."""
        width, flat = rows.shape[1], rows.ravel()
        leaves = np.tile(roots.astype(np.int64), len(rows))
        place, node = np.arange(len(leaves)), leaves
        start = np.repeat(np.arange(len(rows)) * width, len(roots))
        while len(place):
            right = self.right[node]
            inner = right != node
            leaves[place[~inner]] = node[~inner]
            place, node, start, right = place[inner], node[inner], start[inner], right[inner]
            node = np.where(flat[start + self.feature[node]] <= self.threshold[node], node + 1, right)
        return leaves.reshape(len(rows), len(roots))

    @cached_property
    def _compiled(self) -> list[Any] | None:
        return compiled_trees(self.roots, self.right, self.feature, self.threshold)

    @cached_property
    def _columns(self) -> int:
        return int(self.feature.max()) + 1

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of the forest by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __getstate__(self) -> dict[str, Any]:
        return self.arrays()  # compiled trees are made again from the arrays

    def contributions(self, X: Array) -> Array:
        """Return the change of μ by the splits on each column, from root to leaf, shape (n, D)."""
        rows, size = X.astype(np.float32), max(1, MAX_PLACES // len(self.roots))
        return np.concatenate([self._moves(rows[low : low + size]) for low in range(0, max(len(rows), 1), size)])

    def _moves(self, rows: NDArray[np.float32]) -> Array:
        node = np.broadcast_to(self.roots, (len(rows), len(self.roots)))
        moves, share = np.zeros(rows.shape), self.share.astype(np.float64)
        index = np.arange(len(rows))[:, None]
        while True:
            new = self._step(rows, node)
            if np.array_equal(new, node):
                return moves / len(self.roots)
            np.add.at(moves, (index, self.feature[node]), share[new] - share[node])
            node = new

    @property
    def base(self) -> float:
        """Mean over the trees of μ at the root."""
        return float(self.share[self.roots].mean(dtype=np.float64))

    def _step(self, rows: NDArray[np.float32], node: NDArray[np.int64]) -> NDArray[np.int64]:
        values = np.take_along_axis(rows, self.feature[node], 1)
        right = self.right[node]
        return np.where((values <= self.threshold[node]) & (right != node), node + 1, right)

    def state(self) -> State:
        """Return the state, which consists of the arrays only."""
        return {}, self.arrays()

    @classmethod
    def from_state(
        cls, content: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], width: int, image: ImageShape | None
    ) -> Self:
        """Restore trees over rows with ``width`` columns; check that every path ends at a leaf."""
        expected = {field.name for field in fields(cls)}
        if "left" in arrays:  # the format of version 0.2, in double precision
            arrays = dict(arrays)
            left, own = arrays.pop("left"), np.arange(np.size(arrays["right"]))
            after = np.where(arrays["right"] != own, own + 1, own)
            require(np.array_equal(left, after), "lead from each node to the next", "elsewhere", of="a forest")
        require(not content and set(arrays) == expected, "be the member that it is named", sorted(arrays))
        require(image is None, "have forests over columns", "pixels")
        roots, count = np.shape(arrays["roots"]), np.shape(arrays["share"])[:1]
        for name, values in arrays.items():
            old, new = (np.float64, np.float32) if name in ("threshold", "share") else (np.int64, np.int32)
            dtype = old if getattr(values, "dtype", None) == old else new
            stored_array(f"{name} of a forest", values, dtype, roots[:1] if name == "roots" else count)
        forest = cls(**arrays)
        outside = forest.share[(forest.share < 0) | (forest.share > 1)]
        require(len(outside) == 0, "have shares in [0, 1]", outside[:1], of="a forest")
        wrong = forest.feature[(forest.feature < 0) | (forest.feature >= width)]
        require(len(wrong) == 0, f"compare columns 0 to {width - 1}", wrong[:1], of="a forest")
        forest._check_paths(len(forest.share))
        return forest

    def _check_paths(self, count: int) -> None:
        """Require that every node except roots has exactly one earlier parent in its tree, so that every path ends."""
        node, roots = np.arange(count), self.roots
        inner = self.right != node
        parents, children = np.tile(node[inner], 2), np.concatenate([node[inner] + 1, self.right[inner]])
        later = bool(((children > parents) & (children < count)).all())
        require(later, "lead from each node to two later ones or to none", children[:1], of="a forest")
        inside = len(roots) > 0 and bool(((roots >= 0) & (roots < count)).all()) and len(np.unique(roots)) == len(roots)
        require(inside, "have roots among its nodes, each once", roots[:3], of="a forest")
        is_root = np.zeros(count, dtype=bool)
        is_root[roots] = True
        once = bool((np.bincount(children, minlength=count) == ~is_root).all())
        require(once, "lead to each node from one other, and to no root", "otherwise", of="a forest")
        tree = np.cumsum(is_root)
        apart = bool(is_root[0]) and bool((tree[children] == tree[parents]).all())
        require(apart, "have each tree in one piece", "nodes of another between", of="a forest")
        level, depth = roots, 0
        while len(level):
            require(depth <= MAX_DEPTH, f"have at most {MAX_DEPTH:,} levels", "more", of="a forest")
            level = level[inner[level]]
            level, depth = np.concatenate([level + 1, self.right[level]]), depth + 1


def compiled_trees(
    roots: NDArray[Any], right: NDArray[Any], feature: NDArray[Any], threshold: NDArray[Any]
) -> list[Any] | None:
    """Make scikit-learn trees from arrays; None if the installed version has another format.

    Compiled code follows every index, so arrays from a file must have passed :meth:`RatioForest.from_state`.

    >>> (tree,) = compiled_trees(np.array([0]), np.array([2, 1, 2]), np.zeros(3, int), np.array([0.5, 0, 0]))
    >>> tree.apply(np.array([[0.0], [1.0]], dtype=np.float32))
    array([1, 2])
    """
    first, place = np.unique(roots, return_inverse=True)
    made = []
    try:
        from sklearn.tree._tree import NODE_DTYPE, TREE_LEAF, TREE_UNDEFINED, Tree

        for begin, end in zip(first.tolist(), np.append(first[1:], len(right)).tolist(), strict=True):
            here = slice(begin, end)
            own = np.arange(begin, end)
            leaf = right[here] == own
            nodes = np.zeros(end - begin, dtype=NODE_DTYPE)
            nodes["left_child"] = np.where(leaf, TREE_LEAF, own + 1 - begin)
            nodes["right_child"] = np.where(leaf, TREE_LEAF, right[here] - begin)
            nodes["feature"] = np.where(leaf, TREE_UNDEFINED, feature[here])
            nodes["threshold"] = threshold[here]
            tree = Tree(int(feature[here].max()) + 1, np.ones(1, dtype=np.intp), 1)
            # Values of nodes are not needed, since the forest stores μ.
            values = np.zeros((len(nodes), 1, 1))
            tree.__setstate__({"max_depth": 0, "node_count": len(nodes), "nodes": nodes, "values": values})
            made.append(tree)
    except (ImportError, AttributeError, TypeError, ValueError, KeyError):
        return None
    return [made[index] for index in place.ravel()]


#: Draws of noise, their weights, and the folds of the rows that they were made from, −1 for none.
WeightedNoise = tuple[Array, Array, NDArray[np.int64]]


class Forest(RatioForest, Member):
    """Base class of forests that distinguish rows from noise.

    Attributes:
        by_rank: whether every second tree splits by rank, as in :func:`grow_forest`, unless there are many columns.
    """

    by_rank: ClassVar[bool] = False

    @classmethod
    def fit(
        cls, rows: TrainingRows, settings: MemberSettings, seed: int, folds: Folds | None = None
    ) -> tuple[Self, HeldOutScores | None]:
        """Grow the trees; with K folds, tree t is grown without fold t mod K."""
        noise, noise_weights, noise_folds = cls._noise(rows, settings, seed, folds)
        grown = grow_forest(
            rows.X,
            rows.weights,
            noise,
            noise_weights,
            n_trees=settings.n_trees if folds is None else max(settings.n_trees, folds.count),
            seed=seed,
            folds=None if folds is None else (folds.rows, noise_folds),
            n_jobs=settings.n_jobs,
            min_samples_leaf=settings.min_samples_leaf,
            by_rank=cls.by_rank and rows.X.shape[1] < WIDE,
        )
        forest = cls(**grown.arrays())
        if folds is None:
            return forest, None
        return forest, HeldOutScores.by(lambda X, f: forest.anomaly_by(X, slice(f, None, folds.count)), rows, folds)

    @classmethod
    @abstractmethod
    def _noise(cls, rows: TrainingRows, settings: MemberSettings, seed: int, folds: Folds | None) -> WeightedNoise:
        """Return the noise that rows are distinguished from."""


class OutlierForest(Forest):
    """Forest that distinguishes rows from the known outliers."""

    name: ClassVar[str] = "outlier_forest"
    by_rank: ClassVar[bool] = True
    needs_outliers: ClassVar[bool] = True

    @classmethod
    def _noise(cls, rows: TrainingRows, settings: MemberSettings, seed: int, folds: Folds | None) -> WeightedNoise:
        fold_of = np.full(len(rows.outliers), -1) if folds is None else folds.outliers
        return rows.outliers, rows.outlier_weights, fold_of


class MixtureForest(Forest):
    """Forest that distinguishes rows from smoothed known outliers and smoothed rows."""

    name: ClassVar[str] = "mixture_forest"

    @classmethod
    def _noise(cls, rows: TrainingRows, settings: MemberSettings, seed: int, folds: Folds | None) -> WeightedNoise:
        from ..noise import draw_mixture

        drawn, fold_of = draw_mixture(rows, settings, max(len(rows.X), MIN_DRAWS), seed, folds)
        return drawn.double().numpy(), np.ones(len(drawn)), fold_of.numpy()


class IsolationForest(RatioForest, Member):
    r"""Isolation forest: rows that few random splits separate from the others score high.

    A tree splits the bounding box of a small sample at random until rows are isolated. The depth of a row increases
    with log p_data/p_n for p_n uniform over the box; a distant group is split off early, however dense it is. At a
    leaf, ``share`` is 1 − h/H, where h is its depth plus the expected depth of a tree of the rows left in it, and H the
    largest h. At inner nodes it is the mean over the rows of the sample, so that contributions sum to the score.
    """

    name: ClassVar[str] = "isolation_forest"
    novelty: ClassVar[bool] = True
    memorizes: ClassVar[bool] = False

    @classmethod
    def fit(
        cls, rows: TrainingRows, settings: MemberSettings, seed: int, folds: Folds | None = None
    ) -> tuple[Self, HeldOutScores | None]:
        """Grow the trees, each on its own sample, so that a row is in few of them."""
        from joblib import Parallel, delayed

        seeds = np.random.RandomState(seed).randint(2**31 - 1, size=min(settings.n_trees, ISOLATION_TREES))
        X = rows.X.astype(np.float32)
        cumulative = np.cumsum(rows.weights / rows.weights.sum())
        grow = partial(_grow_isolation, X, cumulative / cumulative[-1])
        trees = Parallel(n_jobs=settings.n_jobs, prefer="threads")(delayed(grow)(int(each)) for each in seeds)
        return cls(**_flat(trees, [_isolation(tree) for tree in trees]).arrays()), None


def _grow_isolation(X: NDArray[np.float32], cumulative: Array, seed: int) -> Any:
    """Grow one tree of random splits on a sample drawn by weight, with replacement."""
    random = np.random.RandomState(seed)
    levels = random.random_sample(min(ISOLATION_ROWS, len(X)))
    there, counts = np.unique(np.searchsorted(cumulative, levels, "right"), return_counts=True)
    from sklearn import config_context
    from sklearn.tree import ExtraTreeRegressor

    with config_context(skip_parameter_validation=True):
        tree = ExtraTreeRegressor(random_state=seed, max_features=1, max_depth=ISOLATION_DEPTH)
        # A target that means nothing, so that every split is as good as another.
        target = random.random_sample(len(there))
        return tree.fit(X[there], target, sample_weight=counts.astype(np.float64), check_input=False).tree_


def _isolation(tree: Any) -> Array:
    """Return 1 − h/H for each node of a tree of random splits."""
    rows, left, right = tree.weighted_n_node_samples.tolist(), tree.children_left.tolist(), tree.children_right.tolist()
    inner = [node for node, child in enumerate(left) if child >= 0]
    depth = [0] * len(left)
    for node in inner:  # parents come before their children
        depth[left[node]] = depth[right[node]] = depth[node] + 1
    mean = (np.array(depth) + _expected_depth(tree.weighted_n_node_samples)).tolist()
    for node in reversed(inner):
        one, other = left[node], right[node]
        mean[node] = (mean[one] * rows[one] + mean[other] * rows[other]) / (rows[one] + rows[other])
    return np.asarray(1 - np.array(mean) / (ISOLATION_DEPTH + _expected_depth(np.array([ISOLATION_ROWS]))[0]))


def _expected_depth(rows: Array) -> Array:
    """Return the mean depth of a tree that isolates a number of rows by random splits (Liu, Ting and Zhou 2008).

    >>> _expected_depth(np.array([1.0, 2.0, 256.0])).round(2)
    array([ 0.  ,  1.  , 10.24])
    """
    n = np.maximum(rows, 3.0)
    harmonic = 2 * (np.log(n - 1) + np.euler_gamma) - 2 * (n - 1) / n
    return np.where(rows > 2, harmonic, np.maximum(rows - 1, 0.0))


def grow_forest(
    rows: Array,
    weights: Array,
    noise: Array,
    noise_weights: Array,
    *,
    n_trees: int,
    min_samples_leaf: int,
    max_depth: int | None = GROWN_DEPTH,
    by_rank: bool = False,
    seed: int,
    folds: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
    n_jobs: int | None = None,
) -> RatioForest:
    """Grow a forest that distinguishes rows from noise, with equal total weights.

    Args:
        rows: data, shape (n, D).
        weights: weights of the rows.
        noise: draws of p_n, or known outliers, shape (m, D).
        noise_weights: weights of the draws.
        n_trees: number of trees.
        min_samples_leaf: smallest number of samples in a leaf.
        max_depth: largest depth of a tree, or None.
        by_rank: whether every second tree draws its thresholds uniformly by rank, instead of by value, and chooses
            among the splits of all columns, instead of √D.
        seed: seed of the splits.
        folds: folds of the rows and of the draws, −1 for none; tree t is grown without fold t mod K.
        n_jobs: number of threads, as in joblib.
    """
    from joblib import Parallel, delayed

    X = np.concatenate([rows, noise]).astype(np.float32)
    is_noise = np.repeat([0.0, 1.0], [len(rows), len(noise)])
    weight = np.concatenate([weights, noise_weights])
    fold = None if folds is None else np.concatenate(folds)
    kept = [slice(None)] if fold is None else [fold != left_out for left_out in range(int(fold.max()) + 1)]
    kinds = (False, True) if by_rank else (False,)
    parts = [_part(X[keep], is_noise[keep], weight[keep], ranked) for ranked in kinds for keep in kept]
    used = [parts[tree % len(parts)] for tree in range(n_trees)]
    # Seeds are drawn as in scikit-learn's forests.
    seeds = np.random.RandomState(seed).randint(2**31 - 1, size=n_trees)
    grow = partial(_grow_tree, min_samples_leaf=min_samples_leaf, max_depth=max_depth)
    work = (delayed(grow)(part, int(tree_seed)) for part, tree_seed in zip(used, seeds, strict=True))
    trees = Parallel(n_jobs=n_jobs, prefer="threads")(work)
    return _flat(trees, thresholds=[part.thresholds(tree) for part, tree in zip(used, trees, strict=True)])


@dataclass(frozen=True)
class _Part:
    """Samples that a tree is grown on.

    Attributes:
        X: rows, then draws of noise, shape (n, D), or their ranks in each column.
        is_noise: 0 for rows and 1 for draws.
        weight: weights of the samples; rows and noise have equal totals.
        values: ranks of the distinct values of each column and these values, or None.
    """

    X: NDArray[np.float32]
    is_noise: Array
    weight: Array
    values: list[tuple[Array, Array]] | None

    def thresholds(self, tree: Any) -> Array:
        """Return the value that each node compares with; between two ranks it is interpolated."""
        result, feature = np.array(tree.threshold), tree.feature
        if self.values is not None:
            for column in np.unique(feature[feature >= 0]):
                here = feature == column
                result[here] = np.interp(result[here], *self.values[column])
        return result


def _part(X: NDArray[np.float32], is_noise: Array, weight: Array, ranked: bool) -> _Part:
    """Balance the weights of rows and noise; if ``ranked``, replace values by the middle of their weighted ranks."""
    balanced = weight / np.bincount(is_noise.astype(np.int64), weight, minlength=2)[is_noise.astype(np.int64)]
    if not ranked:
        return _Part(X, is_noise, balanced, None)
    result, columns = np.empty_like(X), []
    for column, own in zip(X.T, result.T, strict=True):
        values, place = np.unique(column, return_inverse=True)
        mass = np.bincount(place, weight) / weight.sum()
        ranks = (np.cumsum(mass) - mass / 2).astype(np.float32)
        own[:] = ranks[place]
        columns.append((ranks.astype(np.float64), values.astype(np.float64)))
    return _Part(result, is_noise, balanced, columns)


def _grow_tree(part: _Part, seed: int, min_samples_leaf: int, max_depth: int | None) -> Any:
    """Grow one tree with target 1 for noise: the mean in a leaf is μ, and the gain is half the Gini gain."""
    weight = part.weight * (len(part.X) / part.weight.sum())
    from sklearn import config_context
    from sklearn.tree import ExtraTreeRegressor

    with config_context(skip_parameter_validation=True):  # the detector has validated its settings
        tree = ExtraTreeRegressor(
            random_state=seed,
            max_features="sqrt" if part.values is None else None,
            max_depth=max_depth,
            min_samples_leaf=min_samples_leaf,
        )
        return tree.fit(part.X, part.is_noise, sample_weight=weight, check_input=False).tree_


def _flat(
    trees: Sequence[Any], shares: Sequence[Array] | None = None, thresholds: Sequence[Array] | None = None
) -> RatioForest:
    """Concatenate trees; ``shares`` are the values of their nodes, by default the means of the target."""
    if shares is None:
        shares = [tree.value[:, 0, 0] for tree in trees]
    if thresholds is None:
        thresholds = [tree.threshold for tree in trees]
    sizes = [tree.node_count for tree in trees]
    roots = np.cumsum([0, *sizes])[:-1]
    node, first = np.arange(sum(sizes)), np.repeat(roots, sizes)
    right, feature = (np.concatenate([getattr(tree, name) for tree in trees]) for name in ("children_right", "feature"))
    threshold = np.concatenate(thresholds)
    leaf = right < 0
    # Rounded down, a threshold splits single-precision numbers as before.
    rounded = threshold.astype(np.float32)
    rounded = np.where(rounded > threshold, np.nextafter(rounded, np.float32(-np.inf)), rounded)
    return RatioForest(
        roots=roots.astype(np.int32),
        right=np.where(leaf, node, right + first).astype(np.int32),
        feature=np.where(leaf, 0, feature).astype(np.int32),
        threshold=np.where(leaf, np.float32(0), rounded),
        share=np.clip(np.concatenate(shares), 0.0, 1.0).astype(np.float32),
    )
