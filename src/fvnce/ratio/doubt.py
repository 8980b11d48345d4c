r"""What an estimated ratio misses, as far as another learner can see.

If r̂ is right, then rows of p and rows of q weighted by r̂ have one distribution, and nothing tells them apart. Boosted
trees try to, on rows that neither r̂ nor they were trained on. With D = log p/(r̂q), their gain

    E_p[D̂] − log E_q[r̂ e^D̂]  ≤  KL(p ‖ r̂q)                                                             (missed)

is a lower bound, in nats, on what r̂ misses. For small D, E_p[D²] ≈ 2 KL(p ‖ r̂q).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._estimates import log_mean_exp

#: Draws of the noise for each row of data, when a ratio is checked.
DRAWS_PER_ROW = 4
FOLDS = 4
#: Rows that must carry the mean of squared log-ratios, lest it be a matter of the few farthest.
ENOUGH_ROWS = 30


class Gain(NamedTuple):
    """A held-out gain in nats, and its standard error.

    >>> Gain(0.5, 0.1).significant, Gain(0.1, 0.1).significant
    (True, False)
    """

    value: float
    error: float

    @property
    def significant(self) -> bool:
        """Whether it is above 0 by more than two standard errors."""
        return self.value > 2 * self.error

    def __str__(self) -> str:
        return f"{self.value:.2f} ± {self.error:.2f}"


NO_GAIN = Gain(0.0, 0.0)
UNKNOWN = Gain(math.nan, math.nan)


def gain_over(num: Tensor, den: Tensor, known_num: Tensor, known_den: Tensor, copies: int) -> Gain:
    """What a log-ratio gains over a known one on held-out rows, each of which occurs ``copies`` times."""
    total, known_total = log_mean_exp(den), log_mean_exp(known_den)
    on_num = (num - total) - (known_num - known_total)
    on_den = (den - total).exp() - (known_den - known_total).exp()
    if len(on_num) < 2 * copies:
        return Gain(float(on_num.mean()), math.inf)
    variance = on_num.var() / len(on_num) + on_den.var() / len(on_den)
    return Gain(float(on_num.mean()), math.sqrt(copies * float(variance)))


def missed(rows: Tensor, draws: Tensor, log_weights: Tensor, seed: int) -> Gain:
    """What boosted trees find that tells rows of p from weighted draws of q, cross-validated.

    >>> x = torch.randn(400, 1, generator=torch.Generator().manual_seed(0))
    >>> [missed(x[:200] + shift, x[200:], torch.zeros(200), 0).significant for shift in (0, 2)]
    [False, True]
    """
    if min(len(rows), len(draws)) < ENOUGH_ROWS:
        return Gain(0.0, math.inf)
    # Imported here: a second of waiting for those who only import fvnce.
    from sklearn.ensemble import HistGradientBoostingClassifier

    log_weights = log_weights.double().cpu() - log_mean_exp(log_weights.double().cpu())
    x = torch.cat([rows, draws]).cpu().numpy()
    is_row = np.arange(len(x)) < len(rows)
    weights = np.ones(len(x))
    weights[~is_row] = log_weights.exp().numpy() * len(rows) / len(draws)
    part = np.empty(len(x), dtype=int)
    generator = np.random.default_rng([seed, 83])
    for side in (is_row, ~is_row):
        part[side] = generator.permutation(side.sum()) % FOLDS
    logits = np.empty(len(x))
    for fold in range(FOLDS):
        inside = part != fold
        trees = HistGradientBoostingClassifier(max_leaf_nodes=8, early_stopping=True, random_state=seed)
        trees.fit(x[inside], is_row[inside], sample_weight=weights[inside])
        logits[~inside] = trees.decision_function(x[~inside])
    at_rows, at_draws = (torch.from_numpy(logits[side]) for side in (is_row, ~is_row))
    return gain_over(at_rows, at_draws + log_weights, torch.zeros_like(at_rows), log_weights, 1)


def rows_that_count(rows: Tensor) -> float:
    """How many rows carry the mean of d⁴, d the distance from the mean in standard deviations.

    Log-ratios of Gaussians, and errors of a log-ratio beyond the rows, grow like d².
    """
    centred = (rows - rows.mean(0)).double()
    covariance = centred.T @ centred / len(rows)
    squares = torch.einsum("ni,ij,nj->n", centred, torch.linalg.pinv(covariance, hermitian=True), centred).square()
    return float(squares.sum().square() / squares.square().sum().clamp(min=1e-300))
