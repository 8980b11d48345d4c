r"""How much a batch counts in training: a moving average that makes a profiled objective consistent.

The gradient of a profiled batch divides by a mean over few noise samples, ∇B̂/B̂, and E[∇B̂/B̂] ≠ ∇B/B however many such
batches are averaged. But E[B̂ · ∇B̂/B̂] = ∇B: a batch that counts in proportion to its own B̂ is unbiased. With P the
product of what a batch divides by (B̂, and for α > 0 also Â of the data, which is independent of it),

    E[ P/P̄ · (gradient of the batch) ]  =  E[P]/P̄ · (gradient of the population),       P̄ from earlier batches,

for *any* P̄ that knows nothing of this batch: it sets the length of a step, never its direction. P̄ is a moving average,
of all batches at first and then with weight 1 − momentum for the newest. Two things keep steps tame:

* P/P̄ is at most 1/(1 − momentum);
* where fewer than two batches carry P̄ (effective number (ΣP)²/ΣP²), because P is too uneven for its mean to be known or
  because the model moves fast, P/P̄ is mixed with 1, the more so the fewer they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Batches that must carry the average for it to be followed fully.
ENOUGH = 2.0


@dataclass
class Moving:
    """A moving average of P in the log domain.

    Attributes:
        count: batches seen.
        log_mean: log P̄.
        log_square: the log of the average of P².
        centre: the log of the average of e^c*, for the rules whose c* has no closed form.
    """

    count: float = 0.0
    log_mean: float = -math.inf
    log_square: float = -math.inf
    centre: float = -math.inf

    def weight(self, log_p: float, momentum: float) -> float:
        """How much a batch counts, before it is added.

        >>> moving = Moving()
        >>> moving.weight(3.0, 0.9)  # nothing to compare with
        1.0
        >>> for _ in range(5):
        ...     moving.add(0.0, 0.0, 0.9)
        >>> round(moving.weight(math.log(2.0), 0.9), 6), round(moving.weight(50.0, 0.9), 6)
        (2.0, 10.0)
        """
        if self.count == 0:
            return 1.0
        highest = 1 / (1 - momentum)
        ratio = math.exp(min(log_p - self.log_mean, math.log(highest)))
        carried = math.exp(2 * self.log_mean - self.log_square) * min(self.count, highest)
        plain = max(0.0, 1 - carried / ENOUGH)
        return ratio + plain * (1 - ratio)

    def add(self, log_p: float, c: float, momentum: float) -> None:
        """Take a batch into the averages."""
        new = max(1 - momentum, 1 / (self.count + 1))
        self.log_mean = _mix(self.log_mean, log_p, new)
        self.log_square = _mix(self.log_square, 2 * log_p, new)
        self.centre = _mix(self.centre, c, new)
        self.count += 1


def _mix(old: float, new: float, weight: float) -> float:
    """log((1 − weight) e^old + weight e^new)."""
    if weight == 1:
        return new
    one, other = old + math.log1p(-weight), new + math.log(weight)
    high = max(one, other)
    return high + math.log1p(math.exp(min(one, other) - high))
