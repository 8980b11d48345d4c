"""Model card of a run, ``card.md``: training data, quality, limits and settings of the detector.

The card is a separate Markdown file, so that it can be passed on with the model. It holds no date, so the same data and
settings give the same card.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..._version import __version__
from ...detection import NoiseContrastiveDetector
from ...detection.estimator import EXPERT
from ..escaping import visible
from . import verdict
from .analysis import Analysis, percent, plural
from .columns import read_columns
from .steps import FEW_KNOWN, named


def card(analysis: Analysis) -> str:
    """Return the model card as Markdown."""
    data, detector = analysis.run.config.data, analysis.run.detector
    name = "standard input" if data.path == "-" else Path(data.path).name
    headline, sentences = verdict.words(analysis)
    threshold = (
        f"The threshold is a score of {detector.threshold_:.4g}: {detector.evidence_.threshold_reason.rstrip('.')}."
    )
    parts = {
        "Trained on": trained_on(analysis, name),
        "How good it is": [headline, *sentences, threshold],
        "What it is not for": not_for(analysis),
        "How it was made": _settings(analysis),
    }
    lines = [f"# Model card: {_shown(name)}", "", f"An outlier detector, made by `fvnce fit` of version {__version__}."]
    for title, items in parts.items():
        lines += ["", f"## {title}", "", *(f"- {_shown(item)}" for item in items)]
    return "\n".join(lines) + "\n"


def _shown(text: str) -> str:
    """Escape text of a file so that Markdown shows tags as text."""
    return visible(text).replace("<", "\\<")


def trained_on(analysis: Analysis, name: str) -> Iterator[str]:
    """Yield sentences that describe the training data."""
    data, detector, known = analysis.run.config.data, analysis.run.detector, analysis.data.known
    yield f"Data: {name}{'' if data.sha256 is None else f', SHA-256 {data.sha256}'}"
    marked = (
        f", marked by {data.label}" if data.label else f", from {Path(data.outliers).name}" if data.outliers else ""
    )
    inliers, others = analysis.data.inliers, int((~known).sum())
    sheets = np.zeros(len(known), dtype=bool) if analysis.data.reviewed is None else analysis.data.reviewed
    groups = {"known inlier": (inliers, ""), "known outlier": (known, marked)}
    counts = [plural(int((~known & ~inliers).sum()), "unlabeled row")]
    for noun, (which, origin) in groups.items():
        reviewed = int((which & sheets).sum())
        of_sheets = f" ({reviewed:,} from review sheets)" if reviewed else ""
        if which is known or which.any():
            counts.append(f"{plural(int(which.sum()), noun)}{origin}{of_sheets}")
    yield f"Rows: {', '.join(counts[:-1])} and {counts[-1]}"
    if others > detector.max_rows:
        kind = "rows that are not known outliers" if inliers.any() else "unlabeled rows"
        yield f"Of the {kind} {detector.max_rows:,}, chosen at random, were trained on"
    columns = read_columns(analysis)
    if not columns:
        yield f"Images of shape {' × '.join(map(str, analysis.rows.shape[1:]))}"
        return
    kinds = Counter(column.kind for column in columns)
    yield f"Columns: {', '.join(f'{count:,} read as {kind}' for kind, count in kinds.items())}"
    for column in columns:
        if column.kind == "date":
            yield f"Dates of {column.name}: {column.span}"
    gaps = int(sum(column.summary.missing for column in columns))
    yield f"Missing values: {percent(gaps / (len(known) * len(columns)))}"
    if unused := [f"{column.name} ({column.unused})" for column in columns if column.unused]:
        yield f"Not used: {named(unused)}"


def not_for(analysis: Analysis) -> Iterator[str]:
    """Yield uses that the detector is not suited for."""
    detector = analysis.run.detector
    known, measured = detector.n_known_, detector.evidence_.auroc is not None
    yield "Automatic decisions: a high score is a reason to review a row, not a proof that it is an outlier."
    if not measured:
        yield "Use without a test: no held-out outlier measures its quality. Run `fvnce evaluate` on labeled rows."
    elif known < FEW_KNOWN:
        yield f"Precise claims about recall: with {plural(known, 'known outlier')} the intervals above are wide."
    if known:
        yield "Claims about kinds of outliers of which none was marked: no number above covers them."
    yield "Rows that differ from the training rows, such as much later ones: test for this with `fvnce monitor`."
    if analysis.is_image:
        yield "Images of another size, range of values, kind of scene or device."
    else:
        yield "Columns with another meaning, unit or spelling than in training."
    if detector.clean:
        yield "Training data that contain hidden outliers: all rows were assumed to be normal."


def _settings(analysis: Analysis) -> Iterator[str]:
    detector, config = analysis.run.detector, analysis.run.config
    yield f"Members: {', '.join(detector.ensemble_.names).replace('_', ' ')}"
    yield f"Seed: {config.seed}"
    defaults = {**EXPERT, **NoiseContrastiveDetector().get_params()}
    changed = {name: value for name, value in config.detector.items() if _plain(value) != _plain(defaults.get(name))}
    settings = ", ".join(f"{name} = {value}" for name, value in changed.items())
    yield f"Settings that are not the default: {settings or 'none'}"
    yield "All settings: config.toml; `fvnce fit --config config.toml --out FOLDER` repeats the training"


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple | np.ndarray) else value
