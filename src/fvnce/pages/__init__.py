"""What a self-contained page is made of, for the paper's reproduction and for the reports of runs alike.

==================  ===============================================================
``page``            sections with figures, tables and a reading, in one HTML file
``charts``          small charts as SVG
``figures``         larger ones by matplotlib, as PNG and PDF
==================  ===============================================================

Here is what makes text that came out of a file harmless where it is shown: a terminal, a page, a script, a spreadsheet,
an image. Names of columns, categories and files are whatever somebody wrote. What a terminal obeys, a page runs, XML
forbids or a spreadsheet computes is shown as text instead, and stays readable.
"""

from __future__ import annotations

import base64
import binascii
import html
import json
import re
from importlib.resources import files
from typing import Any

#: C0 and C1 controls, the two line ends of JavaScript, what reorders or hides text, and halves of characters.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ufffe\uffff\ud800-\udfff]")
_CONTROLS_IN_MARKUP = re.compile(_CONTROLS.pattern.replace("\x00-\x1f", "\x00-\x08\x0b\x0c\x0e-\x1f"))
_IN_SCRIPT = re.compile("[<>&\x7f-\x9f\u2028\u2029\ud800-\udfff]")
#: What a spreadsheet takes for the beginning of a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")
_PNG = b"\x89PNG\r\n\x1a\n"


def asset(package: str, name: str) -> str:
    """A style or a script of a package's templates, which stands in a page as it is."""
    return files(package).joinpath("templates", name).read_text(encoding="utf-8")


def visible(text: object) -> str:
    """One line of text in which control characters are shown and not obeyed.

    >>> print(visible("red: \\x1b[31m"))
    red: \\x1b[31m
    """
    return _CONTROLS.sub(_shown, str(text))


def markup(text: object) -> str:
    """Text for HTML and SVG, inside an element or a quoted attribute; line ends and tabs stay.

    >>> print(markup('<a href="x">\\x00'))
    &lt;a href=&quot;x&quot;&gt;\\x00
    """
    return html.escape(_CONTROLS_IN_MARKUP.sub(_shown, str(text)), quote=True)


def script_json(value: Any) -> str:
    """JSON for a ``<script>`` element: no ``<`` is left that could end the element or open a comment in it.

    >>> print(script_json("<!--<script>"))
    "\\u003c!--\\u003cscript\\u003e"
    """
    return _IN_SCRIPT.sub(lambda found: f"\\u{ord(found.group()):04x}", json.dumps(value, ensure_ascii=False))


def line_json(value: Any) -> str:
    """JSON on one line of a stream that may be a terminal.

    >>> print(line_json("\\x9b31m é"))
    "\\u009b31m é"
    """
    return _CONTROLS.sub(lambda found: f"\\u{ord(found.group()):04x}", json.dumps(value, ensure_ascii=False))


def cell(text: str) -> str:
    """Text for a cell of csv: what a spreadsheet would compute has ' before it, which makes it text there.

    >>> cell("=HYPERLINK(1)"), cell("amount")
    ("'=HYPERLINK(1)", 'amount')
    """
    return ("'" if text.lstrip(" ").startswith(_FORMULA) else "") + visible(text)


def png_uri(text: object) -> str:
    """The ``data:`` address of a PNG image given as base64.

    >>> png_uri('" onload="alert(1)')
    Traceback (most recent call last):
    ValueError: a picture must be a PNG image as base64, found '" onload="alert(1)'
    """
    try:
        content = base64.b64decode(str(text), validate=True)
    except (binascii.Error, ValueError):
        content = b""
    if not content.startswith(_PNG):
        raise ValueError(f"a picture must be a PNG image as base64, found {str(text)[:40]!r}")
    # Written anew: what stands in the page is made of the letters of base64 alone.
    return f"data:image/png;base64,{base64.b64encode(content).decode('ascii')}"


def _shown(found: re.Match[str]) -> str:
    code = ord(found.group())
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
