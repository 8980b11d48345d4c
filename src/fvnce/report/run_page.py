"""The page of a run: what it learnt, what it thinks strange and why, whether to trust it, and how to make it again.

It is drawn from plain numbers (``run.json``, ``study.json``, ``config.toml``), so it can be drawn without the data.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from . import explorer
from .charts import Chart, histogram_chart, line_chart, scatter_chart
from .page import Section, Table, write_page

_STYLE = """
.sheet { image-rendering: pixelated; width: 100%; max-width: 34rem; border-radius: 0; }
.thumb { image-rendering: pixelated; width: 64px; height: 64px; object-fit: contain; margin-right: .3rem; }
#plane-info { min-height: 4.6rem; display: flex; gap: .8rem; align-items: center; color: var(--soft); }
#plane-picture { flex: none; image-rendering: pixelated; background-repeat: no-repeat; }
.anomalies { padding-left: 1.4rem; } .anomalies li { margin: .9rem 0; max-width: 44rem; }
.bar { display: inline-block; height: .7em; background: var(--c1); border-radius: .15em; vertical-align: baseline; }
"""
#: Columns that a table of columns shows.
_COLUMNS = 12


def write_run_page(folder: Path, record: dict[str, Any], facts: dict[str, Any], config: str, rule: str) -> Path:
    """Write ``report.html`` and ``figures/`` into the folder of a run."""
    figures: list[Chart] = []
    sections = [
        _scores(record, facts, figures),
        _anomalies(facts),
        _plane(facts, figures),
        _training(facts, figures),
        _ratios(facts, figures),
        _pictures(facts),
        _rules(rule),
        _made(record, config),
    ]
    place = folder / "figures"
    place.mkdir(exist_ok=True)
    for chart in figures:
        (place / f"{chart.name}.svg").write_text(chart.file(), encoding="utf-8")
    kind = "detector" if record["kind"] == "detector" else "latent-variable model"
    known = record["known"]
    introduction = (
        f"A {kind} trained on {record['rows']:,} rows, "
        + (f"{known:,} of them known outliers" if known else "none of them known to be outliers")
        + f". Everything on this page stands in this one file. Made {record['made']}."
    )
    scripts = [explorer.script(), files("fvnce.report").joinpath("plane.js").read_text(encoding="utf-8")]
    return write_page(
        folder / "report.html", "Run report", introduction, sections, style=_STYLE + explorer.STYLE, scripts=scripts
    )


def _scores(record: dict[str, Any], facts: dict[str, Any], figures: list[Chart]) -> Section:
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
    return Section("Scores", reading, blocks=[_grid(charts)])


def _anomalies(facts: dict[str, Any]) -> Section:
    items = []
    largest = max((abs(part) for entry in facts["top"] for _, part in entry["reasons"]), default=1.0) or 1.0
    for entry in facts["top"]:
        name = entry["name"] if not entry["name"].isdigit() else f"row {int(entry['name']):,}"
        chance = "" if entry["probability"] is None else f", P(outlier) = {entry['probability']:.2f}"
        lines = [f"<strong>{html.escape(name)}</strong>: score {entry['score']:.4g}{chance}<br>"]
        if "picture" in entry:
            lines += [
                f'<img class="thumb" src="data:image/png;base64,{entry["picture"]}" alt="{html.escape(name)}">',
                f'<img class="thumb" src="data:image/png;base64,{entry["heat"]}" '
                f'alt="Where {html.escape(name)} is strange, bright for much">',
            ]
        else:
            lines.append(f'<span class="caption">{html.escape(entry["values"])}</span><br>')
            lines += [
                f'<span class="bar" style="width:{max(2, round(90 * max(0.0, part) / largest))}px"></span> '
                f"{html.escape(column)} {part:+.3g}<br>"
                for column, part in entry["reasons"]
            ]
        items.append(f"<li>{''.join(lines)}</li>")
    reading = ["The strangest training rows without a label, with what adds most to their scores."]
    return Section("Top anomalies", reading, blocks=[f'<ol class="anomalies">{"".join(items)}</ol>'])


def _plane(facts: dict[str, Any], figures: list[Chart]) -> Section:
    plane = facts["plane"]
    codes = plane["of"] == "codes"
    titles = [f"{text} · score {score:.4g}" for text, score in zip(plane["text"], plane["score"], strict=True)]
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
    figures.append(chart)
    what = (
        f"The {plane['size']}-dimensional codes of rows"
        if codes
        else f"No member of this run has latent variables, so these are the rows themselves, {plane['size']} "
        "standardised columns,"
    )
    reading = [f"{what} along the two directions in which they vary most, {plane['share']:.0%} of the variance."]
    items = json.dumps({"text": titles, "sprite": _sprite_shape(plane)}, ensure_ascii=False).replace("</", "<\\/")
    picture = f"background-image:url(data:image/png;base64,{plane['sprite']['png']})" if "sprite" in plane else ""
    figure = chart.figure().replace("<svg ", '<svg tabindex="0" data-plane ', 1)
    block = (
        f'{figure}<div id="plane-info"><span id="plane-picture" hidden style="{picture}"></span>'
        f'<span id="plane-said" role="status" aria-live="polite">No row chosen.</span></div>'
        f'<script type="application/json" id="plane-items">{items}</script>'
    )
    return Section("Latent space" if codes else "Rows in two dimensions", reading, blocks=[block])


def _sprite_shape(plane: dict[str, Any]) -> dict[str, Any] | None:
    sprite = plane.get("sprite")
    return None if sprite is None else {key: sprite[key] for key in ("across", "width", "height")}


def _training(facts: dict[str, Any], figures: list[Chart]) -> Section:
    histories = [h for h in facts["histories"] if h["epochs"] or h["steps"]]
    if not histories:
        return Section(
            "Training", ["This detector is made of forests, which are grown and not trained: there is no curve."]
        )
    charts = []
    for history in histories[:4]:
        epochs, steps = history["epochs"], history["steps"]
        name = history["name"].replace(" ", "-")
        if len(epochs.get("epoch", [])) > 1:
            at, losses = epochs["epoch"], {k: epochs[k] for k in ("loss", "val_loss") if k in epochs}
            axis = "epoch"
        else:
            at, losses, axis = steps["step"], {"loss": steps["loss"]}, "step"
        charts.append(
            line_chart(
                f"loss-{name}",
                at,
                {{"loss": "loss", "val_loss": "held-out loss"}[k]: v for k, v in losses.items()},
                labels=(axis, "loss −J, nats"),
                caption=f"Loss of the {history['name']}.",
                alt=f"Training curve of the {history['name']}, {_course(losses['loss'])}",
            )
        )
        source, axis = (steps, "step") if _holds(steps, "live_noise") else (epochs, "epoch")
        shares = {
            label: source[key]
            for key, label in (
                ("live_noise", "live noise"),
                ("ess_noise", "effective noise"),
                ("ess_data", "effective data"),
            )
            if _holds(source, key)
        }
        if shares:
            at, shares = _dense(source[axis], shares)
            charts.append(
                line_chart(
                    f"noise-{name}",
                    at,
                    shares,
                    labels=(axis, "share of samples"),
                    range_y=(0.0, 1.05),
                    caption=f"How much of the noise the {history['name']} can feel, and how many samples count.",
                    alt="Shares of live noise and of effective samples over training",
                )
            )
    figures += charts
    reading = list(facts["advice"]) and [f"Advice: {sentence}." for sentence in facts["advice"]]
    if not any(chart.name.startswith("noise-") for chart in charts):
        reading = [*reading, "There is no noise in this training, so no share of it that is alive."]
    if len(histories) > 4:
        reading = [*reading, f"Of {len(histories)} networks the first four are shown; history.json has all."]
    return Section("Training", reading, blocks=[_grid(charts)])


def _ratios(facts: dict[str, Any], figures: list[Chart]) -> Section:
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
    return Section("Data against noise", reading, blocks=[_grid(charts)])


def _pictures(facts: dict[str, Any]) -> Section:
    rebuilt, samples = facts["rebuilt"], facts["samples"]
    reading, blocks, tables = [], [], []
    if isinstance(rebuilt, str):
        reading.append(rebuilt)
    elif "sheets" in rebuilt:
        for sheet in rebuilt["sheets"]:
            blocks.append(_sheet(sheet["png"], f"{sheet['name'].capitalize()}: above as given, below rebuilt."))
    else:
        groups = list(rebuilt["errors"])
        rows = [
            [name, *(_number(rebuilt["errors"][group][i]) for group in groups)]
            for i, name in enumerate(rebuilt["columns"][:_COLUMNS])
        ]
        tables.append(Table("Root mean square error of rebuilt columns, in deviations", ["column", *groups], rows))
    if isinstance(samples, str):
        reading.append(samples)
    elif "png" in samples:
        blocks.append(_sheet(samples["png"], "Samples of the model."))
    else:
        rows = [
            [
                name,
                *(_number(samples[who][what][i]) for what in (0, 1) for who in ("data", "model")),
            ]
            for i, name in enumerate(samples["columns"][:_COLUMNS])
        ]
        header = ["column", "mean, data", "mean, model", "deviation, data", "deviation, model"]
        tables.append(Table("Samples of the model beside the data, standardised columns", header, rows))
    if tables and len(tables[0].rows) == _COLUMNS:
        reading.append(f"The first {_COLUMNS} columns are shown.")
    return Section("Reconstructions and samples", reading, tables=tables, blocks=blocks)


def _rules(rule: str) -> Section:
    found = re.search(r"power\(([^)]*)\)", rule)
    alpha, beta, clip = _arguments(found.group(1)) if found else (0.0, 0.0, 10.0)
    reading = [
        f"This run was trained with the rule {rule}. A rule is a pair of functions of the ratio r of model to noise: "
        "f1 is what a data sample earns, f0 what a noise sample earns. Move the sliders to see what α, β and the clip "
        "T do."
    ]
    return Section("Rule explorer", reading, blocks=[explorer.explorer(alpha, beta, clip)])


def _arguments(text: str) -> tuple[float, float, float | None]:
    """α, β and T of a rule written as text, as far as they can be read; the explorer starts there."""
    values: dict[str, float | None] = {"alpha": 0.0, "beta": 0.0, "clip": 10.0}
    for name, argument in zip(
        values, [part for part in text.split(",") if part.strip() and "=" not in part], strict=False
    ):
        values[name] = _fraction(argument)
    for name, argument in re.findall(r"(alpha|beta|clip)\s*=\s*([^,]+)", text):
        values[name] = None if argument.strip().lower() == "none" else _fraction(argument)
    return values["alpha"] or 0.0, values["beta"] or 0.0, values["clip"]


def _fraction(text: str) -> float:
    above, _, below = text.partition("/")
    return float(above) / float(below or 1)


def _made(record: dict[str, Any], config: str) -> Section:
    durations = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in record.get("seconds", {}).items())
    reading = [f"Durations: {durations}."] if durations else []
    if "members" in record:
        reading.append(f"Members of the detector: {', '.join(record['members']).replace('_', ' ')}.")
    versions = Table("Versions", ["program", "version"], [[k, v] for k, v in record["versions"].items()])
    block = (
        "<p>The settings; <code>fvnce fit --config config.toml --out FOLDER</code> makes the same weights from the "
        f'same data.</p><pre tabindex="0" aria-label="config.toml">{html.escape(config)}</pre>'
    )
    return Section("How it was made", reading, tables=[versions], blocks=[block])


def _grid(charts: Sequence[Chart]) -> str:
    return f'<div class="charts">{"".join(chart.figure() for chart in charts)}</div>'


def _sheet(sheet: dict[str, Any], caption: str) -> str:
    return (
        f'<figure><img class="sheet" src="data:image/png;base64,{sheet["png"]}" width="{sheet["width"]}" '
        f'height="{sheet["height"]}" alt="{html.escape(caption, quote=True)}">'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )


def _holds(table: dict[str, Any], key: str) -> bool:
    return any(value is not None for value in table.get(key, []))


def _dense(at: list[Any], curves: dict[str, list[Any]]) -> tuple[list[Any], dict[str, list[Any]]]:
    """Without the steps that were not logged."""
    kept = [i for i in range(len(at)) if any(values[i] is not None for values in curves.values())]
    return [at[i] for i in kept], {name: [values[i] for i in kept] for name, values in curves.items()}


def _course(values: list[float | None]) -> str:
    there = [v for v in values if v is not None]
    return f"from {there[0]:.4g} to {there[-1]:.4g}" if there else "empty"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
