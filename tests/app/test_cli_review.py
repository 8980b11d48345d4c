"""Rows that somebody looked at: ``--checked``, sheets of ``score --review``, and their verdicts in ``fit --review``."""

import csv
import tomllib

import numpy as np
import pytest

from commands import fvnce

QUICK = ["--set", "n_trees=20", "--set", "n_networks=1", "--set", "steps=30", "-q"]


def write_table(path, seed, extra=()):
    """300 rows, the last 20 outliers, of which 5 are marked; decimal commas and a text that begins with =."""
    rng = np.random.default_rng(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=";")
        writer.writerow(["id", "amount", "age", "town", "fraud", *extra])
        for i in range(300):
            amount = f"{rng.normal(4.0 if i >= 280 else 0.0):.4f}".replace(".", ",")
            mark = "yes" if i >= 295 else "no"
            row = [f"c{seed}-{i}", amount, rng.integers(20, 70), ["Bern", "=Genève"][i % 2], mark]
            writer.writerow([*row, *("1" if i in (3, 298) else "" for _ in extra)])


def sheet_of(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_sheet(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A table, a later one, a run, and its first sheet with verdicts."""
    place = tmp_path_factory.mktemp("review")
    write_table(place / "rows.csv", 0)
    write_table(place / "later.csv", 1)
    fvnce("fit", place / "rows.csv", "--label", "fraud", "--id", "id", "--out", place / "run", *QUICK)
    fvnce("score", place / "run", place / "rows.csv", "--review", 20, "--out", place / "empty.csv")
    rows = sheet_of(place / "empty.csv")
    for i, row in enumerate(rows):
        row["verdict"] = "" if i == 5 else "Yes" if int(row["row"]) > 280 else "inlier"
    write_sheet(place / "sheet.csv", rows)
    return place


def test_a_sheet_holds_the_highest_scoring_rows_that_are_not_labelled_as_they_are_in_the_file(place):
    rows = sheet_of(place / "empty.csv")
    assert len(rows) == 20
    scores = [float(row["score"]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    with (place / "rows.csv").open(encoding="utf-8") as file:
        given = list(csv.DictReader(file, delimiter=";"))
    for row in rows:
        original = given[int(row["row"]) - 1]
        assert not row["verdict"]
        assert original["fraud"] == "no"
        assert {name: row[name].removeprefix("'") for name in original} == original
        assert row["amount"] == original["amount"]
        assert row["reason_1"].split()[0] in ("amount", "age", "town")
    out, _ = fvnce("score", place / "run", place / "rows.csv", "--top", 25)
    unlabelled = [row["row"] for row in csv.DictReader(out.splitlines()) if int(row["row"]) <= 295]
    assert [row["row"] for row in rows] == unlabelled[:20]


def test_verdicts_are_learned_from_and_reviewed_rows_do_not_come_back(place):
    first = sheet_of(place / "sheet.csv")
    words = [row["verdict"] for row in first]
    args = ["--config", place / "run", "--review", place / "sheet.csv", "--out", place / "second"]
    _, said = fvnce("fit", *args)
    assert f"{words.count('Yes')} outliers and {words.count('inlier')} inliers, 1 rows" in said
    assert f"{5 + words.count('Yes')} known outliers, {words.count('inlier')} known inliers" in said
    assert "average precision" in said
    assert "threshold" in said
    fvnce("score", place / "second", place / "rows.csv", "--review", 30, "--out", place / "sheet2.csv", "-q")
    second = sheet_of(place / "sheet2.csv")
    reviewed = {row["key"] for row in first if row["verdict"]}
    assert len(second) == 30
    assert not reviewed & {row["key"] for row in second}

    # Another file: its rows are added, and the sheets accumulate.
    fvnce("score", place / "second", place / "later.csv", "--review", 8, "--out", place / "sheet3.csv", "-q")
    third = [row | {"verdict": str(int(int(row["row"]) > 280))} for row in sheet_of(place / "sheet3.csv")]
    write_sheet(place / "sheet3.csv", third)
    args = ["--config", place / "second" / "config.toml", "--review", place / "sheet3.csv", "--out", place / "third"]
    _, said = fvnce("fit", *args)
    assert "8 rows are not among the training rows and are added" in said
    assert "308 rows of 3 columns" in said
    sheets = tomllib.loads((place / "third" / "config.toml").read_text("utf-8"))["data"]["review"]
    assert [name.rpartition("/")[2] for name in sheets] == ["sheet.csv", "sheet3.csv"]
    for table, old in (("rows.csv", first), ("later.csv", third)):
        fvnce("score", place / "third", place / table, "--review", 300, "--out", place / f"all-{table}", "-q")
        keys = [row["key"] for row in sheet_of(place / f"all-{table}")]
        assert len(set(keys)) == len(keys)
        assert not set(keys) & {row["key"] for row in old if row["verdict"]}


def test_a_key_recognizes_a_row_whose_numbers_a_spreadsheet_has_changed(place, tmp_path):
    rows = [row | {"amount": row["amount"][:3]} for row in sheet_of(place / "sheet.csv")]
    write_sheet(tmp_path / "sheet.csv", rows)
    args = ["--review", tmp_path / "sheet.csv", "--out", tmp_path / "run", *QUICK[:-1]]
    _, said = fvnce("fit", place / "rows.csv", "--label", "fraud", "--id", "id", *args)
    assert "0 rows are not among the training rows" in said
    write_sheet(tmp_path / "bare.csv", [{k: v for k, v in row.items() if k != "key"} for row in rows])
    args[1] = tmp_path / "bare.csv"
    _, said = fvnce("fit", place / "rows.csv", "--label", "fraud", "--id", "id", *args, "--overwrite")
    assert "19 rows are not among the training rows" in said


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda row: {k: v for k, v in row.items() if k != "verdict"}, ["no column 'verdict'"]),
        (lambda row: row | {"verdict": "maybe"}, ["row 1", "'verdict'", "'maybe'"]),
        (lambda row: {k: v for k, v in row.items() if k != "age"}, ["'age'"]),
    ],
)
def test_a_wrong_sheet_is_refused_with_its_name_and_place(place, tmp_path, change, words):
    write_sheet(tmp_path / "wrong.csv", [change(row) for row in sheet_of(place / "sheet.csv")])
    args = ["--config", place / "run", "--review", tmp_path / "wrong.csv", "--out", tmp_path / "run"]
    _, said = fvnce("fit", *args, code=1)
    assert all(word in said for word in ["wrong.csv", *words])


def test_a_sheet_never_replaces_one_that_may_hold_verdicts(place):
    args = ["score", place / "run", place / "rows.csv", "--review", 3]
    _, said = fvnce(*args, "--out", place / "sheet.csv", code=2)
    assert "sheet.csv" in said
    _, said = fvnce(*args, "--top", 3, code=2)
    assert "--top" in said


def test_checked_names_the_column_of_rows_whose_label_is_the_truth(tmp_path):
    write_table(tmp_path / "rows.csv", 0, extra=["seen"])
    args = ["fit", tmp_path / "rows.csv", "--label", "fraud", "--id", "id", "--checked", "seen"]
    _, said = fvnce(*args, "--out", tmp_path / "run", *QUICK[:-1])
    assert "5 known outliers, 1 known inliers" in said
    assert "3 columns" in said
    fvnce("score", tmp_path / "run", tmp_path / "rows.csv", "--review", 300, "--out", tmp_path / "sheet.csv", "-q")
    assert len(sheet_of(tmp_path / "sheet.csv")) == 294
    text = (tmp_path / "rows.csv").read_text("utf-8").replace("no;1", ";1")
    (tmp_path / "rows.csv").write_text(text, "utf-8")
    _, said = fvnce(*args, "--out", tmp_path / "other", *QUICK, code=1)
    assert "row 4" in said
    assert "'seen'" in said
