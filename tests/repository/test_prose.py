"""The lint of prose finds planted faults and ignores quotations."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import prose

CLEAN = '''"""Return the neighbors of every row in the table.

Args:
    centres: the kernel centers, as the file calls them.

The message "is told" and the name `neighbour` are quotations. The house told.  noqa: prose

>>> colour = 1
... behaviour = 2
"""

text = "code is not read, whatever colour it is told"  # nor is a comment after code, alike
'''


@pytest.fixture
def found(tmp_path: Path):
    def _found(text: str, name: str = "module.py") -> list[tuple[int, str]]:
        (tmp_path / name).write_text(text, "utf-8")
        return list(prose.problems(tmp_path / name))

    return _found


def test_quotations_examples_parameters_and_code_are_ignored(found):
    assert found(CLEAN) == []


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ('"""Return what the model is told of the rows."""\n', 1, "is told"),
        ('"""Return the rows of the table.\n\nThis tells of the rows.\n"""\n', 3, "tells of"),
        ("x = 1\n# The colour of the first row.\n", 2, "colour"),
        ('"""Return the standardised columns of the table."""\n', 1, "standardised"),
        ('"""Return the unlabelled rows of the table."""\n', 1, "unlabelled"),
        ('def f():\n    """Return rows."""\n', 2, "Return rows."),
    ],
)
def test_a_planted_fault_is_found_with_its_line(found, text, line, word):
    assert any(number == line and word in what for number, what in found(text))


def test_the_text_of_a_page_is_read_and_its_code_is_not(found):
    page = "All rows lie beside one another.\n\n```python\ncolour = 1  # beside\n```\n"
    assert [number for number, _ in found(page, "page.md")] == [1]


def test_a_finding_is_an_exit_code(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    assert prose.main() == 0
    (tmp_path / "README.md").write_text("The favourite colour.\n", "utf-8")
    assert prose.main() == 1
    assert "README.md:1:" in capsys.readouterr().out
