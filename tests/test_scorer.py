"""A saved detector scores without torch, to the bits of the estimator, in any process and thread."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fvnce import NoiseContrastiveDetector, scorer
from fvnce.detection import MEMBERS, BatchScorer, FittedEnsemble
from fvnce.io import FileError, read_record, write_record

QUICK: dict[str, Any] = {"n_trees": 9, "n_networks": 2, "steps": 10, "calibration_folds": 2}
RNG = np.random.default_rng(0)
FILES = Path(__file__).parent / "detection" / "files"


def problem(kind: str) -> tuple[Any, Any, Any]:
    """Training rows, their labels and new rows."""
    X = RNG.random((90, 8, 8)) if kind == "images" else RNG.normal(size=(90, 120 if kind == "wide" else 4))
    X[:8] += 2
    if kind == "gaps":
        X[RNG.random(X.shape) < 0.1] = np.nan
    y = None if kind == "unlabelled" else (np.arange(len(X)) < 8).astype(int)
    return X, y, X[::2] + 0.25 * RNG.normal(size=X[::2].shape)


@pytest.mark.parametrize("kind", ["table", "gaps", "wide", "unlabelled", "images", *MEMBERS])
def test_a_scorer_has_the_bits_of_the_estimator(kind: str, tmp_path: Path) -> None:
    X, y, new = problem(kind)
    detector = NoiseContrastiveDetector(**QUICK, members=kind if kind in MEMBERS else "auto").fit(X, y)
    loaded = scorer.load(detector.save(tmp_path / "detector"))
    assert type(loaded) is FittedEnsemble
    for name in ("anomaly_score", "score_samples", "predict", "p_value", "outlier_probability", "predict_proba"):
        np.testing.assert_array_equal(getattr(loaded, name)(new), getattr(detector, name)(new), err_msg=name)
    scores, expected = loaded.scores(new), detector.scores(new)
    for name in ("line", "like_known", "novelty", "flagged", "kind"):
        np.testing.assert_array_equal(getattr(scores, name), getattr(expected, name), err_msg=name)
    np.testing.assert_array_equal(loaded.explain(new).total, detector.explain(new).total)
    assert loaded.reasons(new) == detector.reasons(new)
    assert loaded.settings["n_trees"] == 9
    for n in (1, 5):
        np.testing.assert_array_equal(loaded.anomaly_score(new[:n]), scores.anomaly[:n])


def test_a_scorer_travels_and_is_shared_by_threads(tmp_path: Path) -> None:
    X, y, new = problem("table")
    path = NoiseContrastiveDetector(**QUICK).fit(X, y).save(tmp_path / "detector")
    loaded = scorer.load(path)
    expected = loaded.anomaly_score(new)
    sent = pickle.loads(pickle.dumps(scorer.load(path)))  # noqa: S301 (our own bytes)
    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(sent.anomaly_score, [new[i % 45 : i % 45 + 1] for i in range(400)]))
    np.testing.assert_array_equal(np.concatenate(found), np.resize(expected, 400))


ALONE = """
import json, sys
import numpy as np
from fvnce import scorer
from fvnce.app.cli import main
from fvnce.detection import BatchScorer

folder, heavy = sys.argv[1], {"torch", "sklearn", "scipy.stats", "matplotlib"}
after_import = sorted(heavy & set(sys.modules))
new = np.load(f"{folder}/new.npy")
detector = scorer.load(f"{folder}/run")
batch = BatchScorer(f"{folder}/run")({name: column for name, column in zip("abcd", new.T)})
few = detector.anomaly_score(new[:2])
try:
    main(["score", f"{folder}/run", f"{folder}/new.csv", "--out", f"{folder}/scores.csv", "--quiet"])
except SystemExit as stop:
    assert not stop.code
