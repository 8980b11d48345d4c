r"""Which centres can matter to a point, certified from a few coordinates.

Rotate kernel units by the principal axes of the centres and split the axes into the first r and groups g of
the others. By the Cauchy-Schwarz inequality in each group

    y · c' <= Σ_{k<=r} y_k c'_k + Σ_g |y_g| |c'_g|,

a product of vectors with r + G entries. It costs a fraction of the full product and bounds every score
t_ij = y_i · c'_j + b_j from above. A centre whose bound is farther below the score of one good centre than
the margin cannot matter, and most are: images vary mostly along few axes. For a draw the good centre is the
one it came from.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._centres import Centres
from ._pairs import Gathering, Pairs

AXES = 128
_SAMPLE = 4096
_ROWS_AT_ONCE = 2048
_TILE_COLUMNS = 512


class Sketch:
    """Reduced vectors (c'_1 … c'_r, |c'_g| …) of all centres, shape (n, r + G) in float32."""

    def __init__(self, centres: Centres) -> None:
        step = max(1, centres.size // _SAMPLE)
        some = centres.scaled(centres.raw[::step][:_SAMPLE])
        _, axes = torch.linalg.eigh(some.T @ some)
        self.axes = axes.flip(1).float()
        width = centres.width
        inner = [edge for edge in (AXES * 3 // 2, AXES * 2, AXES * 3) if edge < width]
        self._edges = [AXES, *inner, width]
        self.reduced = torch.empty(centres.size, AXES + len(self._edges) - 1, device=centres.raw.device)
        for low in range(0, centres.size, _ROWS_AT_ONCE):
            high = min(low + _ROWS_AT_ONCE, centres.size)
            self.reduced[low:high] = self.reduce(centres.block(low, high, torch.float32)[0])

    @staticmethod
    def slack(centres: Centres, half: Tensor) -> Tensor:
        """Rounding error of the bound, ten times the worst seen where it is tight (y parallel to c')."""
        share = 1.5e-7 * math.sqrt(centres.width)
        return share * (2.0 * half).sqrt() * centres.reach + 1e-7 * centres.reach**2

    def reduce(self, y: Tensor) -> Tensor:
        """Reduced vectors (q, r + G) of points (q, D) in kernel units."""
        rotated = y @ self.axes
        rest = [
            rotated[:, low:high].norm(dim=1, keepdim=True)
            for low, high in zip(self._edges[:-1], self._edges[1:], strict=True)
        ]
        return torch.cat([rotated[:, :AXES], *rest], dim=1)

    def candidates(
        self, centres: Centres, y: Tensor, margin: Tensor, error: Tensor, limit: int, own: Tensor | None
    ) -> tuple[Pairs, Tensor]:
        """Pairs (row, centre) that contain every score within ``margin`` of the row's best.

        Args:
            centres: where full scores come from.
            y: points in kernel units, float32, shape (q, D).
            margin: shape (q,); includes the rounding errors of both sides.
            error: rounding error of one full score, shape (q,).
            limit: rows with more candidates than this are given up.
            own: a good centre of each row, shape (q,), if one is known.

        Returns:
            The pairs, and a mask (q,) of rows given up.
        """
        reduced = self.reduce(y)
        every = torch.arange(len(y), device=y.device)
        known = y.new_full((len(y),), -math.inf)
        if own is not None:
            known = centres.scores(y, every, own) - error
        gathering = Gathering(y, limit)
        tile = y.new_empty(len(y) * min(_TILE_COLUMNS, centres.size))
        offset = centres.offset.float()
        for low in range(0, centres.size, _TILE_COLUMNS):
            high = min(low + _TILE_COLUMNS, centres.size)
            bounds = tile[: len(y) * (high - low)].view(len(y), high - low)
            torch.addmm(offset[low:high], reduced, self.reduced[low:high].T, out=bounds)
            best = bounds.amax(1)
            hit = ((best >= known - margin) & (gathering.found <= limit)).nonzero()[:, 0]
            if not len(hit):
                if bool((gathering.found > limit).all()):
                    break
                continue
            part = bounds[hit]
            if own is None:
                # The most promising centre of the tile raises what is known of the row's best score.
                promising = part.argmax(1) + low
                known[hit] = torch.maximum(known[hit], centres.scores(y, hit, promising) - error[hit])
            gathering.add(hit, part, (known - margin)[hit], low)
        return gathering.above(known - margin)
