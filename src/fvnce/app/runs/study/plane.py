"""Rows in two dimensions: their codes, or the rows themselves, along the two directions of most variance."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .numbers import short
from .pictures import sprite
from .subject import Array, Subject, take

#: Points of the plane; of these at most so many are the strangest rows, and known outliers.
POINTS, STRANGE, KNOWN = 600, 50, 150


def plane(subject: Subject) -> dict[str, Any]:
    """Coordinates of some rows, with what to say of each."""
    index = _some(subject)
    part = take(subject.rows, index)
    x = subject.encoding(part)
    values = x if subject.autoencoding is None else subject.autoencoding.codes(x)
    at, share = principal_plane(values)
    fact: dict[str, Any] = {
        "of": "rows" if subject.autoencoding is None else "codes",
        "size": values.shape[1],
        "share": share,
        "x": short(at[:, 0]),
        "y": short(at[:, 1]),
        "known": subject.known[index].astype(int).tolist(),
        "score": short(subject.anomaly[index]),
        "text": [_item(subject, int(i)) for i in index],
    }
    image = subject.encoding.image
    if image is not None:
        fact["sprite"] = sprite(np.asarray(part, dtype=np.float64), image.low, image.high)
    return fact


def principal_plane(values: Array) -> tuple[Array, float]:
    """Coordinates along the two directions of most variance, and their share of the variance.

    >>> at, share = principal_plane(np.array([[0.0, 0.0, 5.0], [4.0, 0.0, 5.0]]))
    >>> np.abs(at).round(3).tolist(), round(share, 3)
    ([[2.0, 0.0], [2.0, 0.0]], 1.0)
    """
    centred = values - values.mean(0)
    _, size, directions = np.linalg.svd(centred, full_matrices=False)
    if directions.shape[0] < 2:
        directions = np.vstack([directions, np.zeros_like(directions)])[:2]
        size = np.append(size, 0.0)
    # The sign of a direction is arbitrary; this choice makes it the same everywhere.
    largest = directions[:2][np.arange(2), np.abs(directions[:2]).argmax(1)]
    directions = directions[:2] * np.sign(largest + 1e-300)[:, None]
    total = float((size**2).sum()) or 1.0
    return centred @ directions.T, float((size[:2] ** 2).sum() / total)


def _some(subject: Subject) -> NDArray[np.int64]:
    """The strangest rows, known outliers, and a random choice of the rest."""
    count = len(subject.anomaly)
    order = np.argsort(-subject.anomaly, kind="stable")
    some = set(order[:STRANGE].tolist()) | set(np.flatnonzero(subject.known)[:KNOWN].tolist())
    for position in subject.rng.permutation(count).tolist():
        if len(some) >= min(POINTS, count):
            break
        some.add(position)
    return np.array(sorted(some))


def _item(subject: Subject, position: int) -> str:
    name = subject.name(position) or f"row {int(subject.numbers[position]) + 1}"
    return name if subject.image else f"{name}: {subject.cells(position)}"
