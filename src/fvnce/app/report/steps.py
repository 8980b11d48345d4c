"""Section of recommended next steps: doubtful labels, unused columns, rows to label, new rows, drift."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...detection import Evidence
from .analysis import Analysis
from .columns import read_columns
from .page import Section, block, plain
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
    text = plain(
        "next_steps.md",
        doubtful=doubtful,
        unused=unused,
        mixed=evidence.auroc is not None and evidence.auroc.value <= FAIR,
        many_flagged=evidence.flagged > MANY_FLAGGED * evidence.rows,
        clean=clean,
        images=images,
        known=evidence.known,
        few_known=FEW_KNOWN,
        named=named,
    )
    return text.splitlines()


def named(names: Sequence[str]) -> str:
    """Return the first names, and the number of further ones.

    >>> named(["id 3", "id 8"])
    'id 3, id 8'
    """
    # A backtick would begin code.
    first = ", ".join(name.replace("`", "'") for name in names[:NAMED])
    return first + (f" and {len(names) - NAMED:,} more" if len(names) > NAMED else "")
