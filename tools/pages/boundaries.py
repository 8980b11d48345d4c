"""Decision boundaries in the plane: this detector next to scikit-learn's, with and without known outliers.

As in scikit-learn's comparison of outlier detectors, four small tables are drawn with the score of five detectors and
their thresholds. The peers receive the true share of outliers; this detector finds its own threshold.

    python -m tools.pages.boundaries [--out docs/images/boundaries.png]
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.datasets import make_moons
from sklearn.ensemble import IsolationForest
from sklearn.neighbors import LocalOutlierFactor
from sklearn.svm import OneClassSVM

from fvnce import NoiseContrastiveDetector
from fvnce.detection import UnlikeTrainingWarning

Array = NDArray[np.float64]
ROOT = Path(__file__).resolve().parents[2]
#: Outliers in each table, and how many of them are known.
OUTLIERS, KNOWN = 15, 5
#: The plane that is drawn, and the points of a side.
SIDE, POINTS = 4.5, 60
TITLES = ("fvnce, none known", "fvnce, five known (×)", "isolation forest", "LOF", "one-class SVM")


def tables(rows: int = 285) -> list[Array]:
    """Return four tables, each with its outliers in the last places."""
    rng = np.random.default_rng(0)
    scattered = rng.uniform(-SIDE, SIDE, (4 * OUTLIERS, 2))
    blobs = np.concatenate(
        [rng.normal((-2, -2), 0.3, (rows // 2, 2)), rng.normal((1.5, 1.5), 0.9, (rows - rows // 2, 2))]
    )
    moons = 2 * (make_moons(rows, noise=0.06, random_state=0)[0] - (0.5, 0.25))
    one = rng.normal(0, 0.9, (rows, 2))
    angle = rng.uniform(0, 2 * np.pi, rows)
    ring = 3 * np.stack([np.cos(angle), np.sin(angle)], 1) + rng.normal(0, 0.2, (rows, 2))
    return [
        np.concatenate([blobs, scattered[np.linalg.norm(scattered - 1.5, axis=1) > 2.5][:OUTLIERS]]),
        np.concatenate([moons, scattered[np.abs(scattered).max(1) > 2][:OUTLIERS]]),
        np.concatenate([one, rng.normal((2.4, 2.0), 0.2, (OUTLIERS, 2))]),
        np.concatenate([ring, rng.normal(0, 0.4, (OUTLIERS, 2))]),
    ]


def scorers(X: Array) -> list[Callable[[Array], Array]]:
    """Return ``decision_function`` of each detector, fitted: negative for outliers."""
    y = np.zeros(len(X))
    y[-KNOWN:] = 1
    share = OUTLIERS / len(X)
    fitted: list[Any] = [
        NoiseContrastiveDetector().fit(X),
        NoiseContrastiveDetector().fit(X, y),
        IsolationForest(contamination=share, random_state=0).fit(X),
        LocalOutlierFactor(n_neighbors=35, contamination=share, novelty=True).fit(X),
        OneClassSVM(nu=share, gamma="scale").fit(X),
    ]
    return [detector.decision_function for detector in fitted]


def draw(out: Path, data: list[Array] | None = None) -> Path:
    """Draw a row for each table and a column for each detector."""
    data = tables() if data is None else data
    axis = np.linspace(-SIDE, SIDE, POINTS)
    grid = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    figure = Figure(figsize=(10, 2.05 * len(data) + 0.2), layout="constrained")
    panels = figure.subplots(len(data), len(TITLES), squeeze=False)
    for line, X in zip(panels, data, strict=True):
        for place, (panel, score) in enumerate(zip(line, scorers(X), strict=True)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UnlikeTrainingWarning)  # as a grid is
                plane = score(grid).reshape(POINTS, POINTS)
            rank = np.searchsorted(np.sort(plane.ravel()), plane) / plane.size
            panel.imshow(rank, origin="lower", extent=(-SIDE, SIDE, -SIDE, SIDE), cmap="Greys_r", vmin=-0.9, vmax=1.0)
            if plane.min() < 0 < plane.max():
                panel.contour(axis, axis, plane, levels=[0], colors="#c23b22", linewidths=1.4)
            panel.plot(*X[:-OUTLIERS].T, ".", markersize=1.5, color="#0b2e59")
            panel.plot(*X[-OUTLIERS:].T, ".", markersize=4, color="#e8a33d")
            if place == 1:
                panel.plot(*X[-KNOWN:].T, "x", markersize=5, color="#c23b22")
            panel.set(xticks=[], yticks=[], xlim=(-SIDE, SIDE), ylim=(-SIDE, SIDE))
    for panel, title in zip(panels[0], TITLES, strict=True):
        panel.set_title(title, fontsize=10)
    figure.savefig(out, dpi=110)
    return out


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "boundaries.png")
    print(draw(parser.parse_args().out))
