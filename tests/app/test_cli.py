"""Every command on real files, as a person or a script meets it."""

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imsave
from safetensors.numpy import load_file
from sklearn.datasets import load_digits

from commands import fvnce
from fvnce import NoiseContrastiveDetector
from fvnce.app.cli import main
from fvnce.app.runs import load_run
from fvnce.app.runs.settings import DataSettings, to_toml
from fvnce.app.runs.training_data import read_training_data
from fvnce.tables import open_source

QUICK = ["--set", "n_trees=20", "--set", "n_networks=1", "--set", "steps=30"]
#: Without the three folds that probabilities are made from.
QUICKER = [*QUICK, "--set", "calibration_folds=0"]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Semicolons, decimal commas, missing values, text, an identifier; 20 outliers, half of them marked."""
    path = tmp_path_factory.mktemp("table") / "customers.csv"
    rng = np.random.default_rng(0)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=";")
        writer.writerow(["id", "amount", "age", "town", "fraud"])
        for i in range(300):
            bad = i >= 280
            amount = "" if i % 17 == 0 else f"{rng.normal(6 if bad else 0):.4f}".replace(".", ",")
            age = "" if i % 23 == 0 else str(rng.integers(20, 70) + 40 * bad)
            writer.writerow([f"c{i}", amount, age, ["Bern", "Genève", ""][i % 3], "yes" if bad and i % 2 else "no"])
    return path


@pytest.fixture(scope="module")
def run_folder(table, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    with pytest.raises(SystemExit) as stop:
        main(["fit", str(table), "--label", "fraud", "--drop", "id", "--out", str(out), "-q", *QUICK])
    assert stop.value.code == 0
    return out


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("png")
    for i, image in enumerate(load_digits().images[:120]):
        imsave(folder / f"{i:03d}.png", image, cmap="gray", vmin=0, vmax=16)
    return folder


def same_weights(one, other):
    """Whether two runs hold the same weights to the last bit; a detector's file also holds how long its steps took."""
    first, second = (load_file(folder / "model.safetensors") for folder in (one, other))
    assert set(first) == set(second)
    assert len(first) > 3
    return all(np.array_equal(first[k], second[k]) for k in first if not k.startswith("history"))


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_a_run_folder_holds_what_it_promises(run_folder):
    names = {path.name for path in run_folder.iterdir()}
    assert names == {"model.safetensors", "config.toml", "report.html", "card.md"}


def test_scores_are_those_of_the_detector_and_find_the_outliers(table, run_folder, tmp_path):
    out = tmp_path / "scores.csv"
    _, said = fvnce("score", run_folder, table, "--out", out)
    assert "300 rows" in said
    found = rows_of(out.read_text())
    detector = NoiseContrastiveDetector.load(run_folder / "model.safetensors")
    frame = open_source(table).read().without(["id", "fraud"])
    np.testing.assert_array_equal([float(r["score"]) for r in found], detector.anomaly_score(frame))
    np.testing.assert_array_equal([float(r["probability"]) for r in found], detector.outlier_probability(frame))
    np.testing.assert_array_equal([1 - 2 * int(r["outlier"]) for r in found], detector.predict(frame))
    assert [int(r["row"]) for r in found] == list(range(1, 301))
    strangest = sorted(found, key=lambda r: -float(r["score"]))[:20]
    assert sum(int(r["row"]) > 280 for r in strangest) >= 18


def test_top_explain_and_json_agree_with_all_scores(table, run_folder):
    every = rows_of(fvnce("score", run_folder, table)[0])
    expected = sorted(every, key=lambda r: -float(r["score"]))[:5]
    out, _ = fvnce("score", run_folder, table, "--top", 5, "--explain", "--json")
    top = [json.loads(line) for line in out.splitlines()]
    assert [r["row"] for r in top] == [int(r["row"]) for r in expected]
    assert [r["score"] for r in top] == [float(r["score"]) for r in expected]
    frame = open_source(table).read().without(["id", "fraud"])
    detector = NoiseContrastiveDetector.load(run_folder / "model.safetensors")
    parts = detector.explain(frame.take([top[0]["row"] - 1])).total[0]
    wanted = dict(zip(["amount", "age", "town"], parts, strict=True))
    wanted = {name: part for name, part in wanted.items() if part > 0.1 * parts.max()}
    assert top[0]["reasons"] == pytest.approx(wanted)
    assert [words.split()[0] for words in top[0]["words"]] == list(top[0]["reasons"])
    assert list(top[0]["reasons"].values()) == sorted(top[0]["reasons"].values(), reverse=True)
    first = rows_of(fvnce("score", run_folder, table, "--top", 1, "--explain")[0])[0]
    assert first["reason_1"] == top[0]["words"][0]


