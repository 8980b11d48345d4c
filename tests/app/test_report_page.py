"""The page of a run in a real browser: what it shows is what was computed, and it fetches nothing."""

import csv
import re
from itertools import pairwise

import numpy as np
import pytest

from browser import Browser, needs_browser
from fvnce.app.cli import main
from fvnce.app.report import lists
from fvnce.app.report.analysis import analyze
from fvnce.app.report.charts import curve_chart, histogram_chart, scatter_chart, ticks
from fvnce.app.runs import load_run
from fvnce.app.runs.training_data import read_training_data


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
    images = ["fit", folder / "i.npy", *quick, "--out", folder / "images"]
    for arguments in (table, images):
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
@pytest.mark.parametrize("name", ["table", "images"])
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
    check_clean(browser, path)


def contrast(one, other):
    """The ratio of luminances as WCAG defines it."""

    def luminance(colour):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in colour)]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", ["table", "images"])
def test_a_point_tells_which_row_it_is(pages, name):
    page = (pages / name / "report.html").read_text()
    titles = re.findall(r"<circle[^>]*><title>([^<]*)</title>", page)
    run = load_run(pages / name)
    data = read_training_data(run.config.data, lambda sentence: None, run.config.seed)
    assert len(titles) == len(data.rows)
    scores = run.detector.anomaly_score(data.rows)
    for i, title in enumerate(titles):
        assert title.startswith(f"row {i + 1}")
        assert title.endswith(f"score {scores[i]:.4g}")


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
    assert len(titles) == 8
    assert browser.run("document.querySelectorAll('nav a').length") == 8
    assert browser.run("document.querySelector('h1').textContent") == f"{attack}.csv"
    assert attack in browser.run("document.querySelector('svg circle title').textContent")
    assert attack in browser.run("document.querySelector('.anomalies').textContent")
    check_clean(browser, path)


def test_what_does_not_apply_is_not_shown(pages):
    headings = {
        name: re.findall(r"<section[^>]*><h[23]>([^<]*)<", (pages / name / "report.html").read_text())
        for name in ("table", "images")
    }
    steps, last = "What to do next", ["Scores", "Rows in two dimensions", "How it was made"]
    columns = ["Columns by importance", "Columns and their health"]
    assert headings["table"] == ["Verdict", "Like the known outliers", "Novel rows", steps, *columns, *last]
    # Images have no columns, and of these none is a known outlier.
    assert headings["images"] == ["Verdict", "Top anomalies", steps, "Pixels by importance", *last]
    table = (pages / "table" / "report.html").read_text()
    assert table.index("Appendix</h2>") < table.index("<h3>Scores")


@pytest.mark.parametrize("name", ["table", "images"])
def test_the_parts_of_a_score_sum_to_it(pages, name):
    run = load_run(pages / name)
    data = read_training_data(run.config.data, lambda sentence: None, run.config.seed)
    analysis = analyze(run, data, [])
    top = lists.top_rows(analysis, np.argsort(-analysis.anomaly), analysis.anomaly)
    assert top
    for entry in top:
        parts = [part[1] for part in entry["parts"] + entry["whole"]]
        assert sum(parts) == pytest.approx(entry["score"], rel=1e-9, abs=1e-9)


def test_charts_put_numbers_where_they_belong():
    titles = {"labels": ("x", "y"), "caption": "c", "alt": "<alt>"}
    chart = scatter_chart([0.0, 1.0], [0.0, 10.0], [0, 0], ["all"], ["low", "high"], **titles)
    [(x1, y1), (x2, y2)] = [tuple(map(float, p)) for p in re.findall(r'cx="([\d.]+)" cy="([\d.]+)" r="3"', chart)]
    assert x1 < x2
    assert y1 > y2
    assert 'aria-label="&lt;alt&gt;"' in chart
    titles = {"label": "x", "mark": (0.5, "here"), "caption": "c", "alt": "a"}
    counts = {"few": [0, 2, 0], "many": [0, 2000, 0]}
    svg = histogram_chart([0, 1, 2, 3], counts, **titles)
    curves = re.findall(r'<path class="s\d" d="(M[^"]{40,})"', svg)
    # Each group is drawn as shares of itself, so the two coincide.
    assert len(curves) == 2
    assert curves[0] == curves[1]
    assert ticks(0, 100) == [0, 20, 40, 60, 80, 100]
    marked = histogram_chart([0, 1], {"all": [5]}, **titles)
    label = float(re.search(r'y="([\d.]+)" text-anchor="\w+">here', marked).group(1))
    highest = min(float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", marked))
    assert label < highest  # the label is above the bars


def test_a_curve_goes_through_its_points():
    chart = curve_chart(
        [0, 1, 2], [0.0, 0.9, 1.5], [0, 0, 1], [0, 1, 2], labels=("rows", "finds"), mark=(1, "flagged"), caption="<c>"
    )
    curve = [
        tuple(map(float, point.split())) for point in re.search(r'class="s0" d="M([^"]*)"', chart).group(1).split("L")
    ]
    assert [a < b for a, b in pairwise(curve)] == [True, True]
    assert curve[0][1] > curve[1][1] > curve[2][1]
    assert f'x1="{curve[1][0]:.1f}"' in chart  # the mark is at its row
    assert chart.count("&lt;c&gt;") == 2  # for those who see it, and for those who do not


def test_identical_rows_are_one_entry_that_says_how_many(tmp_path):
    rng = np.random.default_rng(0)
    usual = [f"{a:.4f},{b:.4f},no" for a, b in rng.normal(size=(200, 2))]
    known = [f"{a:.4f},{b:.4f},yes" for a, b in rng.normal(4, 0.3, size=(6, 2))]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["a,b,fraud", *usual, *known, *["-9.5,9.5,no"] * 15]))
    settings = ["--set", "n_trees=20", "--set", "n_networks=1", "--set", "steps=20"]
    with pytest.raises(SystemExit) as stop:
        main(["fit", str(path), "--label", "fraud", "--out", str(tmp_path / "run"), "-q", *settings])
    assert not stop.value.code
    page = (tmp_path / "run" / "report.html").read_text()
    assert "one of 15 identical rows" in page
    assert set(re.findall(r"one of (\d+) identical", page)) == {"15"}
