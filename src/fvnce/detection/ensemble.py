r"""The members of the detector, and their average.

==================  ========================================================================================
``outlier_forest``  piecewise-constant ratio of the known outliers to the rows
``mixture_forest``  piecewise-constant ratio of the mixture noise to the rows
``broad_forest``    the same for the box, on few rows a tree: what is left without known outliers
``marginal_forest`` the same for the product of the columns' own distributions: which columns go together?
``network``         ratio networks against the mixture noise
``autoencoder``     latent-variable model with a deterministic encoder
``variational``     latent-variable model with a stochastic encoder
==================  ========================================================================================

The score is the mean over members of (anomaly − mean) / deviation, both taken over the training rows. Of images,
forests and networks see the principal codes (:mod:`fvnce.detection.codes`), latent-variable models the pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ..noise import draw
from ..training import History
from .architecture import image_pair, ratio_network, table_pair
from .members.pca import OnCodes, learn_codes
from .members.forest import grow_forest
from .members.ratio_network import LatentModel, RatioNetworks, Schooling, train_latent_model, train_ratio_networks
from .noise import box, draw_from_marginals, mixture_noise

Array = NDArray[np.float64]

NAMES = ("outlier_forest", "mixture_forest", "broad_forest", "marginal_forest", "network", "autoencoder", "variational")
#: Members that see the pixels of an image.
LATENT = ("autoencoder", "variational")
#: Rows of a tree of the broad forest; few, so that outliers do not hide one another.
BROAD_ROWS = 64


class Member(Protocol):
    """What a member can do."""

    def anomaly(self, X: Array) -> Array:
        """Higher for stranger rows, shape (n,)."""

    def contributions(self, X: Array) -> Array:
        """Parts of the anomaly by column, shape (n, D)."""


class RatioMember(Member, Protocol):
    """A member whose contributions sum to its anomaly − base."""

    @property
    def base(self) -> float:
        """The anomaly that all rows start from."""


@dataclass(frozen=True)
class Rows:
    """Encoded training rows and known outliers, with weights."""

    X: Array
    weights: Array
    outliers: Array
    outlier_weights: Array

    def without(self, rows: NDArray[np.bool_], outliers: NDArray[np.bool_]) -> Rows:
        """All but those marked."""
        return Rows(self.X[~rows], self.weights[~rows], self.outliers[~outliers], self.outlier_weights[~outliers])

    def encoded(self, encode: Callable[[Array], Array]) -> Rows:
        """The same rows in another form."""
        return replace(self, X=encode(self.X), outliers=encode(self.outliers))


@dataclass(frozen=True)
class Plan:
    """What to train.

    Attributes:
        members: names.
        trees: of each forest.
        leaf: fewest samples in a cell.
        networks: ratio networks that are averaged.
        hidden: sizes of hidden layers.
        latent: size of the code.
        image: (channels, height, width), or None for a table.
        outlier_share: λ.
        outlier_bandwidth: largest bandwidth around known outliers.
        data_bandwidth: typical bandwidth around rows.
        schooling: how networks are trained.
    """

    members: tuple[str, ...]
    trees: int
    leaf: int
    networks: int
    hidden: tuple[int, ...]
    latent: int
    image: tuple[int, int, int] | None
    outlier_share: float
    outlier_bandwidth: float
    data_bandwidth: float
    schooling: Schooling

    def lighter(self) -> Plan:
        """The same at less cost, for the folds of a calibration."""
        less = replace(self.schooling, progress=False, steps=-(-self.schooling.steps // 2))
        return replace(self, trees=-(-self.trees // 3), networks=1, schooling=less)


@dataclass
class Ensemble:
    """Members, and what standardises each."""

    names: list[str]
    members: list[Member]
    centres: list[float]
    scales: list[float]

    def anomaly(self, X: Array) -> Array:
        """The mean of the standardised anomalies."""
        parts = [
            (member.anomaly(X) - centre) / scale
            for member, centre, scale in zip(self.members, self.centres, self.scales, strict=True)
        ]
        return np.asarray(np.mean(parts, axis=0))


def train_members(rows: Rows, plan: Plan, seed: int) -> tuple[Ensemble, list[History]]:
    """All members of a plan."""
    ensemble, histories = Ensemble([], [], [], []), []
    codes = None
    if plan.image is not None and not set(plan.members) <= set(LATENT):
        codes = learn_codes(rows.X, rows.weights, seed)
    for position, name in enumerate(plan.members):
        own = int(np.random.default_rng([seed, position]).integers(2**31 - 1))
        if codes is None or name in LATENT:
            member, found = _train(name, rows, plan, own)
        else:
            inner, found = _train(name, rows.encoded(codes.encode), replace(plan, image=None), own)
            member = OnCodes(codes, inner)  # type: ignore[arg-type]
        anomaly = member.anomaly(rows.X)
        centre = float(np.average(anomaly, weights=rows.weights))
        spread = math.sqrt(float(np.average((anomaly - centre) ** 2, weights=rows.weights)))
        ensemble.names.append(name)
        ensemble.members.append(member)
        ensemble.centres.append(centre)
        # A member that says the same of every row has nothing to standardise.
        ensemble.scales.append(spread if spread > 1e-12 else 1.0)
        histories += found
    return ensemble, histories


def _train(name: str, rows: Rows, plan: Plan, seed: int) -> tuple[Member, list[History]]:
    if name.endswith("forest"):
        return _forest(name, rows, plan, seed), []
    generator = torch.Generator().manual_seed(seed)
    noise = _mixture(rows, plan, generator)
    if name == "network":
        make = partial(ratio_network, rows.X.shape[1], plan.hidden)
        return train_ratio_networks(make, rows.X, rows.weights, noise, plan.schooling, plan.networks, seed)
    stochastic = name == "variational"
    outputs = 2 * plan.latent if stochastic else plan.latent
    pair = (
        partial(table_pair, rows.X.shape[1], plan.hidden, plan.latent, outputs)
        if plan.image is None
        else partial(image_pair, plan.image, plan.latent, outputs)
    )
    # In hundreds of dimensions no noise sample is live against a density: what is left is the limit without noise.
    against = None if plan.image is not None else noise
    return train_latent_model(
        pair, plan.latent, rows.X, rows.weights, against, plan.schooling, seed, stochastic=stochastic
    )


def _forest(name: str, rows: Rows, plan: Plan, seed: int) -> Member:
    generator = torch.Generator().manual_seed(seed)
    shape: dict[str, Any] = {"leaf": plan.leaf, "features": "sqrt", "sample": None}
    if name == "outlier_forest":
        noise, weights = rows.outliers, rows.outlier_weights
    else:
        # A forest that sees few rows needs enough draws all the same.
        count = max(len(rows.X), 256)
        noise = _draws(name, rows, plan, count, generator).double().numpy()
        weights = np.ones(count)
        if name == "broad_forest":
            shape = {"leaf": 1, "features": 1, "sample": BROAD_ROWS}
    return grow_forest(rows.X, rows.weights, noise, weights, trees=plan.trees, seed=seed, **shape)


def _draws(name: str, rows: Rows, plan: Plan, count: int, generator: torch.Generator) -> torch.Tensor:
    X = torch.from_numpy(rows.X)
    if name == "marginal_forest":
        return draw_from_marginals(X, torch.from_numpy(rows.weights), count, generator)
    return draw(_mixture(rows, plan, generator) if name == "mixture_forest" else box(X), count, generator)


def _mixture(rows: Rows, plan: Plan, generator: torch.Generator) -> Any:
    def single(values: Array) -> torch.Tensor:
        return torch.from_numpy(values).float()

    return mixture_noise(
        single(rows.X),
        torch.from_numpy(rows.weights),
        single(rows.outliers),
        torch.from_numpy(rows.outlier_weights),
        outlier_share=plan.outlier_share,
        outlier_bandwidth=plan.outlier_bandwidth,
        data_bandwidth=plan.data_bandwidth,
        generator=generator,
    )


__all__ = ["NAMES", "Ensemble", "LatentModel", "Member", "Plan", "RatioNetworks", "Rows", "train_members"]
