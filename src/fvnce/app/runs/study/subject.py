"""The run and the rows that are looked at: all of them, or a sample that holds the known outliers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ....objectives import ContrastiveObjective
from ...readers.frame import Frame
from ..latent import Encoding, learn_encoding
from ..material import Material
from ..scorer import LoadedRun, OfLatent

Array = NDArray[np.float64]
Fact = dict[str, Any] | str
#: Rows scored for the page.
SCORED = 20_000


class Autoencoding:
    """An encoder g and a decoder, as functions of encoded rows."""

    def __init__(self, encoder: Any, decoder: Any) -> None:
        self._encoder, self._decoder = encoder, decoder

    @torch.no_grad()
    def codes(self, x: Array) -> Array:
        """g(x)."""
        return np.asarray(self._encoder(torch.from_numpy(x)).mean.numpy())

    @torch.no_grad()
    def rebuilt(self, x: Array) -> Array:
        """x̂."""
        return np.asarray(self._decoder(self._encoder(torch.from_numpy(x)).mean).mean.numpy())


@dataclass(frozen=True)
class Subject:
    """Rows of the material by their numbers, with their scores, and what the run has to show of them."""

    run: LoadedRun
    material: Material
    #: The numbers of the rows in the material, and the rows.
    numbers: NDArray[np.int64]
    rows: Any
    known: NDArray[np.bool_]
    anomaly: Array
    encoding: Encoding
    #: None if no part of the run has latent variables.
    autoencoding: Autoencoding | None
    rng: np.random.Generator

    @property
    def image(self) -> bool:
        """Whether rows are pictures."""
        return not isinstance(self.rows, Frame) and self.rows.ndim > 2

    def name(self, position: int) -> str | None:
        """The name of the row at a position, such as that of its file."""
        return None if self.material.names is None else self.material.names[int(self.numbers[position])]

    def cells(self, position: int, most: int = 8) -> str:
        """The values of the row at a position, in words."""
        if isinstance(self.rows, Frame):
            cells = list(self.rows.row(position).items())
        else:
            cells = list(zip(self.material.layout.columns, self.rows[position].tolist(), strict=True))
        shown = ", ".join(f"{name} {_cell(value)}" for name, value in cells[:most])
        return shown + (", …" if len(cells) > most else "")


def look(run: LoadedRun, material: Material) -> Subject:
    """Choose rows and score them."""
    rng = np.random.default_rng([run.settings.seed, 11])
    numbers = _sample(material, rng)
    rows = take(material.rows, numbers)
    return Subject(
        run=run,
        material=material,
        numbers=numbers,
        rows=rows,
        known=material.known[numbers],
        anomaly=run.scorer.anomaly(run.prepare(rows)),
        encoding=_encoding(run, material),
        autoencoding=_autoencoding(run),
        rng=rng,
    )


def take(rows: Any, chosen: Any) -> Any:
    """Some of the rows, whatever holds them."""
    return rows.take(chosen) if isinstance(rows, Frame) else np.asarray(rows[chosen])


def noise_of(run: LoadedRun) -> Any:
    """p_n of the run, or None."""
    if isinstance(run.scorer, OfLatent) and isinstance(run.scorer.detector.objective, ContrastiveObjective):
        return run.scorer.detector.objective.noise
    return None


def _sample(material: Material, rng: np.random.Generator) -> NDArray[np.int64]:
    count = len(material.known)
    if count <= SCORED:
        return np.arange(count)
    known = np.flatnonzero(material.known)[:SCORED]
    rest = rng.choice(np.flatnonzero(~material.known), SCORED - len(known), replace=False)
    return np.sort(np.concatenate([known, rest]))


def _encoding(run: LoadedRun, material: Material) -> Encoding:
    if isinstance(run.scorer, OfLatent):
        return run.scorer.detector.encoding
    keep = np.sort(np.random.default_rng(0).permutation(len(material.known))[:SCORED])
    known = material.known[keep]
    return learn_encoding(take(material.rows, keep), known if not known.all() else ~known)


def _autoencoding(run: LoadedRun) -> Autoencoding | None:
    if isinstance(run.scorer, OfLatent):
        objective = run.scorer.detector.objective
        return Autoencoding(objective.encoder, objective.model.decoder)
    for member in run.scorer.detector.ensemble_.members:
        if hasattr(member, "encoder") and hasattr(member, "decoder"):
            return Autoencoding(member.encoder, member.decoder)
    return None


def _cell(value: Any) -> str:
    if value is None or value != value:
        return "missing"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
