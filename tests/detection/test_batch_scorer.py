"""Batches are scored to the bits of one process, whatever their container, columns, split and process."""

from __future__ import annotations

import csv
import os
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fvnce
from fvnce.app.cli import main
from fvnce.detection import MEMBERS, BatchScorer, LatentDetector, NoiseContrastiveDetector
from fvnce.io import FileError

QUICK: dict[str, Any] = {"n_trees": 8, "n_networks": 2, "steps": 10, "calibration_folds": 2}
NAMES = ["height", "width", "depth"]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 3))
X[:6] += 4
Y = (np.arange(len(X)) < 6).astype(int)
NEW = RNG.normal(size=(50, 3)) * 1.3


def frame_of(rows: Any) -> pd.DataFrame:
    """Rows as a data frame whose columns stand in another order, between others."""
    table = pd.DataFrame(rows, columns=NAMES, index=np.arange(len(rows)) + 100)
    return table.assign(id=np.arange(len(rows)))[["width", "id", "height", "depth"]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    detector = NoiseContrastiveDetector(**QUICK).fit(pd.DataFrame(X, columns=NAMES), Y)
    return detector.save(tmp_path_factory.mktemp("detector") / "detector.safetensors")


@pytest.fixture(scope="module")
def expected(saved: Path) -> dict[str, Any]:
    detector = NoiseContrastiveDetector.load(saved)
    rows = pd.DataFrame(NEW, columns=NAMES)
    return {
        "score": detector.anomaly_score(rows),
        "probability": detector.outlier_probability(rows),
        "outlier": detector.predict(rows) == -1,
    }


def polars(table: pd.DataFrame) -> Any:
    return pytest.importorskip("polars").DataFrame({name: table[name].to_numpy() for name in table})


def arrow(table: pd.DataFrame) -> Any:
    return pytest.importorskip("pyarrow").table({name: table[name].to_numpy() for name in table})


CONTAINERS: dict[str, Any] = {
    "pandas": lambda table: table,
    "polars": polars,
    "arrow": arrow,
    "record batch": lambda table: arrow(table).to_batches()[0],
    "dict": lambda table: {name: table[name].to_numpy() for name in table},
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_table_of_any_kind_gives_scores_of_the_same_kind_and_bits(kind, saved, expected):
    batch = CONTAINERS[kind](frame_of(NEW))
    result = BatchScorer(saved, keep=["id"])(batch)
    assert type(result) is type(batch)
    names = list(result) if kind in ("dict", "pandas") else result.schema.names if "arrow" in kind else None
    assert names in (None, ["id", "score", "probability", "outlier"])
    for name, values in {"id": np.arange(len(NEW)), **expected}.items():
        found = result[name].to_numpy(zero_copy_only=False) if kind == "record batch" else np.asarray(result[name])
        np.testing.assert_array_equal(found, values)
        assert found.dtype.kind == values.dtype.kind


def test_a_table_of_pandas_keeps_its_index(saved):
    assert BatchScorer(saved)(frame_of(NEW)).index.tolist() == list(range(100, 150))


def test_an_array_gives_a_structured_array(tmp_path):
    detector = NoiseContrastiveDetector(**QUICK).fit(X, Y)
    scorer = BatchScorer(detector.save(tmp_path / "detector"))
    result = scorer(NEW)
    assert result.dtype == scorer.dtype
    np.testing.assert_array_equal(result["score"], detector.anomaly_score(NEW))
    np.testing.assert_array_equal(result["probability"], detector.outlier_probability(NEW))
    np.testing.assert_array_equal(result["outlier"], detector.predict(NEW) == -1)
    # Ray gives a matrix as the one entry of a dict.
    np.testing.assert_array_equal(scorer({"data": NEW})["score"], result["score"])
    np.testing.assert_array_equal(scorer(pd.DataFrame(NEW))["score"], result["score"])


@pytest.mark.parametrize("case", [*MEMBERS, "latent", "images"])
def test_bits_do_not_depend_on_the_split(case, tmp_path):
    rng = np.random.default_rng(1)
    wide = (8, 8) if case == "images" else (20,)
    rows, known = rng.normal(size=(120, *wide)), Y
    members = ("mixture_forest", "network", "neighbors") if case == "images" else (case,)
    if case == "latent":
        detector: Any = LatentDetector(epochs=1, latent=2)
    else:
        detector = NoiseContrastiveDetector(**QUICK | {"calibration_folds": 0}, members=members)
    new = rng.normal(size=(1003, *wide))
    whole = detector.fit(rows, known).anomaly_score(new)
    scorer = BatchScorer(detector.save(tmp_path / "detector"))
    for step in (1, 2, 3, 5, 7, 16, 333, 1000):
        starts = range(0, min(len(new), 12 * step), step)
        parts = np.concatenate([scorer(new[start : start + step])["score"] for start in starts])
        np.testing.assert_array_equal(parts, whole[: len(parts)], err_msg=f"in batches of {step}")


@pytest.mark.parametrize("kind", CONTAINERS)
def test_text_and_missing_values_come_in_any_table(kind, tmp_path):
    table = pd.DataFrame({"size": X[:, 0], "hue": np.where(X[:, 1] > 0, "red", "blue").astype(object)})
    table.loc[3:9, "size"] = np.nan
    detector = NoiseContrastiveDetector(n_trees=8).fit(table)
    new = table.iloc[::-3].assign(other=1.0)[["other", "hue", "size"]]
    result = BatchScorer(detector.save(tmp_path / "detector"))(CONTAINERS[kind](new))
    np.testing.assert_array_equal(np.asarray(result["score"]), detector.anomaly_score(new[["size", "hue"]]))


@pytest.mark.parametrize("kind", sorted(set(CONTAINERS) - {"pandas"}))
def test_other_tables_are_scored_where_pandas_is_not_installed(kind, saved, expected, monkeypatch):
    batch, scorer = CONTAINERS[kind](frame_of(NEW)), BatchScorer(saved)
    monkeypatch.setitem(sys.modules, "pandas", None)
    np.testing.assert_array_equal(np.asarray(scorer(batch)["score"]), expected["score"])


def test_a_dict_holds_one_value_for_each_row(saved):
    batch = {name: NEW[:, [i]] for i, name in enumerate(NAMES)}
    with pytest.raises(ValueError, match=r"'height'.*\(50, 1\)"):
        BatchScorer(saved)(batch)


@pytest.mark.parametrize("kind", CONTAINERS)
def test_no_rows_give_no_scores(kind, saved):
    batch = CONTAINERS[kind](frame_of(NEW))
    empty = {name: v[:0] for name, v in batch.items()} if kind == "dict" else batch[:0]
    result = BatchScorer(saved, keep=["id"])(empty)
    assert type(result) is type(empty)
    assert len(result["score"]) == len(result["outlier"]) == len(result["id"]) == 0


def test_a_batch_without_a_column_of_training_is_refused(saved):
    with pytest.raises(ValueError, match=r"'depth'.*found 'width', 'id', 'height'"):
        BatchScorer(saved)(frame_of(NEW).drop(columns="depth"))
    with pytest.raises(ValueError, match="'name'"):
        BatchScorer(saved, keep=["name"])(frame_of(NEW))


def test_names_are_not_guessed(tmp_path):
    path = NoiseContrastiveDetector(n_trees=8).fit(X).save(tmp_path / "detector")
    with pytest.raises(ValueError, match=r"columns.*3.*found none"):
        BatchScorer(path)(frame_of(NEW))
    with pytest.raises(ValueError, match=r"columns.*3.*found 1"):
        BatchScorer(path, columns=["height"])(frame_of(NEW))
    with pytest.raises(ValueError, match=r"'width'.*numbers"):
        BatchScorer(path, columns=NAMES)(frame_of(NEW).assign(width="wide"))
    expected = BatchScorer(path)(NEW)["score"]
    np.testing.assert_array_equal(BatchScorer(path, columns=NAMES)(frame_of(NEW))["score"], expected)


def test_columns_of_training_can_have_other_names_in_a_batch(saved, expected):
    renamed = frame_of(NEW).rename(columns={"height": "h", "width": "w", "depth": "d"})
    result = BatchScorer(saved, columns=["h", "w", "d"])(renamed)
    np.testing.assert_array_equal(result["score"], expected["score"])


def test_what_is_no_batch_is_refused(saved):
    with pytest.raises(TypeError, match="found list"):
        BatchScorer(saved)([[1.0, 2.0, 3.0]])
    with pytest.raises(ValueError, match="keep"):
        BatchScorer(saved, keep=["id"])(NEW)
    with pytest.raises(ValueError, match=r"keep.*found 'score'"):
        BatchScorer(saved, keep=["score"])
    with pytest.raises(TypeError, match=r"keep.*found 'id'"):
        BatchScorer(saved, keep="id")
    with pytest.raises(ValueError, match=r"columns.*found"):
        BatchScorer(saved, columns=["a", "a", "b"])


def test_a_file_that_holds_no_detector_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="found no such file"):
        BatchScorer(tmp_path / "nowhere")
    fvnce.save(tmp_path / "model", fvnce.NCE(fvnce.EnergyModel(fvnce.mlp([2, 1])), fvnce.fit_gaussian(torch.eye(2))))
    with pytest.raises(FileError, match="found a"):
        BatchScorer(tmp_path / "model")


def test_a_scorer_travels_as_a_path_and_reads_the_file_once(tmp_path):
    path = NoiseContrastiveDetector(n_trees=30).fit(X).save(tmp_path / "detector")
    scorer = BatchScorer(path)
    sent = pickle.dumps(scorer)
    assert len(sent) < 500 < path.stat().st_size
    first = scorer(NEW)
    path.unlink()
    np.testing.assert_array_equal(pickle.loads(sent)(NEW), first)  # noqa: S301 (our own bytes)
    with ThreadPoolExecutor(4) as threads:
        for found in threads.map(pickle.loads(sent), [NEW] * 8):  # noqa: S301
            np.testing.assert_array_equal(found, first)


def test_a_file_that_changed_is_refused(tmp_path):
    path = tmp_path / "detector"
    scorer = BatchScorer(NoiseContrastiveDetector(n_trees=8).fit(X).save(path))
    NoiseContrastiveDetector(n_trees=8, random_state=1).fit(X).save(path)
    with pytest.raises(FileError, match=r"SHA-256.*found"):
        scorer(NEW)
    np.testing.assert_array_equal(
        BatchScorer(path)(NEW)["score"], NoiseContrastiveDetector.load(path).anomaly_score(NEW)
    )


def test_a_latent_detector_gives_no_probability(tmp_path):
    detector = LatentDetector(latent=2, epochs=1).fit(X, Y)
    scorer = BatchScorer(detector.save(tmp_path / "detector"))
    assert scorer.dtype.names == ("score", "outlier")
    np.testing.assert_array_equal(scorer(NEW)["outlier"], detector.predict(NEW) == -1)
    assert scorer(NEW[:0]).dtype == scorer.dtype


def test_a_run_of_the_command_line_is_scored_by_the_names_of_its_file(tmp_path):
    table = pd.DataFrame(X, columns=NAMES).assign(hue=np.where(X[:, 1] > 0, "red", "blue"))
    table.to_csv(tmp_path / "rows.csv", index=False)
    out, scores_file = str(tmp_path / "run"), str(tmp_path / "scores.csv")
    for command in (
        ["fit", str(tmp_path / "rows.csv"), "--out", out, "--set", "n_trees=8", "-q"],
        ["score", out, str(tmp_path / "rows.csv"), "--out", scores_file],
    ):
        with pytest.raises(SystemExit) as stop:
            main(command)
        assert stop.value.code == 0
    result = BatchScorer(out)(table[["hue", *reversed(NAMES)]])
    with open(scores_file, newline="", encoding="utf-8") as file:
        scores = {name: np.array(values, float) for name, *values in zip(*csv.reader(file), strict=True)}
    np.testing.assert_array_equal(result["score"], scores["score"])
    np.testing.assert_array_equal(result["probability"], scores["probability"])
    np.testing.assert_array_equal(result["outlier"], scores["outlier"] == 1)


@pytest.mark.slow
def test_a_dask_cluster_gives_the_same_bits(saved, tmp_path):
    distributed = pytest.importorskip("distributed")
    dataframe = pytest.importorskip("dask.dataframe")
    rows = frame_of(np.random.default_rng(2).normal(size=(1001, 3)))
    scorer = BatchScorer(saved, keep=["id"])
    expected = scorer(rows)
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, local_directory=str(tmp_path)
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert len(set(client.run(os.getpid).values())) == 2
        for partitions in (1, 7):
            table = dataframe.from_pandas(rows, npartitions=partitions)
            pd.testing.assert_frame_equal(table.map_partitions(scorer).compute(), expected, check_exact=True)
        none = dataframe.from_pandas(rows, npartitions=3).query("id < 100").map_partitions(scorer).compute()
        pd.testing.assert_frame_equal(none, expected[:100], check_exact=True)
