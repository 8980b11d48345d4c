r"""The average of the members: which are used, how much each counts, and what each column adds.

The score is the weighted mean over members of (anomaly − mean) / deviation, both over the training rows, where possible
with scores by models that have not seen them.

Members that use known outliers improve with their number. The neighbors need none, and see what is unlike every known
outlier. With m known outliers the neighbors' weight is w(m) = 1/(1 + m) on a table and 0.95 on images; the others have
equal parts of the rest. Columns of a table often hold nothing but what known outliers reveal, whereas known images are
of one kind among many: models that learn only that kind forget the others. The neighbors come first, and so are the
same, to the last bit, with known outliers and without.

Since each member explains its anomaly as a sum, so is the score:

    anomaly(x) = base + rest(x) + Σ_j ratio_j(x)

For a forest the ratio is how far each column moved the share of noise between root and leaf (exact); for networks,
integrated gradients from the typical row (up to quadrature, which is in the rest). On a table, numbers far outside of
the training rows add to both the score and the ratio of their column (:class:`Span`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .._random import plain_mode
from .._validation import fields, listed, number, require, stored_array
from .explanation import Explanation
from .members import NAMES, member_class
from .members.base import HeldOutScores, ImageShape, MemberSettings, Scorer, State, part_of, prefixed, standard
from .preprocessing import cut
from .rows import Array, Folds, TrainingRows

#: Members that "auto" means: without known outliers the first, with them all.
AUTO = ("neighbors", "outlier_forest", "mixture_forest", "network")
#: Known outliers that the neighbors are worth on tables, and their weight on images.
NEIGHBORS_WORTH, NEIGHBORS_ON_IMAGES = 1.0, 0.95
#: The largest excess of a column.
MAX_EXCESS = 30.0
#: Members of version 0.2 under another name today.
RENAMED = {"neighbours": "neighbors"}


def settings_for(settings: MemberSettings, n_known: int, image: ImageShape | None) -> MemberSettings:
    """Complete settings by what depends on the data: the members, and the shape of images."""
    for name in settings.members:
        if member_class(name).needs_outliers and not n_known:
            raise ValueError(f"members must not name {name} without a known outlier (y = 1), found it")
    return replace(settings, members=settings.members or (AUTO if n_known else AUTO[:1]), image=image)


def member_weights(names: Sequence[str], n_known: int, *, image: bool) -> list[float]:
    """Return the weight of each member, with sum one.

    >>> member_weights(("network", "neighbors"), 3, image=False)
    [0.75, 0.25]
    >>> member_weights(("network", "broad_forest"), 9, image=False)
    [0.5, 0.5]
    """
    alone = sum(name == "neighbors" for name in names)
    others = len(names) - alone
    if not alone or not others:
        return [1 / len(names)] * len(names)
    weight = NEIGHBORS_ON_IMAGES if image else NEIGHBORS_WORTH / (NEIGHBORS_WORTH + n_known)
    return [weight / alone if name == "neighbors" else (1 - weight) / others for name in names]


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


@dataclass
class Ensemble:
    """Members, what standardizes each, and the weight of each, with sum one; for a table, its span."""

    names: list[str]
    members: list[Scorer]
    centers: list[float]
    scales: list[float]
    weights: list[float]
    span: Span | None

    @classmethod
    @plain_mode()
    def fit(
        cls, rows: TrainingRows, settings: MemberSettings, seed: int, folds: Folds | None = None
    ) -> tuple[Self, HeldOutScores | None]:
        """Train all members that complete settings name.

        Returns:
            The ensemble and, with folds, the score of each training row by models that were trained without its fold.
        """
        weights = member_weights(settings.members, len(rows.outliers), image=settings.image is not None)
        span = Span.learn(rows.X) if settings.image is None else None
        ensemble = cls(list(settings.members), [], [], [], weights, span)
        excess, rows = ensemble._excess(rows.outliers).sum(1), rows.transformed(ensemble._seen)
        held_out: list[HeldOutScores] = []
        kinds = [member_class(name) for name in settings.members]
        on_components = settings.image is not None and not all(kind.sees_pixels for kind in kinds)
        if on_components:
            from .members.images import OnComponents, PrincipalComponents

            pca, on_columns = PrincipalComponents.learn(rows, seed), replace(settings, image=None)
        for position, kind in enumerate(kinds):
            member_seed = int(np.random.default_rng([seed, position]).integers(2**31 - 1))
            member: Scorer
            if on_components and not kind.sees_pixels:
                member, scores = OnComponents.fit(kind, pca, rows, on_columns, member_seed, folds)
            else:
                member, scores = kind.fit(rows, settings, member_seed, folds)
            # A member scores new rows as it scores rows that it has not seen.
            center, scale = standard(member.anomaly(rows.X) if scores is None else scores.rows, rows.weights)
            if scores is not None:
                held_out.append(scores.standardized(center, scale))
            ensemble.members.append(member)
            ensemble.centers.append(center)
            ensemble.scales.append(scale)
        if folds is None:
            return ensemble, None
        of_rows, of_outliers = (ensemble._mean([getattr(each, of) for each in held_out]) for of in ("rows", "outliers"))
        return ensemble, HeldOutScores(of_rows, of_outliers + excess)

    @plain_mode()
    def anomaly(self, X: Array) -> Array:
        """Return the mean of the standardized anomalies, and what numbers far outside add to it."""
        seen = self._seen(X)
        parts = [
            (member.anomaly(seen) - center) / scale
            for member, center, scale in zip(self.members, self.centers, self.scales, strict=True)
        ]
        return np.asarray(self._mean(parts) + self._excess(X).sum(1))

    def _seen(self, X: Array) -> Array:
        """Return encoded rows as members see them."""
        return X if self.span is None else cut(X)

    def _excess(self, X: Array) -> Array:
        """Return what numbers far outside of the training rows add, shape (n, D)."""
        return np.zeros((len(X), 1)) if self.span is None else self.span.excess(np.ascontiguousarray(X))

    def _mean(self, parts: Sequence[Array]) -> Array:
        # One after the other, since a product of matrices may sum in another order for another number of rows.
        return np.asarray(sum(weight * part for weight, part in zip(self.weights, parts, strict=True)))

    @plain_mode()
    def explain(self, X: Array, fold: Callable[[Array], Array]) -> Explanation:
        """Explain encoded rows; ``fold`` brings their columns back to the original ones."""
        ratio = np.zeros(X.shape)
        ratio += self._excess(X)
        X = self._seen(X)
        rest, base = np.zeros(len(X)), 0.0
        for member, center, scale, weight in zip(self.members, self.centers, self.scales, self.weights, strict=True):
            factor, parts = weight / scale, member.contributions(X)
            ratio += factor * parts
            if not member.exact:  # what a quadrature leaves belongs to no column
                rest += factor * (member.anomaly(X) - member.base - parts.sum(1))
            base -= factor * center
            base += factor * member.base
        folded = fold(ratio)
        if folded.ndim > 2:  # what fell on the padding of images
            rest += ratio.sum(1) - folded.reshape(len(folded), -1).sum(1)
        return Explanation(folded, np.zeros_like(folded), rest, base)

    def state(self) -> State:
        """Return every member by its name, its arrays numbered."""
        members, arrays = [], {} if self.span is None else prefixed("span", vars(self.span))
        for position, (name, member) in enumerate(zip(self.names, self.members, strict=True)):
            content, member_arrays = member.state()
            members.append({"name": name, "state": content})
            arrays |= prefixed(str(position), member_arrays)
        content = {"members": members, "centres": self.centers, "scales": self.scales, "weights": self.weights}
        return content, arrays  # in the spelling of version 0.2

    @classmethod
    def from_state(
        cls, content: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], width: int, image: ImageShape | None
    ) -> Self:
        """Make the ensemble over rows of ``width`` columns from a state that may be forged."""
        saved, centers, scales, weights = fields(
            content,
            "the ensemble",
            "members",
            centres=listed(number),
            scales=listed(partial(number, low=0.0, open_low=True)),
            weights=listed(partial(number, low=0.0, high=1.0)),
        )
        sizes = {len(each) for each in (saved, centers, scales, weights)}
        require(len(sizes) == 1, "have a center, a scale and a weight for each member", sizes, of="the ensemble")
        require(abs(sum(weights) - 1) < 1e-9, "have weights with sum one", weights, of="the ensemble")
        names: list[str] = []
        members: list[Scorer] = []
        for position, item in enumerate(saved):
            name, state = fields(item, "a member of the ensemble", "name", "state")
            names.append(RENAMED.get(name, name))
            require(names[-1] in NAMES, f"name a member, one of {', '.join(NAMES)}; fit the detector again", name)
            kind, part = member_class(names[-1]), part_of(arrays, str(position))
            if image is None or kind.sees_pixels:
                members.append(kind.from_state(state, part, width, image))
            else:
                from .members.images import OnComponents

                members.append(OnComponents.from_state(kind, state, part, width))
        span = Span.from_state(part_of(arrays, "span"), width) if image is None else None
        return cls(names, members, centers, scales, weights, span)