def test_a_config_repeats_the_weights(run_folder, tmp_path):
    fvnce("fit", "--config", run_folder / "config.toml", "--out", tmp_path / "again", "-q")
    assert same_weights(tmp_path / "again", run_folder)
    assert (tmp_path / "again" / "config.toml").read_text() == (run_folder / "config.toml").read_text()
    fvnce("fit", "--config", run_folder / "config.toml", "--seed", 1, "--out", tmp_path / "other", "-q")
    assert not same_weights(tmp_path / "other", run_folder)


def test_a_label_may_be_among_the_dropped_columns(table):
    data = read_training_data(DataSettings(str(table), label="fraud", drop=("id", "fraud")), lambda said: None)
    same = read_training_data(DataSettings(str(table), label="fraud", drop=("id",)), lambda said: None)
    assert data.known.sum() == same.known.sum() > 0
    assert data.rows.columns.tolist() == same.rows.columns.tolist()


def test_a_config_says_so_of_changed_data(table, tmp_path):
    copy = tmp_path / "copy.csv"
    copy.write_bytes(table.read_bytes())
    fvnce("fit", copy, "--label", "fraud=yes", "--drop", "id", *QUICKER, "--out", tmp_path / "a", "-q")
    copy.write_text(copy.read_text() + "c300;1;30;Bern;no\n")
    _, said = fvnce("fit", "--config", tmp_path / "a" / "config.toml", "--out", tmp_path / "c")
    assert "copy.csv has changed" in said


def test_a_config_that_a_person_annotates_still_opens(table, run_folder, tmp_path):
    shutil.copytree(run_folder, tmp_path / "run")
    with (tmp_path / "run" / "config.toml").open("a") as file:
        file.write("# reviewed\n")
    assert len(rows_of(fvnce("score", tmp_path / "run", table)[0])) == 300


def test_options_of_earlier_versions_are_settings_now(table, run_folder, tmp_path):
    old = ["--trees", "20", "--networks=1", "--steps", "30"]
    _, said = fvnce("fit", table, "--label", "fraud", "--drop", "id", "--out", tmp_path / "old", "-q", *old)
    assert same_weights(tmp_path / "old", run_folder)
    assert all(f"--set {setting}" in said for setting in ("n_trees=20", "n_networks=1", "steps=30"))


def test_outliers_in_a_file_are_the_same_as_a_label(tmp_path):
    rng = np.random.default_rng(1)
    rows, bad = rng.normal(size=(150, 3)), rng.normal(5, 1, (10, 3))
    np.save(tmp_path / "rows.npy", rows)
    np.save(tmp_path / "bad.npy", bad)
    np.savez(tmp_path / "both.npz", X=np.concatenate([rows, bad]), y=np.repeat([0, 1], [150, 10]))
    fvnce("fit", tmp_path / "rows.npy", "--outliers", tmp_path / "bad.npy", "--out", tmp_path / "a", "-q", *QUICKER)
    fvnce("fit", tmp_path / "both.npz", "--label", "y", "--out", tmp_path / "b", "-q", *QUICKER)
    assert same_weights(tmp_path / "a", tmp_path / "b")
    with_label = np.column_stack([np.concatenate([rows, bad]), np.repeat([0, 1], [150, 10])])
    np.save(tmp_path / "column.npy", with_label)
    fvnce("fit", tmp_path / "column.npy", "--label=-1", "--out", tmp_path / "c", "-q", *QUICKER)
    assert same_weights(tmp_path / "a", tmp_path / "c")


