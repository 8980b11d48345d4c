"""Escaping of untrusted text for a terminal, a page, a script or a spreadsheet.

Names of columns, categories and files may hold anything. Control sequences, markup and formulas are shown as readable
text instead of being executed.
"""

from __future__ import annotations

import html
import json
import re
from typing import Any

#: C0 and C1 controls, JavaScript line separators, bidirectional and invisible characters, and surrogates.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ufffe\uffff\ud800-\udfff]")
_CONTROLS_IN_MARKUP = re.compile(_CONTROLS.pattern.replace("\x00-\x1f", "\x00-\x08\x0b\x0c\x0e-\x1f"))
#: Characters at which a spreadsheet takes a cell for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")


def visible(text: object) -> str:
    """Return text with control characters escaped, on one line.

    >>> print(visible("red: \\x1b[31m"))
    red: \\x1b[31m
    """
    return _CONTROLS.sub(_shown, str(text))


def markup(text: object) -> str:
    """Escape text for an element or a quoted attribute of HTML or SVG; keep line ends and tabs.

    >>> print(markup('<a href="x">\\x00'))
    &lt;a href=&quot;x&quot;&gt;\\x00
    """
    return html.escape(_CONTROLS_IN_MARKUP.sub(_shown, str(text)), quote=True)


def line_json(value: Any) -> str:
    """Return JSON on one line, with control characters escaped for a terminal.

    >>> print(line_json("\\x9b31m é"))
    "\\u009b31m é"
    """
    return _CONTROLS.sub(_escaped, json.dumps(value, ensure_ascii=False))


def script_json(value: Any) -> str:
    """Return JSON for a ``<script>`` element, with ``<`` escaped so that it cannot end the element or open a comment.

    >>> print(script_json("<!--<script>"))
    "\\u003c!--\\u003cscript\\u003e"
    """
    return re.sub("[<>&]", _escaped, line_json(value))


def cell(text: str) -> str:
    """Return text for a csv cell, with a leading ' if a spreadsheet would take it for a formula.

    >>> cell("=HYPERLINK(1)"), cell("amount")
    ("'=HYPERLINK(1)", 'amount')
    """
    return ("'" if text.lstrip(" ").startswith(_FORMULA) else "") + visible(text)


def _shown(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match.group()):04x}"
