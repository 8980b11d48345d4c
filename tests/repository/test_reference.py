"""The reference: every public name, every public method, every argument with a description."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

import fvnce
from tools.release import equations

griffe = pytest.importorskip("griffe")
from tools.release import docstrings  # noqa: E402  which needs it

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def public_names():
    for module in (*fvnce._MODULES, "app.runs"):
        imported = importlib.import_module(f"fvnce.{module}")
        names = getattr(imported, "__all__", None)
        if names is None:  # a single file: what it defines itself
            names = [
                n
                for n, v in vars(imported).items()
                if n[0] != "_" and getattr(v, "__module__", "") == imported.__name__
            ]
        yield from (f"fvnce.{module}.{name}" for name in names)
    yield from (f"fvnce.paper.datasets.{name}" for name in ("Images", "fetch_mnist", "load_digits", "load_mnist"))


def test_the_reference_is_complete_and_names_nothing_else():
    shown = [
        name
        for page in sorted((DOCS / "reference").glob("*.md"))
        for name in re.findall(r"^::: (\S+)$", page.read_text(), flags=re.MULTILINE)
    ]
    assert sorted(shown) == sorted(public_names())
    homes = {f"fvnce.{module}.{name}" for name, module in fvnce._HOME.items()}
    assert homes <= set(shown)
    indices = "".join((DOCS / "reference" / f"{page}.md").read_text() for page in ("detector", "library"))
    assert {name for name in homes if f"][{name}]" not in indices} == set()


def test_the_reference_is_in_the_order_of_the_theory():
    order = ["scoring", "noise", "models", "objectives", "diagnostics", "sampling", "ratio", "training"]
    assert [page for page in equations.pages() if page.startswith("reference/")] == [
        f"reference/{page}.md" for page in ("detector", "library", "commands")
    ]
    library = (DOCS / "reference" / "library.md").read_text()
    assert re.findall(r"^## fvnce\.(\w+)$", library, flags=re.MULTILINE) == order
    assert re.findall(r"^\| \[`fvnce\.(\w+)`\]", library, flags=re.MULTILINE) == order


def test_every_public_class_has_an_example():
    """The examples themselves are run as doctests."""
    public = {
        name: getattr(importlib.import_module(name.rpartition(".")[0]), name.rpartition(".")[2])
        for name in public_names()
    }
    assert [
        name for name, value in public.items() if inspect.isclass(value) and ">>>" not in (value.__doc__ or "")
    ] == []


@pytest.fixture(scope="module")
def package():
    """The package as the reference shows it."""
    return griffe.load("fvnce", search_paths=[ROOT / "src"], extensions=griffe.load_extensions(docstrings.Docstrings))


def entry(package, path):
    found = package[path.removeprefix("fvnce.")]
    return found.final_target if found.is_alias else found


def arguments(shown):
    """Names of arguments that have a description."""
    parts = [shown, *([shown.members["__init__"]] if "__init__" in shown.members else [])]
    sections = [section for part in parts if part.docstring for section in part.docstring.parse("google")]
    named = [section for section in sections if section.kind.value in ("parameters", "attributes")]
    return {argument.name.lstrip("*") for section in named for argument in section.value}


def members(shown):
    """What the reference shows of a class, inherited members included."""
    inside = {name: member.final_target if member.is_alias else member for name, member in shown.all_members.items()}
    return {name: member for name, member in inside.items() if not docstrings.hidden(name)}


def test_the_reference_has_every_public_method_and_describes_every_argument(package):
    count = 0
    for path in public_names():
        shown = entry(package, path)
        methods = members(shown) if shown.is_class else {}
        if shown.is_class:
            value = getattr(importlib.import_module(path.rpartition(".")[0]), path.rpartition(".")[2])
            actual = {
                name
                for name, method in inspect.getmembers(value, inspect.isroutine)
                if str(getattr(method, "__module__", "")).startswith("fvnce") and not docstrings.hidden(name)
            }
            assert actual <= set(methods), path
        for each in [shown, *methods.values()]:
            if each.is_function or (each.is_class and each is shown):
                names = {parameter.name.lstrip("*") for parameter in each.parameters} - {"self", "cls"}
                assert names <= arguments(each), each.path
                assert each.docstring, each.path
                count += len(names)
    assert count > 600


def test_the_reference_of_the_detector_shows_what_it_inherits(package):
    methods = set(members(entry(package, "fvnce.detection.NoiseContrastiveDetector")))
    assert methods >= {"fit", "predict", "anomaly_score", "score_samples", "decision_function", "p_value", "explain"}
    assert methods >= {"reasons", "save", "load", "monitor", "plot_scores", "evidence_", "feature_importances_"}
    assert methods & {"new_watch", "count_batch", "warn_if_silent", "_thin", "__repr__"} == set()


def test_what_a_class_defines_comes_before_what_it_inherits(package):
    shown = entry(package, "fvnce.detection.NoiseContrastiveDetector")
    assert shown.exports.index("fit") < shown.exports.index("anomaly_score")


def test_tables_of_docstrings_end_where_they_end():
    table = "A.\n\n====  ====\na     b\n====  ====\n``x``  one\n====  ====\n\nArgs:\n    x: two.\n"
    text = docstrings.markdown(table)
    assert "* ``x``: one" in text
    assert "Args:\n    x: two." in text
