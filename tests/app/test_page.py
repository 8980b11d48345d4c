"""The building blocks of pages: text is escaped, and tables are aligned."""

from fvnce.app.cli import text_table
from fvnce.app.report.page import PageTable, Section, block, write_page
from fvnce.paper.setting import Result, ResultFigure


def test_the_page_escapes_what_it_shows(tmp_path):
    picture = tmp_path / "a.png"
    picture.write_bytes(b"png")
    result = Result("<b>", [], figures=[ResultFigure(picture, "<i>", '"quoted"')], settings={"x": "<y>"})
    table = PageTable("<t>", ["h"], [["<script>"]])
    section = Section("<b>", ["a < b & c"], blocks=[block("result", result=result)], tables=[table])
    page = write_page(tmp_path / "page.html", "<title>", "<p>", [section]).read_text()
    for raw in ("<b>", "<i>", "<script>", "<y>", "<t>"):
        assert raw not in page
    assert "&lt;script&gt;" in page


def test_tables_are_aligned_in_a_terminal():
    text = text_table("caption", [["name", "value"], ["a|b", "1"], ["c", "22"]])
    assert text.split("\n") == ["caption", "name  value", "a|b       1", "c        22"]