after_few = sorted(heavy & set(sys.modules))
many = detector.anomaly_score(np.tile(new, (600, 1)))
explained = detector.explain(new)
print(json.dumps({
    "after import": after_import, "after few": after_few, "torch": "torch" in sys.modules,
    "same": bool((many[:len(new)] == detector.anomaly_score(new)).all() and (few == many[:2]).all()),
    "score": many[:len(new)].tolist(), "batch": batch["score"].tolist(), "p": detector.p_value(new).tolist(),
    "total": explained.total.tolist(),
}))
"""


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_scoring_imports_neither_torch_nor_for_few_rows_scikit_learn(tmp_path: Path) -> None:
    X, y, new = problem("table")
    header, label = "a,b,c,d", np.append(y, 0)[: len(X)]
    lines = [",".join(map(repr, row)) for row in X.tolist()]
    (tmp_path / "rows.csv").write_text(
        "\n".join([f"{header},label", *(f"{line},{known}" for line, known in zip(lines, label, strict=True))])
    )
    (tmp_path / "new.csv").write_text("\n".join([header, *(",".join(map(repr, row)) for row in new.tolist())]))
    np.save(tmp_path / "new.npy", new)
    settings = [part for name, value in QUICK.items() for part in ("--set", f"{name}={value}")]
    fit = ["fit", str(tmp_path / "rows.csv"), "--label", "label", "--out", str(tmp_path / "run"), "-q", *settings]
    subprocess.run([sys.executable, "-m", "fvnce", *fit], check=True, stdout=subprocess.DEVNULL)
    run = subprocess.run([sys.executable, "-c", ALONE, str(tmp_path)], check=True, capture_output=True, text=True)
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["after import"] == found["after few"] == []
    assert not found["torch"]
    assert found["same"]
    detector = NoiseContrastiveDetector.load(tmp_path / "run" / "model.safetensors")
    rows = dict(zip("abcd", new.T, strict=True))
    np.testing.assert_array_equal(found["score"], detector.anomaly_score(new))
    np.testing.assert_array_equal(found["batch"], BatchScorer(tmp_path / "run")(rows)["score"])
    np.testing.assert_array_equal(found["batch"], found["score"])
    np.testing.assert_array_equal(found["p"], detector.p_value(new))
    np.testing.assert_array_equal(found["total"], detector.explain(new).total)
    written = (tmp_path / "scores.csv").read_text().splitlines()[1:]
    np.testing.assert_array_equal([float(line.split(",")[1]) for line in written], found["score"])


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        (np.zeros((2, 3)), r"shape \(n, 4\).*found \(2, 3\)"),
        (np.zeros(4), r"found \(4,\)"),
        (np.zeros((0, 4)), r"found \(0, 4\)"),
        (np.full((2, 4), np.inf), "infinity"),
        (np.ma.masked_equal(np.zeros((2, 4)), 0), "masked"),
        ([["a"] * 4], "could not convert"),
    ],
)
def test_rows_that_are_no_table_are_refused(rows: Any, match: str, tmp_path: Path) -> None:
    X, _, _ = problem("table")
    loaded = scorer.load(NoiseContrastiveDetector(n_trees=9).fit(X).save(tmp_path / "detector"))
    with pytest.raises(ValueError, match=match):
        loaded.scores(rows)


def test_a_file_of_another_format_is_refused_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content, arrays = read_record(FILES / "detector-0.2.0.safetensors", "detector", arrays=True)
    monkeypatch.setattr("fvnce.io.files.FORMAT_VERSION", scorer.FORMAT_VERSION + 1)
    write_record(tmp_path / "later", "detector", content, arrays)
    monkeypatch.undo()
    with pytest.raises(FileError, match=rf"version {scorer.FORMAT_VERSION} .*found {scorer.FORMAT_VERSION + 1}"):
        scorer.load(tmp_path / "later")


def test_a_scorer_that_was_not_loaded_says_so() -> None:
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError, match="fitted"):
        FittedEnsemble().scores(np.zeros((1, 2)))
