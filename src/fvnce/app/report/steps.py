"""The section of what to do next: labels that look wrong, columns not used, rows to label, new rows, drift."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...detection import Evidence
from .analysis import Analysis, plural
from .columns import read_columns
from .page import Section, block
from .verdict import FAIR

#: Known outliers below which a few more labels are the best advice.
FEW_KNOWN = 20
#: Share of flagged rows above which an analyst needs help to choose.
MANY_FLAGGED = 0.1
#: Rows and columns that are named.
NAMED = 10


def sections(analysis: Analysis) -> Iterator[Section]:
    """Yield the steps."""
    doubtful = [analysis.name_at(place) for place in analysis.run.detector.doubtful_labels_.tolist()]
    unused = [f"{column.name} ({column.unused})" for column in read_columns(analysis) if column.unused]
    evidence, clean = analysis.run.detector.evidence_, analysis.run.detector.clean
    steps = next_steps(evidence, doubtful, unused, images=analysis.is_image, clean=clean)
    reading = ["RUN is the folder of this page, DATA a file of rows, NEW a new folder."]
    yield Section("What to do next", reading, blocks=[block("next_steps", steps=steps)])


def next_steps(
    evidence: Evidence,
    doubtful: Sequence[str] = (),
    unused: Sequence[str] = (),
    *,
    images: bool = False,
    clean: bool = False,
) -> list[str]:
    """Return what to do, the most useful first; text between backticks is code.

    Args:
        evidence: of the detector.
        doubtful: names of known outliers whose labels look wrong.
        unused: columns that are not used, and why.
        images: whether the rows are images.
        clean: whether all rows are taken as normal.
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
            "misread (columns and their health, below)."
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
            "If too many rows are flagged, say how many you have time for: `fvnce score RUN DATA --alarms 50`."
        )
    if clean and not evidence.known:
        steps.append("If a flagged row is an outlier after all, take it out of the data, and train again.")
    elif images:
        steps.append("Put images that are what you look for into a folder, and train again with `--outliers FOLDER`.")
    else:
        few = f" With {plural(evidence.known, 'known outlier')} every number here is rough." if evidence.known else ""
        few = few if evidence.known < FEW_KNOWN else ""
        steps.append(
            "Label the rows most worth a look, at the top of the lists and near the lines: `fvnce score RUN DATA "
            "--review 20 --out sheet.csv`. Fill in the column verdict, whether they prove to be outliers or not, "
            f"and train again: `fvnce fit --config RUN --review sheet.csv --out NEW`.{few}"
        )
    steps.append("Before you rely on it, try it on labelled rows that are new to it: `fvnce evaluate RUN LABELLED`.")
    steps.append("Test now and then whether new rows have drifted away from training: `fvnce monitor RUN DATA`.")
    return steps


def named(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are.

    >>> named(["id 3", "id 8"])
    'id 3, id 8'
    """
    # A backtick would begin code.
    first = ", ".join(name.replace("`", "'") for name in names[:NAMED])
    return first + (f" and {len(names) - NAMED:,} more" if len(names) > NAMED else "")
