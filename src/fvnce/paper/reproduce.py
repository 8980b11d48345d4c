"""All items in turn, and the page that shows them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from .._version import __version__
from ..pages.page import Section, write_page
from .datasets import fetch_mnist
from .parallel import one_thread
from .setting import Options

_DATA = {
    "digits": "the 8×8 digits that ship with scikit-learn, with networks scaled to them; the paper uses MNIST",
    "mnist": "MNIST, as the paper does",
}


def reproduce(
    items: Sequence[str], out: Path, options: Options, *, page: bool, say: Callable[[str], None]
) -> Iterator[Path]:
    """Make each item and yield the files it wrote; with ``page``, a page of all at the end."""
    out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    options = replace(options, say=say)
    if options.data == "mnist":
        fetch_mnist(say)  # here, once, and not by each process that needs it
    sections: list[Section] = []
    for item in items:
        say(f"{item} …")
        # Networks of 64 inputs are too small to share between two threads.
        with one_thread() if options.data == "digits" else nullcontext():
            section = import_module(f"{__package__}.{item.replace('-', '_')}").run(out, options)
        sections.append(section)
        tell(section, say)
        yield from section.files
    if page:
        introduction = (
            f"Made by fvnce {__version__} in {time.perf_counter() - start:.0f} seconds on {_DATA[options.data]}. "
            f"{'Tiny settings: this shows that everything runs, not what comes out. ' * options.quick}"
            "Each section tells in plain words what came out and where it differs from the paper."
        )
        yield write_page(out / "report.html", "Fully variational NCE: the paper, reproduced", introduction, sections)


def tell(section: Section, say: Callable[[str], None]) -> None:
    """The tables and sentences of an item, as text."""
    for table in section.tables:
        say(f"\n{table.text()}\n")
    for sentence in section.reading:
        say(sentence)
