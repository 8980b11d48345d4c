r"""The average of the members: which are taken, how much each is trusted, and what each column adds.

The score is the weighted mean over members of (anomaly − mean) / deviation, both taken over the training rows, where
possible as models that have not seen them score them.

Members that put known outliers to use learn what those look like: the more there are, the better. The neighbours need
none, and see what is like no known outlier. With m known outliers the neighbours' share of the weight is

    w(m) = m₀ / (m₀ + m)        on a table,   as if they were worth m₀ known outliers,
    w = 0.95                    on images,

and the others share what is left evenly. Columns of a table often hold nothing but what known outliers tell, whereas
the known images are of one kind among many: whoever learns only that kind forgets the others. So the share on images is
that at which known images of one kind cost the other kinds no more than they bring for their own. Members that somebody
names count evenly, but for the neighbours, whose share is the same. They come first, and so are the same neighbours, to
the last bit, with known outliers and without.

Since each member explains its anomaly as a sum, so is the score:

    anomaly(x) = base + rest(x) + Σ_j [ratio_j(x) + reconstruction_j(x)]

*Ratio*: for a forest, how far each column moved the share of noise on the way from root to leaf (exact); for a network,
integrated gradients from the typical row (exact up to quadrature). *Reconstruction*: the squared error of each column
under a latent-variable model. *Rest*: the size of the code, which belongs to no column. On a table, numbers far outside
of the training rows add to both the score and the ratio of their column (:class:`Span`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ..serialization import fields
from ..training import History
from .explanation import Explanation, lost_in_folding
from .members import CLASSES, NAMES, PCAMember
from .members.base import (
    Member,
    Scorer,
    State,
    part_of,
    require,
    require_array,
    require_lengths,
    require_standardising,
    require_weights,
    standard,
)
from .members.pca import PrincipalComponents, learn_components
from .plan import Array, Folds, HeldOutScores, Plan, TrainingRows
from .preprocessing import cut

#: Members that put known outliers to use.
WITH_OUTLIERS = ("outlier_forest", "mixture_forest", "network")
#: Members that need none.
WITHOUT = ("neighbours",)
#: m₀ of tables, and the share on images.
WORTH, ON_IMAGES = 1.0, 0.95
#: The largest excess of a column.
MOST = 30.0


def names_on(*, outliers: bool, chosen: Sequence[str]) -> tuple[str, ...]:
    """The members that are chosen, or those that "auto" stands for where none is."""
    for name in chosen:
        if CLASSES[name].needs_outliers and not outliers:
            raise ValueError(f"members must not name {name} without a known outlier (y = 1), found it")
    return tuple(chosen) or ((*WITHOUT, *WITH_OUTLIERS) if outliers else WITHOUT)


def trust(names: Sequence[str], known: int, *, image: bool) -> list[float]:
    """The weight of each member, with sum one.

    >>> trust(("network", "neighbours"), 3, image=False)
    [0.75, 0.25]
    >>> trust(("network", "autoencoder"), 9, image=False)
    [0.5, 0.5]
    """
    alone = [name for name in names if name in WITHOUT]
    others = len(names) - len(alone)
    if not alone or not others:
        return [1 / len(names)] * len(names)
    share = ON_IMAGES if image else WORTH / (WORTH + known)
    return [share / len(alone) if name in WITHOUT else (1 - share) / others for name in names]


@dataclass(frozen=True)
class Span:
    r"""The range of each column over the training rows, and how far outside of it a number lies.

    What trees and networks say of a number that no model was shown is chance: beyond the last split it falls into the
    last cell. With known outliers to learn from, they are trusted more than the neighbours, who do see how far away it
    is. With m_j the middle and h_j half the range of a column over the training rows without a label,

        excess_j(x) = max(0, |x_j − m_j| / h_j − 2),

    at most :data:`MOST`, is zero unless x_j lies more than twice as far from the middle as any training row, and so
    zero on these. Another row like them is beyond the largest of n numbers with probability 1/(n + 1), beyond twice
    that far with much less: excess has next to no say in which of two usual rows is stranger.

    Attributes:
        middle: shape (D,).
        half: half the range, shape (D,); nothing is far outside of a column in which it is zero.

    >>> Span.of(np.array([[0.0], [2.0]])).excess(np.array([[2.0], [4.0], [1e9]]))
    array([[ 0.],
           [ 1.],
           [30.]])
    """

    middle: Array
    half: Array

    @classmethod
    def of(cls, X: Array) -> Self:
        """From preprocessed rows, not cut, shape (n, D)."""
        low, high = X.min(0), X.max(0)
        return cls((low + high) / 2, (high - low) / 2)

    def excess(self, X: Array) -> Array:
        """How far outside each number lies, shape (n, D)."""
        away = np.abs(X - self.middle) / np.where(self.half > 0, self.half, np.inf)
        return np.clip(away - 2, 0.0, MOST, out=away)

    def state(self) -> dict[str, Tensor]:
        """Two arrays."""
        return {"middle": torch.from_numpy(self.middle), "half": torch.from_numpy(self.half)}

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], width: int) -> Self:
        """The span of ``width`` columns, which may be a stranger's."""
        require(set(tensors) == {"middle", "half"}, "have the ranges of columns", sorted(tensors))
        made = cls(tensors["middle"].numpy(), tensors["half"].numpy())
        for name in ("middle", "half"):
            require_array(f"{name} of the ranges", getattr(made, name), np.float64, (width,))
        require(bool((made.half >= 0).all()), "have ranges >= 0", made.half.min())
        return made


