"""Generate docs/reference/commands.md from the help of the program."""

from __future__ import annotations

import os
import re
from typing import Any

import typer

from fvnce.app.cli import SUMMARIES, app

#: What stands for a value in the help, and on the page.
PLACEHOLDERS = {"<int range>": "N", "<float>": "NUMBER", "<path>": "PATH", "<str>": "TEXT"}
#: The default of an option in its description, and its bounds.
DEFAULT = re.compile(r"\[default: ([^;\]]*)(?:; ([^\]]*))?\]")


def page() -> str:
    """Return the whole page in Markdown."""
    # Help that is wrapped would depend on the terminal.
    os.environ["COLUMNS"] = "100"
    group = typer.main.get_command(app)
    context = _context(group, "fvnce")
    summaries = [[f"[`{name}`](#fvnce-{name})", text] for name, text in SUMMARIES.items()]
    lines = [
        "# Commands",
        "",
        "Made by `make pages` from the definitions of the program; do not edit by hand. `fvnce COMMAND --help` shows",
        "the same in a terminal, and `fvnce --install-completion` teaches your shell the names.",
        "",
        *_markdown_table(["command", "what it does"], summaries),
        "| exit code | meaning |",
        "| --- | --- |",
        "| 0 | done |",
        "| 1 | failed: the last line on standard error says why, and what to do |",
        "| 2 | wrong usage |",
        "| 3 | `score --check` found an outlier, or `monitor` a change |",
        "| 130 | interrupted |",
        "",
        "Results go to standard output or to files, everything else to standard error. Progress bars appear on",
        "terminals only, and colors not at all where `NO_COLOR` is set. `--debug`, anywhere on the line, shows the",
        "traceback of an error.",
        "",
    ]
    for name in SUMMARIES:
        lines += _command(group.get_command(context, name), name, context)  # type: ignore[attr-defined]
    return "\n".join(lines).rstrip() + "\n"


def _command(command: Any, name: str, parent: Any) -> list[str]:
    context = _context(command, name, parent)
    text, _, examples = re.sub(r"\n{2,}", "\n\n", command.help or "").partition("Example")
    shown = [line for line in examples.partition(":")[2].splitlines() if line.strip()]
    usage = " ".join(["fvnce", name, *command.collect_usage_pieces(context)])
    lines = [f"## fvnce {name}", "", "```text", usage, "```", "", *_prose(text), ""]
    if shown:
        lines += ["```sh", *(line.strip() for line in shown), "```", ""]
    records: dict[bool, list[list[str]]] = {True: [], False: []}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and parameter.name != "help":
            is_argument = parameter.param_type_name == "argument"
            names = record[0].partition(" <")[0] if is_argument else record[0]
            meaning, default = _without_default(record[1].strip())
            for placeholder, plain in PLACEHOLDERS.items():
                names = names.replace(placeholder, plain)
            records[is_argument].append([_code(names), _safe(meaning), *([] if is_argument else [default])])
    for is_argument, header in ((True, ["argument", "meaning"]), (False, ["option", "meaning", "default"])):
        if records[is_argument]:
            lines += _markdown_table(header, records[is_argument])
    return lines


def _without_default(text: str) -> tuple[str, str]:
    """Return a description without its default, and the default."""
    match = DEFAULT.search(text)
    if match is None:
        return text, "–"
    bound = f" [{match[2]}]" if match[2] else ""
    return text.replace(match[0], "").strip() + bound, f"`{match[1]}`"


def _prose(text: str) -> list[str]:
    """Return paragraphs; those of the form "name: what" become a list."""
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]
    lines: list[str] = []
    for part in paragraphs:
        item = re.fullmatch(r"([a-z][a-z-]*): (.*)", part)
        if item:
            lines.append(f"* `{item.group(1)}`: {_safe(item.group(2))}")
        else:
            lines += ["", _safe(part), ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n").split("\n")


def _code(text: str) -> str:
    """Return code for a cell of a table, where a bar would end the cell."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "&#124;")
    return f"<code>{text}</code>"


def _safe(text: str) -> str:
    """Mark options and quoted texts as code, so that Markdown does not change them."""
    text = re.sub(r"(?<![\w`-])(--[a-z][a-z-]*)", r"`\1`", " ".join(text.split()))
    text = re.sub(r'"([^"`]+)"', r"`\1`", text)
    return text.replace("|", "\\|").replace("<", "&lt;")


def _context(command: Any, name: str, parent: Any = None) -> Any:
    return command.context_class(command, info_name=name, parent=parent, **command.context_settings)


def _markdown_table(header: list[str], rows: list[list[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [*("| " + " | ".join(line) + " |" for line in lines), ""]
