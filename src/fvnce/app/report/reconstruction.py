"""The section of reconstructions, of data, known outliers and noise, and of samples of the model."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ...detection import LatentDetector
from ...detection.preprocessing import ImagePreprocessor
from ...noise import draw
from ...pages.page import Section, Table
from .. import shapes
from .context import Context, Fact, short, shown, take
from .images import SHEET, sheet, sheet_figure

#: Columns that a table of columns shows.
_COLUMNS = 12


def _check_reconstructed(value: Any, place: str) -> None:
    if isinstance(value, dict) and "sheets" in value:
        shapes.record({"sheets": shapes.list_of(shapes.record({"name": shapes.text, "png": shapes.sheet}))})(
            value, place
        )
        return
    shapes.record({"columns": shapes.names, "errors": shapes.by_name(shapes.gaps)})(value, place)
    if any(len(errors) != len(value["columns"]) for errors in value["errors"].values()):
        raise shapes.ShapeError(f"{place} must have an error for each column")


def _check_samples(value: Any, place: str) -> None:
    if isinstance(value, dict) and "png" in value:
        shapes.record({"png": shapes.sheet})(value, place)
        return
    shapes.record(
        {"columns": shapes.names, "data": shapes.list_of(shapes.gaps, 2), "model": shapes.list_of(shapes.gaps, 2)}
    )(value, place)
    if any(len(numbers) != len(value["columns"]) for who in ("data", "model") for numbers in value[who]):
        raise shapes.ShapeError(f"{place} must have a mean and a deviation for each column")


check = shapes.record({"rebuilt": shapes.or_why(_check_reconstructed), "samples": shapes.or_why(_check_samples)})


def build(context: Context) -> dict[str, Any]:
    """Images beside their reconstructions and samples of the model, or numbers of each column."""
    return {"rebuilt": _reconstructed(context), "samples": _samples(context)}


def show(facts: dict[str, Any], record: dict[str, Any]) -> Section | None:
    """Sheets of images, or tables of columns."""
    rebuilt, samples = facts["rebuilt"], facts["samples"]
    if isinstance(rebuilt, str) and isinstance(samples, str):
        return None
    reading, blocks, tables = [], [], []
    if isinstance(rebuilt, dict) and "sheets" in rebuilt:
        for sheet in rebuilt["sheets"]:
            blocks.append(sheet_figure(sheet["png"], f"{sheet['name'].capitalize()}: above as given, below rebuilt."))
    elif isinstance(rebuilt, dict):
        groups = list(rebuilt["errors"])
        rows = [
            [name, *(shown(rebuilt["errors"][group][i]) for group in groups)]
            for i, name in enumerate(rebuilt["columns"][:_COLUMNS])
        ]
        tables.append(Table("Root mean square error of rebuilt columns, in deviations", ["column", *groups], rows))
    if isinstance(samples, dict) and "png" in samples:
        blocks.append(sheet_figure(samples["png"], "Samples of the model."))
    elif isinstance(samples, dict):
        rows = [
            [name, *(shown(samples[who][what][i]) for what in (0, 1) for who in ("data", "model"))]
            for i, name in enumerate(samples["columns"][:_COLUMNS])
        ]
        header = ["column", "mean, data", "mean, model", "deviation, data", "deviation, model"]
        tables.append(Table("Samples of the model beside the data, standardised columns", header, rows))
    if any(isinstance(part, dict) and len(part.get("columns", [])) > _COLUMNS for part in (rebuilt, samples)):
        reading.append(f"The first {_COLUMNS} columns are shown.")
    title = "Reconstructions and samples" if isinstance(samples, dict) else "Reconstructions"
    return Section(title, reading, tables=tables, blocks=blocks)


def _reconstructed(context: Context) -> Fact:
    """Images beside their reconstructions, or the root mean square error of each column."""
    autoencoder, scorer = context.autoencoder, context.run.scorer
    detector, how = scorer.detector, scorer.detector.preprocessor_
    if autoencoder is None:
        return "No member of this detector rebuilds rows; a run with --model latent does, and so does one on images."
    groups = {"training rows": detector.preprocess(take(context.rows, np.flatnonzero(~context.known)[:2000]))}
    if context.known.any():
        groups["known outliers"] = detector.preprocess(take(context.rows, np.flatnonzero(context.known)[:2000]))
    if context.noise is not None:
        generator = torch.Generator().manual_seed(context.run.config.seed)
        groups["noise"] = draw(context.noise, 500, generator).double().numpy()
    if isinstance(how, ImagePreprocessor):
        sheets = []
        for name, x in groups.items():
            some = x[: SHEET // 2]
            both = np.concatenate([some, autoencoder.reconstruct(some)])
            sheets.append({"name": name, "png": sheet(how.fold(both), len(some), 0.0, 1.0)})
        return {"sheets": sheets}
    errors = {name: np.sqrt(np.square(x - autoencoder.reconstruct(x)).mean(0)) for name, x in groups.items()}
    return {"columns": how.names(scorer.layout.columns), "errors": {name: short(e) for name, e in errors.items()}}


def _samples(context: Context) -> Fact:
    """Images drawn from the model, or the means and deviations of its columns beside those of the data."""
    detector = context.run.scorer.detector
    if not isinstance(detector, LatentDetector):
        return "A detector is no generative model, so it has no samples; a run with --model latent has."
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(context.run.config.seed)
        drawn = detector.objective_.model.sample(1000)
    x = (drawn[0] if isinstance(drawn, tuple) else drawn).double().numpy()
    how = detector.preprocessor_
    if isinstance(how, ImagePreprocessor):
        return {"png": sheet(how.fold(x[:SHEET]), SHEET // 2, 0.0, 1.0)}
    data = detector.preprocess(take(context.rows, np.flatnonzero(~context.known)[:5000]))
    return {
        "columns": how.names(context.run.scorer.layout.columns),
        "data": [short(data.mean(0)), short(data.std(0))],
        "model": [short(x.mean(0)), short(x.std(0))],
    }
