r"""Numbers far outside of what training rows hold, which no model was shown.

What trees and networks say of such a row is chance: a number beyond the last split falls into the last cell. With known
outliers to learn from, they are trusted more than the neighbours, who do see how far away it is. So the score has one
part of its own for it. With m_j the middle and h_j half the range of a column over the training rows without a label,

    excess_j(x) = max(0, |x_j − m_j| / h_j − 2),

zero unless x_j lies more than twice as far from the middle as any training row, and so zero on these. Another row like
them is beyond the largest of n numbers with probability 1/(n + 1), beyond twice that far with much less: excess has
next to no say in which of two usual rows is stranger. It is bounded, at :data:`MOST` for a column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from .plan import Array
from .stored import require, require_array

#: The largest excess of a column.
MOST = 30.0


@dataclass(frozen=True)
class Span:
    """The range of each column over the training rows.

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
