"""The page of a run in a real browser: sliders move curves, numbers are those of the library, nothing is fetched."""

import copy
import itertools
import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from browser import Browser, needs_browser
from fvnce import PowerRule
from fvnce.app.commands import main
from fvnce.app.report import training, write_run_page
from fvnce.pages.charts import histogram_chart, line_chart, ticks
from fvnce.scoring import check_double_elbo

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
from fuzz_seeds import FACTS, RECORDS


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
    quick = ["--model", "latent", "--hidden", "8", "--epochs", "2", "-q"]
    table = [
        "fit",
        folder / "t.npz",
        "--label",
        "y",
        "--rule",
        "power(1/16, 1, clip=5)",
        *quick,
        "--out",
        folder / "table",
    ]
    images = ["fit", folder / "i.npy", "--latent", "3", *quick, "--out", folder / "images"]
    forests = ["fit", folder / "i.npy", "-q", "--steps", "5", "--out", folder / "detector"]
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
def test_the_formulas_of_the_page_are_those_of_the_library(browser, pages):
    opened(browser, pages / "table" / "report.html")
    delta = [-30.0, -8.0, -1.5, 0.0, 0.3, 2.0, 4.9, 7.0, 12.0, 40.0]
    mu = [1e-6, 0.1, 0.5, 0.9, 1 - 1e-6]
    grid = itertools.product([0.0, 1 / 64, 0.5, 1.0], [0.0, 1e-3, 1.0, 3.0], [None, 0.0, 5.0, 10.0])
    for alpha, beta, clip in grid:
        rule = PowerRule(alpha, beta, clip)
        script = f"""(() => {{ const rule = fvnceRule({alpha}, {beta}, {json.dumps(clip)}); const d = {delta}, m = {mu};
            return [d.map(rule.f1), d.map(rule.f0), m.map(rule.G), rule.holds, String(rule.validBelow)]; }})()"""
        f1, f0, generator, holds, valid_below = browser.run(script)
        at = torch.tensor(delta, dtype=torch.float64)
        np.testing.assert_allclose(f1, rule.f1(at).numpy(), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(f0, rule.f0(at).numpy(), rtol=1e-12, atol=1e-14)
        expected = rule.generator(torch.tensor(mu, dtype=torch.float64)).numpy()
        np.testing.assert_allclose(generator, expected, rtol=1e-9, atol=1e-12)
        report = check_double_elbo(rule)
        assert holds == report.holds
        if (clip or 0) > 0 or clip is None:
            assert float(valid_below.replace("Infinity", "inf")) == pytest.approx(report.valid_below)


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize(
    ("alpha", "words"), [(-0.25, "f0 is not concave"), (1.25, "f1 is not concave"), (0.5, "has the")]
)
def test_sliders_move_curves_and_the_verdict(browser, pages, alpha, words):
    path = pages / "table" / "report.html"
    opened(browser, path)
    state = """[...document.querySelectorAll("#explorer svg path")].map(p => p.getAttribute("d")).concat(
        document.getElementById("x-verdict").textContent, document.getElementById("x-verdict").dataset.holds)"""
    *before, text, holds = browser.run(state)
    # The explorer begins at the rule of the run.
    assert text.startswith("power(1/16, 1, clip=5) has the double-ELBO property")
    assert "as long as Δ < 4.706" in text
    assert holds == "true"
    move = """(name, value) => { const slider = document.querySelector(`#explorer [name=${name}]`);
        slider.value = value; slider.dispatchEvent(new Event("input", { bubbles: true })); }"""
    browser.run(f'({move})("alpha", {alpha})')
    *after, text, holds = browser.run(state)
    curves = [(a, b) for a, b in zip(before, after, strict=True) if len(a) > 30]
    assert len(curves) == 5
    assert all(a != b for a, b in curves)
    assert words in text
    assert holds == str(0 <= alpha <= 1).lower()
    for name, value in (("beta", 3), ("clip", 1)):
        earlier = browser.run(state)
        browser.run(f'({move})("{name}", {value})')
        assert browser.run(state) != earlier
    browser.run('document.querySelector("#explorer [name=clipped]").click()')
    assert browser.run('document.querySelector("#explorer [name=clip]").disabled') is True
    browser.run('document.querySelector("#explorer button[data-rule]").click()')
    assert browser.run('document.getElementById("x-alpha-out").textContent') == "0"
    browser.run('document.getElementById("x-again").click()')
    assert browser.run(state)[:-1] == [*before, browser.run('document.getElementById("x-verdict").textContent')]
    assert browser.run(state)[-2].startswith("power(1/16, 1, clip=5) has")
    check_clean(browser, path)


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
    attack = "<!--<script>"
    facts = copy.deepcopy(FACTS[0])
    facts["plane"]["score"] = [1.0, 2.0, 3.0]
    facts["plane"]["text"] = [attack, f"{attack}</script><script>alert(1)</script>", "\u2028\x00"]
    facts["top"][0] |= {"name": attack, "parts": [[attack, 1.0, attack]]}
    facts["rebuilt"]["columns"] = facts["importance"]["columns"] = [attack, "</section>"]
    facts["health"]["columns"][0] |= {"name": attack, "values": attack}
    facts["verdict"]["threshold_reason"] = attack
    record = RECORDS[0] | {"name": attack, "notices": [attack]}
    write_run_page(tmp_path, record, facts, f"{attack}\n", "power(0)")
    opened(browser, tmp_path / "report.html")
    titles = browser.run("[...document.querySelectorAll('section > :is(h2, h3):first-child')].map(t => t.textContent)")
    assert len(titles) == 11
    assert browser.run("document.querySelectorAll('nav a').length") == 11
    assert browser.run("document.querySelector('h1').textContent") == attack
    assert browser.run("JSON.parse(document.getElementById('plane-items').textContent).text[0]").startswith(attack)
    assert attack in browser.run("document.querySelector('.anomalies').textContent")
    check_clean(browser, tmp_path / "report.html")


def test_what_does_not_apply_is_not_shown(pages):
    detector, table, images = ((pages / name / "report.html").read_text() for name in ("detector", "table", "images"))
    headings = {
        name: re.findall(r"<section[^>]*><h[23]>([^<]*)<", page)
        for name, page in (("detector", detector), ("table", table), ("images", images))
    }
    first = ["Verdict", "Scores", "Top anomalies"]
    columns = ["Columns by importance", "Latent space", "Columns and their health"]
    end = ["Training", "Data against noise", "Reconstructions and samples", "Rule explorer", "How it was made"]
    assert headings["table"] == [*first, *columns, *end]
    # Images have no columns. These detectors on images are trained without noise and without a rule.
    assert headings["images"] == [*first, "Pixels by importance", "Latent space", *end]
    # Neighbours, the detector's own way with images, are not trained, and rebuild nothing.
    alone = ["Pixels by importance", "Rows in two dimensions", "How it was made"]
    assert headings["detector"] == [*first, *alone]
    assert table.index("Appendix</h2>") < table.index("<h3>Training")
    assert "log Z =" not in detector
    assert re.search(r"log Z = -?\d+\.\d+ ± \d+\.\d+", table)
    analysis = json.loads((pages / "table" / "analysis.json").read_text())
    assert 0 <= analysis["reliability"]["error"] <= 1
    assert math.isfinite(analysis["log_partition"]["value"])


@pytest.mark.parametrize("name", ["table", "images", "detector"])
def test_the_parts_of_a_score_sum_to_it(pages, name):
    top = json.loads((pages / name / "analysis.json").read_text())["top"]
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


def test_remedies_stand_below_the_advice_that_they_belong_to() -> None:
    history = {"name": "model", "epochs": {"epoch": [1, 2], "loss": [1.0, 0.5]}, "steps": {}}
    advice = ["the noise term is dead", "→ move the noise", "· build bridges"]
    [section] = training.show({"histories": [history], "advice": advice, "ratios": "none"}, {})
    assert section.reading == ["Advice: the noise term is dead.", "→ move the noise.", "· build bridges."]
