"""Files that somebody else made: what they may cost, where they may write, and what they may make others run."""

import csv
import gzip
import io
import json
import os
import random
import re
import struct
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from commands import fvnce
from fvnce.app.cli import main
from fvnce.app.escaping import script_json
from fvnce.app.report.page import Section, write_page
from fvnce.app.runs.settings import DataSettings, read_config
from fvnce.app.runs.training_data import read_training_data
from fvnce.paper.figures import new_figure, save
from fvnce.tables import FileError, ReadOptions, open_source
from tools.fuzz import readers as fuzz_readers

QUICK = ["--set", "n_trees=5", "--set", "n_networks=1", "--set", "steps=5", "--set", "calibration_folds=0", "-q"]


# --- What a file may cost ---------------------------------------------------------------------------------------------


def png_of_zeros(side):
    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    squeeze, row = zlib.compressobj(1), bytes(side + 1)
    body = b"".join([*(squeeze.compress(row) for _ in range(side)), squeeze.flush()])
    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def npz_of_zeros(path, **shapes):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, shape in shapes.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                header = {"descr": "<f8", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                for _ in range(shape[0]):
                    file.write(bytes(8 * int(np.prod(shape[1:]))))


def gzip_of(path, block, times):
    with gzip.open(path, "wb", 1) as file:
        for _ in range(times):
            file.write(block)


COSTS = """
import sys
from fvnce.tables import open_source
from fvnce.tables.arrays import read_png
def peak():
    return [int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")][0]
before = peak()
for path in sys.argv[1:]:
    try:
        open_source(path).read()
    except ValueError as error:
        print(path, error)
    print(peak() - before, file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from /proc")
def test_what_unfolds_beyond_the_budget_is_refused_before_it_takes_the_memory(tmp_path):
    """Each of these files has less than 4 MB and would take more than 240 MB; the budget is 64 MB."""
    (tmp_path / "png").mkdir()
    (tmp_path / "png" / "a.png").write_bytes(png_of_zeros(8_000))
    npz_of_zeros(tmp_path / "a.npz", X=(32, 10**6))
    gzip_of(tmp_path / "line.csv.gz", b"1" * 2**20, 250)
    gzip_of(tmp_path / "fields.csv.gz", b"11," * 2**18, 60)
    names = ["png", "a.npz", "line.csv.gz", "fields.csv.gz"]
    paths = [str(tmp_path / name) for name in names]
    assert all(os.path.getsize(path) < 2**22 for path in paths)
    environment = os.environ | {"FVNCE_MAX_MEMORY": "64M"}
    done = subprocess.run(
        [sys.executable, "-c", COSTS, *paths], capture_output=True, text=True, check=True, env=environment
    )
    said = done.stdout.splitlines()
    assert len(said) == len(names), done.stdout
    assert all("FVNCE_MAX_MEMORY" in line for line in said)  # the next step
    # Modules that are loaded on the way count as well.
    assert max(map(int, done.stderr.split())) < 150, done.stderr


def test_the_budget_can_be_raised(tmp_path, monkeypatch):
    npz_of_zeros(tmp_path / "a.npz", X=(40, 10**4))
    monkeypatch.setenv("FVNCE_MAX_MEMORY", "1M")
    with pytest.raises(FileError, match=r"3\.052M .* 40 rows.* 1M .*FVNCE_MAX_MEMORY"):
        open_source(tmp_path / "a.npz").read()
    # In parts it needs no more than one of them.
    assert sum(len(part.rows) for part in open_source(tmp_path / "a.npz").parts()) == 40
    monkeypatch.setenv("FVNCE_MAX_MEMORY", "4MB")
    assert open_source(tmp_path / "a.npz").read().shape == (40, 10**4)
    for wrong in ("much", "-1", "1e9", "9" * 99, "12"):
        monkeypatch.setenv("FVNCE_MAX_MEMORY", wrong)
        with pytest.raises(FileError, match=r"FVNCE_MAX_MEMORY .*found"):
            open_source(tmp_path / "a.npz").read()


def test_a_table_is_read_no_further_than_the_budget(tmp_path, monkeypatch):
    gzip_of(tmp_path / "a.csv.gz", b"1,2\n" * 2**12, 40)
    monkeypatch.setenv("FVNCE_MAX_MEMORY", "2M")
    with pytest.raises(FileError, match="2M of memory"):
        open_source(tmp_path / "a.csv.gz").read()
    assert sum(len(part.rows) for part in open_source(tmp_path / "a.csv.gz").parts()) == 40 * 2**12


def test_labels_of_an_npz_file_are_looked_at_before_they_are_read(tmp_path, monkeypatch):
    npz_of_zeros(tmp_path / "a.npz", X=(4, 2), y=(300, 1000))
    with pytest.raises(FileError, match=r"array 'y' .*4 rows, found \(300, 1000\)"):
        read_training_data(DataSettings(str(tmp_path / "a.npz"), label="y"), print)
    np.savez(tmp_path / "b.npz", X=np.zeros((4, 2)), y=np.array([{}] * 4, dtype=object))
    with pytest.raises(FileError, match="Python objects"):
        read_training_data(DataSettings(str(tmp_path / "b.npz"), label="y"), print)
    np.savez(tmp_path / "c.npz", X=np.arange(8.0).reshape(4, 2), y=np.array(["no", "yes", "no", "no"]))
    assert read_training_data(DataSettings(str(tmp_path / "c.npz"), label="y"), print).known.tolist() == [
        False,
        True,
        False,
        False,
    ]


def packed(content):
    """The same bytes whenever it is called: they become part of a test's name."""
    return gzip.compress(content, mtime=0)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1), "4,294,967,295 bytes"),
        ("a.csv", b'a,b\n1,"' + b"x" * 200_000 + b'"\n', "131,072 characters"),
        ("a.csv", b"a,b\n" + b"1,2\n" * 300 + b'1,"' + b"x\n" * 99_999, "line .*131,072"),
        ("a.csv.gz", packed(b"a,b\n1,2\n" * 99)[:60] + b"\xff" * 99, "is damaged: "),
    ],
)  # fmt: skip
def test_what_a_header_or_a_field_claims_is_not_believed(name, content, words, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FileError) as error:
        for _ in open_source(tmp_path / name).parts():
            pass
    assert re.search(words, str(error.value)), str(error.value)
    assert "\n" not in str(error.value)