def test_check_ends_with_three_where_there_are_outliers(table, run_folder, tmp_path):
    fvnce("score", run_folder, table, "--check", code=3)
    tame = tmp_path / "tame.csv"
    tame.write_text("amount,age,town\n0.1,45,Bern\n")
    assert "--decimal ." in fvnce("score", run_folder, tame, code=1)[1]  # the run was trained on decimal commas
    assert rows_of(fvnce("score", run_folder, tame, "--check", "--decimal", ".")[0])[0]["outlier"] == "0"


def flagged(text: str) -> list[int]:
    return [int(row["row"]) for row in rows_of(text) if row["outlier"] == "1"]


def test_a_budget_flags_what_predict_flags(table, run_folder):
    detector = NoiseContrastiveDetector.load(run_folder / "model.safetensors")
    frame = open_source(table).read().without(["id", "fraud"])
    for option, value in (("alarms", 7), ("alarms", 10**6), ("threshold", 3.5), ("fdr", 0.6)):
        expected = np.flatnonzero(detector.predict(frame, **{option: value}) == -1) + 1
        assert len(expected) > 0
        out, said = fvnce("score", run_folder, table, f"--{option}", value)
        assert flagged(out) == expected.tolist()
        assert option == "threshold" or f"300 rows, {len(expected):,} flagged" in said
        kinds = [row["kind"] for row in rows_of(out)]
        assert [i + 1 for i, kind in enumerate(kinds) if kind] == expected.tolist()
    assert len(flagged(fvnce("score", run_folder, table, "--alarms", 10**6)[0])) == 300


def test_a_budget_with_other_options(table, run_folder):
    all_of = flagged(fvnce("score", run_folder, table, "--alarms", 7)[0])
    assert len(all_of) == 7
    lines = fvnce("score", run_folder, table, "--alarms", 7, "--top", 9, "--json")[0].splitlines()
    top = [json.loads(line) for line in lines]
    assert len(top) == 9
    assert {row["row"] for row in top if row["outlier"]} <= set(all_of)
    assert [row["outlier"] for row in top] == 7 * [True] + 2 * [False]
    fvnce("score", run_folder, table, "--alarms", 1, "--check", code=3)
    fvnce("score", run_folder, table, "--threshold", 1e9, "--check")
    _, said = fvnce("score", run_folder, table, "--fdr", 1e-6)
    assert "warning: no alarm at any fdr below" in said
    assert "found fdr 1e-06" in said


def test_budgets_go_by_the_score_that_is_written(table, run_folder, tmp_path):
    novel = tmp_path / "novel.csv"
    novel.write_text(table.read_text(encoding="utf-8") + "".join(f"n{i};-{9 + i},5;45;Bern;no\n" for i in range(6)))
    written = rows_of(fvnce("score", run_folder, novel)[0])
    learned = load_run(run_folder).threshold
    assert any(row["outlier"] == "1" and float(row["score"]) < learned for row in written)
    for number in (3, 12, 20, 25):
        top = rows_of(fvnce("score", run_folder, novel, "--alarms", number, "--top", number)[0])
        assert [row["outlier"] for row in top] == number * ["1"]
    for threshold in (learned, 1.5 * learned):
        out, said = fvnce("score", run_folder, novel, "--threshold", threshold)
        above = [float(row["score"]) > threshold for row in rows_of(out)]
        assert [row["outlier"] == "1" for row in rows_of(out)] == above
        assert f"{sum(above)} above the threshold {threshold:.4g}" in said


def test_budgets_that_are_refused(table, run_folder):
    for options in (("--alarms", 3, "--fdr", 0.1), ("--threshold", 1, "--alarms", 3)):
        _, said = fvnce("score", run_folder, table, *options, code=1)
        assert "only one of alarms, threshold and fdr must be given" in said
    for option, value in (("--alarms", 3), ("--fdr", 0.1)):
        assert "DATA must be a file, found -" in fvnce("score", run_folder, "-", option, value, code=1)[1]
    assert "fdr" in fvnce("score", run_folder, table, "--fdr", 1.5, code=1)[1]


@pytest.mark.slow
def test_a_threshold_reads_standard_input(table, run_folder):
    command = [sys.executable, "-m", "fvnce", "score", str(run_folder), "-", "--threshold", "3.5"]
    with table.open("rb") as file:
        run = subprocess.run(command, stdin=file, capture_output=True, check=True, text=True)
    assert flagged(run.stdout) == flagged(fvnce("score", run_folder, table, "--threshold", 3.5)[0])


