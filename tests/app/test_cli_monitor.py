"""``fvnce monitor``: exit codes for a scheduler, JSON, words and a page."""

import json

import pandas as pd

from commands import fvnce


def test_the_same_source_exits_with_0_and_a_change_with_3(payments, tmp_path):
    words, _ = fvnce("monitor", payments / "run", payments / "later.csv", "--out", tmp_path / "same.json")
    assert "no change since training found" in words
    assert json.loads((tmp_path / "same.json").read_text())["alarm"] is False
    rows, page = pd.read_csv(payments / "later.csv"), tmp_path / "page.html"
    rows["age"] = rows["age"] * 2
    rows.to_csv(tmp_path / "changed.csv", index=False)
    found, _ = fvnce("monitor", payments / "run", tmp_path / "changed.csv", "--json", "--page", page, code=3)
    assert any("'age'" in sentence for sentence in json.loads(found)["sentences"])
    assert all(part in page.read_text() for part in ("age", "<svg", "What to do next"))


def test_errors_have_other_codes(payments, tmp_path):
    run, later = payments / "run", payments / "later.csv"
    fvnce("monitor", run, tmp_path / "none.csv", code=1)
    assert "alpha" in fvnce("monitor", run, later, "--alpha", "2", code=1)[1]
    fvnce("monitor", run, code=2)
    fvnce("monitor", run, later, "--out", later, code=2)
