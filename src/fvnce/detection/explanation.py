r"""Why a row scored as it did: the anomaly score as a sum over columns.

    anomaly(x) = base + rest(x) + Σ_j [ratio_j(x) + reconstruction_j(x)]

*Ratio*: for a forest, how far each column moved the share of noise on the way from root to leaf (exact); for a network,
integrated gradients from the typical row (exact up to quadrature). *Reconstruction*: the squared error of each column
under a latent-variable model. *Rest*: the size of the code, which belongs to no column.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .members.pca import OnCodes
from .members.forest import RatioForest
from .ensemble import Ensemble, LatentModel, RatioNetworks

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Explanation:
    """Contributions to the anomaly score.

    Attributes:
        ratio: by what sets the row apart from the data, shape (n, D), for images (n, …).
        reconstruction: by how badly it is rebuilt, of the same shape; zeros without a latent-variable model.
        rest: by nothing in particular, shape (n,).
        base: the score that all rows start from.
    """

    ratio: Array
    reconstruction: Array
    rest: Array
    base: float

    @property
    def total(self) -> Array:
        """Both kinds together: positive where a column makes the row stranger. For an image, a heat map."""
        return self.ratio + self.reconstruction

    @property
    def anomaly(self) -> Array:
        """The anomaly score that the parts sum to."""
        flat = self.total.reshape(len(self.rest), -1)
        return np.asarray(flat.sum(1) + self.rest + self.base)


def explain(ensemble: Ensemble, X: Array, fold: Callable[[Array], Array]) -> Explanation:
    """Explain encoded rows; ``fold`` brings encoded columns back to the original ones."""
    ratio, reconstruction = np.zeros(X.shape), np.zeros(X.shape)
    rest, base = np.zeros(len(X)), 0.0
    count = len(ensemble.members)
    for member, centre, scale in zip(ensemble.members, ensemble.centres, ensemble.scales, strict=True):
        factor = 1 / (count * scale)
        base -= factor * centre
        if isinstance(member, LatentModel):
            reconstruction += factor * member.contributions(X)
            rest += factor * member.code(X)
        else:
            assert isinstance(member, RatioForest | RatioNetworks | OnCodes)
            ratio += factor * member.contributions(X)
            base += factor * member.base
    return Explanation(fold(ratio), fold(reconstruction), rest, base)
