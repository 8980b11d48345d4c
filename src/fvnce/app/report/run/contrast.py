"""Data against noise: log-ratios, calibration, log Z."""

from __future__ import annotations

from typing import Any

from ....pages.charts import Chart, histogram_chart, line_chart
from ....pages.page import Section
from .blocks import grid


def contrast_section(facts: dict[str, Any], figures: list[Chart]) -> Section:
    """Histograms of Δ, the reliability curve, log Z with its error."""
    if isinstance(facts["ratios"], str):
        return Section("Data against noise", [facts["ratios"]])
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
    figures += charts
    reading = [
        f"The classifier that tells rows from noise has a log loss of {reliability['log_loss']:.3g} nats and a "
        f"calibration error of {reliability['error']:.3g}.",
        f"log Z = {partition['value']:.3f} ± {partition['error']:.3f} (one standard error); the fitted log-scale is "
        f"{partition['log_scale']:.3f}.",
    ]
    if not partition.get("trusted", True):  # studies of earlier versions do not say
        reading.append(
            f"Neither log Z nor its error is to be trusted: {partition['effective_samples']:.1f} effective samples "
            "carry them, and 100 are wanted. Both may be far too small."
        )
    return Section("Data against noise", reading, blocks=[grid(charts)])
