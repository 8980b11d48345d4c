"""The reproduction, end to end on tiny settings, asserting what theory demands of the outputs."""

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.image import imread

from fvnce.paper import ITEMS
from fvnce.paper.cells import Cells
from fvnce.paper.reproduce import reproduce
from fvnce.paper.study import DIGITS, MNIST, Options, make_pair, rows
from fvnce.report.page import Picture, Section, Table, write_page


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("paper")
    said = []
    files = list(reproduce(list(ITEMS), out, Options(quick=True), page=True, say=said.append))
    return out, files, "\n".join(said)


def test_every_item_writes_its_files(made):
    out, files, _ = made
    names = {path.name for path in files}
    for figure in ("pairs", "losses", "noise-reconstructions", "penalised"):
        for suffix in ("png", "pdf"):
            assert f"{figure}.{suffix}" in names
        assert imread(out / f"{figure}.png")[..., :3].std() > 0.02  # not blank
    assert {"table-digits.md", "report.html"} <= names


def test_the_table_has_every_cell_and_they_are_what_they_say(made):
    out, _, _ = made
    cells = [json.loads(path.read_text()) for path in sorted((out / "cells" / "table-digits").glob("*.json"))]
    assert len(cells) == 12
    bound = 64 * math.log(8 / math.sqrt(2 * math.pi))  # the log-likelihood of a perfect reconstruction
    for cell in cells:
        assert cell["train"] <= bound
        assert cell["noise"] <= bound
        assert cell["settings"]["epochs"] == 2
        if "live_noise" in cell:
            assert 0 <= cell["zero_noise"] <= 1 - cell["live_noise"] + 1e-9


def test_finished_cells_are_not_made_again(made, tmp_path):
    cells = Cells(tmp_path, {"a": 1})
    made_times = []

    def make():
        made_times.append(1)
        return {"value": 3}

    assert cells.get("x", make)["value"] == 3
    assert cells.get("x", make)["value"] == 3
    assert len(made_times) == 1
    assert Cells(tmp_path, {"a": 2}).get("x", make)["value"] == 3  # other settings, another cell
    assert len(made_times) == 2
    assert not list(tmp_path.glob("*.partial"))


def test_instances_hold(made):
    """Every identity and inequality of the paper, on the (barely) trained models."""
    _, _, said = made
    table = said[said.index("Left and right side") :]
    verdicts = re.findall(r"(yes|NO)$", table, flags=re.MULTILINE)
    assert verdicts == ["yes"] * 7


def test_rows_start_from_the_same_weights():
    one, two = (make_pair(DIGITS, DIGITS.networks[1], seed=3) for _ in range(2))
    other = make_pair(DIGITS, DIGITS.networks[1], seed=4)
    for a, b, c in zip(one.model.parameters(), two.model.parameters(), other.model.parameters(), strict=True):
        assert (a == b).all()
        assert not (a == c).all()


def test_the_papers_numbers_add_up():
    """data − noise = difference in every row of the paper's table, as copied."""
    for row in rows(MNIST):
        for data, noise, difference in row.paper:
            assert data - noise == difference, row.label


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.images, self.links, self.text = [], [], []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "img":
            self.images.append(attributes)
        for name in ("src", "href"):
            if name in attributes:
                self.links.append(attributes[name])

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_is_self_contained(made):
    out, _, _ = made
    reader = _Reader()
    reader.feed((out / "report.html").read_text())
    assert len(reader.images) == 4
    assert all(image["alt"] for image in reader.images)
    assert all(link.startswith(("data:", "#")) for link in reader.links)
    text = " ".join(reader.text)
    for words in ("Tiny settings", "Pairs (f1, f0)", "forgets '1's", "Settings,"):
        assert words in text


def test_the_page_escapes_what_it_shows(tmp_path):
    picture = tmp_path / "a.png"
    picture.write_bytes(b"png")
    section = Section(
        "<b>", ["a < b & c"], [Picture(picture, "<i>", '"quoted"')], [Table("<t>", ["h"], [["<script>"]])], {"x": "<y>"}
    )
    page = write_page(tmp_path / "page.html", "<title>", "<p>", [section]).read_text()
    for raw in ("<b>", "<i>", "<script>", "<y>", "<t>"):
        assert raw not in page
    assert "&lt;script&gt;" in page


def test_tables_as_text_and_markdown():
    table = Table("caption", ["name", "value"], [["a|b", "1"], ["c", "22"]])
    assert table.text().splitlines() == ["caption", "name  value", "a|b       1", "c        22"]
    assert table.markdown().splitlines()[2] == "| a\\|b | 1 |"


def test_a_wrong_data_set_is_one_line(capsys):
    from fvnce.cli import main

    for arguments, words in (
        (["reproduce", "--data", "cifar"], "cifar"),
        (["reproduce", "--seeds", "0"], "greater than or equal to 1"),
        (["data", "imagenet"], "unknown data set 'imagenet'; the data sets are mnist"),
    ):
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        assert exit_.value.code == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert words in error


def test_every_item_has_its_file():
    folder = Path(__file__).resolve().parent.parent / "src" / "fvnce" / "paper"
    for item in ITEMS:
        assert (folder / f"{item.replace('-', '_')}.py").exists()
