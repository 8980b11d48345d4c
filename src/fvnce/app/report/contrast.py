"""The section of data against noise: log-ratios Δ of both, the classifier σ(Δ) and its calibration, log Z."""

from __future__ import annotations

from typing import Any

import torch

from ...detection import LatentDetector
from ...diagnostics import diagnose
from ...noise import draw
from ...pages.charts import histogram_chart, line_chart
from ...pages.page import Section
from .. import shapes
from .context import Context, histogram, short

_ENTRIES = shapes.record(
    {
        "ratios": shapes.or_why(shapes.both(shapes.histogram, shapes.record({"log_scale": shapes.reported}))),
        "reliability": shapes.or_why(
            shapes.alike(
                dict.fromkeys(("predicted", "observed"), shapes.gaps),
                dict.fromkeys(("error", "log_loss"), shapes.reported),
            )
        ),
        "log_partition": shapes.or_why(shapes.record(dict.fromkeys(("value", "error", "log_scale"), shapes.reported))),
        "advice": shapes.names,
    }
)


def check(content: Any, place: str) -> None:
    """Either all of it is there, or a sentence in place of each."""
    _ENTRIES(content, place)
    if len({isinstance(content[name], str) for name in ("ratios", "reliability", "log_partition")}) > 1:
        raise shapes.ShapeError("ratios, reliability and log_partition must all be there, or all be sentences")


def build(context: Context) -> dict[str, Any]:
    """Log-ratios, calibration and log Z, on held-out rows and fresh noise."""
    detector, seed = context.run.scorer.detector, context.run.config.seed
    if not isinstance(detector, LatentDetector):
        return _none(
            "A detector averages models of the ratio and keeps none of their noise; a run with --model latent has it."
        )
    if context.noise is None or context.held_out is None:
        return _none("This run has no noise: its objective is that of an autoencoder.")
    objective = detector.objective_
    x = context.held_out[:2000].double()
    generator = torch.Generator().manual_seed(seed)
    found = diagnose(objective, x, samples=max(500, len(x)), latent_samples=32, generator=generator)
    noise = draw(objective.noise, 1000, generator).double()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        # Codes are drawn here, and a page is the same whatever was drawn before.
        torch.default_generator.manual_seed(seed)
        scale = float(objective.terms(x, noise).statistics["log_scale"])
        ratios = {
            name: (
                objective.model.log_joint(rows, objective.encoder(rows).mean) - objective.noise.log_prob(rows)
            ).numpy()
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


def show(facts: dict[str, Any], record: dict[str, Any]) -> Section | None:
    """Histograms of Δ, the reliability curve, log Z with its error."""
    if isinstance(facts["ratios"], str):
        return None
    reliability, partition = facts["reliability"], facts["log_partition"]
    charts = [
        histogram_chart(
            "ratios",
            facts["ratios"]["edges"],
            facts["ratios"]["counts"],
            label="Δ = log p_θ/p_n",
            mark=(0.0, "Δ = 0"),
            caption="Log-ratios of held-out rows and of fresh noise, at the mean of the encoder.",
            alt="Histograms of the log-ratio for held-out rows and for noise",
        ),
        line_chart(
            "calibration",
            reliability["predicted"],
            {"observed": reliability["observed"]},
            labels=("predicted probability of data", "observed share of data"),
            range_x=(0.0, 1.0),
            range_y=(0.0, 1.05),
            diagonal=True,
            dots=True,
            caption="Is the implied classifier σ(Δ) calibrated? On the diagonal it would be.",
            alt=f"Reliability curve, calibration error {reliability['error']:.3f}",
        ),
    ]
    reading = [
        f"The classifier that tells rows from noise has a log loss of {reliability['log_loss']:.3g} nats and a "
        f"calibration error of {reliability['error']:.3g}.",
        f"log Z = {partition['value']:.3f} ± {partition['error']:.3f} (one standard error); the fitted log-scale is "
        f"{partition['log_scale']:.3f}.",
    ]
    if not partition.get("trusted", True):  # an entry that may be left out
        reading.append(
            f"Neither log Z nor its error is to be trusted: {partition['effective_samples']:.1f} effective samples "
            "carry them, and 100 are wanted. Both may be far too small."
        )
    return Section("Data against noise", reading, charts=charts)


def _none(why: str) -> dict[str, Any]:
    return {"ratios": why, "reliability": why, "log_partition": why, "advice": []}
