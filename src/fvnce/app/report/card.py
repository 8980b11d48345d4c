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
from . import verdict
from .analysis import Analysis
from .columns import read_columns
from .page import plain, plural
from .steps import FEW_KNOWN, named


def card(analysis: Analysis) -> str:
    """Return the model card as Markdown."""
    config, columns = analysis.run.config, read_columns(analysis)
    headline, sentences = verdict.words(analysis)
    defaults = {**EXPERT, **NoiseContrastiveDetector().get_params()}
    changed = [f"{key} = {v}" for key, v in config.detector.items() if _plain(v) != _plain(defaults.get(key))]
    text = plain(
        "card.md",
        name="standard input" if config.data.path == "-" else Path(config.data.path).name,
        version=__version__,
        analysis=analysis,
        counts=list(_counts(analysis)),
        columns=columns,
        kinds=Counter(column.kind for column in columns),
        unused=named([f"{column.name} ({column.unused})" for column in columns if column.unused]),
        verdict=[headline, *sentences],
        few_known=FEW_KNOWN,
        settings=", ".join(changed),
    )
    return text.replace("<", "\\<")  # so that Markdown shows tags as text


def _counts(analysis: Analysis) -> Iterator[str]:
    """Yield the number of rows of each kind, with the origin of labels."""
    data, known, inliers = analysis.run.config.data, analysis.data.known, analysis.data.inliers
    marked = f", marked by {data.label}" if data.label else ""
    marked = marked or (f", from {Path(data.outliers).name}" if data.outliers else "")
    yield plural(int((~known & ~inliers).sum()), "unlabeled row")
    for noun, which, origin in (("known inlier", inliers, ""), ("known outlier", known, marked)):
        reviewed = int((which & analysis.data.reviewed).sum())
        if which is known or which.any():
            of_sheets = f" ({reviewed:,} from review sheets)" if reviewed else ""
            yield f"{plural(int(which.sum()), noun)}{origin}{of_sheets}"


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple | np.ndarray) else value
