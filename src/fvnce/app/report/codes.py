"""Sections of how the model sees rows: in two dimensions, as rebuilt from their codes, and samples beside them.

A point of the plane is a row, or its code g(x), the mean of the encoder; a row is rebuilt as the mean of the decoder at
g(x). Noise and known outliers are rebuilt too: a good model does it badly.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from markupsafe import Markup
from numpy.typing import NDArray

from ...detection import LatentDetector, NoiseContrastiveDetector
from ...detection.preprocessing import ImagePreprocessor
from ...noise import draw
from ...pages import png_uri, script_json, visible
from ...pages.charts import scatter_chart
from ...pages.page import Section, Table, render
from .. import shapes
from .context import SHEET, Array, Context, Fact, sheet, sheet_figure, short, shown, sprite, take

#: Points of the plane; of these at most so many are the strangest rows, and known outliers.
POINTS, STRANGE, KNOWN = 600, 50, 150
#: Columns that are told of a point, and that a table shows.
CELLS, COLUMNS = 8, 12


def _check_rebuilt(value: Any, place: str) -> None:
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
    two = shapes.list_of(shapes.gaps, 2)
    shapes.record({"columns": shapes.names, "data": two, "model": two})(value, place)
    if any(len(numbers) != len(value["columns"]) for who in ("data", "model") for numbers in value[who]):
        raise shapes.ShapeError(f"{place} must have a mean and a deviation for each column")


_sprite = shapes.record(
    {"png": shapes.picture, **dict.fromkeys(("across", "width", "height"), shapes.integer(1, 10**6))}
)
check = shapes.record(
    {
        "plane": shapes.alike(
            {
                **dict.fromkeys(("x", "y"), shapes.list_of(shapes.number)),
                "known": shapes.list_of(shapes.integer(0, 1)),
                "score": shapes.gaps,
                "text": shapes.names,
            },
            {
                "of": shapes.matching("rows|codes", "'rows' or 'codes'"),
                "size": shapes.integer(),
                "share": shapes.reported,
            },
            {"sprite": _sprite},
        ),
        "rebuilt": shapes.or_why(_check_rebuilt),
        "samples": shapes.or_why(_check_samples),
    }
)


class Autoencoder:
    """An encoder g and a decoder, as functions of encoded rows."""

    def __init__(self, encoder: Any, decoder: Any) -> None:
        self._encoder, self._decoder = encoder, decoder

    @classmethod
    def of(cls, detector: LatentDetector | NoiseContrastiveDetector) -> Self | None:
        """That of a detector; None if no part of it has latent variables."""
        if isinstance(detector, LatentDetector):
            return cls(detector.objective_.encoder, detector.objective_.model.decoder)
        for member in detector.ensemble_.members:
            if hasattr(member, "encoder") and hasattr(member, "decoder"):
                return cls(member.encoder, member.decoder)
        return None

    @torch.no_grad()
    def codes(self, x: Array) -> Array:
        """g(x)."""
        return np.asarray(self._encoder(torch.from_numpy(x)).mean.numpy())

    @torch.no_grad()
    def reconstruct(self, x: Array) -> Array:
        """The mean of the decoder at g(x)."""
        return np.asarray(self._decoder(self._encoder(torch.from_numpy(x)).mean).mean.numpy())


def build(context: Context) -> dict[str, Any]:
    """Coordinates of some rows, with what to say of each; reconstructions and samples, or numbers of each column."""
    autoencoder = Autoencoder.of(context.run.detector)
    return {
        "plane": _plane(context, autoencoder),
        "rebuilt": _rebuilt(context, autoencoder),
        "samples": _samples(context),
    }


def show(facts: dict[str, Any], record: dict[str, Any]) -> list[Section]:
    """A chart, and the place where the row under the pointer is told; sheets of images, or tables of columns."""
    rebuilt, samples = facts["rebuilt"], facts["samples"]
    if isinstance(rebuilt, str) and isinstance(samples, str):
        return [_show_plane(facts["plane"])]
    return [_show_plane(facts["plane"]), _show_reconstructions(rebuilt, samples)]


def _plane(context: Context, autoencoder: Autoencoder | None) -> dict[str, Any]:
    index = _some(context)
    part = take(context.rows, index)
    detector = context.run.detector
    x = detector.preprocess(part)
    values = x if autoencoder is None else autoencoder.codes(x)
    at, share = principal_plane(values)
    found: dict[str, Any] = {
        "of": "rows" if autoencoder is None else "codes",
        "size": values.shape[1],
        "share": share,
        "x": short(at[:, 0]),
        "y": short(at[:, 1]),
        "known": context.known[index].astype(int).tolist(),
        "score": short(context.anomaly[index]),
        "text": [_item(context, int(i)) for i in index],
    }
    how = detector.preprocessor_
    if isinstance(how, ImagePreprocessor):
        found["sprite"] = sprite(np.asarray(part, dtype=np.float64), how.low, how.high)
    return found


def _show_plane(plane: dict[str, Any]) -> Section:
    codes = plane["of"] == "codes"
    titles = [
        f"{visible(text)} · score {shown(score, 4)}" for text, score in zip(plane["text"], plane["score"], strict=True)
    ]
    names = ["rows", "known outliers"] if any(plane["known"]) else ["rows"]
    chart = scatter_chart(
        "plane",
        plane["x"],
        plane["y"],
        plane["known"],
        names,
        titles,
        labels=("first direction", "second direction"),
        caption="Each point is a row. Point at one, or give the chart the focus and use the arrow keys.",
        alt=f"{len(titles)} rows as points in two dimensions",
    )
    what = (
        f"The {plane['size']}-dimensional codes of rows"
        if codes
        else f"Rows, as the model sees them in {plane['size']} standardised columns,"
    )
    reading = [f"{what} along the two directions in which they vary most, {plane['share']:.0%} of the variance."]
    held = plane.get("sprite")
    size = None if held is None else {key: held[key] for key in ("across", "width", "height")}
    picture = "" if held is None else f"background-image:url({png_uri(held['png'])})"
    items = Markup(script_json({"text": titles, "sprite": size}))
    block = render("fvnce.app", "plane.html", picture=picture, items=items)
    title = "Latent space" if codes else "Rows in two dimensions"
    return Section(title, reading, charts=[replace(chart, attributes='tabindex="0" data-plane')], blocks=[block])


def principal_plane(values: Array) -> tuple[Array, float]:
    """Coordinates along the two directions of most variance, and their share of the variance.

    >>> at, share = principal_plane(np.array([[0.0, 0.0, 5.0], [4.0, 0.0, 5.0]]))
    >>> np.abs(at).round(3).tolist(), round(share, 3)
    ([[2.0, 0.0], [2.0, 0.0]], 1.0)
    """
    centred = values - values.mean(0)
    _, size, directions = np.linalg.svd(centred, full_matrices=False)
    if directions.shape[0] < 2:
        directions = np.vstack([directions, np.zeros_like(directions)])[:2]
        size = np.append(size, 0.0)
    # The sign of a direction is arbitrary; this choice makes it the same everywhere.
    largest = directions[:2][np.arange(2), np.abs(directions[:2]).argmax(1)]
    directions = directions[:2] * np.sign(largest + 1e-300)[:, None]
    total = float((size**2).sum()) or 1.0
    return centred @ directions.T, float((size[:2] ** 2).sum() / total)


def _some(context: Context) -> NDArray[np.int64]:
    """The strangest rows, known outliers, and a random choice of the rest."""
    count = len(context.anomaly)
    order = np.argsort(-context.anomaly, kind="stable")
    some = set(order[:STRANGE].tolist()) | set(np.flatnonzero(context.known)[:KNOWN].tolist())
    for position in context.rng.permutation(count).tolist():
        if len(some) >= min(POINTS, count):
            break
        some.add(position)
    return np.array(sorted(some))


def _item(context: Context, position: int) -> str:
    name = context.name(position) or f"row {int(context.numbers[position]) + 1}"
    if context.image:
        return name
    cells = list(zip(context.data.layout.columns, context.row(position), strict=True))
    told = ", ".join(f"{column} {value}" for column, value in cells[:CELLS])
    return f"{name}: {told}{', …' if len(cells) > CELLS else ''}"


def _show_reconstructions(rebuilt: Fact, samples: Fact) -> Section:
    reading, blocks, tables = [], [], []
    if isinstance(rebuilt, dict) and "sheets" in rebuilt:
        for sheet in rebuilt["sheets"]:
            blocks.append(sheet_figure(sheet["png"], f"{sheet['name'].capitalize()}: above as given, below rebuilt."))
    elif isinstance(rebuilt, dict):
        groups = list(rebuilt["errors"])
        rows = [
            [name, *(shown(rebuilt["errors"][group][i]) for group in groups)]
            for i, name in enumerate(rebuilt["columns"][:COLUMNS])
        ]
        tables.append(Table("Root mean square error of rebuilt columns, in deviations", ["column", *groups], rows))
    if isinstance(samples, dict) and "png" in samples:
        blocks.append(sheet_figure(samples["png"], "Samples of the model."))
    elif isinstance(samples, dict):
        rows = [
            [name, *(shown(samples[who][what][i]) for what in (0, 1) for who in ("data", "model"))]
            for i, name in enumerate(samples["columns"][:COLUMNS])
        ]
        header = ["column", "mean, data", "mean, model", "deviation, data", "deviation, model"]
        tables.append(Table("Samples of the model beside the data, standardised columns", header, rows))
    if any(isinstance(part, dict) and len(part.get("columns", [])) > COLUMNS for part in (rebuilt, samples)):
        reading.append(f"The first {COLUMNS} columns are shown.")
    title = "Reconstructions and samples" if isinstance(samples, dict) else "Reconstructions"
    return Section(title, reading, tables=tables, blocks=blocks, appendix=True)


def _rebuilt(context: Context, autoencoder: Autoencoder | None) -> Fact:
    """Images beside their reconstructions, or the root mean square error of each column."""
    detector, how = context.run.detector, context.run.detector.preprocessor_
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
    return {
        "columns": how.names(context.run.layout.columns),
        "errors": {name: short(e) for name, e in errors.items()},
    }


def _samples(context: Context) -> Fact:
    """Images drawn from the model, or the means and deviations of its columns beside those of the data."""
    detector = context.run.detector
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
        "columns": how.names(context.run.layout.columns),
        "data": [short(data.mean(0)), short(data.std(0))],
        "model": [short(x.mean(0)), short(x.std(0))],
    }
