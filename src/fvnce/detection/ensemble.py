r"""The members together: two questions, two scores, and the score that ranks rows by both.

*Is it like the known?* K is the weighted mean over members of (anomaly − mean)/deviation, both over the training rows,
by models that have not seen them where possible. Members that use known outliers improve with their number m; the
neighbors' weight is w(m) = 1/(1 + m) on a table and 0.95 on images, the others have equal parts of the rest. Columns of
a table often hold nothing but what known outliers reveal, whereas known images are of one kind among many.

*Is it unlike everything?* N is the largest of (anomaly − median)/spread over members that need no known outlier. The
neighbors see what is unusual where it is, the isolation forest what is far from all; a mean would let one hide what the
other sees. Numbers far outside of the training rows (:class:`Span`) and rows far from the bulk of them
(:class:`~fvnce.detection.bulk.Bulk`) add to N, the latter where N is a question of its own and not where s ranks by K.

In the noise p_n = λ p_known + (1 − λ) p_broad both are log-ratios to the data, so the score is a soft maximum,

    s = log(e^K + e^(N − c)),        K, N in units of their spread over training rows,

with c = :data:`NOVELTY_PRIOR` = −log((1 − λ)/λ): novelty decides only where it is glaring, and the ranking among usual
rows is that of K. Without known outliers s = N. No known outlier enters N: those that are labelled only leave the rows
that it learns from.

Each member explains its anomaly as a sum over columns: a forest by how far each column moved the share of noise between
root and leaf (exact), networks by integrated gradients (up to quadrature). Less their means over training rows, these
parts sum to anomaly − mean. On the straight line from the means K₀, N₀ to K, N the score changes by

    s − s₀ = v (K − K₀) + (1 − v) (N − N₀),        v the mean of ∂s/∂K on that line, in [0, 1],

and likewise for the maximum in N, so that v, the only unknown, needs no integral, and parts of columns sum:

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

from .._validation import fields, listed, number, optional, require, stored_array
from .bulk import Bulk
from .explanation import Explanation
from .members import NAMES, member_class
from .members.base import (
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
from .rows import Array, Folds, TrainingRows

#: Members that "auto" means; those that use known outliers only with some.
AUTO = ("neighbors", "isolation_forest", "outlier_forest", "mixture_forest", "network")
#: Likewise without the isolation forest: on images, on wide tables, where random splits of single columns see little of
#: what is unlike all others, and on clean rows, where a small group is as normal as any.
AUTO_LOCAL = ("neighbors", "outlier_forest", "mixture_forest", "network")
#: Encoded columns from which a table is wide, and how many of its leading components ratio networks see.
WIDE, WIDE_COMPONENTS = 100, 16
#: c: how many spreads beyond the median novelty must lie to rank a row with one that is typical by K.
NOVELTY_PRIOR = 6.0
#: Known outliers that the neighbors are worth on tables, and their weight on images.
NEIGHBORS_WORTH, NEIGHBORS_ON_IMAGES = 1.0, 0.95
#: The largest excess of a column.
MAX_EXCESS = 30.0
#: Training rows over which parts of members are averaged, and the most numbers in them.
MEAN_ROWS, MEAN_NUMBERS = 128, 2**17
#: What is left of a sum of parts by rounding, relative to the score.
ROUNDING = 1e-12
#: Members of version 0.2 under another name today.
RENAMED = {"neighbours": "neighbors", "broad_forest": "isolation_forest"}


def settings_for(settings: MemberSettings, n_known: int, width: int, image: ImageShape | None) -> MemberSettings:
    """Complete settings by what depends on the data: the members, and the shape of images of ``width`` pixels."""
    for name in settings.members:
        if member_class(name).needs_outliers and not n_known:
            raise ValueError(f"members must not name {name} without a known outlier (y = 1), found it")
    auto = AUTO if image is None and width < WIDE and not settings.clean else AUTO_LOCAL
    chosen = auto if n_known else tuple(name for name in auto if member_class(name).novelty)
    return replace(settings, members=settings.members or chosen, image=image)


def member_weights(names: Sequence[str], n_known: int, *, image: bool) -> list[float]:
    """Return the weight of each member in K, with sum one; zeros if no member learns from known outliers.

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
    r"""The range of each column over the training rows, and how far outside of it a number lies.

    The answer of trees and networks beyond the training rows is arbitrary: after the last split a number falls into the
    last cell. With m_j the middle and h_j half the range of a column over the unlabelled training rows,

        excess_j(x) = max(0, |x_j − m_j| / h_j − 2),

    at most :data:`MAX_EXCESS`, is zero unless x_j lies more than twice as far from the middle as any training row. A
    new row like them is that far away with a probability much less than 1/(n + 1), so that the excess hardly ever
    decides between two normal rows.

    Attributes:
        middle: shape (D,).
        half: half the range, shape (D,); nothing is far outside of a column in which it is zero.

    >>> Span.learn(np.array([[0.0], [2.0]])).excess(np.array([[2.0], [4.0], [1e9]]))
    array([[ 0.],
           [ 1.],
           [30.]])
    """

    middle: Array
    half: Array

    @classmethod
    def learn(cls, X: Array) -> Self:
        """Learn the ranges from encoded rows, not cut, shape (n, D)."""
        low, high = X.min(0), X.max(0)
        return cls((low + high) / 2, (high - low) / 2)

    def excess(self, X: Array) -> Array:
        """Return how far outside each number lies, shape (n, D)."""
        away = np.abs(X - self.middle) / np.where(self.half > 0, self.half, np.inf)
        return np.clip(away - 2, 0.0, MAX_EXCESS, out=away)

    @classmethod
    def from_state(cls, arrays: Mapping[str, NDArray[Any]], width: int) -> Self:
        """Make the span of ``width`` columns from arrays that may be forged."""
        require(set(arrays) == {"middle", "half"}, "have the ranges of columns", sorted(arrays))
        for name, values in arrays.items():
            stored_array(f"{name} of the ranges", values, np.float64, (width,))
        require(bool((arrays["half"] >= 0).all()), "have ranges >= 0", arrays["half"].min())
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
    """Let a function compute outside of the modes of torch that its caller is in."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if "torch" not in sys.modules:  # nobody is in a mode of it
            return function(*args, **kwargs)
        from .._random import plain_mode

        with plain_mode():
            return function(*args, **kwargs)

    return call


@dataclass
class Ensemble:
    """Members and what makes K and N of their anomalies.

    Attributes:
        names: of the members.
        members: the trained models.
        units: mean and deviation of each member's anomaly, by which it enters K.
        weights: of each member in K, with sum one, or zeros without known outliers.
        novelty: median and spread of the anomaly of each member that enters N; None for others.
        known: median and spread of K; None without known outliers, and where there is no N.
        span: ranges of columns, for a table.
        bulk: the bulk of the rows of a table; None where there is no N, for clean rows, and in files before it.
        means: of each member's parts over training rows, shape (members, D); None in files before them.
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
        """Train all members that complete settings name, each on all rows.

        Returns:
            The ensemble and, with folds, the score of each training row by smaller models that were trained without
            its fold.
        """
        n_known = len(rows.outliers)
        weights = member_weights(settings.members, n_known, image=settings.image is not None)
        span = Span.learn(rows.X) if settings.image is None else None
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
            # A member scores new rows as it scores rows that it has not seen.
            unseen.append(scores)
            ensemble.members.append(member)
            ensemble.units.append(standard(scores.rows, rows.weights))
            novel = kind.novelty or not any(weights)
            ensemble.novelty.append(robust_standard(scores.rows, rows.weights) if novel else None)
        if any(weights) and any(ensemble.novelty):
            ensemble.known = robust_standard(ensemble._like_known([each.rows for each in unseen]), rows.weights)
        ensemble.means = ensemble._mean_parts(rows, seed)
        if folds is None:
            return ensemble, None
        inside = ensemble._excess(rows.X).sum(1)  # of rows as members see them, since all lie within their own span
        excess = ensemble._excess(outliers).sum(1)
        both = ([each.rows for each in unseen], inside), ([each.outliers for each in unseen], excess)
        return ensemble, HeldOutScores(*(ensemble._combined(*each)[:, 0] for each in both))

    def anomaly(self, X: Array) -> Array:
        """Return the score s, shape (n,)."""
        return np.ascontiguousarray(self.scores(X)[:, 0])

    @_plainly
    def scores(self, X: Array) -> Array:
        """Return s, K and N of encoded rows, shape (n, 3); NaN for K without known outliers, and for N without it."""
        seen = self._seen(X)
        columns = self._combined([member.anomaly(seen) for member in self.members], self._excess(X).sum(1))
        if self.bulk is not None and self.known is not None:
            columns[:, 2] += self.bulk.excess(seen).sum(1)
        return columns

    def _combined(self, anomalies: Sequence[Array], excess: Array) -> Array:
        """Return s, K and N from the members' anomalies and what numbers far outside add."""
        missing = np.full(len(excess), np.nan)
        known, novelty = self._like_known(anomalies), self._novelty(anomalies, excess)
        if novelty is None:  # no member of novelty is in it, as in files of version 0.2
            return np.stack([known + excess, known, missing], 1)
        if self.known is None:
            return np.stack([novelty, missing, novelty], 1)
        center, scale = self.known
        known = (known - center) / scale
        with np.errstate(invalid="ignore"):  # K is NaN for a known outlier without which no model was trained
            return np.stack([np.logaddexp(known, novelty - NOVELTY_PRIOR), known, novelty], 1)

    def _like_known(self, anomalies: Sequence[Array]) -> Array:
        # One after the other, since a product of matrices may sum in another order for another number of rows.
        total = np.zeros(len(anomalies[0]))
        for anomaly, (center, scale), weight in zip(anomalies, self.units, self.weights, strict=True):
            if weight:
                total += weight * ((anomaly - center) / scale)
        return total

    def _novelty(self, anomalies: Sequence[Array], excess: Array) -> Array | None:
        parts = [
            (anomaly - unit[0]) / unit[1]
            for anomaly, unit in zip(anomalies, self.novelty, strict=True)
            if unit is not None
        ]
        return np.asarray(np.max(parts, axis=0) + excess) if parts else None

    def _seen(self, X: Array) -> Array:
        """Return encoded rows as members see them."""
        return X if self.span is None else cut(X)

    def _excess(self, X: Array) -> Array:
        """Return what numbers far outside add to the score and, if that is N itself, isolated rows, shape (n, D)."""
        if self.span is None:
            return np.zeros((len(X), 1))
        outside = self.span.excess(np.ascontiguousarray(X))
        return outside if self.bulk is None or self.known is not None else outside + self.bulk.excess(cut(X))

    @_plainly
    def explain(self, X: Array, fold: Callable[[Array], Array]) -> Explanation:
        """Explain encoded rows; ``fold`` brings their columns back to the original ones."""
        seen, excess = self._seen(X), self._excess(X)
        anomalies = [member.anomaly(seen) for member in self.members]
        parts = self._parts(seen)
        # The means that parts start from, as the anomalies of one row.
        start = [np.array([member.base]) for member in self.members]
        if self.means is not None:
            parts -= self.means[:, None]
            start = [base + mean.sum() for base, mean in zip(start, self.means, strict=True)]
        first, last = self._combined(start, np.zeros(1))[0], self._combined(anomalies, excess.sum(1))
        base, anomaly, scale = float(first[0]), last[:, 0], 1.0 if self.known is None else self.known[1]
        factors = [weight / unit[1] / scale for weight, unit in zip(self.weights, self.units, strict=True)]
        ratio = np.einsum("m,mnd->nd", np.array(factors), parts)
        novelty = self._explained_novelty(start, anomalies, parts)
        if novelty is None:
            ratio = ratio + excess
        elif self.known is None:
            ratio = novelty + excess
        else:
            v = _blend(anomaly - base, last[:, 1] - first[1], last[:, 2] - first[2])[:, None]
            ratio = v * ratio + (1 - v) * (novelty + excess)
        folded = fold(ratio)
        # What a quadrature leaves and the padding of images belong to no column.
        rest = anomaly - base - folded.reshape(len(folded), -1).sum(1)
        rest[np.abs(rest) <= ROUNDING * np.maximum(1.0, np.abs(anomaly))] = 0.0
        return Explanation(folded, np.zeros_like(folded), rest, base)

    def _parts(self, seen: Array) -> Array:
        """Return what each column adds to the anomaly of each member that is used, shape (members, n, D)."""
        used = [weight > 0 or unit is not None for weight, unit in zip(self.weights, self.novelty, strict=True)]
        nothing = np.zeros(seen.shape)
        return np.stack([m.contributions(seen) if use else nothing for m, use in zip(self.members, used, strict=True)])

    def _mean_parts(self, rows: TrainingRows, seed: int) -> Array:
        """Return the mean of each column's part in each member over some unlabelled rows, as members see them."""
        most = max(2, min(MEAN_ROWS, MEAN_NUMBERS // rows.X.shape[1]))
        some = np.sort(np.random.default_rng([seed, 84]).permutation(len(rows.X))[:most])
        return np.asarray(np.average(self._parts(np.ascontiguousarray(rows.X[some])), 1, rows.weights[some]))

    def _explained_novelty(self, start: Sequence[Array], anomalies: Sequence[Array], parts: Array) -> Array | None:
        """Return what each column adds to N but for the excess, shape (n, D), one member after the other."""
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
        """Return every member by its name, its arrays numbered."""
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
        """Make the ensemble over rows of ``width`` columns from a state that may be forged."""
        if "centres" in content:
            content = _upgraded(content)
        saved, units, weights, novelty, known = fields(
            content,
            "the ensemble",
            "members",
            units=listed(_unit),
            weights=listed(partial(number, low=0.0, high=1.0)),
            novelty=listed(optional(_unit)),
            known=optional(_unit),
        )
        sizes = {len(each) for each in (saved, units, weights, novelty)}
        require(len(sizes) == 1, "have a unit and a weight for each member", sizes, of="the ensemble")
        total = sum(weights)
        whole = abs(total - 1) < 1e-9 or (total == 0 and any(novelty))
        require(whole, "have weights with sum one", weights, of="the ensemble")
        require((known is not None) == (total > 0 and any(novelty)), "have a unit of K beside N", known)
        names: list[str] = []
        members: list[Scorer] = []
        for position, item in enumerate(saved):
            name, state = fields(item, "a member of the ensemble", "name", "state")
            names.append(RENAMED.get(name, name))
            require(names[-1] in NAMES, f"name a member, one of {', '.join(NAMES)}; fit the detector again", name)
            kind, part = member_class(names[-1]), part_of(arrays, str(position))
            if part_of(part, "pca") or not (image is None or kind.sees_pixels):
                from .members.images import OnComponents

                members.append(OnComponents.from_state(kind, state, part, width))
            else:
                members.append(kind.from_state(state, part, width, image))
        span = Span.from_state(part_of(arrays, "span"), width) if image is None else None
        bulk, means = None, None
        if span is not None and (part := part_of(arrays, "bulk")):
            bulk = Bulk.from_state(part, width)
        if "means" in arrays:
            means = stored_array("means of parts", arrays["means"], np.float64, (len(members), width))
        return cls(names, members, units, weights, novelty, known, span, bulk, means)


def _unit(name: str, value: Any) -> Unit:
    center, scale = listed(number, 2)(name, value)
    return center, number(name, scale, low=0.0, open_low=True)


def _upgraded(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of today from that of version 0.2, whose score was K with what numbers far outside add."""
    members, centers, scales, weights = fields(content, "the ensemble", "members", "centres", "scales", "weights")
    listed(number)("centres", centers)
    units = [list(unit) for unit in zip(centers, listed(number, len(centers))("scales", scales), strict=True)]
    return {"members": members, "units": units, "weights": weights, "novelty": [None] * len(members), "known": None}
