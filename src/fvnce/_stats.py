r"""Log of a mean of importance weights, with a standard error and a check of whether to trust it.

For w = e^l the delta method gives log mean(w) a standard error of sd(w)/(√n mean(w)) = √((n/n_eff − 1)/(n − 1)), with

    n_eff = (Σw)²/Σw²,

the effective sample size: the number of equal weights that would estimate the mean as precisely. If few draws dominate
the mean, the draws that would matter most are probably missing, and both the estimate and its error are too low. The
tail of the weights measures this. If P(w > u) falls as u^(−1/k) with k > 1/2, the variance is infinite and the relative
error is of order n^(k−1), as for n^(2−2k) equal weights. So n_eff is capped at n^(2−2k), with k the upper end (three
standard errors) of Hill's estimate from the largest 3√n weights. Two standard errors are not enough: samples that lack
a large weight have a smaller k, so the few samples that pass would be those whose estimate is too low. No diagnostic
computed from draws detects mass that no draw reached.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: Effective samples below which neither the estimate nor its error can be trusted.
ENOUGH_SAMPLES = 100


class LogPartition(tuple[Tensor, Tensor]):
    """An estimate of log Z: the pair (value, standard error), with the effective sample size.

    ``trusted`` detects weights that vary too much, but not mass that no draw reached, and then fails. Tails heavier
    than the noise's: of importance estimates for a Cauchy from N(0, 3²) 98% are trusted, and 14% of these have the
    truth within two errors; for five Student t₂ from N(0, 2²), 97% and 40%. A second mode: for ½ N(0, 1) + ½ N(6, 1)
    from N(0, 1), 87% are trusted, and none of them has the truth within two errors.

    Attributes:
        effective_samples: n_eff, the number of equal weights that would be as precise, reduced for heavy tails.

    >>> import torch
    >>> value, error = estimate_log_mean(torch.zeros(1000))
    >>> estimate_log_mean(torch.zeros(1000)).trusted, estimate_log_mean(torch.tensor([30.0] + 999 * [0.0])).trusted
    (True, False)
    """

    effective_samples: float

    def __new__(cls, value: Tensor, error: Tensor, effective_samples: float) -> LogPartition:
        """Return the pair, with no effective samples if value or error is not finite."""
        pair = super().__new__(cls, (value, error))
        pair.effective_samples = effective_samples if math.isfinite(value) and math.isfinite(error) else 0.0
        return pair

    def __getnewargs__(self) -> tuple[Tensor, Tensor, float]:
        return self[0], self[1], self.effective_samples

    @property
    def value(self) -> Tensor:
        """The estimate of log Z."""
        return self[0]

    @property
    def error(self) -> Tensor:
        """The standard error, by the delta method."""
        return self[1]

    @property
    def trusted(self) -> bool:
        """Whether there are at least 100 effective samples; with fewer, value and error may both be too small."""
        return self.effective_samples >= ENOUGH_SAMPLES

    def __repr__(self) -> str:
        note = "" if self.trusted else ", not to be trusted"
        return f"{float(self[0]):.4g} ± {float(self[1]):.2g} ({self.effective_samples:.1f} effective samples{note})"


def log_mean_exp(values: Tensor, dim: int = 0) -> Tensor:
    """Return the log of the mean of e^values over a dimension, by default the first."""
    return values.logsumexp(dim) - math.log(values.shape[dim])


def log_power_mean(values: Tensor, power: float, log_weights: Tensor | None = None) -> Tensor:
    """Return (1/power) log E[e^(power·values)] over the first dimension, accurately also for a small power.

    The log of a mean near 1 has the rounding error of 1, which division by a small power makes large. If all values are
    within 1/power of their mean, the mean is therefore subtracted first and the rest computed with log1p and expm1.

    Args:
        values: shape (n, …).
        power: above 0.
        log_weights: of the expectation, shape (n, …), summing to one over n; by default all are equal.

    >>> import torch
    >>> values = torch.tensor([1.0, 2.0, 6.0])
    >>> log_power_mean(values, 1e-6), torch.log(torch.exp(1e-6 * values).mean()) / 1e-6
    (tensor(3.0000), tensor(2.9802))
    """
    if log_weights is None:
        log_weights = torch.full_like(values, -math.log(len(values)))
    weights = log_weights.exp()
    center = (weights * values).sum(0) / weights.sum(0)
    # Clamped, so that values meant for the other branch give no infinite gradient here.
    left = (power * (values - center)).clamp(-1, 1)
    near = center + (weights * left.expm1()).sum(0).log1p() / power
    far = (power * values + log_weights).logsumexp(0) / power
    return torch.where(power * (values.amax(0) - values.amin(0)) < 1, near, far)


def effective_samples(log_weights: Tensor) -> float:
    """Return n_eff of weights e^l, from l of shape (n,): (Σw)²/Σw², at most n^(2−2k) if their tail is heavy."""
    if not math.isfinite(log_weights.max()):
        return 0.0
    weights = (log_weights - log_weights.max()).double().exp()
    effective = float(weights.sum().square() / weights.square().sum())
    positive = log_weights[log_weights > -math.inf].double()
    largest = int(min(3 * math.sqrt(len(positive)), len(positive) / 5))
    if largest < 5:
        return effective
    top = positive.topk(largest + 1).values
    tail = float((top - top[-1]).sum()) / largest * (1 + 3 / math.sqrt(largest))
    return min(effective, len(log_weights) ** max(0.0, 2 - 2 * tail)) if tail > 0.5 else effective


def estimate_log_mean(log_weights: Tensor) -> LogPartition:
    """Return the log of the mean of e^l over n ≥ 2 draws, from l of shape (n,), with its standard error."""
    n = len(log_weights)
    value = log_mean_exp(log_weights)
    effective = effective_samples(log_weights)
    return LogPartition(value, value.new_tensor(error_of(n, effective)), effective)


def error_of(n: int, effective: float) -> float:
    """Return the standard error of log mean(w) for n draws, by var(w)/mean(w)² = n/n_eff − 1."""
    return math.sqrt(max(0.0, n / effective - 1) / (n - 1)) if effective else math.nan
