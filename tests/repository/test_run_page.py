"""Pages as programs: outputs are written where they belong, and a page that shows something else is found out."""

import pytest

from tools.pages import run_page

PAGE = """# A page

```python
x = 2
print("x is", x)
print(f"{x / 3:.3f} of it")
```

```text
x is 1
```

```py
not run
```

```python
x += 1
```

```text
a block that belongs to nothing printed is emptied
```

Words, then

```text
a block that is not right after code stays
```

```console
$ fvnce rules power(0)  # a rule
stale
```
"""


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "page.md"
    path.write_text(PAGE, "utf-8")
    return path


def test_outputs_are_written_beneath_their_code(page):
    text = run_page.rendered(page)
    assert "```text\nx is 2\n0.667 of it\n```" in text
    assert "x += 1\n```\n\n```text\n```" in text
    assert "stays\n```" in text
    assert "stale" not in text
    assert "$ fvnce rules power(0)  # a rule\npower(0)" in text
    page.write_text(text, "utf-8")
    assert run_page.rendered(page) == text


def test_an_exception_and_a_command_that_fails_are_errors(page):
    page.write_text("```python\nassert 1 == 2\n```\n")
    with pytest.raises(AssertionError):
        run_page.rendered(page)
    page.write_text("```console\n$ fvnce score nowhere nothing.csv\n```\n")
    with pytest.raises(ValueError, match="ended with"):
        run_page.rendered(page)
    page.write_text("```console\n$ rm -r run\n```\n")
    with pytest.raises(ValueError, match="must hold commands of fvnce"):
        run_page.rendered(page)


@pytest.mark.parametrize(
    ("shown", "found", "alike"),
    [
        ("AUROC 0.95", "AUROC 0.97", True),
        ("AUROC 0.95", "AUROC 0.65", False),
        ("12 of 2,000 rows", "13 of 2,000 rows", True),
        ("12 of 2,000 rows", "20 of 2,000 rows", False),
        ("12 rows are flagged", "12 rows are found", False),
        ("id   score", "id score", True),
        ("one line", "one line\nanother", False),
    ],
)
def test_words_must_be_the_same_and_numbers_near(shown, found, alike):
    assert (run_page.differences(shown, found) == []) is alike


def test_pictures_are_kept_beside_the_pages(tmp_path, monkeypatch):
    (tmp_path / "docs" / "models").mkdir(parents=True)
    (tmp_path / "docs" / "images").mkdir()
    page = tmp_path / "docs" / "models" / "one.md"
    code = "from pathlib import Path\nPath('gallery-one.png').write_text('drawn')"
    page.write_text(f"```python\n{code}\n```\n![One](../images/gallery-one.png)\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    run_page.rewrite(page)
    assert (tmp_path / "docs" / "images" / "gallery-one.png").read_text() == "drawn"
    assert not (tmp_path / "gallery-one.png").exists()
