"""What every section of a report is built from: the run, the rows that are analysed, and numbers as a page keeps them.

All rows are analysed, or a sample that holds the known outliers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...detection import LatentDetector
from ...detection.frame import Frame
from ...detection.preprocessing import channels_last
from ...detection.rows import take as take_rows
from ...objectives import ContrastiveObjective
from ..runs.run import FittedRun
from ..runs.training_data import TrainingData

Array = NDArray[np.float64]
#: An entry of ``analysis.json``, or a sentence that says why a run has none.
Fact = dict[str, Any] | str
#: Rows scored for the page.
SCORED = 20_000
#: Bins of a histogram.
BINS = 40


class Autoencoder:
    """An encoder g and a decoder, as functions of encoded rows."""

    def __init__(self, encoder: Any, decoder: Any) -> None:
        self._encoder, self._decoder = encoder, decoder

    @torch.no_grad()
    def codes(self, x: Array) -> Array:
        """g(x), the mean of the encoder."""
        return np.asarray(self._encoder(torch.from_numpy(x)).mean.numpy())

    @torch.no_grad()
    def reconstruct(self, x: Array) -> Array:
        """x̂, the mean of the decoder at g(x)."""
        return np.asarray(self._decoder(self._encoder(torch.from_numpy(x)).mean).mean.numpy())


@dataclass(frozen=True)
class Context:
    """Rows of the training data with their scores, and what the run has to show of them."""

    run: FittedRun
    data: TrainingData
    #: Rows that the model did not see, encoded, if some were held out.
    held_out: Tensor | None
    #: The numbers of the analysed rows in the training data, and the rows.
    numbers: NDArray[np.int64]
    rows: Any
    known: NDArray[np.bool_]
    anomaly: Array
    #: None if no part of the run has latent variables.
    autoencoder: Autoencoder | None
    rng: np.random.Generator

    @property
    def image(self) -> bool:
        """Whether rows are pictures."""
        return not isinstance(self.rows, Frame) and self.rows.ndim > 2

    @property
    def noise(self) -> Any:
        """p_n of the run, or None."""
        objective = self.run.objective
        return objective.noise if isinstance(objective, ContrastiveObjective) else None

    def name(self, position: int) -> str | None:
        """The name of the row at a position, such as that of its file."""
        if self.data.names is None:
            return None
        name = self.data.names[int(self.numbers[position])]
        # An identifier that is a number would be taken for the number of the row.
        return f"id {name}" if self.run.config.data.id is not None and name.isdecimal() else name

    def row(self, position: int) -> list[str]:
        """The values of the row at a position, in words, in the order of the columns."""
        if isinstance(self.rows, Frame):
            return [_cell(value) for value in self.rows.row(position).values()]
        return [_cell(value) for value in self.rows[position].tolist()]

    def fold_channels(self, pixels: Array) -> Array:
        """Numbers of the pixels of one image, summed over its channels, shape (H, W)."""
        shape = self.data.layout.shape
        assert shape is not None
        folded = pixels.reshape(shape)
        return folded if folded.ndim == 2 else folded.sum(-1 if channels_last(shape) else 0)


def build_context(run: FittedRun, data: TrainingData, held_out: Tensor | None) -> Context:
    """Choose rows and score them."""
    rng = np.random.default_rng([run.config.seed, 11])
    numbers = _sample(data, rng)
    rows = take(data.rows, numbers)
    return Context(
        run=run,
        data=data,
        held_out=held_out,
        numbers=numbers,
        rows=rows,
        known=data.known[numbers],
        anomaly=run.scorer.anomaly(run.scorer.layout.prepare(rows)),
        autoencoder=_autoencoder(run),
        rng=rng,
    )


def take(rows: Any, chosen: Any) -> Any:
    """Some of the rows, whatever holds them."""
    return rows.take(chosen) if isinstance(rows, Frame) else np.asarray(take_rows(rows, chosen))


def short(values: Any) -> list[float | None]:
    """Five digits, and None for what is not finite: what JSON can hold."""
    return [None if not math.isfinite(v) else float(f"{v:.5g}") for v in np.asarray(values, dtype=np.float64).tolist()]


def shown(value: float | None, digits: int = 3) -> str:
    """A number for a reader: so many digits, or a dash."""
    return "–" if value is None else f"{value:.{digits}g}"


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


def _sample(data: TrainingData, rng: np.random.Generator) -> NDArray[np.int64]:
    count = len(data.known)
    if count <= SCORED:
        return np.arange(count)
    known = np.flatnonzero(data.known)[:SCORED]
    rest = rng.choice(np.flatnonzero(~data.known), SCORED - len(known), replace=False)
    return np.sort(np.concatenate([known, rest]))


def _autoencoder(run: FittedRun) -> Autoencoder | None:
    detector = run.scorer.detector
    if isinstance(detector, LatentDetector):
        return Autoencoder(detector.objective_.encoder, detector.objective_.model.decoder)
    for member in detector.ensemble_.members:
        if hasattr(member, "encoder") and hasattr(member, "decoder"):
            return Autoencoder(member.encoder, member.decoder)
    return None


def _cell(value: Any) -> str:
    if value is None or value != value:
        return "missing"
    if isinstance(value, np.datetime64):
        return str(value.astype("datetime64[s]")).replace("T", " ").removesuffix(" 00:00:00")
    return f"{value:.4g}" if isinstance(value, float) else str(value)