def test_a_delimiter_that_is_none_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    for delimiter in ("ab", "", '"', "\n"):
        with pytest.raises(FileError, match=r"delimiter .*found"):
            open_source(tmp_path / "a.csv", ReadOptions(delimiter))


# --- Where a file may write -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """A run on a table whose names are attacks: on a spreadsheet, a page and a terminal."""
    folder = tmp_path_factory.mktemp("named")
    names = ['=HYPERLINK("x")', "<!--<script>", "\x1b[31mred\x9b0m"]
    rng = np.random.default_rng(0)
    with (folder / "t.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*names, "town"])
        for _ in range(60):
            writer.writerow(
                [*rng.normal(size=3).round(3).tolist(), rng.choice(["<!--<script>", "</script>", "\x1b[2J"])]
            )
    with pytest.raises(SystemExit) as stop:
        main(["fit", str(folder / "t.csv"), "--out", str(folder / "run"), *QUICK])
    assert stop.value.code == 0
    return folder


def test_figures_of_the_paper_are_not_written_through_links(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in ("a.png", "a.pdf", ".a.partial.png", ".a.partial.pdf"):
        (tmp_path / name).symlink_to(victim)
    save(new_figure(1)[0], tmp_path, "a")
    assert victim.read_text() == "mine"
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_scores_are_not_written_through_links(named, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in ("scores.csv", ".scores.csv.partial"):
        (tmp_path / name).symlink_to(victim)
    fvnce("score", named / "run", named / "t.csv", "--out", tmp_path / "scores.csv", "-q")
    assert victim.read_text() == "mine"
    assert len((tmp_path / "scores.csv").read_text().splitlines()) == 61
    assert sorted(p.name for p in tmp_path.iterdir()) == [".scores.csv.partial", "scores.csv", "victim"]


def test_scores_that_end_in_an_error_leave_the_earlier_ones(named, tmp_path):
    (tmp_path / "scores.csv").write_text("earlier")
    (tmp_path / "t.csv").write_bytes((named / "t.csv").read_bytes() + b"1,2\n")
    fvnce("score", named / "run", tmp_path / "t.csv", "--out", tmp_path / "scores.csv", "-q", code=1)
    assert (tmp_path / "scores.csv").read_text() == "earlier"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["scores.csv", "t.csv"]


def test_a_pipe_as_the_place_of_scores_stays_a_pipe(named, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = subprocess.Popen(["cat", str(tmp_path / "pipe")], stdout=subprocess.PIPE)
    fvnce("score", named / "run", named / "t.csv", "--out", tmp_path / "pipe", "-q")
    assert len(reader.communicate()[0].splitlines()) == 61
    assert (tmp_path / "pipe").is_fifo()


# --- What a file may make others run ----------------------------------------------------------------------------------


def test_nothing_in_a_script_of_a_page_can_end_it():
    attack = {"text": ["<!--<script>", "</script><script>alert(1)</script>", "]]>&\u2028\u2029"]}
    shown = script_json(attack)
    assert not set("<>&\u2028\u2029") & set(shown)
    assert json.loads(shown) == attack


def test_a_page_of_attacks_holds_them_as_text(named):
    page = (named / "run" / "report.html").read_text(encoding="utf-8")
    assert "<!--" not in page
    assert "<script" not in page
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", page)
    charts = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert len(charts) == 2  # no curve where no row is flagged
    for chart in charts:
        ElementTree.fromstring(chart)  # an XML parser refuses markup and control characters
    card = (named / "run" / "card.md").read_text(encoding="utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]|(?<!\\\\)<", card)


@pytest.mark.parametrize("name", ["model.safetensors", "config.toml"])
@pytest.mark.parametrize(
    "content", ["[" * 100_000, "x = " + "[" * 100_000, "{}", "[]", "null", '{"layout": 3}', "\ufeff"]
)
def test_a_file_of_a_run_that_is_none_is_one_sentence(name, content, named, tmp_path):
    for original in (named / "run").iterdir():
        if original.is_file():
            (tmp_path / original.name).write_bytes(original.read_bytes())
    (tmp_path / name).write_text(content, encoding="utf-8")
    _, said = fvnce("score", tmp_path, named / "t.csv", code=1)
    assert len(said.splitlines()) == 1
    assert name in said
    assert "unexpected" not in said


def test_a_spreadsheet_computes_nothing(named):
    out, _ = fvnce("score", named / "run", named / "t.csv", "--explain")
    rows = list(csv.reader(io.StringIO(out)))
    reasons = {cell for row in rows[1:] for cell in (row[4], row[6], row[8])}
    assert any(reason.startswith('\'=HYPERLINK("x") ') for reason in reasons)
    assert any(reason.startswith("\\x1b[31mred\\x9b0m ") for reason in reasons)
    for row in rows:
        for cell in row:
            assert not cell.startswith(("=", "+", "@", "\t", "\r")), cell
            if cell.startswith("-"):
                float(cell)  # a number may
    # JSON is for programs, and gives names as they are.
    out, _ = fvnce("score", named / "run", named / "t.csv", "--explain", "--json")
    assert {name for line in out.splitlines() for name in json.loads(line)["reasons"]} > {'=HYPERLINK("x")'}
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", out)


def test_names_of_images_are_neutralised_too(tmp_path):
    from matplotlib.image import imsave

    rng = np.random.default_rng(0)
    (tmp_path / "png").mkdir()
    names = ["=1+1.png", "@a.png", "-b.png", "\x1b[2J.png", *(f"{i}.png" for i in range(20))]
    for name in names:
        imsave(tmp_path / "png" / name, rng.random((4, 4)), cmap="gray", format="png")
    (tmp_path / "png" / "0.png").rename(tmp_path / "png" / os.fsdecode(b"\xff.png"))  # a name that is no text
    fvnce("fit", tmp_path / "png", "--out", tmp_path / "run", *QUICK)
    out, _ = fvnce("score", tmp_path / "run", tmp_path / "png")
    actual = {row[0] for row in csv.reader(io.StringIO(out))}
    assert {"'=1+1.png", "'@a.png", "'-b.png", "\\x1b[2J.png", "\\xff.png", "7.png"} <= actual
    assert "\x1b" not in out


def test_no_control_character_reaches_a_terminal(named, tmp_path):
    attack = "\x1b]0;title\x07\x9b31m"
    bad = tmp_path / f"{attack}.csv"
    bad.write_text("a,b\n1\n")
    shown = [
        *fvnce("data", named / "t.csv"),
        *fvnce("data", named / "t.csv", "--json"),
        *fvnce("data", bad, code=1),
        *fvnce("fit", bad, "--out", tmp_path / "a", code=1),
        *fvnce("fit", named / "t.csv", "--label", attack, "--out", tmp_path / "b", code=1),
        *fvnce("fit", named / "t.csv", "--drop", "town", "--set", "n_trees=5", "--out", tmp_path / "c"),
        *fvnce("score", named / "run", bad, code=1),
        *fvnce("data", attack, code=2),
    ]
    for text in shown:
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", text), repr(text)
    assert "\\x1b[31mred" in shown[0]


# --- Settings of a wrong type -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[data]\npath = "t"\ndrop = "abc"', r"\[data\]: drop .*found 'abc'"),
        ('[data]\npath = "t"\nmissing = [1]', r"missing\[0\] .*found 1"),
        ('[data]\npath = 3', "path .*found 3"),
        ('[data]\npath = "t"\nheader = "yes"', "header .*found 'yes'"),
        ('[data]\npath = "t"\nlabel = 1', "label .*found 1"),
        ("[data]", "path"),
        ('data = "t"', r"\[data\] .*found 't'"),
        ('[run]\nseed = "0"\n[data]\npath = "t"', r"\[run\]: seed .*found '0'"),
        ('[run]\nseed = 1.5\n[data]\npath = "t"', "seed .*found 1.5"),
        ('[run]\nseed = true\n[data]\npath = "t"', "seed .*found True"),
        ('[run]\nkind = ["latent"]\n[data]\npath = "t"', "kind .*latent"),
        ('detector = 3\n[data]\npath = "t"', r"\[detector\] .*found 3"),
        ("a = " + "[" * 100_000, "is not TOML: .*nested"),
        ("a = " + "9" * 10_000, "is not TOML: "),
    ],
)  # fmt: skip
def test_a_setting_of_a_wrong_type_is_one_sentence(text, words, tmp_path):
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(FileError, match=words) as error:
        read_config(tmp_path / "config.toml")
    assert "\n" not in str(error.value)


def test_settings_of_the_right_types_are_read(tmp_path):
    text = '[run]\nkind = "detector"\n[data]\npath = "t"\ndrop = ["abc"]\n[detector]\nhidden = [8]\n'
    (tmp_path / "config.toml").write_text(text)
    settings = read_config(tmp_path / "config.toml")
    assert (settings.data.drop, settings.detector) == (("abc",), {"hidden": [8]})
    assert tomllib.loads(settings.to_toml())["data"]["drop"] == ["abc"]


# --- Anything at all --------------------------------------------------------------------------------------------------


def test_fuzzed_files_end_in_a_result_or_in_a_sentence():
    assert fuzz_readers.readers(seed=0, tries=300) == []


def test_the_fuzzer_notices_what_is_neither(monkeypatch):
    def wrong(folder, rng):
        raise KeyError("layout")

    def written_elsewhere(folder, rng):
        (folder.parent / "x").write_text("")

    for attempt, words in ((wrong, "KeyError"), (written_elsewhere, "outside the folder")):
        monkeypatch.setattr(fuzz_readers, "ATTEMPTS", {"one": attempt})
        [failure] = fuzz_readers.readers(seed=0, tries=1)
        assert words in failure
    assert fuzz_readers.flipped(b"abc", random.Random(0)) == fuzz_readers.flipped(b"abc", random.Random(0))


def test_a_page_is_whole_or_not_there(tmp_path):
    class Sentence:
        def __str__(self):
            raise FileNotFoundError

    with pytest.raises(FileNotFoundError):
        write_page(tmp_path / "a.html", "t", "i", [Section("s", ["first", Sentence()])])
    assert not list(tmp_path.iterdir())
