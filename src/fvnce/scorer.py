"""Scoring of tables with a saved detector, without torch.

    from fvnce import scorer

    detector = scorer.load("run")                # file written by save, or folder written by fvnce fit --out
    detector.scores(X), detector.predict(X), detector.p_value(X), detector.outlier_probability(X), detector.explain(X)

Scores are equal, bit for bit, to those of the saved estimator. A few rows are scored by NumPy; for many rows
scikit-learn's compiled code is imported, which is faster. Images need torch for their warps. The detector can be
pickled and used by several threads at once; :class:`fvnce.detection.BatchScorer` sends it to the workers of an engine.

Files of fvnce 0.2.0 and later, of version 2 of the format (:data:`FORMAT_VERSION`), can be read; other versions raise
an error with advice. Reading an untrusted file executes no code, and all of its contents are checked.
"""

from __future__ import annotations

import os

from .detection.base import MAX_BYTES
from .detection.batch_scorer import file_of
from .detection.fitted import FittedEnsemble
from .io.files import FORMAT_VERSION as FORMAT_VERSION

__all__ = ["load"]


def load(path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> FittedEnsemble:
    """Load a detector that scores and explains rows, but cannot be fitted.

    Args:
        path: file that ``NoiseContrastiveDetector.save`` wrote, or folder that ``fvnce fit --out`` wrote.
        max_bytes: largest file size that is read, by default 4 GiB.

    Returns:
        The fitted detector.

    Raises:
        FileError: if the file is damaged, too large, of another version, or not a detector that ``fit`` can make.

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
