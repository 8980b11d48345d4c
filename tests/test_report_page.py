"""The page of a run in a real browser: what it shows is what was computed, and it fetches nothing."""

import csv
import re

import numpy as np
import pytest

from browser import Browser, needs_browser
from fvnce.app.commands import main
from fvnce.app.report import anomalies
from fvnce.app.report.context import build_context
from fvnce.app.runs import load_run
from fvnce.app.runs.training_data import read_training_data
from fvnce.pages.charts import histogram_chart, line_chart, ticks


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    rng = np.random.default_rng(0)
    np.savez(
        folder / "t.npz",
        X=np.concatenate([rng.normal(size=(120, 4)), rng.normal(6, 1, (8, 4))]),
        y=np.arange(128) > 119,
    )
    np.save(folder / "i.npy", rng.random((60, 8, 8)))
    quick = ["--set", "steps=5", "--set", "n_trees=5", "--set", "n_networks=1", "-q"]
    table = ["fit", folder / "t.npz", "--label", "y", *quick, "--out", folder / "table"]
    coded = ["--set", "members=neighbours,autoencoder"]
    images = ["fit", folder / "i.npy", *quick, *coded, "--out", folder / "images"]
    forests = ["fit", folder / "i.npy", *quick, "--out", folder / "detector"]
    for arguments in (table, images, forests):
        with pytest.raises(SystemExit) as stop:
            main(list(map(str, arguments)))
        assert stop.value.code == 0
    return folder


@pytest.fixture(scope="module")
def browser():
    with Browser() as browser:
        yield browser


def opened(browser, path):
    browser.open(path.as_uri())


def check_clean(browser, path):
    assert browser.problems == []
    outside = [url for url in browser.requests if not url.startswith("data:")]
    assert outside == [path.as_uri()]


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("name", ["table", "images", "detector"])
def test_the_page_is_clean_and_fits_its_window(browser, pages, name):
    path = pages / name / "report.html"
    opened(browser, path)
    for width, dark in ((1280, False), (400, False), (400, True)):
        browser.screen(width, dark=dark)
        assert browser.run("document.documentElement.scrollWidth") <= width
        ink, paper = browser.run(
            "['color', 'backgroundColor'].map("
            "k => getComputedStyle(document.body)[k].match(/\\d+/g).slice(0, 3).map(Number))"
        )
        assert contrast(ink, paper) > 12
        soft = browser.run("getComputedStyle(document.querySelector('figcaption')).color.match(/\\d+/g).map(Number)")
        assert contrast(soft, paper) > 4.5
        for i in range(3):
            colour = browser.run(f"getComputedStyle(document.documentElement).getPropertyValue('--c{i}').trim()")
            assert contrast([int(colour[k : k + 2], 16) for k in (1, 3, 5)], paper) > 4.5
    unnamed = """[...document.querySelectorAll("img, svg")].filter(
        e => !(e.getAttribute("alt") || e.getAttribute("aria-label"))).length"""
    assert browser.run(unnamed) == 0
    assert browser.run("[...document.querySelectorAll('img')].every(i => i.complete && i.naturalWidth > 0)")
    assert browser.run("[...document.querySelectorAll('input')].every(i => i.labels.length === 1)")
    check_clean(browser, path)


def contrast(one, other):
    """The ratio of luminances as WCAG defines it."""

    def luminance(colour):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in colour)]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@needs_browser
@pytest.mark.parametrize("name", ["table", "images"])
def test_a_point_tells_which_row_it_is(browser, pages, name):
    path = pages / name / "report.html"
    opened(browser, path)
    said = "document.getElementById('plane-said').textContent"
    browser.run(
        "document.querySelector('circle[data-i=\"5\"]').dispatchEvent(new Event('pointerover', { bubbles: true }))"
    )
    title = browser.run("document.querySelector('circle[data-i=\"5\"] title').textContent")
    assert browser.run(said) == title
    assert "row" in title
    assert "score" in title
    browser.run(
        "document.querySelector('svg[data-plane]').dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight' }))"
    )
    assert browser.run(said) == browser.run("document.querySelector('circle[data-i=\"6\"] title').textContent")
    assert browser.run("document.getElementById('plane-picture').hidden") == (name == "table")
    check_clean(browser, path)


