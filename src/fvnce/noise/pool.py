r"""Pool of noise samples with their log densities, renewed in slices during training.

Evaluating log p_n of a kernel density with many centers at every training step would cost far more than the step. A
pool evaluates ``size`` draws once and returns batches by index. With a fixed pool, a flexible model learns the pool
instead of p_n, so rows are renewed during training: r rows for each batch of n. With

    r = share / (1 − share) · (cost of a training step) / (cost of drawing a row),    at most n,

renewal takes the fraction ``share`` of the total time. Both costs are counted in floating-point operations instead of
measured, because equal seeds give equal runs only if the number of renewed rows does not depend on the machine's load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.distributions import Distribution

from .. import _validation
from .base import draw_with_log_prob, row_flops

_FILL_ROWS = 8192
_SLICE_ROWS = 64
_REFERENCE_UNITS = 256


class NoisePool:
    """Pool of noise samples: batches (x, log p_n(x)), renewed as they are used.

    Each pass over the pool has a new random order. Renewed rows replace the oldest ones in whole slices, before the
    first batch for which a slice is due.

    Args:
        noise: any distribution.
        size: number of samples kept.
        generator: for draws and order; by default a new one, seeded from torch's global generator.
        refresh: rows renewed per batch (any number >= 0; fractions accumulate), 0 for a fixed pool, None to derive it
            from the costs.
        refresh_share: fraction of training time that renewal may take, in [0, 1); used if ``refresh`` is None.
        step_flops: floating-point operations of one training step without its noise, about 6 × parameters × rows
            through the network. By default those of a reference step: data and noise rows through an autoencoder with
            one hidden layer of 256 units in encoder and decoder.
        progress: called with (rows drawn, size) while the pool is filled.

    Example:
        >>> noise = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
        >>> pool = NoisePool(noise, 1000, torch.Generator().manual_seed(0), refresh=10)
        >>> x, log_p = pool.batch(100)
        >>> bool((log_p == noise.log_prob(x)).all())
        True
    """

    def __init__(
        self,
        noise: Distribution,
        size: int,
        generator: torch.Generator | None = None,
        *,
        refresh: float | None = None,
        refresh_share: float = 0.2,
        step_flops: float | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.noise = noise
        self.size = _validation.count("size", size)
        self.refresh = None if refresh is None else _validation.number("refresh", refresh, low=0)
        self.refresh_share = _validation.number("refresh_share", refresh_share, low=0)
        if self.refresh_share >= 1:
            raise ValueError(f"refresh_share must be a number in [0, 1), found {refresh_share!r}")
        if step_flops is not None:
            step_flops = _validation.number("step_flops", step_flops, low=0, open_low=True)
        self.step_flops = step_flops
        self.generator = generator or torch.Generator().manual_seed(int(torch.randint(2**63 - 1, ())))
        self._x, self._log_prob = self._filled(progress)
        self._order = self._shuffled()
        self._cursor = 0
        self._oldest = 0
        self._due = 0.0
        self.batches = 0
        self.renewed = 0

    def batch(self, n: int, *, renew: bool = True) -> tuple[Tensor, Tensor]:
        """Return the next n samples and their log densities, of shapes (n,) + event_shape and (n,).

        Args:
            n: number of samples, at most the size of the pool.
            renew: whether to renew the rows that are due.
        """
        n = _validation.count("n", n)
        if n > self.size:
            raise ValueError(f"n must be at most the pool's size {self.size}, found {n}")
        if self.batches:
            self._renew(self.refresh_rows(n) if renew else 0.0)
        if self._cursor + n > self.size:
            self._order = self._shuffled()
            self._cursor = 0
        index = self._order[self._cursor : self._cursor + n].to(self._x.device, non_blocking=True)
        self._cursor += n
        self.batches += 1
        return self._x.index_select(0, index), self._log_prob.index_select(0, index)

    def refresh_rows(self, n: int) -> float:
        """Return the mean number of rows renewed for each batch of n."""
        if self.refresh is not None:
            return min(self.refresh, float(self.size))
        row = row_flops(self.noise)
        width = max(1, self.noise.event_shape.numel())
        step = self.step_flops or 12.0 * n * 4 * _REFERENCE_UNITS * width
        # If unknown, the cost of drawing a row is assumed to be that of training on a row.
        row = step / n if row is None else row
        return min(float(n), self.refresh_share / (1 - self.refresh_share) * step / row)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state as tensors, without the noise: enough to continue a run bit for bit."""
        counters = [self._cursor, self._oldest, self.batches, self.renewed]
        return {
            "x": self._x.clone(),
            "log_prob": self._log_prob.clone(),
            "order": self._order.clone(),
            "due": torch.tensor(self._due, dtype=torch.float64),
            "counters": torch.tensor(counters, dtype=torch.int64),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore a state of :meth:`state_dict`."""
        expected = self.state_dict()
        _validation.fields(state, "the state of a pool", *expected)
        for name in ("x", "log_prob", "order", "due", "counters"):
            if state[name].shape != expected[name].shape:
                raise ValueError(
                    f"state must hold {name} of shape {tuple(expected[name].shape)}, found {tuple(state[name].shape)}"
                )
        self._x = state["x"].to(self._x).clone()
        self._log_prob = state["log_prob"].to(self._log_prob).clone()
        self._order = state["order"].to(self._order).clone()
        self._due = float(state["due"])
        self._cursor, self._oldest, self.batches, self.renewed = state["counters"].tolist()
        self.generator.set_state(state["generator"].cpu())

    def __len__(self) -> int:
        return self.size

    def _filled(self, progress: Callable[[int, int], None] | None) -> tuple[Tensor, Tensor]:
        # Filled in place, as joining a list of parts would need twice the memory.
        for low in range(0, self.size, _FILL_ROWS):
            high = min(low + _FILL_ROWS, self.size)
            x, log_prob = draw_with_log_prob(self.noise, high - low, self.generator)
            if low == 0:
                all_x, all_log_prob = x.new_empty((self.size, *x.shape[1:])), log_prob.new_empty(self.size)
            all_x[low:high], all_log_prob[low:high] = x, log_prob
            if progress is not None:
                progress(high, self.size)
        return all_x, all_log_prob

    def _shuffled(self) -> Tensor:
        return torch.randperm(self.size, generator=self.generator, device=self.generator.device)

    def _renew(self, rows: float) -> None:
        # Small matrix products are slow, so rows are renewed in slices.
        self._due += rows
        step = min(_SLICE_ROWS, self.size)
        count = min(int(self._due // step) * step, self.size)
        if not count:
            return
        x, log_prob = draw_with_log_prob(self.noise, count, self.generator)
        where = torch.arange(self._oldest, self._oldest + count, device=self._x.device) % self.size
        self._x[where], self._log_prob[where] = x, log_prob
        self._oldest = (self._oldest + count) % self.size
        self._due = min(self._due - count, float(step))
        self.renewed += count
