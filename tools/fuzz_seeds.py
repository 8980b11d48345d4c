"""Records and facts of small runs, as :mod:`fuzz_readers` takes them before it changes them: one of each branch."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from matplotlib.image import imsave


def _png(side: int = 4) -> str:
    buffer = io.BytesIO()
    imsave(buffer, np.linspace(0, 1, side * side).reshape(side, side), format="png", cmap="gray")
    return base64.b64encode(buffer.getvalue()).decode("ascii")


_SHEET = {"png": _png(), "width": 4, "height": 4}
_HISTOGRAM: dict[str, Any] = {"edges": [0.0, 1.0, 2.5], "counts": {"training rows": [3, 4], "known outliers": [0, 1]}}
_WHY = "There is none of this in such a run."
_CURVES: dict[str, Any] = {
    "epochs": {
        "epoch": [1, 2, 3],
        "loss": [3.0, 2.0, 1.5],
        "val_loss": [3.1, None, 1.7],
        "live_noise": [1.0, 0.5, 0.2],
    },
    "steps": {"step": [1, 2], "loss": [3.0, 1.0], "live_noise": [None, 0.5], "ess_noise": [0.1, 0.2]},
}
_PLANE: dict[str, Any] = {
    "of": "rows",
    "size": 2,
    "share": 0.9,
    "x": [0.0, 1.0, -2.0],
    "y": [0.5, 0.1, 3.0],
    "known": [0, 1, 0],
    "score": [1.0, 2.0, None],
    "text": ["row 1: a 1", "row 2: a 2", "row 3: a <b>"],
}
_PARTS = [["a", 2.0, "1"], ["b", -0.5, "missing"]]
_INTERVAL = {"value": 0.9, "low": 0.8, "high": 0.95}
_VERDICT: dict[str, Any] = {
    "rows": 7,
    "known": 3,
    "auroc": _INTERVAL,
    "average_precision": _INTERVAL,
    "found": 2,
    "flagged": 1,
    "held_out": True,
    "threshold": 2.0,
    "threshold_reason": "P(outlier | x) = 1/2 there",
    "prior": 0.05,
    "reason": None,
}
_NO_VERDICT = dict.fromkeys(("auroc", "average_precision", "found", "prior"))
_HEALTH: dict[str, Any] = {
    "columns": [{"name": "a", "kind": "number", "missing": 2, "values": "0 to 1", "note": "constant, not used"}],
    "left_out": ["fraud (the label)"],
}
RECORDS: list[dict[str, Any]] = [
    {
        "kind": "detector",
        "name": "table.csv",
        "notices": ["column 'id' is left out"],
        "rows": 8,
        "known": 1,
        "frame": True,
        "layout": {"kinds": {"a": "number", "town": "text"}, "shape": None},
        "versions": {"fvnce": "1", "python": "3"},
        "made": "2025-01-01 00:00:00",
        "members": ["forest", "network"],
        "seconds": {"reading": 0.1},
    },
    {
        "kind": "latent",
        "rows": 8,
        "known": 0,
        "frame": False,
        "layout": {"kinds": None, "shape": [4, 4]},
        "versions": {},
        "made": "",
    },
]
FACTS: list[dict[str, Any]] = [
    {
        "verdict": _VERDICT,
        "importance": {"columns": ["a", "b"], "shares": [0.9, -0.1]},
        "health": _HEALTH,
        "histories": [{"name": "network 1", **_CURVES}, {"name": "network 2", "epochs": {}, "steps": _CURVES["steps"]}],
        "scores": {**_HISTOGRAM, "threshold": 2.0},
        "probability": {"score": [0.0, 1.0], "probability": [0.1, 0.9], "prior": 0.05, "known": 3},
        "plane": _PLANE,
        "rebuilt": {"columns": ["a", "b"], "errors": {"training rows": [0.1, 0.2], "noise": [1.0, None]}},
        "samples": {"columns": ["a", "b"], "data": [[0.0, 0.1], [1.0, 1.0]], "model": [[0.0, 0.1], [1.0, 1.0]]},
        "top": [{"name": "3", "score": 2.0, "probability": 0.5, "parts": _PARTS, "whole": [["base", 0.5, ""]]}],
        "flagged": 1,
        "looked_at": 8,
        "unlabelled": 7,
        "ratios": {**_HISTOGRAM, "log_scale": 0.1},
        "reliability": {"predicted": [0.1, 0.9], "observed": [0.2, None], "error": 0.1, "log_loss": 0.5},
        "log_partition": {"value": 0.1, "error": 0.01, "log_scale": 0.1},
        "advice": ["Give it more noise"],
    },
    {
        "verdict": {**_VERDICT, **_NO_VERDICT, "known": 0, "reason": "no outlier is known (y = 1)"},
        "importance": {"heat": _png()},
        "health": _WHY,
        "histories": [{"name": "model", "epochs": _CURVES["epochs"], "steps": {}}],
        "scores": {**_HISTOGRAM, "threshold": 2.0},
        "probability": _WHY,
        "plane": {**_PLANE, "of": "codes", "sprite": {**_SHEET, "across": 2, "count": 3}},
        "rebuilt": {"sheets": [{"name": "training rows", "png": _SHEET}]},
        "samples": {"png": _SHEET},
        "top": [
            {
                "name": "a.png",
                "score": 2.0,
                "probability": None,
                "parts": [["red pixels", 1.0, ""], ["blue pixels", -0.5, ""]],
                "whole": [["rest", 0.1, ""], ["base", 1.4, ""]],
                "picture": _png(),
                "heat": _png(),
            }
        ],
        "flagged": 0,
        "looked_at": 8,
        "unlabelled": 8,
        "ratios": _WHY,
        "reliability": _WHY,
        "log_partition": _WHY,
        "advice": [],
    },
]
