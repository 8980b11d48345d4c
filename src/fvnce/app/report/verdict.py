"""Section of the verdict: the number of flagged rows, and the quality of the detector on held-out rows.

Numbers are those of :class:`fvnce.detection.Evidence`, whose module derives what they mean when outliers hide among the
unlabeled rows. The wording depends on the lower end of the interval of AUROC, so that it stays cautious with few known
outliers. Scores of rows that the model was trained on are not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from scipy.stats import binomtest

from ...detection import Evidence, Interval
from ...detection.trust.evidence import LEVEL, shown_count
from .analysis import Analysis
from .page import Section, block, plain, plural

#: How well known outliers are separated from other rows, by the lower end of the interval of AUROC.
GRADES = ((0.95, "very well"), (0.85, "well"), (0.7, "fairly well"), (0.5, "somewhat better than by chance"))
#: Lower ends for "fairly well", the lowest favorable grade, and for "better than by chance".
FAIR, CHANCE = GRADES[2][0], GRADES[3][0]
#: Meaning of alarms where clean = true.
TAKEN_AS_NORMAL = "All unlabeled rows are assumed to be normal (clean), so each flagged one counts as a false alarm."


def sections(analysis: Analysis) -> Iterator[Section]:
    """Yield the section of the verdict."""
    first, others = words(analysis)
    yield Section("Verdict", blocks=[block("verdict", headline=first, sentences=others)])


def words(analysis: Analysis) -> tuple[str, list[str]]:
    """Return the verdict: its headline, and what it rests on."""
    evidence, data = analysis.run.detector.evidence_, analysis.data
    counts = {name: finds.flagged for name, finds in analysis.finds.items()}
    first = found(counts, *(int((~(rows.known | rows.inliers)).sum()) for rows in (analysis, data)))
    inliers, detector = int(data.inliers.sum()), analysis.run.detector
    if counts.get("known") and not detector.calibration_.known:
        first += " No label places the threshold above which a row is like the known outliers."
    return f"{first} {headline(evidence)}", meaning(evidence, clean=detector.clean, inliers=inliers)


def found(flagged: Mapping[str, int], scored: int, rows: int) -> str:
    """Return the number of flagged unlabeled rows by list, as a sentence.

    >>> found({"known": 42, "novel": 9}, 3933, 3933)
    '51 of 3,933 unlabeled rows are flagged: 42 like the known outliers, 9 novel.'
    >>> found({"novel": 0}, 20000, 300000)
    'None of 20,000 unlabeled rows is flagged (300,000 are in the data).'
    """
    total = sum(flagged.values())
    count = f"{total:,}" if total else "None"
    sentence = f"{count} of {plural(scored, 'unlabeled row')} {'are' if total > 1 else 'is'} flagged"
    if scored < rows:
        sentence += f" ({rows:,} are in the data)"
    if total and len(flagged) > 1:
        sentence += f": {flagged['known']:,} like the known outliers, {flagged['novel']:,} novel"
    return f"{sentence}."


def headline(evidence: Evidence) -> str:
    """Return one sentence on the quality of the detector."""
    if evidence.auroc is None or evidence.found is None:
        return f"The quality of the detector is unknown: {str(evidence.reason).removesuffix(' (y = 1)')}."
    low, high, known = evidence.auroc.low, evidence.auroc.high, shown_count(evidence.known)
    grade = next((words for limit, words in GRADES if low > limit), "no better than by chance, as far as is known")
    if FAIR >= low > CHANCE:
        grade = f"{'at least' if high > FAIR else 'only'} {grade}"
    verdict = f"The detector separates known outliers from other rows {grade}"
    if low <= CHANCE and high > FAIR:
        verdict = f"{known} known outliers are too few to say how well the detector separates them from other rows"
    # A good ranking does not help where the threshold misses most of the known outliers.
    if low > FAIR and 2 * evidence.found < evidence.known:
        verdict += " by rank, but few are above the threshold"
    verb = "was" if evidence.found == 1 else "were"
    return f"{verdict}: {shown_count(evidence.found)} of {known} {verb} found by models trained without them."


def found_share(found: float, known: float) -> Interval:
    """Return the fraction of outliers like the known ones that is found, with the Clopper-Pearson interval.

    >>> print(found_share(3, 3))
    1.000 (0.292 to 1.000)
    """
    exact = binomtest(round(found), max(1, round(known))).proportion_ci(LEVEL)
    return Interval(found / known, float(exact.low), float(exact.high))


def meaning(evidence: Evidence, *, clean: bool = False, inliers: int = 0) -> list[str]:
    """Return what held-out rows say, in numbers with their intervals, and what they do not say.

    Known inliers are among the rows that known outliers are compared with.
    """
    share = None if evidence.found is None else found_share(evidence.found, evidence.known)
    given = {
        "evidence": evidence,
        "share": share,
        "clean": clean,
        "inliers": inliers,
        "taken_as_normal": TAKEN_AS_NORMAL,
    }
    return plain("meaning.md", level=LEVEL, **given).splitlines()
