"""Griffe extension that converts this project's docstrings to Markdown.

Examples become blocks of Python, tables of reStructuredText become lists, and references such as ``:func:`fvnce.fit` ``
become links; formulas are indented and are left as they are.

Arguments are completed. One that a docstring does not describe is described as in the class that it is inherited from,
else by :data:`COMMON`: what a name means wherever it is used is said once.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import griffe

_ROLE = re.compile(r":(?:func|class|meth|mod|data|attr|exc):`(~?)([\w.]+)`")
_RULE = re.compile(r"^ *=+(?: +=+)+ *$")
_SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Attributes|Note|Example|Examples):\s*$")
_ENTRY = re.compile(r"^    (\*{0,2}\w+(?:, \*{0,2}\w+)*)(?: \([^)]*\))?: ")

#: What a parameter means in every signature, and its type where the signature says Any.
COMMON: dict[str, tuple[str, str]] = {
    "X": ("Tensor", "rows."),
    "estimator": ("OutlierDetector", "a fitted detector."),
    "ax": ("matplotlib.axes.Axes", "where to draw; by default a new figure."),
    "random_state": ("int or None", "a seed; None for another draw every time."),
    "reviewed": ("array", "True for rows that were reviewed."),
    "checked": ("array", "True for rows whose label is verified."),
    "x_num": ("Tensor", "rows of the numerator."),
    "x_den": ("Tensor", "rows of the denominator."),
    "x": ("Tensor", "rows, with the rows of the batch first."),
    "z": ("Tensor", "latents, one or several for each row."),
    "v": ("Tensor", "visible units, 0 or 1."),
    "h": ("Tensor", "hidden units, 0 or 1."),
    "q": ("Tensor", "forecasts: points of the simplex, in the last dimension."),
    "context": ("Tensor or None", "the context of each row, for a model that takes one."),
    "x_noise": ("Tensor", "samples of the noise; drawn if not given."),
    "log_noise": ("Tensor", "log p_n of the rows."),
    "log_noise_x": ("Tensor", "log p_n of ``x``, if it is known already."),
    "log_noise_noise": ("Tensor", "log p_n of ``x_noise``, if it is known already."),
    "given": ("Any", "what :meth:`terms` takes beyond rows, such as ``context``."),
    "samples": ("int", "how many samples of the noise to draw."),
    "batch_size": ("int", "rows at a time."),
    "generator": ("torch.Generator", "what seeds the draws; by default torch's global generator."),
    "n": ("int", "how many rows."),
    "value": ("Tensor", "rows."),
    "sample_shape": ("torch.Size", "how many draws, as a shape."),
    "batch_shape": ("torch.Size", "the shape of the batch."),
    "expand": ("bool", "repeat the values for each distribution of the batch."),
    "return_latent": ("bool", "return the latents as well."),
    "noise": ("Distribution", "a distribution of the noise, over rows."),
    "model": ("Module", "a model, with ``log_prob`` or ``log_joint``."),
    "network": ("Module", "a network; its last dimension holds the parameters of the distribution."),
    "event_dims": ("int", "deprecated and ignored: shapes are read off the network and the data."),
    "logits": ("Tensor", "log-odds, or unnormalized log-probabilities."),
    "outcome": ("int", "1 for data, 0 for noise."),
    "delta": ("Tensor", "log-ratios Δ."),
    "mu": ("Tensor", "forecasts: probabilities that a row is data."),
    "lr": ("float", "the learning rate."),
    "objective": ("Module", "the objective, with its model, encoder and noise."),
    "trainer": ("Trainer", "the trainer that calls, with its objective, history, epoch and step."),
    "batch": ("Batch", "the rows of this step."),
    "closure": ("callable", "evaluates the loss again."),
    "row": ("int", "which row, from 0."),
    "path": ("path", "a file."),
    "folder": ("path", "a folder."),
    "rows": ("array", "which rows, by position or as a mask."),
    "options": ("ReadOptions", "how to read."),
    "params": ("Any", "parameters by name."),
    "bandwidth": ("float or str", "the width of kernels, or a rule for it: scott, silverman or loo."),
    "max_centres": ("int", "at most this many rows, chosen at random, are centers."),
    "block_bytes": ("int", "the memory for a block of distances."),
    "kwargs": ("Any", "what the base class takes."),
    "args": ("Any", "what the base class takes."),
    "names": ("list of str", "columns, by name."),
    "discount": ("bool", "leave out held-out rows that are probably outliers."),
    "top": ("int", "at most this many."),
}

#: What they mean where an outlier detector takes them.
OF_DETECTORS: dict[str, tuple[str, str]] = {
    "X": ("array or data frame", "rows: a matrix, NaN where a value is missing; a data frame; or images."),
    "y": ("array", "1 for known outliers, 0 for all other rows."),
    "sample_weight": ("array", "how often a row counts."),
}

_SITE = tomllib.loads((Path(__file__).parents[2] / "zensical.toml").read_text("utf-8"))
_OPTIONS = _SITE["project"]["plugins"]["mkdocstrings"]["handlers"]["python"]["options"]
#: What the reference leaves out of classes: methods that only the package calls, or torch and scikit-learn ask for.
FILTERS = [re.compile(pattern.removeprefix("!")) for pattern in _OPTIONS["filters"]]


def hidden(name: str) -> bool:
    """Return whether the reference leaves a method or an attribute of a class out.

    >>> hidden("_fit"), hidden("fit"), hidden("__call__"), hidden("load_state_dict")
    (True, False, False, True)
    """
    return any(pattern.search(name) for pattern in FILTERS)


def markdown(text: str) -> str:
    """Return the docstring in Markdown."""
    lines = _examples(_tables(text.split("\n")))
    return _ROLE.sub(_reference, "\n".join(lines))


def _reference(match: re.Match[str]) -> str:
    path = match.group(2)
    shown = path.rpartition(".")[2] if match.group(1) else path
    return f"[`{shown}`][{path}]" if path.startswith("fvnce.") else f"`{shown}`"


def _tables(lines: list[str]) -> list[str]:
    """Return each row of a two-column table as an item of a list."""
    result, inside = [], False
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if _RULE.match(line):
            inside = bool(following.strip())  # the last rule of a table has nothing below it
            result.append("")
        elif inside and line.strip():
            left, _, right = line.strip().partition("``  ")
            result.append(f"* {left}``: {right.strip()}" if right else f"* {line.strip()}")
        else:
            result.append(line)
    return result


def _examples(lines: list[str]) -> list[str]:
    """Put a fence around each run of lines that begins with a prompt and ends with a blank line."""
    result: list[str] = []
    indent: str | None = None
    for line in lines:
        if indent is None and line.lstrip().startswith(">>> "):
            indent = line[: len(line) - len(line.lstrip())]
            result += ["", f"{indent}```pycon"]
        elif indent is not None and not line.strip():
            result.append(f"{indent}```")
            indent = None
        result.append(line)
    return result if indent is None else [*result, f"{indent}```"]


def described(text: str) -> dict[str, list[str]]:
    """Return the lines that describe each argument in the section Args or Attributes of a docstring.

    >>> described("Do it.\\n\\nArgs:\\n    a, b: numbers,\\n        both.\\n    c: a text.\\n\\nReturns:\\n    x: y.")
    {'a': ['numbers,', 'both.'], 'b': ['numbers,', 'both.'], 'c': ['a text.']}
    """
    found: dict[str, list[str]] = {}
    names: list[str] = []
    inside = False
    for line in text.split("\n"):
        if section := _SECTION.match(line):
            inside, names = section[1] in ("Args", "Attributes"), []
        elif inside and (entry := _ENTRY.match(line)):
            names = [name.strip(" *") for name in entry[1].split(",")]
            found.update({name: [line[entry.end() :]] for name in names})
        elif inside and line.startswith("        ") and names:
            for name in names:
                found[name].append(line.strip())
        elif inside and line.strip():
            inside = False
    return found


def completed(text: str, parameters: list[str], inherited: dict[str, list[str]]) -> str:
    """Return a docstring whose section Args describes all parameters that ``inherited`` describes."""
    known = described(text)
    added = {name: inherited[name] for name in parameters if name not in known and name in inherited}
    if not added:
        return text
    lines = text.split("\n")
    heads = {match[1]: at for at, line in enumerate(lines) if (match := _SECTION.match(line))}
    entries = [
        line
        for name, words in added.items()
        for line in (f"    {name}: {words[0]}", *(f"        {more}" for more in words[1:]))
    ]
    if "Args" in heads:
        end = heads["Args"] + 1
        while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
            end += 1
        while not lines[end - 1].strip():
            end -= 1
        return "\n".join([*lines[:end], *entries, *lines[end:]])
    ends = [*heads.values(), *(at for at, line in enumerate(lines) if line.startswith(">>> "))]
    at = min(ends, default=len(lines))
    return "\n".join([*lines[:at], "", "Args:", *entries, "", *lines[at:]])


class Docstrings(griffe.Extension):
    """Every docstring of the package, completed and turned into Markdown before it is parsed."""

    def __init__(self) -> None:
        super().__init__()
        self._texts: dict[str, str] = {}

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Called when the whole package is loaded, so that base classes are known."""
        objects = list(_objects(pkg))
        self._texts = {each.path: each.docstring.value for each in objects if each.docstring is not None}
        for each in objects:
            if each.docstring is not None:
                each.docstring.value = markdown(self._completed(each))
            if each.is_class:  # the order of the site: what a class defines itself comes first
                each.exports = [*each.members, *(name for name in each.all_members if name not in each.members)]

    def _completed(self, each: Any) -> str:
        text = self._texts[each.path]
        if not (each.is_class or each.is_function):
            return text
        common = COMMON | OF_DETECTORS if each.path.startswith("fvnce.detection") else COMMON
        names = [parameter.name for parameter in each.parameters]
        maker = each.members.get("__init__", each) if each.is_class else each
        for parameter in maker.parameters:
            if str(parameter.annotation) == "Any" and parameter.name in common:
                parameter.annotation = common[parameter.name][0]
        inherited = {name: [meaning] for name, (_, meaning) in common.items()}
        for base in _bases(each):
            inherited |= described(self._texts.get(base, ""))
        return completed(text, [name for name in names if name not in ("self", "cls")], inherited)


def _objects(parent: Any) -> Any:
    """Yield everything that the package defines."""
    for each in parent.members.values():
        if not each.is_alias:
            yield each
            if each.is_module or each.is_class:
                yield from _objects(each)


def _bases(each: Any) -> list[str]:
    """Return the paths of the same thing in base classes, the farthest first."""
    owner = each if each.is_class else each.parent
    if owner is None or not owner.is_class:
        return []
    try:
        bases = owner.mro()
    except (ValueError, griffe.AliasResolutionError):
        return []
    name = "" if each.is_class else f".{each.name}"
    return [f"{base.path}{name}" for base in reversed(bases)]
