"""The page about many rows says what the files of results say."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "detector" / "deploy.md").read_text("utf-8")


def shown(first):
    """The cells of the row of a table that begins so."""
    return re.search(rf"^[|] {re.escape(first)} [|](.*)[|]$", PAGE, re.MULTILINE)[1].replace(" ", "").split("|")


def test_the_memory_of_training_is_what_was_measured():
    record = json.loads((ROOT / "results/bench/scale-fit.json").read_text())
    assert f"{record['rows']:,} rows of {record['columns']} columns" in PAGE
    names = {
        "map": "npy, as a memory map in Python",
        **{kind: f"{kind}, `fvnce fit`" for kind in ("npy", "parquet", "csv")},
    }
    assert set(names) == set(record["runs"])
    for kind, run in record["runs"].items():
        expected = [f"{run['file bytes'] / 1e9:.2f}", f"{run['peak bytes'] / 1e9:.2f}", f"{run['cpu seconds']:.0f}"]
        assert shown(names[kind]) == expected
        assert run["peak bytes"] <= record["limit"]


def test_the_price_of_engines_is_what_was_measured():
    record = json.loads((ROOT / "results/bench/scale.json").read_text())
    assert f"{record['rows']:,} rows of {record['columns']} columns, in {record['files']} files" in PAGE
    for name in ("dask", "ray", "spark"):
        run = record["engines"][name]
        kinds = ("until ready", "of scoring", "beyond one process")
        expected = [f"{run[f'cpu seconds {kind}']:.1f}" for kind in kinds]
        assert shown(f"{name.capitalize()} {run['version']}") == [*expected, "yes"]
        assert run["same bits"]


def test_what_fewer_rows_cost_is_what_was_measured():
    means = json.loads((ROOT / "results/bench/detector-rows.json").read_text())["mean ap by max_rows"]["mnist"]
    assert f".{1000 * means['20000']:.0f} with 20,000 rows and .{1000 * means['40000']:.0f} with 40,000" in PAGE