@needs_browser
def test_names_that_are_markup_hide_no_section(browser, tmp_path):
    """A browser ends no script at "</script>" that follows "<!--<script>": all that comes after would be part of it."""
    attack, rng = "<!--<script>", np.random.default_rng(0)
    names = [attack, f"{attack}</script><script>alert(1)</script>", "</section>"]
    rows = [[attack, f"{a:.3f}", f"{b:.3f}"] for a, b in rng.normal(size=(60, 2))]
    with (tmp_path / f"{attack}.csv".replace("/", "")).open("w", newline="") as file:
        csv.writer(file).writerows([names, *rows])
    options = ["--set", "n_trees=5", "--set", "members=mixture_forest", "-q", "--out", str(tmp_path / "run")]
    with pytest.raises(SystemExit) as stop:
        main(["fit", file.name, *options])
    assert stop.value.code == 0
    path = tmp_path / "run" / "report.html"
    opened(browser, path)
    titles = browser.run("[...document.querySelectorAll('section > :is(h2, h3):first-child')].map(t => t.textContent)")
    assert len(titles) == 7
    assert browser.run("document.querySelectorAll('nav a').length") == 7
    assert browser.run("document.querySelector('h1').textContent") == f"{attack}.csv"
    assert attack in browser.run("JSON.parse(document.getElementById('plane-items').textContent).text[0]")
    assert attack in browser.run("document.querySelector('.anomalies').textContent")
    check_clean(browser, path)


def test_what_does_not_apply_is_not_shown(pages):
    headings = {
        name: re.findall(r"<section[^>]*><h[23]>([^<]*)<", (pages / name / "report.html").read_text())
        for name in ("detector", "table", "images")
    }
    first = ["Verdict", "Scores", "Top anomalies"]
    columns = ["Columns by importance", "Rows in two dimensions", "Columns and their health"]
    assert headings["table"] == [*first, *columns, "Training", "How it was made"]
    # Images have no columns.
    coded = ["Pixels by importance", "Latent space", "Training", "Reconstructions", "How it was made"]
    assert headings["images"] == [*first, *coded]
    # Neighbors, the detector's own way with images, are not trained, and rebuild nothing.
    alone = ["Pixels by importance", "Rows in two dimensions", "How it was made"]
    assert headings["detector"] == [*first, *alone]
    table = (pages / "table" / "report.html").read_text()
    assert table.index("Appendix</h2>") < table.index("<h3>Training")


@pytest.mark.parametrize("name", ["table", "images", "detector"])
def test_the_parts_of_a_score_sum_to_it(pages, name):
    run = load_run(pages / name)
    data = read_training_data(run.config.data, lambda sentence: None, run.config.seed)
    top = anomalies.build(build_context(run, data))["top"]
    assert top
    for entry in top:
        parts = [part[1] for part in entry["parts"] + entry["whole"]]
        assert sum(parts) == pytest.approx(entry["score"], rel=1e-9, abs=1e-9)


def test_charts_put_numbers_where_they_belong():
    chart = line_chart("a", [0, 1], {"up": [0.0, 10.0]}, labels=("x", "y"), caption="c", alt="<alt>")
    [(x1, y1), (x2, y2)] = [tuple(map(float, p)) for p in re.findall(r"[ML]([\d.]+) ([\d.]+)", chart.svg)]
    assert x1 < x2
    assert y1 > y2
    assert 'aria-label="&lt;alt&gt;"' in chart.svg
    counts = {"few": [0, 2, 0], "many": [0, 2000, 0]}
    svg = histogram_chart("h", [0, 1, 2, 3], counts, label="x", caption="c", alt="a").svg
    curves = re.findall(r'<path class="s\d" d="(M[^"]{40,})"', svg)
    # Each group is drawn as shares of itself, so the two coincide.
    assert len(curves) == 2
    assert curves[0] == curves[1]
    assert ticks(0, 100) == [0, 20, 40, 60, 80, 100]
    assert ticks(0.96, 2.04, least=1.0) == [1, 2]
    epochs = line_chart("e", [1, 2], {"loss": [3.0, 2.0]}, labels=("epoch", "y"), caption="c", alt="a").svg
    assert re.findall(r'text-anchor="middle">([\d.]+)</text>', epochs) == ["1", "2"]
    marked = histogram_chart("m", [0, 1], {"all": [5]}, label="x", caption="c", alt="a", mark=(0.5, "here")).svg
    label = float(re.search(r'y="([\d.]+)" text-anchor="\w+">here', marked).group(1))
    highest = min(float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", marked))
    assert label < highest  # the label stands above the bars
