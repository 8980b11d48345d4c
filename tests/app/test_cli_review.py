"""Rows that somebody looked at: ``--checked``, sheets of ``score --review``, and their verdicts in ``fit --review``."""

import csv
import os
import tomllib
from pathlib import Path

import numpy as np
import pytest

from commands import fvnce
from fvnce.app.report import verdict
from fvnce.app.report.analysis import analyze
from fvnce.app.runs import load_run
from fvnce.app.runs.review import add_verdicts, read_sheet
from fvnce.app.runs.training_data import read_training_data
from fvnce.tables import open_source

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


def test_a_sheet_holds_the_rows_most_worth_a_review_as_they_are_in_the_file(place):
    rows = sheet_of(place / "empty.csv")
    assert len(rows) == 20
    with (place / "rows.csv").open(encoding="utf-8") as file:
        given = list(csv.DictReader(file, delimiter=";"))
    for row in rows:
        original = given[int(row["row"]) - 1]
        assert not row["verdict"]
        assert original["fraud"] == "no"
        assert {name: row[name].removeprefix("'") for name in original} == original
        assert row["amount"] == original["amount"]
        assert row["reason_1"].split()[0] in ("amount", "age", "town")
    detector, table = load_run(place / "run").detector, open_source(place / "rows.csv").read().without(["id", "fraud"])
    expected = detector.review(table, 20, reviewed=np.arange(300) >= 295) + 1
    assert [int(row["row"]) for row in rows] == expected.tolist()


def test_verdicts_are_learned_from_and_reviewed_rows_do_not_come_back(place):
    first = sheet_of(place / "sheet.csv")
    words = [row["verdict"] for row in first]
    args = ["--config", place / "run", "--review", place / "sheet.csv", "--out", place / "second"]
    _, said = fvnce("fit", *args)
    assert f"{words.count('Yes')} outliers and {words.count('inlier')} inliers, 1 row without" in said
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
    rows = [row | {"amount": row["amount"][:-2]} for row in sheet_of(place / "sheet.csv")]
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
    assert "5 known outliers, 1 known inlier" in said
    assert "3 columns" in said
    card = (tmp_path / "run" / "card.md").read_text()
    assert "294 unlabeled rows, 1 known inlier and 5 known outliers, marked by fraud\n" in card
    fvnce("score", tmp_path / "run", tmp_path / "rows.csv", "--review", 300, "--out", tmp_path / "sheet.csv", "-q")
    assert len(sheet_of(tmp_path / "sheet.csv")) == 294
    text = (tmp_path / "rows.csv").read_text("utf-8").replace("no;1", ";1")
    (tmp_path / "rows.csv").write_text(text, "utf-8")
    _, said = fvnce(*args, "--out", tmp_path / "other", *QUICK, code=1)
    assert "row 4" in said
    assert "'seen'" in said


def verdicts_of_later_rows(place, tmp_path, change=lambda rows: rows, count=8, **how):
    """Return what is said when a sheet of the later table, changed, is learned from, and the run."""
    empty = tmp_path / "empty.csv"
    fvnce("score", place / "run", place / "later.csv", "--review", count, "--out", empty, "-q")
    rows = change([row | {"verdict": "yes" if int(row["row"]) > 280 else "no"} for row in sheet_of(empty)])
    write_sheet(tmp_path / "marked.csv", rows)
    args = ["--config", place / "run", "--review", tmp_path / "marked.csv", "--out", tmp_path / "next"]
    return fvnce("fit", *args, **how)[1], rows


def test_known_inliers_are_counted_as_such_and_are_in_no_list(place, tmp_path):
    said, rows = verdicts_of_later_rows(place, tmp_path, lambda rows: [rows[0] | {"verdict": "no"}, *rows[1:]])
    outliers = sum(row["verdict"] == "yes" for row in rows)
    inliers = len(rows) - outliers
    assert inliers
    assert f"{5 + outliers} known outliers, {inliers} known inlier" in said
    of_inliers = f"{inliers} known inlier{'s' if inliers > 1 else ''} ({inliers} from review sheets)"
    of_outliers = f"{5 + outliers} known outliers, marked by fraud ({outliers} from review sheets)"
    assert f"- Rows: 295 unlabeled rows, {of_inliers} and {of_outliers}" in (tmp_path / "next" / "card.md").read_text()
    run = load_run(tmp_path / "next")
    data = add_verdicts(read_training_data(run.config.data, str), run.config.data, str)
    analysis = analyze(run, data, [])
    assert analysis.inliers.sum() == inliers
    assert not any(analysis.inliers[finds.rows].any() for finds in analysis.finds.values())
    assert "of 295 unlabeled rows" in verdict.words(analysis)[0]
    page = (tmp_path / "next" / "report.html").read_text()
    assert "known inlier" in page
    assert "unlabeled rows are flagged. A known" not in page


