"""What the page tells of a run, as plain numbers and PNG images, so that it can be drawn again without the data.

Each part is a dictionary, or a sentence that says why a run has no such part.
"""

from __future__ import annotations

import base64
import io
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data.frame import Frame
from ..diagnostics import diagnose
from ..noise import draw
from ..objectives import ContrastiveObjective
from ..training import History
from .latent import Encoding, LatentDetector, learn_encoding
from .material import Material
from .scorer import LoadedRun, OfDetector, OfLatent
from .streaming import reasons_of

Array = NDArray[np.float64]
Fact = dict[str, Any] | str

#: Rows scored for the page, points of the plane, points of a curve, rows of the list, pictures of a sheet.
SCORED, POINTS, CURVE, TOP, SHEET = 20_000, 600, 300, 10, 24
BINS = 40


def study(
    run: LoadedRun, material: Material, histories: list[tuple[str, History]], held_out: Tensor | None
) -> dict[str, Any]:
    """All parts."""
    rng = np.random.default_rng([run.settings.seed, 11])
    chosen = _sample(material, rng)
    rows, known = _take(material.rows, chosen), material.known[chosen]
    anomaly = run.scorer.anomaly(run.prepare(rows))
    encoding = _encoding(run, material)
    latent = _latent(run)
    return {
        "histories": [_history(name, history) for name, history in histories],
        "scores": _scores(anomaly, known, run.scorer.threshold),
        "probability": _probability(run, anomaly),
        "plane": _plane(run, material, rows, known, anomaly, chosen, encoding, latent, rng),
        "rebuilt": _rebuilt(rows, known, encoding, latent, run),
        "samples": _samples(rows, known, encoding, run),
        "top": _top(run, material, rows, known, anomaly, chosen),
        "flagged": int((anomaly > run.scorer.threshold)[~known].sum()),
        "looked_at": len(anomaly),
        "unlabelled": int((~known).sum()),
        **_ratio_facts(run, held_out),
    }


def _sample(material: Material, rng: np.random.Generator) -> NDArray[np.int64]:
    count = len(material.known)
    if count <= SCORED:
        return np.arange(count)
    known = np.flatnonzero(material.known)[:SCORED]
    rest = rng.choice(np.flatnonzero(~material.known), SCORED - len(known), replace=False)
    return np.sort(np.concatenate([known, rest]))


def _take(rows: Any, chosen: Any) -> Any:
    return rows.take(chosen) if isinstance(rows, Frame) else np.asarray(rows[chosen])


def _encoding(run: LoadedRun, material: Material) -> Encoding:
    if isinstance(run.scorer, OfLatent):
        return run.scorer.detector.encoding
    keep = np.sort(np.random.default_rng(0).permutation(len(material.known))[:SCORED])
    known = material.known[keep]
    return learn_encoding(_take(material.rows, keep), known if not known.all() else ~known)


def _latent(run: LoadedRun) -> Any:
    """Something with an encoder and a decoder, if the run has one."""
    if isinstance(run.scorer, OfLatent):
        objective = run.scorer.detector.objective
        return _Pair(objective.encoder, objective.model.decoder)
    for member in run.scorer.detector.ensemble_.members:
        if hasattr(member, "encoder") and hasattr(member, "decoder"):
            return _Pair(member.encoder, member.decoder)
    return None


class _Pair:
    def __init__(self, encoder: Any, decoder: Any) -> None:
        self._encoder, self._decoder = encoder, decoder

    @torch.no_grad()
    def codes(self, x: Array) -> Array:
        return np.asarray(self._encoder(torch.from_numpy(x)).mean.numpy())

    @torch.no_grad()
    def rebuilt(self, x: Array) -> Array:
        return np.asarray(self._decoder(self._encoder(torch.from_numpy(x)).mean).mean.numpy())


def _history(name: str, history: History) -> dict[str, Any]:
    def thin(columns: dict[str, list[float]], wanted: tuple[str, ...], at: str) -> dict[str, list[float | None]]:
        if at not in columns:
            return {}
        step = max(1, math.ceil(len(columns[at]) / CURVE))
        return {
            key: [None if math.isnan(v) else float(f"{v:.6g}") for v in values[::step]]
            for key, values in columns.items()
            if key == at or key in wanted
        }

    every = history.to_dict()
    noise = ("live_noise", "ess_noise", "ess_data", "zero_noise")
    return {
        "name": name,
        "epochs": thin(every["epochs"], ("loss", "val_loss", "val_live_noise", *noise), "epoch"),
        "steps": thin(every["steps"], ("loss", *noise), "step"),
        "notes": {key: value for key, value in history.notes.items() if isinstance(value, str | int | float)},
    }


