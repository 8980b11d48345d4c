r"""What may be said of the order of rows that were measured with a few seeds, and where a difference comes from.

All rows of a seed start from the same weights and meet the same noise, so two rows are compared seed by seed: with d_s
the difference of seed s, their mean d̄ counts as found if it is beyond its 95 % interval,

    |d̄| > t_{0.975, n−1} · sd(d) / √n,

with Student's t, since n is small. One seed has no error, and nothing is claimed from it.

The number compared is *data − noise*. It can grow in two ways, and only one of them is what a method is after: noise
falling, or data rising; and it can shrink because the data term fell, which says nothing about noise. Both terms are
told.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence

from scipy import stats


def mean_and_error(values: Sequence[float], digits: int = 0) -> str:
    """Mean ± standard error, the error with a digit more than whole numbers have; of one value, that value.

    >>> mean_and_error([1.0, 3.0]), mean_and_error([1.0, 3.0], 2), mean_and_error([2.0])
    ('2 ± 1.0', '2.00 ± 1.00', '2')
    """
    mean = f"{statistics.fmean(values):.{digits}f}"
    if len(values) < 2:
        return mean
    return f"{mean} ± {statistics.stdev(values) / math.sqrt(len(values)):.{max(digits, 1)}f}"


def beyond_error(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether the mean of ``one`` − ``other``, seed by seed, is beyond its 95 % interval.

    >>> beyond_error([3.0, 4.0, 5.0], [1.0, 2.1, 2.9]), beyond_error([3.0, 1.0, 5.0], [1.0, 3.0, 2.0])
    (True, False)
    >>> beyond_error([9.0], [1.0])
    False
    """
    steps = [a - b for a, b in zip(one, other, strict=True)]
    if len(steps) < 2:
        return False
    error = statistics.stdev(steps) / math.sqrt(len(steps))
    return abs(statistics.fmean(steps)) > float(stats.t.ppf(0.975, len(steps) - 1)) * error


def ordered(values: Mapping[str, Sequence[float]]) -> str:
    """Rows from the smallest mean to the largest; ≈ between neighbours whose difference is within its error.

    >>> ordered({"b": [5.0, 6.0, 7.1], "a": [1.0, 2.1, 3.0], "c": [5.5, 5.9, 7.3]})
    'a < b ≈ c'
    """
    rows = sorted(values, key=lambda row: statistics.fmean(values[row]))
    text = rows[0]
    for low, high in itertools.pairwise(rows):
        text += f" {'<' if beyond_error(values[high], values[low]) else '≈'} {high}"
    return text


def against(
    label: str,
    base: str,
    data: Sequence[float],
    noise: Sequence[float],
    base_data: Sequence[float],
    base_noise: Sequence[float],
) -> str | None:
    """How far data − noise of a row is from that of ``base``, and which of the two made it so; None within its error.

    >>> base = [700.0, 701.0], [-1600.0, -1601.0]
    >>> print(against("(1/64, 0)", "the VAE", [690.0, 691.0], [-1800.0, -1801.0], *base))
    (1/64, 0) lies 190 nats above the VAE, its noise 200 lower, though its data fell by 10 too
    >>> print(against("(0, 1)", "the VAE", [600.0, 601.0], [-1610.0, -1611.0], *base))
    (0, 1) lies 90 nats below the VAE because its data term fell by 100, which says nothing about noise (10 lower)
    """
    difference, base_difference = (
        [a - b for a, b in zip(one, other, strict=True)] for one, other in ((data, noise), (base_data, base_noise))
    )
    if not beyond_error(difference, base_difference):
        return None
    by_data = statistics.fmean(data) - statistics.fmean(base_data)
    by_noise = statistics.fmean(noise) - statistics.fmean(base_noise)
    step = by_data - by_noise
    start = f"{label} lies {abs(step):.0f} nats {'above' if step > 0 else 'below'} {base}"
    other = f"{abs(by_noise):.0f} {'higher' if by_noise > 0 else 'lower'}"
    fall = fallen(data, noise, base_data, base_noise)
    if fall is not None:
        return f"{start} because its data term fell by {fall:.0f}, which says nothing about noise ({other})"
    if by_data < 0 and beyond_error(data, base_data):
        return f"{start}, its noise {other}, though its data fell by {-by_data:.0f} too"
    return f"{start}, its noise {other} and its data {abs(by_data):.0f} {'higher' if by_data > 0 else 'lower'}"


def fallen(
    data: Sequence[float], noise: Sequence[float], base_data: Sequence[float], base_noise: Sequence[float]
) -> float | None:
    """By how much the data term fell, if that is most of why data − noise is below that of a base; else None.

    >>> fallen([600.0], [-1610.0], [700.0], [-1600.0])
    100.0
    >>> fallen([690.0], [-1800.0], [700.0], [-1600.0]) is None
    True
    """
    by_data = statistics.fmean(data) - statistics.fmean(base_data)
    step = by_data - (statistics.fmean(noise) - statistics.fmean(base_noise))
    return -by_data if step < 0 and by_data < step / 2 else None
