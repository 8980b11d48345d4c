"""Reconstructions of data, known outliers and noise, and samples of the model."""

from __future__ import annotations

import numpy as np
import torch

from ....noise import draw
from ..latent import Encoding
from ..scorer import LoadedRun, OfLatent
from .numbers import short
from .pictures import SHEET, sheet
from .subject import Fact, Subject, noise_of, take


def rebuilt(subject: Subject) -> Fact:
    """Images beside their reconstructions, or the root mean square error of each column."""
    latent, encoding, run = subject.autoencoding, subject.encoding, subject.run
    if latent is None:
        return "No member of this detector rebuilds rows; a run with --latent does, and so does one on images."
    groups = {"training rows": encoding(take(subject.rows, np.flatnonzero(~subject.known)[:2000]))}
    if subject.known.any():
        groups["known outliers"] = encoding(take(subject.rows, np.flatnonzero(subject.known)[:2000]))
    noise = noise_of(run)
    if noise is not None:
        generator = torch.Generator().manual_seed(run.settings.seed)
        groups["noise"] = draw(noise, 500, generator).double().numpy()
    if encoding.image is not None:
        sheets = []
        for name, x in groups.items():
            some = x[: SHEET // 2]
            both = np.concatenate([some, latent.rebuilt(some)])
            pictures = encoding.image.decode(both)
            sheets.append({"name": name, "png": sheet(pictures, len(some), 0.0, 1.0)})
        return {"sheets": sheets}
    errors = {name: np.sqrt(np.square(x - latent.rebuilt(x)).mean(0)) for name, x in groups.items()}
    return {"columns": encoded_names(encoding, run), "errors": {name: short(e) for name, e in errors.items()}}


def samples(subject: Subject) -> Fact:
    """Images drawn from the model, or the means and deviations of its columns beside those of the data."""
    run, encoding = subject.run, subject.encoding
    if not isinstance(run.scorer, OfLatent):
        return "A detector is no generative model, so it has no samples; a run with --latent has."
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(run.settings.seed)
        drawn = run.scorer.detector.objective.model.sample(1000)
    x = (drawn[0] if isinstance(drawn, tuple) else drawn).double().numpy()
    if encoding.image is not None:
        return {"png": sheet(encoding.image.decode(x[:SHEET]), SHEET // 2, 0.0, 1.0)}
    data = encoding(take(subject.rows, np.flatnonzero(~subject.known)[:5000]))
    return {
        "columns": encoded_names(encoding, run),
        "data": [short(data.mean(0)), short(data.std(0))],
        "model": [short(x.mean(0)), short(x.std(0))],
    }


def encoded_names(encoding: Encoding, run: LoadedRun) -> list[str]:
    """What each column of the network stands for."""
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
