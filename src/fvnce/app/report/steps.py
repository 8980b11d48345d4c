"""Section of recommended next steps: doubtful labels, unused columns, rows to label, new rows, drift."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...detection import Evidence
from .analysis import Analysis, plural
from .columns import read_columns
from .page import Section, block
from .verdict import FAIR

#: Number of known outliers below which more labels are recommended.
FEW_KNOWN = 20
#: Fraction of flagged rows above which a limited number of alarms is recommended.
MANY_FLAGGED = 0.1
#: The most rows or columns listed by name.
NAMED = 10


def sections(analysis: Analysis) -> Iterator[Section]:
    """Yield the section of next steps."""
    doubtful = [analysis.name_at(place) for place in analysis.run.detector.doubtful_labels_.tolist()]
    unused = [f"{column.name} ({column.unused})" for column in read_columns(analysis) if column.unused]
    evidence, clean = analysis.run.detector.evidence_, analysis.run.detector.clean
    steps = next_steps(evidence, doubtful, unused, images=analysis.is_image, clean=clean)
    reading = ["RUN is the folder of this page, DATA a file with rows, and NEW a new folder."]
    yield Section("What to do next", reading, blocks=[block("next_steps", steps=steps)])


def next_steps(
    evidence: Evidence,
    doubtful: Sequence[str] = (),
    unused: Sequence[str] = (),
    *,
    images: bool = False,
    clean: bool = False,
) -> list[str]:
    """Return the recommended steps, the most useful first; text between backticks is code.

    Args:
        evidence: of the detector.
        doubtful: names of known outliers whose labels look wrong.
        unused: columns that are not used, and why.
        images: whether the rows are images.
        clean: whether all rows are assumed to be normal.
    """
    steps = []
    if doubtful:
        verb, score = ("label looks", "It scores") if len(doubtful) == 1 else ("labels look", "They score")
        steps.append(
            f"Check {plural(len(doubtful), 'known outlier')} whose {verb} wrong: {named(doubtful)}. {score} like "
            "normal rows when held out."
        )
    if evidence.auroc is not None and evidence.auroc.value <= FAIR:
        steps.append(
            "Check whether the label marks what you mean, and whether a column that separates outliers was left out or "
            'misread (see "Columns and their health" below).'
        )
    if unused:
        one = len(unused) == 1
        steps.append(
            f"Check that {'this column' if one else 'these columns'} may be left out: {named(unused)}. "
            f"{'It is' if one else 'They are'} not used."
        )
    steps.append("See which rows of a file score highest, and why: `fvnce score RUN DATA --top 20 --explain`.")
    if evidence.flagged > MANY_FLAGGED * evidence.rows:
        steps.append(
            "If too many rows are flagged, limit them to the number you can review: `fvnce score RUN DATA --alarms 50`."
        )
    if clean and not evidence.known:
        steps.append("If a flagged row is an outlier, remove it from the data and train again.")
    elif images:
        steps.append(
            "Put examples of the images you are looking for in a folder, and train again with `--outliers FOLDER`."
        )
    else:
        few = (
            f" With {plural(evidence.known, 'known outlier')} every number here is uncertain." if evidence.known else ""
        )
        few = few if evidence.known < FEW_KNOWN else ""
        steps.append(
            "Review the highest-scoring rows: `fvnce score RUN DATA --review 20 --out sheet.csv`. Fill in the column "
            "verdict, both for outliers and for inliers, "
            f"and train again: `fvnce fit --config RUN --review sheet.csv --out NEW`.{few}"
        )
    steps.append("Before you rely on the detector, test it on new labeled rows: `fvnce evaluate RUN LABELED`.")
    steps.append("Test regularly whether new rows differ from the training rows: `fvnce monitor RUN DATA`.")
    return steps


def named(names: Sequence[str]) -> str:
    """Return the first names, and the number of further ones.

    >>> named(["id 3", "id 8"])
    'id 3, id 8'
    """
    # A backtick would begin code.
    first = ", ".join(name.replace("`", "'") for name in names[:NAMED])
    return first + (f" and {len(names) - NAMED:,} more" if len(names) > NAMED else "")