def test_an_added_row_goes_by_its_place_in_the_sheet_and_never_by_a_number_that_its_file_does_not_have(tmp_path):
    table = "\n".join(["a,b", *(f"{i % 7}.{i},{i % 5}.{i}" for i in range(100))])
    (tmp_path / "rows.csv").write_text(table)
    (tmp_path / "sheet.csv").write_text("verdict,a,b\nno,3.14,2.71\nyes,40.5,41.5\n")
    args = ["--review", tmp_path / "sheet.csv", "--out", tmp_path / "run"]
    fvnce("fit", tmp_path / "rows.csv", *args, *QUICK)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "row 2 of sheet.csv" in page
    assert "row 101" not in page
    assert "row 102" not in page


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: [row | {"key": rows[0]["key"]} for row in rows], ["rows 1 and 2", "different rows with one key"]),
        (lambda rows: [*rows, rows[2] | {"verdict": {"no": "yes"}.get(rows[2]["verdict"], "no")}], ["rows 3 and 9"]),
        (
            lambda rows: [rows[0] | {"key": rows[1]["key"]}, rows[1] | {"key": rows[0]["key"]}, *rows[2:]],
            ["row 1", "key of row 2"],
        ),
        (lambda rows: [*rows[:4], rows[4] | {"amount": "0,1"}, *rows[5:]], ["row 5", "changed after it was written"]),
        (lambda rows: [*rows[:4], rows[4] | {"town": "Basel"}, *rows[5:]], ["row 5", "changed after it was written"]),
    ],
)
def test_a_key_that_does_not_belong_to_its_row_is_refused_with_the_rows_named(place, tmp_path, change, words):
    said, _ = verdicts_of_later_rows(place, tmp_path, change, code=1)
    sentence = said.splitlines()[-1]
    assert all(word in sentence for word in ["marked.csv", *words])


def test_a_changed_row_of_the_training_table_is_refused_and_is_taken_as_it_is_without_its_key(place, tmp_path):
    rows = sheet_of(place / "sheet.csv")
    args = ["--config", place / "run", "--review", tmp_path / "sheet.csv", "--out", tmp_path / "next"]
    write_sheet(tmp_path / "sheet.csv", [rows[0] | {"amount": "-7,5"}, *rows[1:]])
    _, said = fvnce("fit", *args, code=1)
    assert "row 1 of" in said
    assert "changed after it was written" in said
    write_sheet(tmp_path / "sheet.csv", [rows[0] | {"amount": "-7,5", "key": ""}, *rows[1:]])
    _, said = fvnce("fit", *args)
    assert "1 row is not among the training rows and is added" in said


def test_reviewed_rows_do_not_come_back_if_the_columns_of_the_model_change(place, tmp_path):
    _, rows = verdicts_of_later_rows(place, tmp_path)
    fvnce("fit", "--config", tmp_path / "next", "--drop", "town", "--out", tmp_path / "narrow", "-q")
    args = ["score", tmp_path / "narrow", place / "later.csv", "--review", 300]
    fvnce(*args, "--out", tmp_path / "again.csv", "-q")
    again = {row["id"] for row in sheet_of(tmp_path / "again.csv")}
    assert again
    assert not again & {row["id"] for row in rows}


def test_average_precision_before_and_after_comes_with_its_level_by_chance_and_is_not_called_a_gain(place, tmp_path):
    said, rows = verdicts_of_later_rows(place, tmp_path)
    known = 5 + sum(row["verdict"] == "yes" for row in rows)
    total = 300 + len(rows)
    assert f"by 5 known outliers, {5 / 300:.3f} by chance, before" in said
    assert f"by {known} known outliers, {known / total:.3f} by chance, after" in said
    assert "the two cannot be compared" in said


