"""Scores with their threshold and probability, and the strangest rows with reasons."""

from __future__ import annotations

from typing import Any

from ....pages.charts import Chart, histogram_chart, line_chart
from ....pages.escape import markup, png_uri
from ....pages.page import Section
from .blocks import grid


def scores_section(record: dict[str, Any], facts: dict[str, Any], figures: list[Chart]) -> Section:
    """Histogram of scores, and P(outlier | score)."""
    scores = facts["scores"]
    threshold = scores["threshold"]
    reading = [
        f"Higher scores are stranger. Above the threshold {threshold:.4g} lie {facts['flagged']:,} of "
        f"{facts['unlabelled']:,} training rows without a label"
        + (
            f" (of {record['rows']:,}, {facts['looked_at']:,} were looked at)."
            if facts["looked_at"] < record["rows"]
            else "."
        )
    ]
    charts = [
        histogram_chart(
            "scores",
            scores["edges"],
            scores["counts"],
            label="anomaly score",
            mark=(threshold, "threshold"),
            caption="Scores of the training rows; each group adds up to one.",
            alt=f"Histogram of anomaly scores with the threshold at {threshold:.4g}",
        )
    ]
    probability = facts["probability"]
    if isinstance(probability, str):
        reading.append(probability)
    else:
        reading.append(
            f"The share of outliers among rows without a label is put at {probability['prior']:.2%}"
            + (
                f", from held-out scores of {probability['known']} known outliers."
                if probability["known"] > 1
                else ", by the excess of the upper tail over the lower: a convention, as no outlier is known."
            )
        )
        charts.append(
            line_chart(
                "probability",
                probability["score"],
                {"P(outlier)": probability["probability"]},
                labels=("anomaly score", "P(outlier | score)"),
                range_y=(0.0, 1.05),
                caption="From score to probability.",
                alt="The probability of being an outlier rises with the score",
            )
        )
    figures += charts
    return Section("Scores", reading, blocks=[grid(charts)])


def anomalies_section(facts: dict[str, Any]) -> Section:
    """The list of the strangest rows."""
    items = []
    largest = max((abs(part) for entry in facts["top"] for _, part in entry["reasons"]), default=1.0) or 1.0
    for entry in facts["top"]:
        number = entry["name"] if entry["name"].isascii() and entry["name"].isdecimal() else ""
        name = f"row {int(number):,}" if 0 < len(number) < 20 else entry["name"]
        chance = "" if entry["probability"] is None else f", P(outlier) = {entry['probability']:.2f}"
        lines = [f"<strong>{markup(name)}</strong>: score {entry['score']:.4g}{chance}<br>"]
        if "picture" in entry:
            lines += [
                f'<img class="thumb" src="{png_uri(entry["picture"])}" alt="{markup(name)}">',
                f'<img class="thumb" src="{png_uri(entry["heat"])}" '
                f'alt="Where {markup(name)} is strange, bright for much">',
            ]
        else:
            lines.append(f'<span class="caption">{markup(entry["values"])}</span><br>')
            lines += [
                f'<span class="bar" style="width:{max(2, round(90 * max(0.0, part) / largest))}px"></span> '
                f"{markup(column)} {part:+.3g}<br>"
                for column, part in entry["reasons"]
            ]
        items.append(f"<li>{''.join(lines)}</li>")
    reading = ["The strangest training rows without a label, with what adds most to their scores."]
    return Section("Top anomalies", reading, blocks=[f'<ol class="anomalies">{"".join(items)}</ol>'])
