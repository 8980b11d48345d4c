"""Sections of how good the run is: the verdict by rows that were held out, what to do next, scores and probabilities.

Numbers are those of :class:`fvnce.detection.Evidence`, whose module derives what they mean when outliers hide among the
rows without a label. Words follow the lower end of the interval of AUROC, so that a few lucky outliers earn no praise.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...detection import Evidence
from ...detection.evidence import count_told
from ...detection.intervals import LEVEL
from ...pages.charts import histogram_chart, line_chart
from ...pages.page import Section, render
from .context import Context, histogram, short

#: By the lower end of the interval of AUROC: how well known outliers are separated from other rows.
WORDS = ((0.95, "very well"), (0.85, "well"), (0.7, "fairly well"), (0.5, "only somewhat better than by chance"))
#: The words that praise.
BETTER = tuple(words for _, words in WORDS[:3])
#: Known outliers below which a few more labels are the best advice.
FEW = 20
#: Share of flagged rows above which somebody needs help to choose.
MANY = 0.1


def build(context: Context) -> dict[str, Any]:
    """What the detector found out about itself; scores and probabilities of the analysed rows."""
    threshold, known = context.run.threshold, context.known
    groups = {"training rows": context.anomaly[~known]}
    if known.any():
        groups["known outliers"] = context.anomaly[known]
    return {
        "verdict": context.run.detector.evidence_.as_dict(),
        "scores": {**histogram(groups), "threshold": threshold},
        "probability": _probability(context),
        "flagged": int((context.anomaly > threshold)[~known].sum()),
        "looked_at": len(context.anomaly),
        "unlabelled": int((~known).sum()),
    }


def show(facts: dict[str, Any], record: dict[str, Any]) -> list[Section]:
    """The verdict in words; a histogram of scores, and P(outlier | score)."""
    evidence = Evidence.from_dict(facts["verdict"])
    threshold = f"The threshold is {evidence.threshold:.4g}: {evidence.threshold_reason.rstrip('.')}."
    block = render(
        "fvnce.app",
        "verdict.html",
        headline=_headline(evidence),
        sentences=[*_meaning(evidence, record), threshold],
        steps=_next(evidence, record),
    )
    return [Section("Verdict", [], blocks=[block]), _show_scores(facts, record)]


def _headline(evidence: Evidence) -> str:
    verb = "is" if evidence.flagged == 1 else "are"
    if evidence.auroc is None or evidence.found is None:
        return (
            f"How good this is cannot be said: {str(evidence.reason).removesuffix(' (y = 1)')}. "
            f"{count_told(evidence.flagged)} of {count_told(evidence.rows)} rows without a label {verb} flagged."
        )
    how = next(
        (words for low, words in WORDS if evidence.auroc.low > low), "no better than by chance, as far as is known"
    )
    said = f"The detector separates known outliers from other rows {how}"
    if evidence.auroc.low <= WORDS[-1][0] and evidence.auroc.high > WORDS[2][0]:
        few = count_told(evidence.known)
        said = f"{few} known outliers are too few to say how well the detector separates them from other rows"
    # A good order of rows is no good news by itself where the threshold misses most of those that are known.
    if how in BETTER and 2 * evidence.found < evidence.known:
        said += " by their rank, but few are above the threshold"
    return (
        f"{said}: {count_told(evidence.found)} of {count_told(evidence.known)} known outliers are found when held "
        f"out, {count_told(evidence.flagged)} of {count_told(evidence.rows)} other rows {verb} flagged."
    )


def _meaning(evidence: Evidence, record: dict[str, Any]) -> list[str]:
    if evidence.auroc is None or evidence.average_precision is None:
        return []
    auroc, precision = evidence.auroc, evidence.average_precision
    chance = evidence.known / (evidence.known + evidence.rows)
    used = record["rows"] - record["known"]
    sentences = [
        "Held out means: scored by models that were trained without that row. So measured, a known outlier is stranger "
        f"than another row with probability {auroc.value:.3f} (AUROC; {LEVEL:.0%} interval {auroc.low:.3f} to "
        f"{auroc.high:.3f}, and 0.5 by chance), and average precision is {precision.value:.3f} ({precision.low:.3f} to "
        f"{precision.high:.3f}, and {chance:.3f} by chance)."
        + (
            f" {count_told(evidence.rows)} of the {used:,} rows without a label took part."
            if evidence.rows < used
            else ""
        )
    ]
    hidden = (
        "Rows without a label may be outliers that nobody has found. To rank them high is right, and counts as wrong "
        "here, so both numbers are rather too low than too high, and not all flagged rows are false alarms."
    )
    alike = evidence.if_alike()
    if alike is not None and evidence.prior is not None:
        hidden += (
            f" If {evidence.prior:.1%} of these rows are outliers like the known ones, the rough estimate that the "
            f"threshold assumes, AUROC would be {alike:.3f}."
        )
    return [*sentences, f"{hidden} Outliers of a kind that nobody knows are in none of these numbers."]


def _next(evidence: Evidence, record: dict[str, Any]) -> list[str]:
    """What to do, the most useful first."""
    # What stands between backticks is set as code.
    score = "`fvnce score RUN DATA --top 20 --explain`"
    test = (
        "Before you rely on it, try it on rows with labels that had no part in training: `fvnce evaluate RUN LABELLED`."
    )
    if evidence.auroc is None:
        if evidence.known:
            return [f"Look at the flagged rows, strangest first: {score}.", test]
        images = len(record["layout"]["shape"] or []) > 1
        mark = (
            "Put those that are what you look for into a file of their own, and train again with `--outliers FILE`"
            if images
            else "Mark those that are what you look for in a column of the file, and train again with `--label COLUMN`"
        )
        better = "a handful of known outliers makes the model better, and lets this page say how many it finds"
        return [f"Look at the top anomalies below. {mark}: {better} when they are held out.", test]
    steps = []
    if evidence.auroc.value <= WORDS[2][0]:
        steps.append(
            "Check whether the label marks what you mean, and whether a column that separates outliers was left out or "
            "read in the wrong way (columns and their health, below)."
        )
    if evidence.known < FEW:
        steps.append(
            f"Label a few more outliers: {count_told(evidence.known)} known ones make every number here rough, as the "
            "intervals show."
        )
    if evidence.flagged:
        steps.append(
            f"Look at the flagged rows, strangest first: {score}. Those that turn out to be outliers were hidden ones; "
            "label them and train again."
        )
    if evidence.flagged > MANY * evidence.rows:
        steps.append(
            "If that is too many to look at, take the strangest you have time for, or those whose `p_value` is small."
        )
    return [*steps, test]


def _show_scores(facts: dict[str, Any], record: dict[str, Any]) -> Section:
    scores = facts["scores"]
    threshold = scores["threshold"]
    probability = facts["probability"]
    held_out = probability["known"] > 1
    flatters = (
        "These are by the model that has learnt from the rows, and flatter it; the verdict counts rows that were held "
        "out. "
    )
    some = f" (of {record['rows']:,}, {facts['looked_at']:,} were looked at)"
    reading = [
        f"Higher scores are stranger. {flatters if held_out else ''}Above the threshold {threshold:.4g} lie "
        f"{facts['flagged']:,} of {facts['unlabelled']:,} training rows without a label"
        f"{some if facts['looked_at'] < record['rows'] else ''}."
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
    reading.append(
        f"The share of outliers among rows without a label is estimated as {probability['prior']:.2%}, from "
        f"held-out scores of {probability['known']} known outliers. With few known outliers this estimate is "
        "rough and often too high, and the probabilities with it: use them as a ranking."
        if facts["verdict"]["prior"] is not None
        else "P(outlier | score) is one half at the threshold by definition; no label was used."
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
    return Section("Scores", reading, charts=charts)


def _probability(context: Context) -> dict[str, Any]:
    detector = context.run.detector
    at = np.linspace(float(context.anomaly.min()), float(context.anomaly.max()), 80)
    found = detector.calibration_.probability(at)
    return {
        "score": short(at),
        "probability": short(found),
        "prior": float(detector.prior_),
        "known": int(detector.n_known_),
    }