def test_nothing_is_said_of_what_verdicts_changed_if_there_is_none(place, tmp_path):
    said, _ = verdicts_of_later_rows(place, tmp_path, lambda rows: [row | {"verdict": ""} for row in rows])
    assert "8 rows without a verdict are skipped" in said
    assert "average precision" not in said
    assert "before" not in said


@pytest.mark.parametrize("decimal", [".", ","])
def test_a_sheet_that_a_spreadsheet_saved_with_its_own_marks_is_learned_from(tmp_path, decimal):
    other = "," if decimal == "." else "."
    rng = np.random.default_rng(5)
    for name in ("rows", "later"):
        lines = [
            ";".join(f"{v:.3f}".replace(".", decimal) for v in row) for row in rng.normal(size=(150, 2)) * [1, 500]
        ]
        (tmp_path / f"{name}.csv").write_text("\n".join(["a;b", *lines]), "utf-8")
    fvnce("fit", tmp_path / "rows.csv", "--out", tmp_path / "run", *QUICK)
    fvnce("score", tmp_path / "run", tmp_path / "later.csv", "--review", 6, "--out", tmp_path / "sheet.csv", "-q")
    rows = sheet_of(tmp_path / "sheet.csv")
    saved = [row | {"verdict": "no"} | {name: row[name].replace(decimal, other) for name in ("a", "b")} for row in rows]
    with (tmp_path / "saved.csv").open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, list(saved[0]), delimiter=";")
        writer.writeheader()
        writer.writerows(saved)
    args = ["--config", tmp_path / "run", "--review", tmp_path / "saved.csv", "--out", tmp_path / "next"]
    _, said = fvnce("fit", *args)
    assert "0 outliers and 6 inliers" in said
    run = load_run(tmp_path / "next")
    _, read = read_sheet(str(tmp_path / "saved.csv"), run.layout, run.config.data)
    assert [each.content for each in read] == [row["key"] for row in rows]


def test_the_advice_of_a_sheet_that_goes_to_standard_output_names_no_file(place):
    _, said = fvnce("score", place / "run", place / "later.csv", "--review", 2)
    assert "--review SHEET" in said


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="pipes have no names here")
def test_a_pipe_cannot_be_read_twice(place):
    reader, writer = os.pipe()
    os.close(writer)
    try:
        for option in ("--alarms", "--review"):
            _, said = fvnce("score", place / "run", f"/dev/fd/{reader}", option, 2, code=1)
            assert "read DATA twice: DATA must be a file" in said
    finally:
        os.close(reader)


def test_a_code_that_a_spreadsheet_took_for_a_number_is_the_same_code(tmp_path):
    rng = np.random.default_rng(6)
    lines = [f"{x:.3f},00{i % 3}" for i, x in enumerate(rng.normal(size=120))]
    (tmp_path / "rows.csv").write_text("\n".join(["a,code", *lines]))
    fvnce("fit", tmp_path / "rows.csv", "--categorical", "code", "--out", tmp_path / "run", *QUICK)
    fvnce("score", tmp_path / "run", tmp_path / "rows.csv", "--review", 9, "--out", tmp_path / "sheet.csv", "-q")
    rows = [row | {"verdict": "no", "code": row["code"].lstrip("0") or "0"} for row in sheet_of(tmp_path / "sheet.csv")]
    write_sheet(tmp_path / "saved.csv", rows)
    args = ["--config", tmp_path / "run", "--review", tmp_path / "saved.csv", "--out", tmp_path / "next"]
    assert "0 rows are not among the training rows" in fvnce("fit", *args)[1]


def test_rows_that_rounding_makes_equal_keep_their_verdicts(place, tmp_path):
    def rounded(rows):
        return [
            row | {"amount": "1", "age": "30", "town": "Bern", "verdict": v} for row, v in zip(rows, "10", strict=True)
        ]

    said, _ = verdicts_of_later_rows(place, tmp_path, rounded, count=2)
    assert "2 rows are not among the training rows and are added" in said
    assert "6 known outliers, 1 known inlier" in said
