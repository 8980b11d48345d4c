"""Reconstructions of data, known outliers and noise, and samples of the model."""

from __future__ import annotations

import numpy as np
import torch

from ...detection.preprocessing import ImagePreprocessor
from ...noise import draw
from ..scorer import OfLatent
from .numbers import short
from .pictures import SHEET, sheet
from .subject import Fact, Subject, noise_of, take


def rebuilt(subject: Subject) -> Fact:
    """Images beside their reconstructions, or the root mean square error of each column."""
    latent, run = subject.autoencoding, subject.run
    detector, how = run.scorer.detector, run.scorer.detector.preprocessor_
    if latent is None:
        return "No member of this detector rebuilds rows; a run with --latent does, and so does one on images."
    groups = {"training rows": detector.preprocess(take(subject.rows, np.flatnonzero(~subject.known)[:2000]))}
    if subject.known.any():
        groups["known outliers"] = detector.preprocess(take(subject.rows, np.flatnonzero(subject.known)[:2000]))
    noise = noise_of(run)
    if noise is not None:
        generator = torch.Generator().manual_seed(run.settings.seed)
        groups["noise"] = draw(noise, 500, generator).double().numpy()
    if isinstance(how, ImagePreprocessor):
        sheets = []
        for name, x in groups.items():
            some = x[: SHEET // 2]
            both = np.concatenate([some, latent.rebuilt(some)])
            pictures = how.fold(both)
            sheets.append({"name": name, "png": sheet(pictures, len(some), 0.0, 1.0)})
        return {"sheets": sheets}
    errors = {name: np.sqrt(np.square(x - latent.rebuilt(x)).mean(0)) for name, x in groups.items()}
    return {"columns": how.names(run.layout.columns), "errors": {name: short(e) for name, e in errors.items()}}


def samples(subject: Subject) -> Fact:
    """Images drawn from the model, or the means and deviations of its columns beside those of the data."""
    run = subject.run
    if not isinstance(run.scorer, OfLatent):
        return "A detector is no generative model, so it has no samples; a run with --latent has."
    detector = run.scorer.detector
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(run.settings.seed)
        drawn = detector.objective_.model.sample(1000)
    x = (drawn[0] if isinstance(drawn, tuple) else drawn).double().numpy()
    how = detector.preprocessor_
    if isinstance(how, ImagePreprocessor):
        return {"png": sheet(how.fold(x[:SHEET]), SHEET // 2, 0.0, 1.0)}
    data = detector.preprocess(take(subject.rows, np.flatnonzero(~subject.known)[:5000]))
    return {
        "columns": how.names(run.layout.columns),
        "data": [short(data.mean(0)), short(data.std(0))],
        "model": [short(x.mean(0)), short(x.std(0))],
    }
