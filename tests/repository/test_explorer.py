"""The rule explorer of the documentation in a real browser: sliders move curves, numbers are those of the library."""

import itertools
import json
import re

import numpy as np
import pytest
import torch

from browser import Browser, needs_browser
from fvnce import PowerRule, scoring
from fvnce.scoring import check_double_elbo
from tools.pages.explorer import write_explorer

RULES = [
    "0.9*power(1/64)+0.1*power(0)",
    "power(0.3, 0.7, clip=33)",
    "quadratic()",
    "0.5*power(1)+0.5*power(0, 1, clip=2)",
]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write_explorer(tmp_path_factory.mktemp("page") / "rule.html", scoring.parse("power(1/16, 1, clip=5)"))


@pytest.fixture(scope="module")
def browser():
    with Browser() as browser:
        yield browser


def opened(browser, path):
    browser.open(path.as_uri())


def check_clean(browser, path):
    assert browser.problems == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [path.as_uri()]


@pytest.mark.slow
@needs_browser
def test_the_formulas_of_the_page_are_those_of_the_library(browser, page):
    opened(browser, page)
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
def test_sliders_move_curves_and_the_verdict(browser, page, alpha, words):
    path = page
    opened(browser, path)
    state = """[...document.querySelectorAll("#explorer svg path")].map(p => p.getAttribute("d")).concat(
        document.getElementById("x-verdict").textContent, document.getElementById("x-verdict").dataset.holds)"""
    *before, text, holds = browser.run(state)
    # The explorer begins at the rule that is given.
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


@pytest.mark.parametrize("text", RULES)
def test_the_explorer_opens_on_the_rule_and_agrees_with_the_verdict(tmp_path, text):
    rule = scoring.parse(text)
    report = check_double_elbo(rule)
    page = write_explorer(tmp_path / "rule.html", rule).read_text()
    given = json.loads(re.search(r'id="x-given">(.*?)</script>', page).group(1))
    assert given["name"] == str(rule)
    assert given["holds"] == report.holds
    assert given["validBelow"] == (report.valid_below if np.isfinite(report.valid_below) else None)
    assert (" has the double-ELBO property" in given["verdict"]) == report.holds


@needs_browser
def test_the_explorer_shows_a_sum_until_a_slider_is_moved(browser, tmp_path):
    opened(browser, write_explorer(tmp_path / "rule.html", scoring.parse(RULES[0])))
    said = "document.getElementById('x-verdict').textContent"
    curve = "document.querySelectorAll('#x-pair path[class]')[1].getAttribute('d')"
    assert browser.run(said).startswith("0.9*power(1/64)+0.1*power(0) has the double-ELBO property")
    assert browser.run("document.getElementById('x-alpha-out').textContent") == "–"
    first = browser.run(curve)
    browser.run(
        """(() => { const slider = document.querySelector('[name=alpha]'); slider.value = 0.5;
        slider.dispatchEvent(new Event('input', { bubbles: true })); })()"""
    )
    assert browser.run(said).startswith("(α, β) = (0.5, 0) has")
    assert browser.run(curve) != first
    browser.run("document.getElementById('x-again').click()")
    assert browser.run(curve) == first
    assert browser.problems == []
