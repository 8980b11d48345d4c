"""Data against noise: log-ratios Δ of both, the classifier σ(Δ) they make and its calibration, log Z with its error."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ....diagnostics import diagnose
from ....noise import draw
from ..latent import LatentDetector
from ..scorer import LoadedRun, OfDetector
from .numbers import histogram, short
from .subject import noise_of


def contrast(run: LoadedRun, held_out: Tensor | None) -> dict[str, Any]:
    """Facts on held-out rows and fresh noise."""
    if isinstance(run.scorer, OfDetector):
        return _none(
            "A detector averages several models of the ratio and keeps none of their noise; a run with --latent has it."
        )
    detector: LatentDetector = run.scorer.detector
    if noise_of(run) is None or held_out is None:
        return _none("This run has no noise: its objective is that of an autoencoder.")
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
        "ratios": {**histogram(ratios), "log_scale": scale},
        "reliability": {
            "predicted": short(calibration.predicted.numpy()),
            "observed": short(calibration.observed.numpy()),
            "weight": short(calibration.weight.numpy()),
            "error": calibration.error,
            "log_loss": calibration.log_loss,
        },
        "log_partition": {
            "value": found.log_partition,
            "error": found.log_partition_error,
            "effective_samples": found.log_partition_samples,
            "trusted": found.log_partition_trusted,
            "log_scale": scale,
        },
        "advice": found.advice,
    }


def _none(why: str) -> dict[str, Any]:
    return {"ratios": why, "reliability": why, "log_partition": why, "advice": []}
