r"""Ensemble of members: two scores, similarity to known outliers and novelty, and their combination.

*Similarity to the known outliers.* K is the weighted mean over members of (anomaly − mean)/deviation, both over the
training rows, from held-out scores where possible. Members that use known outliers improve with their number m; the
neighbors' weight is w(m) = 1/(1 + m) on a table and 0.95 on images, the others have equal parts of the rest. In tables,
the relevant columns are often apparent only from known outliers, whereas known images are one kind among many.

*Novelty.* N is the largest of (anomaly − median)/spread over members that need no known outliers. Nearest neighbors
detect local outliers, the isolation forest detects global ones; a mean could hide a row that only one of them detects.
Numbers far outside the range of the training rows (:class:`Span`) and rows far from their bulk
(:class:`~fvnce.detection.bulk.Bulk`) increase N, but with known outliers the latter does not affect s.

In the noise p_n = λ p_known + (1 − λ) p_broad both are log-ratios to the data, so the score is a soft maximum,

    s = log(e^K + e^(N − c)),        K, N in units of their spread over training rows,

with c = :data:`NOVELTY_PRIOR` = −log((1 − λ)/λ): only extreme novelty affects the ranking, which otherwise
follows K. Without known outliers s = N. Known outliers are excluded from the rows that N is learned from, and have no
other effect on it.

Each member explains its anomaly as a sum over columns: forests by the change of the share of noise at the splits on
each column (exact), networks by integrated gradients (up to quadrature error). After subtraction of their means over
training rows, these parts sum to anomaly − mean. On the straight line from the means K₀, N₀ to K, N the score changes
by

    s − s₀ = v (K − K₀) + (1 − v) (N − N₀),        v the mean of ∂s/∂K on that line, in [0, 1],

and likewise for the maximum in N. So v follows from this equation without an integral, and the parts of columns sum to
the score:

    s(x) = s₀ + rest(x) + Σ_j ratio_j(x),    ratio_j = v K_j + (1 − v) N_j.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ParamSpec, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from .._validation import fields, listed, number, optional, require, stored_array
from .bulk import Bulk
from .explanation import Explanation
from .members import NAMES, member_class
from .members.base import (
    LEAST_SCALE,
    WIDE,
    HeldOutScores,
    ImageShape,
    MemberSettings,
    Scorer,
    State,
    part_of,
    prefixed,
    robust_standard,
    standard,
)
from .preprocessing import cut
from .rows import Array, Folds, TrainingRows, as_counts

#: Members for "auto"; those that need known outliers are used only if there are some.
AUTO = ("neighbors", "isolation_forest", "outlier_forest", "mixture_forest", "network")
#: Members for "auto" without the isolation forest: on images; on wide tables, where random splits of single columns
#: detect few outliers; and on clean rows, where small groups are normal, too.
AUTO_LOCAL = ("neighbors", "outlier_forest", "mixture_forest", "network")
#: Number of principal components that ratio networks see of a table with at least WIDE encoded columns.
WIDE_COMPONENTS = 16
#: c: novelty, in spreads above the median, at which a row ranks equal to one with typical K.
NOVELTY_PRIOR = 6.0
#: Weight of neighbors on tables, as a number of known outliers, and on images, as a fraction.
NEIGHBORS_WORTH, NEIGHBORS_ON_IMAGES = 1.0, 0.95
#: The largest excess of a column, and the largest probability of an unseen text at which it has an excess.
MAX_EXCESS, RARE = 30.0, 0.005
#: Largest number of training rows over which parts of members are averaged, and of numbers in them.
MEAN_ROWS, MEAN_NUMBERS = 128, 2**17
#: Rounding error of a sum of parts, relative to the score.
ROUNDING = 1e-12
#: Current names of members that were renamed since version 0.2.
RENAMED = {"neighbours": "neighbors", "broad_forest": "isolation_forest"}


def settings_for(settings: MemberSettings, n_known: int, width: int, image: ImageShape | None) -> MemberSettings:
    """Complete settings that depend on the data: the members, and the shape of images of ``width`` pixels."""
    for name in settings.members:
        if member_class(name).needs_outliers and not n_known:
            raise ValueError(f"members must not name {name} without a known outlier (y = 1), found it")
    auto = AUTO if image is None and width < WIDE and not settings.clean else AUTO_LOCAL
    chosen = auto if n_known else tuple(name for name in auto if member_class(name).novelty)
    return replace(settings, members=settings.members or chosen, image=image)


def member_weights(names: Sequence[str], n_known: int, *, image: bool) -> list[float]:
    """Return the weight of each member in K, with sum one; zeros if no member uses known outliers.

    >>> member_weights(("neighbors", "isolation_forest", "network"), 3, image=False)
    [0.25, 0.0, 0.75]
    >>> member_weights(("neighbors", "isolation_forest"), 3, image=False)
    [0.0, 0.0]
    """
    learning = sum(not member_class(name).novelty for name in names)
    if not n_known or not learning:
        return [0.0] * len(names)
    weight = NEIGHBORS_ON_IMAGES if image else NEIGHBORS_WORTH / (NEIGHBORS_WORTH + n_known)
    weight *= "neighbors" in names
    parts = {"neighbors": weight, "isolation_forest": 0.0}
    return [parts.get(name, (1 - weight) / learning) for name in names]


@dataclass(frozen=True)
class Span:
    r"""Range of each column over the training rows, and the excess of numbers outside it.

    Trees and networks extrapolate arbitrarily: all numbers beyond the last split of a tree are in the same cell. With
    m_j the middle and h_j half the range of a column over the unlabeled training rows,

        excess_j(x) = max(0, |x_j − m_j| / h_j − 2),

    at most :data:`MAX_EXCESS`, is zero unless x_j is more than twice as far from the middle as every training row. For
    a new row like the training rows this probability is much smaller than 1/(n + 1), so the excess rarely affects the
    ranking of normal rows.

    A column with one value in all training rows marks texts that none of them has. If f of the n rows have a text that
    no other row has, a new row like them has an unseen text with a probability of about p = (1 + f)/(1 + n). Where p is
    at most :data:`RARE`, another value has the excess Φ⁻¹(1 − p), and else none.

    Attributes:
        middle: middle of the range, shape (D,).
        half: half the range, shape (D,).
        unseen: excess of another value in a column with one value.

    >>> span = Span.learn(np.array([[0.0, 0.0], [2.0, 0.0]]), np.array([500.0, 499.0]))
    >>> span.excess(np.array([[2.0, 0.0], [4.0, 0.0], [1e9, 1.0]])).round(2)
    array([[ 0.  ,  0.  ],
           [ 1.  ,  0.  ],
           [30.  ,  3.09]])
    """

    middle: Array
    half: Array
    unseen: Array

    @classmethod
    def learn(cls, X: Array, weights: Array) -> Self:
        """Learn the ranges from weighted encoded rows before clipping, shape (n, D)."""
        low, high, counts = X.min(0), X.max(0), as_counts(weights)
        marks = ((X == 0) | (X == 1)).all(0) & (low < high)
        rows_with = counts @ X[:, marks]
        p = (1 + rows_with[rows_with <= 1].sum()) / (1 + counts.sum())
        return cls((low + high) / 2, (high - low) / 2, np.array(-float(ndtri(p)) if p <= RARE else 0.0))

    def excess(self, X: Array) -> Array:
        """Return the excess of each number, shape (n, D)."""
        away = np.abs(X - self.middle)
        outside = np.clip(away / np.where(self.half > 0, self.half, np.inf) - 2, 0.0, MAX_EXCESS)
        return np.where((self.half == 0) & (away > 0), self.unseen, outside)

    @classmethod
    def from_state(cls, arrays: Mapping[str, NDArray[Any]], width: int) -> Self:
        """Restore the span of ``width`` columns from arrays, which are checked."""
        arrays = {"unseen": np.array(0.0), **arrays}  # version 0.2 had none
        require(set(arrays) == {"middle", "half", "unseen"}, "have the ranges of columns", sorted(arrays))
        for name, values in arrays.items():
            stored_array(f"{name} of the ranges", values, np.float64, () if name == "unseen" else (width,))
            require(name == "middle" or bool((values >= 0).all()), "have ranges >= 0", values.min())
        require(float(arrays["unseen"]) <= MAX_EXCESS, f"have an excess of at most {MAX_EXCESS:g}", arrays["unseen"])
        return cls(**arrays)


def _blend(change: Array, one: Array, other: Array) -> Array:
    """Return v in [0, 1] with change = v one + (1 − v) other; half where these are equal."""
    apart = np.abs(one - other) > 1e-9
    return np.where(apart, np.clip((change - other) / np.where(apart, one - other, 1.0), 0.0, 1.0), 0.5)


#: Center and scale of a score.
Unit = tuple[float, float]

P = ParamSpec("P")
R = TypeVar("R")


def _plainly(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function to compute outside the torch modes of its caller."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if "torch" not in sys.modules:  # no torch mode can be active
            return function(*args, **kwargs)
        from .._random import plain_mode

        with plain_mode():
            return function(*args, **kwargs)

    return call


@dataclass
class Ensemble:
    """Trained members, and the parameters that combine their anomalies to K and N.

    Attributes:
        names: names of the members.
        members: trained models.
        units: mean and deviation of the anomaly of each member, by which it is standardized in K.
        weights: weight of each member in K, with sum one; zeros without known outliers.
        novelty: median and spread of the anomaly of each member that is used in N; None for others.
        known: median and spread of K; None without known outliers, or without N.
        span: ranges of the columns of a table.
        bulk: bulk of the rows of a table; None without N, for clean rows, and in files of earlier versions.
        means: mean of the parts of each member over training rows, shape (members, D); None in earlier files and
            if scores are not explained.
    """

    names: list[str]
    members: list[Scorer]
    units: list[Unit]
    weights: list[float]
    novelty: list[Unit | None]
    known: Unit | None
    span: Span | None
    bulk: Bulk | None = None
    means: Array | None = None

    @classmethod
    @_plainly
    def fit(
        cls, rows: TrainingRows, settings: MemberSettings, seed: int, folds: Folds | None = None
    ) -> tuple[Self, HeldOutScores | None]:
        """Train all members named in complete settings, each on all rows.

        Returns:
            The ensemble and, with folds, the score of each training row by smaller models trained without its fold.
        """
        n_known = len(rows.outliers)
        weights = member_weights(settings.members, n_known, image=settings.image is not None)
        span = Span.learn(rows.X, rows.weights) if settings.image is None else None
        ensemble = cls(list(settings.members), [], [], weights, [], None, span)
        outliers, rows = rows.outliers, rows.transformed(ensemble._seen)
        unseen: list[HeldOutScores] = []
        kinds, training = [member_class(name) for name in settings.members], rows.emphasized()
        if span is not None and not settings.clean and any(kind.novelty for kind in kinds):
            ensemble.bulk = Bulk.learn(rows.X, rows.weights, np.random.default_rng([seed, 85]))
        wide = settings.image is None and rows.X.shape[1] >= WIDE
        reduced = [kind.sees_components if wide else not (settings.image is None or kind.sees_pixels) for kind in kinds]
        if any(reduced):
            from .members.images import COMPONENTS, OnComponents, PrincipalComponents

            pca = PrincipalComponents.learn(rows, seed, WIDE_COMPONENTS if wide else COMPONENTS)
            on_columns = replace(settings, image=None)
        for position, kind in enumerate(kinds):
            member_seed = int(np.random.default_rng([seed, position]).integers(2**31 - 1))
            member: Scorer
            if reduced[position]:
                member, scores = OnComponents.fit(kind, pca, training, on_columns, member_seed, folds)
            else:
                member, scores = kind.fit(training, settings, member_seed)
                if folds is not None and kind.memorizes:
                    _, scores = kind.fit(training, settings.smaller(), member_seed, folds)
            if scores is None:
                of_outliers = member.anomaly(rows.outliers) if n_known else np.empty(0)
                scores = HeldOutScores(member.anomaly(rows.X), of_outliers)
            # Standardize by held-out anomalies, which are distributed like those of new rows.
            unseen.append(scores)
            ensemble.members.append(member)
            ensemble.units.append(standard(scores.rows, rows.weights))
            novel = kind.novelty or not any(weights)
            ensemble.novelty.append(robust_standard(scores.rows, rows.weights) if novel else None)
        if any(weights) and any(ensemble.novelty):
            ensemble.known = robust_standard(ensemble._like_known([each.rows for each in unseen]), rows.weights)
        if folds is None:
            return ensemble, None
        both = ([each.rows for each in unseen], rows.X), ([each.outliers for each in unseen], outliers)
        return ensemble, HeldOutScores(*(ensemble._combined(each, ensemble._excess(X))[:, 0] for each, X in both))

    def anomaly(self, X: Array) -> Array:
        """Return the score s, shape (n,)."""
        return np.ascontiguousarray(self.scores(X)[:, 0])

    @_plainly
    def scores(self, X: Array) -> Array:
        """Return s, K and N of encoded rows, shape (n, 3); NaN for K without known outliers, and for N without it."""
        seen = self._seen(X)
        columns = self._combined([member.anomaly(seen) for member in self.members], self._excess(X))
        if self.bulk is not None and self.known is not None:
            columns[:, 2] += self.bulk.excess(seen).sum(1)
        return columns

    def _combined(self, anomalies: Sequence[Array], excess: Array) -> Array:
        """Return s, K and N from the anomalies of members and the excess of each column."""
        known, beyond, missing = self._like_known(anomalies), excess.sum(1), np.full(len(excess), np.nan)
        each = zip(anomalies, self.novelty, strict=True)
        parts = [(anomaly - unit[0]) / unit[1] for anomaly, unit in each if unit is not None]
        if not parts:  # no member measures novelty, as in files of version 0.2
            return np.stack([known + beyond, known, missing], 1)
        novelty = np.max(parts, axis=0) + beyond
        if self.known is None:
            return np.stack([novelty, missing, novelty], 1)
        center, scale = self.known
        known = (known - center) / scale
        with np.errstate(invalid="ignore"):  # K is NaN for a known outlier that could not be held out
            return np.stack([np.logaddexp(known, novelty - NOVELTY_PRIOR), known, novelty], 1)

    def _like_known(self, anomalies: Sequence[Array]) -> Array:
        # Add one by one: a matrix product may sum in an order that depends on the number of rows.
        total = np.zeros(len(anomalies[0]))
        for anomaly, (center, scale), weight in zip(anomalies, self.units, self.weights, strict=True):
            if weight:
                total += weight * ((anomaly - center) / scale)
        return total

    def _seen(self, X: Array) -> Array:
        """Return encoded rows in the form that members see."""
        return X if self.span is None else cut(X)

    def _excess(self, X: Array) -> Array:
        """Return the excess of numbers outside the span and, if s = N, of isolated rows, shape (n, D)."""
        if self.span is None:
            return np.zeros((len(X), 1))
        outside = self.span.excess(np.ascontiguousarray(X))
        return outside if self.bulk is None or self.known is not None else outside + self.bulk.excess(cut(X))

    @_plainly
    def explain(self, X: Array, fold: Callable[[Array], Array]) -> Explanation:
        """Explain encoded rows, with the parts of N as causes; ``fold`` maps encoded columns to the original ones."""
        seen, excess = self._seen(X), self._excess(X)
        anomalies = [member.anomaly(seen) for member in self.members]
        parts = self._parts(seen)
        # The means that parts are relative to, as the anomalies of one row.
        start = [np.array([member.base]) for member in self.members]
        if self.means is not None:
            parts -= self.means[:, None]
            start = [base + mean.sum() for base, mean in zip(start, self.means, strict=True)]
        first, last = self._combined(start, np.zeros((1, 1)))[0], self._combined(anomalies, excess)
        base, anomaly, scale = float(first[0]), last[:, 0], 1.0 if self.known is None else self.known[1]
        factors = np.array([weight / unit[1] / scale for weight, unit in zip(self.weights, self.units, strict=True)])
        ratio = np.einsum("m,mnd->nd", factors, parts)
        novelty, cause = self._explained_novelty(start, anomalies, parts), None
        if novelty is None:
            ratio = ratio + excess
        elif self.known is None:
            ratio = novelty + excess
        else:
            v = _blend(anomaly - base, last[:, 1] - first[1], last[:, 2] - first[2])[:, None]
            ratio = v * ratio + (1 - v) * (novelty + excess)
            cause = fold(novelty + excess + (0.0 if self.bulk is None else self.bulk.excess(seen)))
        folded = fold(ratio)
        # Quadrature errors and the padding of images are not attributed to a column.
        rest = anomaly - base - folded.reshape(len(folded), -1).sum(1)
        rest[np.abs(rest) <= ROUNDING * np.maximum(1.0, np.abs(anomaly))] = 0.0
        return Explanation(folded, np.zeros_like(folded), rest, base, cause=cause)

    @_plainly
    def learn_means(self, rows: TrainingRows, seed: int) -> None:
        """Learn the mean part of each column in each member from a sample of the unlabeled rows, for ``explain``."""
        most = max(2, min(MEAN_ROWS, MEAN_NUMBERS // rows.X.shape[1]))
        some = np.sort(np.random.default_rng([seed, 84]).permutation(len(rows.X))[:most])
        parts = self._parts(self._seen(np.ascontiguousarray(rows.X[some])))
        self.means = np.asarray(np.average(parts, 1, rows.weights[some]))

    def _parts(self, seen: Array) -> Array:
        """Return the contribution of each column to the anomaly of each member in use, shape (members, n, D)."""
        used = [weight > 0 or unit is not None for weight, unit in zip(self.weights, self.novelty, strict=True)]
        nothing = np.zeros(seen.shape)
        return np.stack([m.contributions(seen) if use else nothing for m, use in zip(self.members, used, strict=True)])

    def _explained_novelty(self, start: Sequence[Array], anomalies: Sequence[Array], parts: Array) -> Array | None:
        """Return the contribution of each column to N without the excess, shape (n, D)."""
        result: Array | None = None
        first, last = np.zeros(1), np.zeros(1)
        for (center, scale), *ends, part in (
            (unit, *each) for unit, *each in zip(self.novelty, start, anomalies, parts, strict=True) if unit is not None
        ):
            low, high = ((end - center) / scale for end in ends)
            if result is None:
                result, first, last = part / scale, low, high
                continue
            higher_first, higher_last = np.maximum(first, low), np.maximum(last, high)
            v = _blend(higher_last - higher_first, last - first, high - low)[:, None]
            result, first, last = v * result + (1 - v) * part / scale, higher_first, higher_last
        return result

    def state(self) -> State:
        """Return the states of all members by name, with their arrays numbered."""
        members, arrays = [], {} if self.span is None else prefixed("span", vars(self.span))
        arrays |= {} if self.bulk is None else prefixed("bulk", vars(self.bulk))
        arrays |= {} if self.means is None else {"means": self.means}
        for position, (name, member) in enumerate(zip(self.names, self.members, strict=True)):
            content, member_arrays = member.state()
            members.append({"name": name, "state": content})
            arrays |= prefixed(str(position), member_arrays)
        units = {"units": self.units, "weights": self.weights, "novelty": self.novelty, "known": self.known}
        return {"members": members, **units}, arrays

    @classmethod
    def from_state(
        cls, content: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], width: int, image: ImageShape | None
    ) -> Self:
        """Restore the ensemble over rows with ``width`` columns from a state, which is checked."""
        if "centres" in content:
            content = _upgraded(content)
        checks = {"units": listed(_unit), "weights": listed(partial(number, low=0.0, high=1.0))}
        checks |= {"novelty": listed(optional(_unit)), "known": optional(_unit)}
        saved, units, weights, novelty, known = fields(content, "the ensemble", "members", **checks)
        sizes = {len(each) for each in (saved, units, weights, novelty)}
        require(len(sizes) == 1, "have a unit and a weight for each member", sizes, of="the ensemble")
        total = sum(weights)
        whole = abs(total - 1) < 1e-9 or (total == 0 and any(novelty))
        require(whole, "have weights with sum one", weights, of="the ensemble")
        require((known is not None) == (total > 0 and any(novelty)), "have a unit of K with N", known)
        made = cls([], [], units, weights, novelty, known, None)
        for position, item in enumerate(saved):
            name, state = fields(item, "a member of the ensemble", "name", "state")
            made.names.append(RENAMED.get(name, name))
            require(made.names[-1] in NAMES, f"name a member, one of {', '.join(NAMES)}; fit the detector again", name)
            kind, part = member_class(made.names[-1]), part_of(arrays, str(position))
            if part_of(part, "pca") or not (image is None or kind.sees_pixels):
                from .members.images import OnComponents

                made.members.append(OnComponents.from_state(kind, state, part, width))
            else:
                made.members.append(kind.from_state(state, part, width, image))
        if image is None:
            made.span = Span.from_state(part_of(arrays, "span"), width)
            made.bulk = Bulk.from_state(part, width) if (part := part_of(arrays, "bulk")) else None
        if "means" in arrays:
            made.means = stored_array("means of parts", arrays["means"], np.float64, (len(saved), width))
        return made


def _unit(name: str, value: Any) -> Unit:
    center, scale = listed(number, 2)(name, value)
    return center, number(name, scale, low=LEAST_SCALE)


def _upgraded(content: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the state of version 0.2, whose score was K plus the excess, to the current one."""
    members, centers, scales, weights = fields(content, "the ensemble", "members", "centres", "scales", "weights")
    listed(number)("centres", centers)
    units = [list(unit) for unit in zip(centers, listed(number, len(centers))("scales", scales), strict=True)]
    return {"members": members, "units": units, "weights": weights, "novelty": [None] * len(members), "known": None}
