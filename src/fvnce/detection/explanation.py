r"""Explanations: contributions of the columns to the anomaly score of a row, as numbers and plots.

    anomaly(x) = base + rest(x) + Σ_j [ratio_j(x) + reconstruction_j(x)]

All parts are given, including negative ones, so that they sum to the score. Parts are relative to their means over
training rows, including known outliers. So base is the mean score of these rows (except for the mean of the rest), and
a constant column has the part 0. A *reason* for a score is a column with a positive part. The importance of a column is
its fraction of the standard deviations of the parts over training rows,

    importance_j = sd(part_j) / Σ_i sd(part_i),

so importances are nonnegative and sum to one. Rows with extreme scores count most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from .. import _validation
from ..tables.arrays import channels_last
from .rows import Array, TrainingRows, read_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Largest number of rows of each class for computing importances, and of numbers in them.
IMPORTANCE_ROWS, IMPORTANCE_NUMBERS = 256, 2**20
#: Parts below this fraction of the largest part are not reasons.
SLIGHT = 0.1
#: Colors of parts that raise a score, and of parts that lower it.
HIGHER, LOWER = "#c0392b", "#2c6fad"


@dataclass(frozen=True)
class Explanation:
    """Contributions of columns to the anomaly score.

    Attributes:
        ratio: parts of the density ratio between noise and data, shape (n, D), for images (n, …).
        reconstruction: errors of the reconstruction, of the same shape; zeros without a latent-variable model.
        rest: part that cannot be attributed to a column, such as a quadrature error, shape (n,).
        base: mean score of training rows.
        names: names of the columns, or None.
        cause: parts that reasons are chosen by, of the same shape: those of the score, and those of novelty for rows
            flagged for their novelty alone; None if all are those of the score.

    >>> explanation = Explanation(np.array([[2.0, -0.5]]), np.zeros((1, 2)), np.zeros(1), 0.25, ("pressure", "flow"))
    >>> explanation.parts(0)
    {'pressure': 2.0, 'flow': -0.5, 'base': 0.25}
    >>> explanation.anomaly
    array([1.75])
    """

    ratio: Array
    reconstruction: Array
    rest: Array
    base: float
    names: tuple[str, ...] | None = None
    cause: Array | None = None

    @property
    def causes(self) -> Array:
        """Parts that reasons are chosen by: ``cause``, or those of the score."""
        return self.total if self.cause is None else self.cause

    @property
    def total(self) -> Array:
        """Sum of both kinds of parts: positive if a column makes the row more anomalous. For an image, a heat map."""
        return self.ratio + self.reconstruction

    @property
    def anomaly(self) -> Array:
        """Anomaly score: the sum of all parts."""
        flat = self.total.reshape(len(self.rest), -1)
        return np.asarray(flat.sum(1) + self.rest + self.base)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns; "column 0", … if they have none, "pixel (0, 0)", … for images."""
        if self.names is not None:
            return self.names
        if self.ratio.ndim == 2:
            return tuple(f"column {j}" for j in range(self.ratio.shape[1]))
        return tuple(f"pixel {place}" for place in np.ndindex(*self.ratio.shape[1:]))

    def __len__(self) -> int:
        return len(self.rest)

    def __getitem__(self, rows: int | slice | Sequence[int] | NDArray[Any]) -> Self:
        """Return the explanation of a subset of rows, or of one row if an integer is given."""
        keep = np.arange(len(self))[rows].reshape(-1)
        parts = (self.ratio[keep], self.reconstruction[keep], self.rest[keep])
        return type(self)(*parts, self.base, self.names, None if self.cause is None else self.cause[keep])

    def parts(self, row: int = 0) -> dict[str, float]:
        """Return the parts of the score of one row by name, by decreasing magnitude, then "rest" and "base".

        The parts sum to the score. A rest of zero is left out.
        """
        values = self.total[row].reshape(-1)
        order = np.argsort(-np.abs(values), kind="stable")
        columns = self.columns
        parts = {columns[j]: float(values[j]) for j in order}
        for name, value in (("rest", float(self.rest[row])), ("base", float(self.base))):
            if value != 0 or name == "base":
                # A column may itself be named "rest" or "base".
                parts[name if name not in parts else f"({name})"] = value
        return parts

    def reasons(self, row: int = 0, top: int = 3) -> list[int]:
        """Return the indices of the columns or flattened pixels with the largest positive parts, largest first.

        Parts below a tenth of the largest, and parts shared by several columns of a table, are left out.

        >>> Explanation(np.array([[0.2, 2.0, -1.0, 3.0]]), np.zeros((1, 4)), np.zeros(1), 0.0).reasons()
        [3, 1]
        """
        values = self.causes[row].reshape(-1)
        rounding = 1e-9 * max(1.0, float(np.abs(values).max(initial=0.0)))
        positive = values > max(rounding, SLIGHT * float(values.max(initial=0.0)))
        if self.ratio.ndim == 2:
            _, place, copies = np.unique(values, return_inverse=True, return_counts=True)
            positive &= copies[place] == 1
        order = np.argsort(-values, kind="stable")
        return [int(j) for j in order[positive[order]][:top]]

    def plot(self, row: int | None = None, *, top: int = 10, ax: Axes | None = None) -> Axes:
        """Plot bars for one row, dots for several rows, or a heat map for images.

        Bars show the ``top`` largest parts, the sum of all other columns, rest and base, which together sum to the
        score. Dots show contributions, in one line for each of the ``top`` columns with the largest mean magnitude.
        For several images the mean heat map is drawn.

        Args:
            row: index of the row to show; by default all rows.
            top: number of columns that are shown separately.
            ax: axes to draw on; by default those of a new figure.

        Returns:
            The axes.
        """
        _validation.count("top", top)
        if len(self) == 0:
            raise ValueError("an explanation must hold at least one row to be plotted, found none")
        ax = _axes(ax, 5.5, 3.5)
        shown = self if row is None else self[row]
        one = f"anomaly score {shown.anomaly[0]:.2f}" if len(shown) == 1 else None
        if self.ratio.ndim > 2:
            shown._plot_heat(ax)
            ax.set(xticks=[], yticks=[], title=one or f"mean of {len(shown):,} images")
            return ax
        labels = shown._plot_dots(ax, top) if one is None else shown._plot_bars(ax, top)
        ax.set_yticks(range(len(labels)), labels)
        ax.axvline(0, color="0.4", linewidth=0.8)
        ax.set(xlabel="part of the anomaly score", title=one or f"{len(shown):,} rows")
        return ax

    def _plot_bars(self, ax: Axes, top: int) -> Sequence[str]:
        """Plot bars for one row; return their labels."""
        parts = list(self.parts(0).items())
        width = self.ratio.shape[1]
        columns, ends = parts[:width], parts[width:]
        if width > top:
            others = sum(value for _, value in columns[top:])
            columns = [*columns[:top], (f"{width - top} other column{'s' * (width - top > 1)}", others)]
        labels, values = zip(*reversed([*columns, *ends]), strict=True)
        colors = [HIGHER if value > 0 else LOWER for value in values]
        bars = ax.barh(range(len(values)), values, color=colors)
        ax.bar_label(bars, fmt=lambda value: f"{round(value, 2) + 0.0:+.2f}", padding=2, fontsize="small")
        ax.margins(x=0.18)
        return labels

    def _plot_dots(self, ax: Axes, top: int) -> Sequence[str]:
        """Plot a line of dots for each column; return their labels."""
        total = self.total
        chosen = np.argsort(-np.abs(total).mean(0), kind="stable")[:top][::-1]
        # A fixed pattern instead of random offsets gives the same figure every time.
        jitter = 0.3 * np.sin(np.arange(len(self)) * 2.399963)
        for place, column in enumerate(chosen):
            colors = np.where(total[:, column] > 0, HIGHER, LOWER)
            ax.scatter(total[:, column], place + jitter, s=8, c=colors, alpha=0.6, linewidths=0)
        return [self.columns[column] for column in chosen]

    def _plot_heat(self, ax: Axes) -> None:
        heat = self.total.mean(0)
        heat = heat if heat.ndim == 2 else heat.sum(2 if channels_last(heat.shape) else 0)
        limit = float(np.abs(heat).max()) or 1.0
        drawn = ax.imshow(heat, cmap="RdBu_r", vmin=-limit, vmax=limit)
        ax.figure.colorbar(drawn, ax=ax, label="part of the anomaly score")