def _histogram(values: dict[str, Array]) -> dict[str, Any]:
    together = np.concatenate(list(values.values()))
    low, high = np.quantile(together, [0.001, 0.999])
    edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    return {
        "edges": _short(edges),
        "counts": {
            name: np.histogram(np.clip(v, edges[0], edges[-1]), edges)[0].tolist() for name, v in values.items()
        },
    }


def _scores(anomaly: Array, known: NDArray[np.bool_], threshold: float) -> dict[str, Any]:
    groups = {"training rows": anomaly[~known]}
    if known.any():
        groups["known outliers"] = anomaly[known]
    return {**_histogram(groups), "threshold": threshold}


def _probability(run: LoadedRun, anomaly: Array) -> Fact:
    at = np.linspace(float(anomaly.min()), float(anomaly.max()), 80)
    probability = run.scorer.probability(at)
    if probability is None or not isinstance(run.scorer, OfDetector):
        return "A latent-variable model gives a ranking and a threshold, no probability of being an outlier."
    detector = run.scorer.detector
    return {
        "score": _short(at),
        "probability": _short(probability),
        "prior": float(detector.prior_),
        "known": int(detector.n_known_),
    }


def _plane(
    run: LoadedRun,
    material: Material,
    rows: Any,
    known: NDArray[np.bool_],
    anomaly: Array,
    chosen: NDArray[np.int64],
    encoding: Encoding,
    latent: Any,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Two coordinates of rows: their codes, or the rows themselves, along the two directions of most variance."""
    order = np.argsort(-anomaly, kind="stable")
    some = set(order[:50].tolist()) | set(np.flatnonzero(known)[:150].tolist())
    for position in rng.permutation(len(anomaly)).tolist():
        if len(some) >= min(POINTS, len(anomaly)):
            break
        some.add(position)
    index = np.array(sorted(some))
    part = _take(rows, index)
    x = encoding(part)
    values = x if latent is None else latent.codes(x)
    centred = values - values.mean(0)
    _, size, directions = np.linalg.svd(centred, full_matrices=False)
    if directions.shape[0] < 2:
        directions = np.vstack([directions, np.zeros_like(directions)])[:2]
        size = np.append(size, 0.0)
    # The sign of a direction is arbitrary; this choice makes it the same everywhere.
    directions = (
        directions[:2] * np.sign(directions[:2][np.arange(2), np.abs(directions[:2]).argmax(1)] + 1e-300)[:, None]
    )
    plane = centred @ directions.T
    total = float((size**2).sum()) or 1.0
    fact: dict[str, Any] = {
        "of": "codes" if latent is not None else "rows",
        "size": values.shape[1],
        "share": float((size[:2] ** 2).sum() / total),
        "x": _short(plane[:, 0]),
        "y": _short(plane[:, 1]),
        "known": known[index].astype(int).tolist(),
        "score": _short(anomaly[index]),
        "text": [_item(material, rows, int(i), chosen) for i in index],
    }
    if encoding.image is not None:
        fact["sprite"] = _sprite(np.asarray(part, dtype=np.float64), encoding.image.low, encoding.image.high)
    return fact


def _item(material: Material, rows: Any, position: int, chosen: NDArray[np.int64]) -> str:
    number = int(chosen[position])
    name = material.names[number] if material.names is not None else f"row {number + 1}"
    if not isinstance(rows, Frame) and rows.ndim > 2:
        return name
    return f"{name}: {_values(material, rows, position)}"


def _values(material: Material, rows: Any, position: int, most: int = 8) -> str:
    if isinstance(rows, Frame):
        cells = list(rows.row(position).items())
    else:
        cells = list(zip(material.layout.columns, rows[position].tolist(), strict=True))
    shown = ", ".join(f"{name} {_cell(value)}" for name, value in cells[:most])
    return shown + (", …" if len(cells) > most else "")


def _cell(value: Any) -> str:
    if value is None or value != value:
        return "missing"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _top(
    run: LoadedRun,
    material: Material,
    rows: Any,
    known: NDArray[np.bool_],
    anomaly: Array,
    chosen: NDArray[np.int64],
) -> list[dict[str, Any]]:
    positions = np.flatnonzero(~known)
    positions = positions[np.argsort(-anomaly[positions], kind="stable")[:TOP]]
    part = _take(rows, positions)
    probability = run.scorer.probability(anomaly[positions])
    image = not isinstance(rows, Frame) and rows.ndim > 2
    maps = run.scorer.contributions(part) if image else None
    found = []
    reasons = list(reasons_of(run, run.prepare(part), np.arange(len(positions))))
    for i, position in enumerate(positions.tolist()):
        number = int(chosen[position])
        entry: dict[str, Any] = {
            "name": material.names[number] if material.names is not None else str(number + 1),
            "score": float(anomaly[position]),
            "probability": None if probability is None else float(probability[i]),
            "reasons": reasons[i],
            "values": "" if image else _values(material, rows, position),
        }
        if maps is not None:
            picture = np.asarray(part[i], dtype=np.float64)
            entry["picture"] = _png(_grey_or_colour(picture, float(picture.min()), float(picture.max())))
            heat = maps[i] if maps[i].ndim == 2 else maps[i].sum(0)
            entry["heat"] = _png(np.clip(heat / (np.abs(heat).max() or 1.0), 0, 1))
        found.append(entry)
    return found


def _rebuilt(rows: Any, known: NDArray[np.bool_], encoding: Encoding, latent: Any, run: LoadedRun) -> Fact:
    if latent is None:
        return "No member of this detector rebuilds rows; a run with --latent does, and so does one on images."
    groups = {"training rows": encoding(_take(rows, np.flatnonzero(~known)[:2000]))}
    if known.any():
        groups["known outliers"] = encoding(_take(rows, np.flatnonzero(known)[:2000]))
    noise = _noise_of(run)
    if noise is not None:
        generator = torch.Generator().manual_seed(run.settings.seed)
        groups["noise"] = draw(noise, 500, generator).double().numpy()
    if encoding.image is not None:
        sheets = []
        for name, x in groups.items():
            some = x[: SHEET // 2]
            both = np.concatenate([some, latent.rebuilt(some)])
            pictures = encoding.image.decode(both)
            sheets.append({"name": name, "png": _sheet(pictures, len(some), 0.0, 1.0)})
        return {"sheets": sheets}
    errors = {name: np.sqrt(np.square(x - latent.rebuilt(x)).mean(0)) for name, x in groups.items()}
    return {"columns": _encoded_names(encoding, run), "errors": {name: _short(e) for name, e in errors.items()}}


def _samples(rows: Any, known: NDArray[np.bool_], encoding: Encoding, run: LoadedRun) -> Fact:
    if not isinstance(run.scorer, OfLatent):
        return "A detector is no generative model, so it has no samples; a run with --latent has."
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(run.settings.seed)
        drawn = run.scorer.detector.objective.model.sample(1000)
    x = (drawn[0] if isinstance(drawn, tuple) else drawn).double().numpy()
    if encoding.image is not None:
        return {"png": _sheet(encoding.image.decode(x[:SHEET]), SHEET // 2, 0.0, 1.0)}
    data = encoding(_take(rows, np.flatnonzero(~known)[:5000]))
    return {
        "columns": _encoded_names(encoding, run),
        "data": [_short(data.mean(0)), _short(data.std(0))],
        "model": [_short(x.mean(0)), _short(x.std(0))],
    }


def _encoded_names(encoding: Encoding, run: LoadedRun) -> list[str]:
    names: list[str] = []
    assert encoding.columns is not None
    for position, (name, column) in enumerate(zip(run.layout.columns, encoding.columns, strict=True)):
        if column.categories is None:
            names += [name, *([f"{name} is missing"] if column.missing else [])]
            continue
        codes = (encoding.categories or [])[position] or {}
        texts = {code: text for text, code in codes.items()}
        names += [*(f"{name} = {texts.get(code, code)}" for code in column.categories), f"{name} = other"]
    return names


def _noise_of(run: LoadedRun) -> Any:
    if isinstance(run.scorer, OfLatent) and isinstance(run.scorer.detector.objective, ContrastiveObjective):
        return run.scorer.detector.objective.noise
    return None


def _ratio_facts(run: LoadedRun, held_out: Tensor | None) -> dict[str, Any]:
    """Log-ratios of data and noise, the classifier they make, log Z."""
    if isinstance(run.scorer, OfDetector):
        none = (
            "A detector averages several models of the ratio and keeps none of their noise; a run with --latent has it."
        )
        return {"ratios": none, "reliability": none, "log_partition": none, "advice": []}
    detector: LatentDetector = run.scorer.detector
    if _noise_of(run) is None or held_out is None:
        none = "This run has no noise: its objective is that of an autoencoder."
        return {"ratios": none, "reliability": none, "log_partition": none, "advice": []}
    objective = detector.objective
    x = held_out[:2000].double()
    generator = torch.Generator().manual_seed(run.settings.seed)
    found = diagnose(objective, x, samples=max(500, len(x)), latent_samples=32, generator=generator)
    noise = draw(objective.noise, 1000, generator).double()
    with torch.no_grad():
        scale = float(objective.terms(x, noise).statistics["log_scale"])
    ratios = {
        name: -detector.anomaly_of(rows)
        - (0 if detector.scoring == "ratio" else objective.noise.log_prob(rows).numpy())
        - scale
        for name, rows in (("held-out rows", x), ("noise", noise))
    }
    calibration = found.calibration
    return {
        "ratios": {**_histogram(ratios), "log_scale": scale},
        "reliability": {
            "predicted": _short(calibration.predicted.numpy()),
            "observed": _short(calibration.observed.numpy()),
            "weight": _short(calibration.weight.numpy()),
            "error": calibration.error,
            "log_loss": calibration.log_loss,
        },
        "log_partition": {"value": found.log_partition, "error": found.log_partition_error, "log_scale": scale},
        "advice": found.advice,
    }


def _short(values: Any) -> list[float | None]:
    return [None if not math.isfinite(v) else float(f"{v:.5g}") for v in np.asarray(values, dtype=np.float64).tolist()]


def _grey_or_colour(image: Array, low: float, high: float) -> Array:
    scaled = np.clip((image - low) / ((high - low) or 1.0), 0, 1)
    return scaled if scaled.ndim == 2 else np.moveaxis(scaled, 0, -1)


def _sheet(images: Array, across: int, low: float, high: float) -> dict[str, Any]:
    """Images side by side in rows, with a thin gap."""
    tiles = [_grey_or_colour(image, low, high) for image in images]
    height, width = tiles[0].shape[:2]
    down = math.ceil(len(tiles) / across)
    sheet = np.full((down * (height + 1) - 1, across * (width + 1) - 1, *tiles[0].shape[2:]), 0.5)
    for i, tile in enumerate(tiles):
        top, left = (i // across) * (height + 1), (i % across) * (width + 1)
        sheet[top : top + height, left : left + width] = tile
    return {"png": _png(sheet), "width": sheet.shape[1], "height": sheet.shape[0]}


def _sprite(images: Array, low: float, high: float, side: int = 32) -> dict[str, Any]:
    """Small pictures in one, found by their number."""
    step = max(1, math.ceil(max(images.shape[-2:]) / side))
    tiles = [_grey_or_colour(image[..., ::step, ::step], low, high) for image in images]
    across = math.ceil(math.sqrt(len(tiles)))
    height, width = tiles[0].shape[:2]
    sheet = np.zeros((math.ceil(len(tiles) / across) * height, across * width, *tiles[0].shape[2:]))
    for i, tile in enumerate(tiles):
        top, left = (i // across) * height, (i % across) * width
        sheet[top : top + height, left : left + width] = tile
    return {"png": _png(sheet), "across": across, "width": width, "height": height, "count": len(tiles)}


def _png(image: Array) -> str:
    """A grey or RGB picture in [0, 1] as base64."""
    from matplotlib.image import imsave

    buffer = io.BytesIO()
    # Without the name of the program, the same picture is the same text. The range matters to grey ones alone.
    metadata: dict[str, Any] = {"Software": None}
    imsave(buffer, image, format="png", metadata=metadata, cmap="gray", vmin=0, vmax=1)
    return base64.b64encode(buffer.getvalue()).decode("ascii")
