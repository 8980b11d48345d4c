"""Numbers as the page keeps them: short, finite, and counted on common edges."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
BINS = 40


def short(values: Any) -> list[float | None]:
    """Five digits, and None for what is not finite: what JSON can hold."""
    return [None if not math.isfinite(v) else float(f"{v:.5g}") for v in np.asarray(values, dtype=np.float64).tolist()]


def histogram(values: dict[str, Array]) -> dict[str, Any]:
    """Counts of each group on common edges, the outermost thousandths gathered in the end bins."""
    together = np.concatenate(list(values.values()))
    low, high = np.quantile(together, [0.001, 0.999])
    edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    return {
        "edges": short(edges),
        "counts": {
            name: np.histogram(np.clip(v, edges[0], edges[-1]), edges)[0].tolist() for name, v in values.items()
        },
    }