def importances_of(parts: Array, weights: Array) -> Array:
    """Return importances from parts of weighted rows, shape (D,); zeros if all parts are constant.

    >>> importances_of(np.array([[0.0, 1.0, 3.0], [2.0, 1.0, 2.0], [4.0, 1.0, 1.0]]), np.ones(3)).round(3)
    array([0.667, 0.   , 0.333])
    """
    probability = weights / weights.sum()
    deviations = np.sqrt(probability @ (parts - probability @ parts) ** 2)
    total = float(deviations.sum())
    return np.asarray(deviations / total) if total > 1e-12 else np.zeros(parts.shape[1])


def average_parts(rows: TrainingRows, explain: Callable[[Array], Explanation], seed: int) -> tuple[Array, Array]:
    """Return importances and mean parts over at most :data:`IMPORTANCE_ROWS` rows of each kind, each of shape (D,)."""
    rng = np.random.default_rng([seed, 81])
    most = max(2, min(IMPORTANCE_ROWS, IMPORTANCE_NUMBERS // rows.X.shape[1]))
    chosen, chosen_weights = [], []
    for X, weights in ((rows.X, rows.weights), (rows.outliers, rows.outlier_weights)):
        some = np.sort(rng.permutation(len(X))[:most])
        if len(some):
            chosen.append(X[some])
            chosen_weights.append(weights[some] * (weights.sum() / weights[some].sum()))
    weights = np.concatenate(chosen_weights)
    parts = explain(np.concatenate(chosen)).total.reshape(len(weights), -1)
    return importances_of(parts, weights), np.average(parts, 0, weights)


def plot_scores(anomaly: Array, threshold: float, y: Any = None, ax: Axes | None = None) -> Axes:
    """Plot a histogram of anomaly scores with the threshold; with y, outliers separately."""
    ax = _axes(ax, 5, 3)
    edges = np.histogram_bin_edges(anomaly, 50).tolist()
    if y is not None and np.shape(y) != anomaly.shape:
        raise ValueError(f"y must hold one label for each of the {len(anomaly)} rows, found shape {np.shape(y)}")
    known = np.zeros(len(anomaly), dtype=bool) if y is None else read_labels(y) == 1
    ax.hist(anomaly[~known], edges, color="0.7", label="rows")
    if known.any():
        ax.hist(anomaly[known], edges, color="0.15", label="outliers (y = 1)")
    ax.axvline(threshold, color="C1", linestyle="--", label="threshold")
    ax.set(xlabel="anomaly score", ylabel="rows", yscale="log")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)  # above the bars
    return ax


def _axes(ax: Axes | None, width: float, height: float) -> Axes:
    """Return the given axes, or the axes of a new figure of this size in inches."""
    if ax is not None:
        return ax
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained").subplots()