@pytest.mark.slow
def test_pipes(table, run_folder, tmp_path):
    command = [sys.executable, "-m", "fvnce", "score", str(run_folder), "-"]
    with table.open("rb") as file:
        run = subprocess.run([*command, "--out", "-"], stdin=file, capture_output=True, check=True)
    assert len(run.stdout.splitlines()) == 301
    assert b"\x1b" not in run.stdout + run.stderr
    # A reader that stops early ends the program without a word.
    shell = f"yes 'Bern;1;30' | (echo 'town;amount;age'; cat) | {' '.join(command)} 2> {tmp_path / 'said'} | head -3"
    quiet = subprocess.run(["/bin/sh", "-c", shell], capture_output=True, text=True, check=True, timeout=600)
    assert quiet.stdout.startswith("row,score,probability,p_value,like_known,novelty,kind,outlier\n1,")
    assert (tmp_path / "said").read_text() == ""


def test_images(pictures, tmp_path):
    fvnce("fit", pictures, "--out", tmp_path / "run", "-q", *QUICKER)
    found = rows_of(fvnce("score", tmp_path / "run", pictures, "--explain")[0])
    assert [r["row"] for r in found] == [f"{i:03d}.png" for i in range(120)]
    assert re.fullmatch(r"pixel \d,\d", found[0]["reason_1"])
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Pixels by importance" in page
    assert page.count("<img") == 2 * 10 + 1  # ten images with their maps, and that of importance
    np.save(tmp_path / "wrong.npy", np.zeros((3, 5, 5)))
    _, said = fvnce("score", tmp_path / "run", tmp_path / "wrong.npy", code=1)
    assert re.search(r"wrong.npy .*\(8, 8\).* found \(5, 5\)", said)