@dataclass
class Ensemble:
    """Members, what standardises each, and how much each counts, with sum one; for a table, its span."""

    names: list[str]
    members: list[Scorer]
    centres: list[float]
    scales: list[float]
    weights: list[float]
    span: Span | None

    @classmethod
    def fit(
        cls, rows: TrainingRows, plan: Plan, seed: int, folds: Folds | None = None
    ) -> tuple[Self, list[History], HeldOutScores | None]:
        """Train all members of a plan; also the history of each training.

        With folds, also the score of each training row by models that were trained without its fold.
        """
        weights = trust(plan.members, len(rows.outliers), image=plan.image is not None)
        span = Span.of(rows.X) if plan.image is None else None
        ensemble = cls(list(plan.members), [], [], [], weights, span)
        excess, rows = ensemble._excess(rows.outliers).sum(1), rows.transformed(ensemble._seen)
        histories: list[History] = []
        held: list[HeldOutScores] = []
        kinds = [CLASSES[name] for name in plan.members]
        pca = None
        if plan.image is not None and not all(kind.sees_pixels for kind in kinds):
            pca = learn_components(rows.X, rows.weights, seed)
        for position, kind in enumerate(kinds):
            own = int(np.random.default_rng([seed, position]).integers(2**31 - 1))
            member, found, unseen = _fit_member(kind, None if kind.sees_pixels else pca, rows, plan, own, folds)
            # What a member says of rows that it has not seen is what it will say of others.
            centre, scale = standard(member.anomaly(rows.X) if unseen is None else unseen.rows, rows.weights)
            if unseen is not None:
                held.append(unseen.standardised(centre, scale))
            ensemble.members.append(member)
            ensemble.centres.append(centre)
            ensemble.scales.append(scale)
            histories += found
        if folds is None:
            return ensemble, histories, None
        of_rows, of_outliers = (ensemble._mean([getattr(part, of) for part in held]) for of in ("rows", "outliers"))
        return ensemble, histories, HeldOutScores(of_rows, of_outliers + excess)

    def anomaly(self, X: Array) -> Array:
        """The mean of the standardised anomalies, and what numbers far outside add to it."""
        seen = self._seen(X)
        parts = [
            (member.anomaly(seen) - centre) / scale
            for member, centre, scale in zip(self.members, self.centres, self.scales, strict=True)
        ]
        return np.asarray(self._mean(parts) + self._excess(X).sum(1))

    def _seen(self, X: Array) -> Array:
        """Preprocessed rows as members see them."""
        return X if self.span is None else cut(X)

    def _excess(self, X: Array) -> Array:
        """What numbers far outside of the training rows add, shape (n, D)."""
        return np.zeros((len(X), 1)) if self.span is None else self.span.excess(np.ascontiguousarray(X))

    def _mean(self, parts: Sequence[Array]) -> Array:
        # One after the other, since a product of matrices may sum in another order for another number of rows.
        return np.asarray(sum(weight * part for weight, part in zip(self.weights, parts, strict=True)))

    def explain(self, X: Array, fold: Callable[[Array], Array]) -> Explanation:
        """Explain preprocessed rows; ``fold`` brings their columns back to the original ones."""
        ratio, reconstruction = np.zeros(X.shape), np.zeros(X.shape)
        ratio += self._excess(X)
        X = self._seen(X)
        rest, base = np.zeros(len(X)), 0.0
        for member, centre, scale, weight in zip(self.members, self.centres, self.scales, self.weights, strict=True):
            factor = weight / scale
            parts = reconstruction if member.reconstructs else ratio
            own = member.contributions(X)
            parts += factor * own
            # What a quadrature leaves belongs to no column, and without it the parts would not sum to the score.
            rest += factor * (member.rest(X) if member.exact else member.anomaly(X) - member.base - own.sum(1))
            base -= factor * centre
            base += factor * member.base
        first, second = fold(ratio), fold(reconstruction)
        return Explanation(first, second, rest + lost_in_folding(ratio + reconstruction, first + second), base)

    def state(self) -> State:
        """Every member by its name, its tensors numbered."""
        members, tensors = [], {}
        for position, (name, member) in enumerate(zip(self.names, self.members, strict=True)):
            content, own = member.state()
            members.append({"name": name, "state": content})
            tensors.update({f"{position}.{key}": value for key, value in own.items()})
        if self.span is not None:
            tensors |= {f"span.{key}": value for key, value in self.span.state().items()}
        own_state = {"members": members, "centres": self.centres, "scales": self.scales, "weights": self.weights}
        return own_state, tensors

    @classmethod
    def from_state(
        cls, content: Mapping[str, Any], tensors: Mapping[str, Tensor], width: int, image: tuple[int, int, int] | None
    ) -> Self:
        """The ensemble over rows of ``width`` columns, which may be the pixels of images."""
        saved, centres, scales, weights = fields(content, "the ensemble", "members", "centres", "scales", "weights")
        require_lengths("the ensemble", len(saved), centres, scales, weights)
        require_standardising("the ensemble", centres, scales)
        require_weights("the ensemble", weights)
        names: list[str] = []
        members: list[Scorer] = []
        for position, item in enumerate(saved):
            name, state = fields(item, "a member of the ensemble", "name", "state")
            require(name in NAMES, f"name a member, one of {', '.join(NAMES)}", name)
            own = part_of(tensors, f"{position}.")
            kind = CLASSES[name]
            names.append(name)
            if image is None or kind.sees_pixels:
                members.append(kind.from_state(state, own, width, image))
            else:
                members.append(PCAMember.from_state(kind, state, own, width))
        span = Span.from_state(part_of(tensors, "span."), width) if image is None else None
        return cls(names, members, centres, scales, weights, span)


def _fit_member(
    kind: type[Member],
    pca: PrincipalComponents | None,
    rows: TrainingRows,
    plan: Plan,
    seed: int,
    folds: Folds | None,
) -> tuple[Scorer, list[History], HeldOutScores | None]:
    if pca is None:
        return (*kind.fit(rows, plan, seed), None) if folds is None else kind.fit_held_out(rows, plan, seed, folds)
    how = replace(plan, image=None)
    if folds is None:
        return (*PCAMember.fit(kind, pca, rows, how, seed), None)
    return PCAMember.fit_held_out(kind, pca, rows, how, seed, folds)
