"""What the page tells of a run, as plain numbers and PNG images, so that it can be drawn again without the data.

Each part is a dictionary, or a sentence that says why a run has no such part.

==================  ===============================================================
``subject``         the run and the rows that are looked at
``scores``          scores with the threshold, probabilities, training curves
``anomalies``       the strangest rows, with what makes them strange
``plane``           codes, or rows, in two dimensions
``rebuilding``      reconstructions of data, noise and outliers; samples
``contrast``        data against noise: log-ratios, calibration, log Z
==================  ===============================================================
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ....training import History
from ..material import Material
from ..scorer import LoadedRun
from .anomalies import strangest
from .contrast import contrast
from .plane import plane
from .rebuilding import rebuilt, samples
from .scores import curves, probability, scores
from .subject import look

__all__ = ["study"]


def study(
    run: LoadedRun, material: Material, histories: list[tuple[str, History]], held_out: Tensor | None
) -> dict[str, Any]:
    """All parts."""
    subject = look(run, material)
    return {
        "histories": [curves(name, history) for name, history in histories],
        "scores": scores(subject),
        "probability": probability(subject),
        "plane": plane(subject),
        "rebuilt": rebuilt(subject),
        "samples": samples(subject),
        "top": strangest(subject),
        "flagged": int((subject.anomaly > run.scorer.threshold)[~subject.known].sum()),
        "looked_at": len(subject.anomaly),
        "unlabelled": int((~subject.known).sum()),
        **contrast(run, held_out),
    }
