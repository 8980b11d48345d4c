"""Score tables with a saved detector, without torch.

    from fvnce import scorer

    detector = scorer.load("run")                # what save wrote, or the folder that fvnce fit --out wrote
    detector.scores(X), detector.predict(X), detector.p_value(X), detector.outlier_probability(X), detector.explain(X)

Scores have the bits of the estimator that was saved. NumPy scores few rows; many rows are scored by scikit-learn's
compiled code, which is imported then. Images need torch for their warps. The detector can be pickled, and several
threads may use it at a time; :class:`fvnce.detection.BatchScorer` sends it to the workers of an engine.

It reads files of version 0.2.0 of fvnce and later, which state version 2 of the format, and refuses others with what to
do (:data:`FORMAT_VERSION`). A file from elsewhere runs no code, and what it holds is checked part by part.
"""

from __future__ import annotations

import os

from .detection.base import MAX_BYTES
from .detection.batch_scorer import file_of
from .detection.fitted import FittedEnsemble
from .io.files import FORMAT_VERSION as FORMAT_VERSION

__all__ = ["load"]


def load(path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> FittedEnsemble:
    """Return the detector of a file, which scores and explains rows and cannot be fitted.

    Args:
        path: what ``NoiseContrastiveDetector.save`` wrote, or the folder that ``fvnce fit --out`` wrote.
        max_bytes: the largest file that is read, 4 GiB by default.

    Raises:
        FileError: if it is damaged, too large, of another version, or not a detector that ``fit`` could have made.

    >>> import tempfile
    >>> import numpy as np
    >>> from fvnce import NoiseContrastiveDetector
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> detector = NoiseContrastiveDetector(n_trees=20).fit(X)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     loaded = load(detector.save(f"{folder}/detector.safetensors"))
    >>> loaded.predict([[0.0, 0.0], [9.0, 9.0]]), bool((loaded.scores(X).line == detector.scores(X).line).all())
    (array([ 1, -1]), True)
    """
    return FittedEnsemble.load(file_of(os.fspath(path)), max_bytes=max_bytes)
