"""Text from files made harmless where it is shown: in a terminal, a page, a script, a spreadsheet.

Names of columns, categories and files are whatever somebody wrote. What a terminal obeys, a page runs, XML forbids or a
spreadsheet computes is shown as text instead, and stays readable.
"""

from __future__ import annotations

import html
import json
import re
from typing import Any

#: C0 and C1 controls, the two line ends of JavaScript, what reorders or hides text, and halves of characters.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ufffe\uffff\ud800-\udfff]")
_CONTROLS_IN_MARKUP = re.compile(_CONTROLS.pattern.replace("\x00-\x1f", "\x00-\x08\x0b\x0c\x0e-\x1f"))
#: What a spreadsheet takes for the beginning of a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")


def visible(text: object) -> str:
    """Return one line of text in which control characters are shown and not obeyed.

    >>> print(visible("red: \\x1b[31m"))
    red: \\x1b[31m
    """
    return _CONTROLS.sub(_shown, str(text))


def markup(text: object) -> str:
    """Return text for HTML and SVG, inside an element or a quoted attribute; line ends and tabs stay.

    >>> print(markup('<a href="x">\\x00'))
    &lt;a href=&quot;x&quot;&gt;\\x00
    """
    return html.escape(_CONTROLS_IN_MARKUP.sub(_shown, str(text)), quote=True)


def line_json(value: Any) -> str:
    """Return JSON on one line, for a stream that may be a terminal.

    >>> print(line_json("\\x9b31m é"))
    "\\u009b31m é"
    """
    return _CONTROLS.sub(_escaped, json.dumps(value, ensure_ascii=False))


def script_json(value: Any) -> str:
    """Return JSON for a ``<script>`` element, without any ``<`` that could end the element or open a comment in it.

    >>> print(script_json("<!--<script>"))
    "\\u003c!--\\u003cscript\\u003e"
    """
    return re.sub("[<>&]", _escaped, line_json(value))


def cell(text: str) -> str:
    """Return text for a cell of csv, with ' before what a spreadsheet would compute, which makes it text there.

    >>> cell("=HYPERLINK(1)"), cell("amount")
    ("'=HYPERLINK(1)", 'amount')
    """
    return ("'" if text.lstrip(" ").startswith(_FORMULA) else "") + visible(text)


def _shown(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match.group()):04x}"
