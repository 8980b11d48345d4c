"""The section of the verdict: what was found, and how far to trust it by held-out rows.

Numbers are those of :class:`fvnce.detection.Evidence`, whose module derives what they mean when outliers hide among the
unlabelled rows. The words follow the lower end of the interval of AUROC, so that a few lucky outliers earn no praise.
Scores of rows by the model that was trained on them are no evidence, and are not here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from scipy.stats import binomtest

from ...detection import Evidence, Interval
from ...detection.trust.evidence import LEVEL, shown_count
from .analysis import Analysis, percent, plural
from .page import Section, block

#: By the lower end of the interval of AUROC: how well known outliers are separated from other rows.
GRADES = ((0.95, "very well"), (0.85, "well"), (0.7, "fairly well"), (0.5, "somewhat better than by chance"))
#: The lowest grade that praises, and the lowest of all.
FAIR, CHANCE = GRADES[2][0], GRADES[3][0]
#: What clean = true means for alarms.
TAKEN_AS_NORMAL = "All unlabelled rows are taken as normal, as asked (clean): then each flagged one is a false alarm."


def sections(analysis: Analysis) -> Iterator[Section]:
    """Yield the verdict."""
    first, others = words(analysis)
    yield Section("Verdict", blocks=[block("verdict", headline=first, sentences=others)])


def words(analysis: Analysis) -> tuple[str, list[str]]:
    """Return the verdict: its headline, and what it rests on."""
    evidence, data = analysis.run.detector.evidence_, analysis.data
    counts = {name: finds.flagged for name, finds in analysis.finds.items()}
    first = found(counts, *(int((~(rows.known | rows.inliers)).sum()) for rows in (analysis, data)))
    inliers = int(data.inliers.sum())
    return f"{first} {headline(evidence)}", meaning(evidence, clean=analysis.run.detector.clean, inliers=inliers)


def found(flagged: Mapping[str, int], scored: int, rows: int) -> str:
    """Return how many unlabelled rows are flagged, by list.

    >>> found({"known": 42, "novel": 9}, 3933, 3933)
    '51 of 3,933 unlabelled rows are flagged: 42 like the known outliers, 9 unlike anything.'
    >>> found({"novel": 0}, 20000, 300000)
    'None of 20,000 unlabelled rows is flagged (300,000 are in the data).'
    """
    total = sum(flagged.values())
    count = f"{total:,}" if total else "None"
    sentence = f"{count} of {plural(scored, 'unlabelled row')} {'are' if total > 1 else 'is'} flagged"
    if scored < rows:
        sentence += f" ({rows:,} are in the data)"
    if total and len(flagged) > 1:
        sentence += f": {flagged['known']:,} like the known outliers, {flagged['novel']:,} unlike anything"
    return f"{sentence}."


def headline(evidence: Evidence) -> str:
    """Return how good the detector is, in one sentence."""
    if evidence.auroc is None or evidence.found is None:
        return f"How good this is cannot be said: {str(evidence.reason).removesuffix(' (y = 1)')}."
    low, high, known = evidence.auroc.low, evidence.auroc.high, shown_count(evidence.known)
    grade = next((words for limit, words in GRADES if low > limit), "no better than by chance, as far as is known")
    if FAIR >= low > CHANCE:
        grade = f"{'at least' if high > FAIR else 'only'} {grade}"
    verdict = f"The detector separates known outliers from other rows {grade}"
    if low <= CHANCE and high > FAIR:
        verdict = f"{known} known outliers are too few to say how well the detector separates them from other rows"
    # A good ranking is no good news by itself where the threshold misses most of the known outliers.
    if low > FAIR and 2 * evidence.found < evidence.known:
        verdict += " by their rank, but few are above the line"
    verb = "was" if evidence.found == 1 else "were"
    return f"{verdict}: {shown_count(evidence.found)} of {known} {verb} found by models that had not seen them."


def found_share(found: float, known: float) -> Interval:
    """Return which fraction of outliers like the known ones is found, with the interval of Clopper and Pearson.

    >>> print(found_share(3, 3))
    1.000 (0.292 to 1.000)
    """
    exact = binomtest(round(found), max(1, round(known))).proportion_ci(LEVEL)
    return Interval(found / known, float(exact.low), float(exact.high))


def meaning(evidence: Evidence, *, clean: bool = False, inliers: int = 0) -> list[str]:
    """Return what held-out rows say, in numbers with their intervals, and what they do not say.

    Known inliers are among the rows that known outliers are compared with.
    """
    auroc, precision = evidence.auroc, evidence.average_precision
    if auroc is None or precision is None or evidence.found is None:
        ranking = "No number can say how many outliers it finds. Below is a ranking: look at it from the top."
        return [f"{ranking} {TAKEN_AS_NORMAL}" if clean else ranking]
    chance = evidence.known / (evidence.known + evidence.rows)
    share = found_share(evidence.found, evidence.known)
    other, another = ("other row", "another row") if inliers else ("unlabelled row", "an unlabelled row")
    measured = (
        "Rows are held out in turn, and scored by models that were trained without them. So measured, of outliers like "
        f"the known ones {percent(share.value)} are found ({percent(LEVEL)} interval "
        f"{percent(share.low)} to {percent(share.high)}), and {shown_count(evidence.flagged)} of "
        f"{plural(evidence.rows, other)} {'is' if evidence.flagged == 1 else 'are'} flagged. A known "
        f"outlier scores higher than {another} with probability {auroc.value:.3f} (AUROC; {auroc.low:.3f} to "
        f"{auroc.high:.3f}, and 0.5 by chance); average precision is {precision.value:.3f} ({precision.low:.3f} to "
        f"{precision.high:.3f}, and {chance:.3f} by chance)."
    )
    hidden = TAKEN_AS_NORMAL
    if not clean:
        hidden = (
            "Unlabelled rows may be outliers that nobody has marked. To rank them high is right, and counts as wrong "
            "here, so AUROC and average precision are rather too low than too high, and not every flagged row is a "
            "false alarm."
        )
    return [measured, f"{hidden} None of these numbers covers outliers of a kind that nobody has marked."]
