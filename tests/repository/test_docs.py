"""The documentation: equations that are cited are defined, pages say what the files say, the reference is complete."""

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

import fvnce
from browser import Browser, needs_browser
from fvnce.app.cli import SUMMARIES, main
from tools.pages import benchmarks, blocks, boundaries
from tools.pages.__main__ import PAGES
from tools.release import check_site, equations

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
KNOWN = equations.definitions()
CITING = [*sorted((ROOT / "src").rglob("*.py")), *sorted(DOCS.rglob("*.md")), ROOT / "README.md"]


def test_equations_are_numbered_in_the_order_of_the_pages():
    defined = [
        name for page in equations.pages() for name, _, _ in equations.DEFINITION.findall((DOCS / page).read_text())
    ]
    assert [KNOWN[name].number for name in defined] == list(range(1, len(KNOWN) + 1))
    assert len(defined) > 40
    assert sum(page.read_text().count("```math") for page in DOCS.rglob("*.md")) == len(defined)


@needs_browser
def test_every_formula_can_be_set(tmp_path):
    code = re.compile(r"^```(?!math)\w.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
    formula = re.compile(r"^```math[^\n]*\n(.*?)\n```$|\$\$(.*?)\$\$|\$([^$]+)\$", re.MULTILINE | re.DOTALL)
    formulas = [
        (page.name, "".join(parts))
        for page in sorted(DOCS.rglob("*.md"))
        for parts in formula.findall(code.sub("", page.read_text()))
    ]
    assert len(formulas) > 200
    page = tmp_path / "page.html"
    page.write_text(f'<script src="{(DOCS / "assets" / "katex" / "katex.min.js").as_uri()}"></script>')
    failing = "formula => { try { katex.renderToString(formula[1]); return false } catch { return true } }"
    with Browser() as browser:
        browser.open(page.as_uri())
        assert browser.run(f"{json.dumps(formulas)}.filter({failing})") == []
        assert browser.run(f"[['', '\\\\frac{{1']].filter({failing})") == [["", "\\frac{1"]]


def test_every_equation_that_is_cited_is_defined():
    cited = {(name, path.relative_to(ROOT)) for path in CITING for name in equations.citations(path.read_text())}
    assert {"fvNCE", "S_NCE", "NCE", "NCE_r", "bin_PSR"} <= {name for name, path in cited if path.parts[0] == "src"}
    assert {(name, str(path)) for name, path in cited if name not in KNOWN} == set()


def test_a_citation_becomes_a_link_and_an_unknown_one_an_error():
    number, title, page, _ = KNOWN["fvNCE"]
    html = equations.linked('<p title="Eq. fvNCE">see Eq. fvNCE</p>', KNOWN, "reference/objectives/")
    assert page == "theory/objectives.md"
    assert f'href="../../theory/objectives/#eq-fvNCE" title="{title}">Eq. {number}</a></p>' in html
    assert html.startswith('<p title="Eq. fvNCE">')
    with pytest.raises(ValueError, match="nothing"):
        equations.linked("Eq. nothing", KNOWN, "")


def test_in_the_source_of_a_page_a_citation_is_a_link_to_the_section_of_the_equation():
    text = "Eq. fvNCE, [Eq. NCE](old.md), `Eq. NCE`, Eq. nothing\n```text\nEq. NCE\n```\n"
    made = equations.sourced(text, "docs/theory/tour.md", KNOWN)
    assert made.startswith(
        "[Eq. fvNCE](objectives.md#latent-variables), [Eq. NCE](objectives.md#noise-contrastive-estim"
    )
    assert made.endswith("`Eq. NCE`, Eq. nothing\n```text\nEq. NCE\n```\n")
    assert equations.sourced(made, "docs/theory/tour.md", KNOWN) == made
    assert "](docs/theory/objectives.md#" in equations.sourced(text, "README.md", KNOWN)
    assert "[Eq. fvNCE](#latent-variables)" in equations.sourced(text, "docs/theory/objectives.md", KNOWN)
    html = equations.linked('<a href="../objectives/#latent-variables">Eq. fvNCE</a>', KNOWN, "theory/tour/")
    assert html.count("<a ") == 1
    assert 'href="../objectives/#eq-fvNCE"' in html


def test_an_equation_cannot_be_defined_twice(tmp_path):
    (tmp_path / "a.md").write_text('```math title="same: one"\nx\n```\n```math title="same: two"\nx\n```\n')
    with pytest.raises(ValueError, match="same"):
        equations.definitions(["a.md"], tmp_path)


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.name)
def test_code_of_a_page_fits_its_column(page):
    blocks_of_code = re.findall(
        r"^```(?:python|py|sh|bash)\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert [line for block in blocks_of_code for line in block.splitlines() if len(line) > 100] == []


@pytest.mark.parametrize("name", PAGES)
def test_a_page_that_is_made_is_what_it_is_made_from(name):
    assert (ROOT / name).read_text("utf-8") == PAGES[name](), "run make pages"


def test_a_block_shows_the_measured_numbers(tmp_path):
    (tmp_path / "bench").mkdir()
    numbers = {"auroc difference": 0.1, "auroc standard error": 0.04, "ap difference": -0.02, "ap standard error": 0.05}
    record = {
        "versions": {"fvnce": "9"},
        "commit": "c",
        "rows": [{"seed": 0}, {"seed": 1}],
        "differences": [{"share": 0.1, "source": source, "tables": 3, **numbers} for source in ("keel", "all")],
    }
    (tmp_path / "bench" / "detection_choice.json").write_text(json.dumps(record))
    (tmp_path / "paper-mnist").mkdir()
    cells = [
        {"network": "n", "row": row, "seed": seed, "train": 100 + seed, "noise": noise}
        for seed in (0, 2)
        for row, noise in (("ae", 90), ("vae", 50))
    ]
    rows = {"ae": {"label": "AE", "paper": [[1, 2, 3]]}, "vae": {"label": "VAE", "paper": [[4, 5, 6]]}}
    (tmp_path / "paper-mnist" / "table.json").write_text(
        json.dumps({"cells": cells, "rows": rows, "seeds": 2, "version": "8"})
    )
    marks = [
        f"<!-- {name}: made by `make pages`, do not edit -->\nstale\n<!-- end of {name} -->"
        for name in ("choice", "table", "images")
    ]
    text = blocks.filled("before\n" + "\nbetween\n".join(marks) + "\nafter\n", tmp_path)
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "stale" not in text
    assert text.count("\nbetween\n") == 2
    # A difference is bold only where it exceeds two standard errors.
    assert "version 9 (commit c), 2 seeds" in text
    assert text.count("Measured with version 8.") == 1
    assert "| source | tables | 10 % known, minus CatBoost |" in text
    assert "| KEEL | 3 | **+.100 ± .040** / −.020 ± .050 |" in text
    assert "| AE | 101 ± 1 (1) | 90 ± 0 (2) | 11 ± 1 (3) |" in text
    assert blocks.filled(text, tmp_path) == text
    with pytest.raises(ValueError, match="nothing"):
        blocks.filled(marks[0].replace("choice", "nothing"), tmp_path)


def test_the_readme_has_two_doors_that_lead_to_their_own_pages():
    readme = (ROOT / "README.md").read_text("utf-8")
    for door, pages in {
        "I have a table": ["docs/quickstart-detector.md", "docs/detector/thresholds.md", "docs/benchmarks.md"],
        "I study models": ["docs/quickstart-model.md", "docs/theory/tour.md", "docs/reproduction.md"],
    }.items():
        section = readme.partition(f"## {door}\n")[2].partition("\n## ")[0]
        assert "```python\n" in section
        assert [page for page in pages if f"]({page})" not in section] == []
        assert f"## {door}\n" in (DOCS / "index.md").read_text("utf-8")


def test_every_link_of_the_readme_leads_to_a_file():
    links = re.findall(r"\]\(([^):#]+)(?:#[\w-]+)?\)", (ROOT / "README.md").read_text("utf-8"))
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_start_page_says_what_the_readme_says():
    readme, start = (" ".join(path.read_text("utf-8").split()) for path in (ROOT / "README.md", DOCS / "index.md"))
    opening = re.search(r"\*\*Find the rows .*?noise-contrastive estimation\.", start)[0]
    assert opening in readme


@pytest.mark.slow
def test_boundaries_are_drawn_and_labels_find_a_group(tmp_path):
    edge = boundaries.tables(85)[2]
    without, with_labels, *_ = (score(edge)[-boundaries.OUTLIERS :] < 0 for score in boundaries.scorers(edge))
    assert with_labels.sum() > without.sum()
    assert with_labels.mean() > 0.9
    assert boundaries.draw(tmp_path / "b.png", [edge]).read_bytes().startswith(b"\x89PNG")


def test_the_page_of_commands_names_every_option():
    text = (DOCS / "reference" / "commands.md").read_text("utf-8")
    for name in SUMMARIES:
        section = text.partition(f"## fvnce {name}\n")[2].partition("\n## ")[0]
        with pytest.raises(SystemExit), contextlib.redirect_stdout(io.StringIO()) as shown:
            main([name, "--help"])
        options = set(re.findall(r"(?m)^  (?:-\w, )?(--[\w-]+)", shown.getvalue())) - {"--help"}
        assert {option for option in options if f"{option}" not in section} == set()
        assert f"\nfvnce {name}" in section.partition("```sh")[2]


def test_the_benchmark_page_needs_a_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"detection_unseen\.json"):
        benchmarks.page(tmp_path)


def test_every_page_has_a_place_in_the_navigation_or_in_the_footer():
    footer = (ROOT / "tools" / "release" / "overrides" / "partials" / "copyright.html").read_text("utf-8")
    below = [f"{name}.md" for name in re.findall(r"'(\w+)/' \| url", footer)]
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    assert sorted([*equations.pages(), *below]) == sorted(pages)
    assert len(equations.pages()) == 25


def test_the_examination_of_the_site_finds_what_is_broken(tmp_path):
    (tmp_path / "index.html").write_text(
        '<script src="https://elsewhere.example/x.js"></script><a href="b.html#there">1</a><a href="b.html#gone">2</a>'
        '<a href="c.html">3</a><a href="https://elsewhere.example">4</a>'
    )
    (tmp_path / "b.html").write_text('<p id="there"></p>')
    assert sorted(check_site.problems(tmp_path.resolve())) == [
        "index.html fetches https://elsewhere.example/x.js",
        "index.html links to b.html#gone, which has no such anchor",
        "index.html links to c.html, which is not there",
    ]


def test_versions_agree():
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"version: {fvnce.__version__}\n" in citation