MEMORY = """
import sys
from fvnce.app.cli import main
try:
    main(sys.argv[1:])
except SystemExit as stop:
    # Not getrusage: its maximum begins with that of the process that started this one.
    [peak] = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    print(stop.code, int(peak.split()[1]) // 1024, file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from /proc")
def test_memory_does_not_grow_with_the_file(tmp_path):
    """A file of 1 GB is scored in the memory that one of 16 MB needs, give or take 64 MB, and to its last row."""
    width = 2000
    rng = np.random.default_rng(0)
    np.save(tmp_path / "train.npy", rng.normal(size=(100, width)))
    small = ["--set", "members=network", "--set", "hidden=1", *QUICKER[2:]]
    fvnce("fit", tmp_path / "train.npy", *small, "--out", tmp_path / "run", "-q")
    used = []
    for rows in (1000, 2**30 // (8 * width) + 1):
        path, out = tmp_path / f"{rows}.npy", tmp_path / "s.csv"
        # What is not written is zeros, which take no place on the disk but are read like any other number.
        values = np.lib.format.open_memmap(path, "w+", np.float64, (rows, width))
        values[:50] = rng.normal(size=(50, width))
        values[-1] = 50.0
        values.flush()
        del values
        command = [sys.executable, "-c", MEMORY, "score", tmp_path / "run", path, "-q", "--out", out]
        # What the program holds is measured, and not what glibc keeps of what was given back.
        thrifty = os.environ | {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "1000000"}
        run = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True, env=thrifty)
        code, megabytes = map(int, run.stderr.split())
        assert code == 0
        used.append(megabytes)
        found = rows_of(out.read_text())
        assert len(found) == rows
        assert max(found, key=lambda row: float(row["score"]))["row"] == str(rows)
    assert path.stat().st_size > 2**30
    path.unlink()
    assert used[1] - used[0] < 64, used  # allocators keep some; the file is 16 times that


def test_the_page_has_its_sections_and_fetches_nothing(run_folder):
    page = (run_folder / "report.html").read_text()
    lists = ("Like the known outliers", "Novel rows")
    main = ("Verdict", *lists, "What to do next", "Columns by importance", "Columns and their health")
    appendix = ("Scores", "Rows in two dimensions", "How it was made")
    found = re.findall(r"<section[^>]*><(h[23])>([^<]*)<", page)
    assert found == [*(("h2", name) for name in main), *(("h3", name) for name in appendix)]
    assert "fraud" in page
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", page)
    assert "<script" not in page
    assert "script-src" not in page  # so that no script may run


@pytest.mark.slow
def test_rules(tmp_path):
    out, _ = fvnce("rules")
    assert re.search(r"power\(1/64\)\s+yes\s+yes\s+9.846", out)
    assert re.search(r"logarithmic\(\)\s+no\s+yes\s+–", out)
    text = "0.5*power(1/64)+0.5*power(0,1)"
    assert "has the double-ELBO property" in fvnce("rules", text)[0]
    out, _ = fvnce("rules", "quadratic()")
    assert re.search("does not have the double-ELBO property.*f0 concave +fails", out, re.DOTALL)
    assert "the weight of a rule must be" in fvnce("rules", "--", "-1*power(0)", code=1)[1]


def test_data_describes_a_file(table, pictures):
    assert "mnist" in fvnce("data")[0]
    found = json.loads(fvnce("data", table, "--json")[0])
    assert (found["rows"], found["delimiter"], found["header"]) == (300, ";", True)
    assert found["columns"]["amount"]["missing"] == 18
    assert found["columns"]["town"] == {"kind": "text", "missing": 100, "different": 2}
    assert re.search(r"age\s+number\s+14", fvnce("data", table)[0])
    assert "120 rows of 8×8" in fvnce("data", pictures)[0]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["fit"], 2, "DATA"),
        (["fit", "none.csv"], 1, "none.csv does not exist"),
        (["fit", "t.csv", "--label", "x", "--outliers", "t.csv"], 2, "--outliers or --label"),
        (["fit", "t.csv", "--label", "x"], 1, "has no column 'x'; its columns are a, b"),
        (["fit", "t.csv", "--label", "a"], 1, "column 'a' must mark known outliers"),
        (["fit", "t.csv", "--drop", "z"], 1, "has no column 'z'"),
        (["fit", "t.csv", "--set", "nonsense=1"], 1, "no setting 'nonsense'"),
        (["fit", "t.csv", "--set", "nonsense"], 2, "'nonsense'"),
        (["fit", "t.csv", "--delimiter", "xx"], 2, "--delimiter"),
        (["fit", "t.csv", "--out", "there"], 1, "there exists"),
        (["fit", "t.csv", "--out", "there", "--overwrite"], 1, "there exists and is not a run"),
        (["fit", "--config", "t.csv", "--out", "o"], 1, "t.csv is not TOML"),
        (["fit", "--config", "odd.toml", "--out", "o"], 1, "'colour'"),
        (["fit", "--config", "odd.toml"], 2, "--config needs --out"),
        (["score", "there", "t.csv"], 1, "there is not a complete run: config.toml is missing"),
        (["score", "none", "t.csv"], 1, "none is not a run folder"),
        (["rules", "power("], 1, "power("),
        (["fit", "one.csv"], 1, "one.csv must hold at least 2 rows, found 1"),
        (["fit", "inf.csv"], 1, "inf.csv, line 3: column 'b' must not hold infinity"),
        (["fit", "inf.npy"], 1, "inf.npy, row 3 holds infinity"),
        (["fit", "t.csv", "--set", "learning_rate=-1"], 1, "learning_rate"),
        (["fit", "t.csv", "--set", "hidden=a"], 1, "hidden"),
        (["fit", "--config", "latent.toml", "--out", "o"], 1, "LatentDetector"),
        (["fit", "--config", "date.toml", "--out", "o"], 1, "alpha"),
        (["data", "nothing"], 2, "'nothing'"),
        (["reproduce", "vnce"], 2, "unknown item 'vnce'"),
    ],
)
def test_every_mistake_is_one_line(arguments, code, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("a,b\n" + "".join(f"{i},{i * i % 7}\n" for i in range(2, 40)))
    Path("odd.toml").write_text('[data]\npath = "t.csv"\ncolour = 1\n')
    Path("date.toml").write_text('[data]\npath = "t.csv"\n[detector]\nalpha = 2001-01-01\n')
    Path("latent.toml").write_text('[run]\nkind = "latent"\n[data]\npath = "t.csv"\n[model]\nepochs = 1\n')
    Path("there").mkdir()
    Path("one.csv").write_text("a,b\n1,2\n")
    Path("inf.csv").write_text("a,b\n1,2\n3,inf\n5,6\n")
    np.save("inf.npy", np.array([[0.0, 1.0], [2.0, 3.0], [np.inf, 4.0]]))
    before = sorted(p.name for p in tmp_path.iterdir())
    out, said = fvnce(*arguments, code=code)
    assert out == ""
    lines = [line for line in said.splitlines() if line.startswith("fvnce: ")]
    assert len(lines) == 1, said
    assert words in lines[0], said
    assert "Traceback" not in said
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "runs") == before
    assert not Path("runs").exists() or not list(Path("runs").iterdir())


def test_damaged_runs_are_named(run_folder, table, tmp_path):
    for name, words in (("model.safetensors", "damaged"), ("config.toml", "not TOML")):
        broken = tmp_path / name
        shutil.copytree(run_folder, broken)
        content = (broken / name).read_bytes()
        (broken / name).write_bytes(content[: len(content) // 2] + b"\xff")
        _, said = fvnce("score", broken, table, code=1)
        assert words in said
        assert "again" in said  # the next step
    assert "--out must name a file" in fvnce("score", run_folder, table, "--out", broken, code=2)[1]


def test_debug_shows_the_traceback(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="does not exist"):
        main(["fit", "none.csv", "--debug"])


def test_the_help_of_every_command_is_complete():
    for command in ("fit", "score", "evaluate", "rules", "data", "reproduce"):
        out, _ = fvnce(command, "--help")
        assert out.startswith("Usage: fvnce " + command)
        for block in re.split(r"\n  (?=--|-)", out.partition("Options:")[2])[1:]:
            # An option, then two spaces or a new line, then what it does.
            assert re.search(r"(\s{2,}|\n)[A-Za-z]", block), block
        assert "\x1b" not in out


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("place", "variables", "drawn", "coloured"),
    [
        (Terminal, {"TERM": "xterm-256color"}, True, True),
        (Terminal, {"TERM": "xterm-256color", "NO_COLOR": "1"}, True, False),
        (Terminal, {"TERM": "dumb"}, None, False),  # no bar can be drawn there, a line may be
        (io.StringIO, {"TERM": "xterm-256color"}, False, False),
    ],
)
def test_a_bar_is_drawn_on_terminals_only_and_without_colour_if_asked(
    place, variables, drawn, coloured, table, run_folder, tmp_path, monkeypatch
):
    """Colours are the escape sequences that end in m and name one; a bar also moves the cursor."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    said = place()
    monkeypatch.setattr(sys, "stderr", said)
    with pytest.raises(SystemExit) as stop:
        main(list(map(str, ["score", run_folder, table, "--out", tmp_path / "s.csv"])))
    assert stop.value.code == 0
    text = said.getvalue()
    if drawn is not None:
        assert ("rows" in text.partition("300 rows")[0] or "left" in text) == drawn
    assert bool(re.search(r"\x1b\[[\d;]*(3[0-9]|38;[\d;]+)m", text)) == coloured, text
    if not drawn:
        assert "\x1b" not in text
    assert (tmp_path / "s.csv").read_text().count("\n") == 301


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_can_be_shown(shell, monkeypatch):
    shellingham = pytest.importorskip("shellingham")
    monkeypatch.setattr(shellingham, "detect_shell", lambda *_: (shell, f"/bin/{shell}"))
    out, _ = fvnce("--show-completion")
    assert "_FVNCE_COMPLETE" in out
    assert f"complete_{shell}" in out


def test_shells_can_complete():
    environment = os.environ | {"_FVNCE_COMPLETE": "complete_bash", "COMP_WORDS": "fvnce sc", "COMP_CWORD": "1"}
    script = "from fvnce.app.cli import main; main()"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False)
    assert run.stdout.split() == ["score"]


def test_what_is_written_as_toml_is_read_back():
    content = {
        "run": {
            "a": True,
            "b": -3,
            "c": 0.1,
            "d": 'quo"te \\ ü \n tab\t\x7f 𝕏',
            "e": [1, 2],
            "f": ["x", ""],
            "odd key": 1e300,
        },
        "empty": {},
    }
    assert tomllib.loads(to_toml(content, "two\nlines")) == content
