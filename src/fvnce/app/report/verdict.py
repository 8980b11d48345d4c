"""Sections on how good the run is: the verdict by held-out rows, what to do next, and the scores of the training rows.

Numbers are those of :class:`fvnce.detection.Evidence`, whose module derives what they mean when outliers hide among the
unlabelled rows. The words of the headline follow the lower end of the interval of AUROC, so that a few lucky outliers
earn no praise.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...detection import Evidence
from ...detection.trust.evidence import LEVEL, shown_count
from .analysis import Analysis
from .charts import histogram_chart
from .page import Section, block

#: By the lower end of the interval of AUROC: how well known outliers are separated from other rows.
GRADES = ((0.95, "very well"), (0.85, "well"), (0.7, "fairly well"), (0.5, "only somewhat better than by chance"))
#: The lowest grade that praises, and the lowest of all.
FAIR, CHANCE = GRADES[2][0], GRADES[3][0]
#: Known outliers below which a few more labels are the best advice.
FEW_KNOWN = 20
#: Share of flagged rows above which an analyst needs help to choose.
MANY_FLAGGED = 0.1
#: Bins of a histogram.
BINS = 40


def sections(analysis: Analysis) -> Iterator[Section]:
    """Yield the verdict in words, and histograms of scores."""
    evidence = analysis.run.detector.evidence_
    unlabelled = int((~analysis.data.known).sum())
    threshold = f"The threshold is {evidence.threshold:.4g}: {evidence.threshold_reason.rstrip('.')}."
    sentences = [*_meaning(evidence, unlabelled), threshold]
    steps = next_steps(evidence, images=analysis.is_image)
    words = block("verdict", headline=headline(evidence), sentences=sentences, steps=steps)
    yield Section("Verdict", blocks=[words])
    yield _scores(analysis, evidence)


def headline(evidence: Evidence) -> str:
    """Return how good the detector is, in one sentence."""
    verb = "is" if evidence.flagged == 1 else "are"
    if evidence.auroc is None or evidence.found is None:
        return (
            f"How good this is cannot be said: {str(evidence.reason).removesuffix(' (y = 1)')}. "
            f"{shown_count(evidence.flagged)} of {shown_count(evidence.rows)} unlabelled rows {verb} flagged."
        )
    low, high = evidence.auroc.low, evidence.auroc.high
    grade = next((words for limit, words in GRADES if low > limit), "no better than by chance, as far as is known")
    verdict = f"The detector separates known outliers from other rows {grade}"
    if low <= CHANCE and high > FAIR:
        few = shown_count(evidence.known)
        verdict = f"{few} known outliers are too few to say how well the detector separates them from other rows"
    # A good ranking is no good news by itself where the threshold misses most of the known outliers.
    if low > FAIR and 2 * evidence.found < evidence.known:
        verdict += " by their rank, but few are above the threshold"
    return (
        f"{verdict}: {shown_count(evidence.found)} of {shown_count(evidence.known)} known outliers are found when held "
        f"out, {shown_count(evidence.flagged)} of {shown_count(evidence.rows)} other rows {verb} flagged."
    )


def _meaning(evidence: Evidence, unlabelled: int) -> list[str]:
    auroc, precision = evidence.auroc, evidence.average_precision
    if auroc is None or precision is None:
        return []
    chance = evidence.known / (evidence.known + evidence.rows)
    measured = (
        "A held-out row is scored by models that were trained without it. So measured, a known outlier scores higher "
        f"than another row with probability {auroc.value:.3f} (AUROC; {LEVEL:.0%} interval {auroc.low:.3f} to "
        f"{auroc.high:.3f}, and 0.5 by chance), and average precision is {precision.value:.3f} ({precision.low:.3f} to "
        f"{precision.high:.3f}, and {chance:.3f} by chance)."
    )
    if evidence.rows < unlabelled:
        measured += f" {shown_count(evidence.rows)} of the {unlabelled:,} unlabelled rows took part."
    hidden = (
        "Unlabelled rows may be outliers that nobody has found. To rank them high is right, and counts as wrong here, "
        "so both numbers are rather too low than too high, and not all flagged rows are false alarms."
    )
    alike = evidence.if_alike()
    if alike is not None and evidence.prior is not None:
        hidden += (
            f" If {evidence.prior:.1%} of these rows are outliers like the known ones, the rough estimate that the "
            f"threshold assumes, AUROC would be {alike:.3f}."
        )
    return [measured, f"{hidden} None of these numbers covers outliers of a kind that nobody knows."]


def next_steps(evidence: Evidence, *, images: bool) -> list[str]:
    """Return what to do, the most useful first; text between backticks is code."""
    look = "Look at the flagged rows, highest scores first: `fvnce score RUN DATA --top 20 --explain`."
    test = "Before you rely on it, try it on labelled rows that it was not trained on: `fvnce evaluate RUN LABELLED`."
    if evidence.auroc is None:
        if evidence.known:
            return [look, test]
        mark = (
            "Put those that are what you look for into a separate file, and train again with `--outliers FILE`"
            if images
            else "Mark those that are what you look for in a column of the file, and train again with `--label COLUMN`"
        )
        better = "a handful of known outliers makes the model better, and lets this page say how many it finds"
        return [f"Look at the top anomalies below. {mark}: {better} when they are held out.", test]
    steps = []
    if evidence.auroc.value <= FAIR:
        steps.append(
            "Check whether the label marks what you mean, and whether a column that separates outliers was left out or "
            "misread (columns and their health, below)."
        )
    if evidence.known < FEW_KNOWN:
        steps.append(
            f"Label a few more outliers: with {shown_count(evidence.known)} known ones every number here is rough, as "
            "the intervals show."
        )
    if evidence.flagged:
        steps.append(f"{look} Those that prove to be outliers were hidden ones; label them and train again.")
    if evidence.flagged > MANY_FLAGGED * evidence.rows:
        steps.append(
            "If that is too many to look at, take as many of the highest-scoring rows as you have time for, or those "
            "whose `p_value` is small."
        )
    return [*steps, test]


def _novel(analysis: Analysis) -> str:
    """Return how many unlabelled rows are flagged for their novelty alone, as the end of a sentence."""
    scores = analysis.scores
    novel = int((scores.flagged & (scores.anomaly <= scores.threshold) & ~analysis.known).sum())
    return f"; {novel:,} more are flagged because they are unlike all others" if novel else ""


def _scores(analysis: Analysis, evidence: Evidence) -> Section:
    detector, threshold, known = analysis.run.detector, analysis.run.threshold, analysis.known
    groups = {"training rows": analysis.anomaly[~known]}
    if known.any():
        groups["known outliers"] = analysis.anomaly[known]
    # The outermost thousandths are gathered in the end bins.
    low, high = np.quantile(analysis.anomaly, [0.001, 0.999])
    edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    counts = {name: np.histogram(np.clip(v, edges[0], edges[-1]), edges)[0].tolist() for name, v in groups.items()}
    chart = histogram_chart(
        edges.tolist(),
        counts,
        label="anomaly score",
        mark=(threshold, "threshold"),
        caption="Scores of the training rows; each group adds up to one.",
        alt=f"Histogram of anomaly scores with the threshold at {threshold:.4g}",
    )
    flatter = (
        "These are scores by the model that was trained on the rows, and flatter it; the verdict counts held-out rows. "
    )
    rows, analyzed = len(analysis.data.known), len(analysis.anomaly)
    some = f" ({analyzed:,} of {rows:,} rows were scored)" if analyzed < rows else ""
    reading = [
        f"Higher scores are more anomalous. {flatter if detector.n_known_ > 1 else ''}"
        f"{int((groups['training rows'] > threshold).sum()):,} of {int((~known).sum()):,} unlabelled training rows are "
        f"above the threshold {threshold:.4g}{some}{_novel(analysis)}.",
        f"The share of outliers among unlabelled rows is estimated as {detector.prior_:.2%}, from held-out scores of "
        f"{detector.n_known_} known outliers. With few known outliers this estimate is rough and often too high, and "
        "the probabilities with it: use them as a ranking."
        if evidence.prior is not None
        else "P(outlier) is one half at the threshold by definition; no label was used.",
    ]
    return Section("Scores", reading, charts=[chart])
