"""The paper: one readable file for each figure or table, and what they share; ``fvnce reproduce`` makes them.

=========================  ================================================================
``rules``                  the two figures of rules: pairs (f1, f0), and the losses
``table``                  the table, two networks and six rows
``noise_reconstructions``  the figure of noise samples and their reconstructions
``penalised``              the figure of the noise-penalised autoencoder
``instances``              the instances of the family, verified
``setting``                shared: the data, the networks, the noise
``datasets``               shared: MNIST and the digits
``cells``                  shared: parts of an item, made side by side, kept on disk and compared
=========================  ================================================================
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .._version import __version__

if TYPE_CHECKING:
    from ..pages.page import Section
    from .setting import Options

#: What ``fvnce reproduce`` can make: the item's name, and what it is.
ITEMS = {
    "pairs": "the figure of pairs (f1, f0) as functions of r",
    "losses": "the figure of the same rules as classification losses of Δ",
    "table": "the table of average log p(x|g(x)) on data and noise, two networks, six rows",
    "noise-reconstructions": "the figure of noise samples and their reconstructions",
    "penalised": "the figure of the noise-penalised autoencoder, and its numbers",
    "instances": "the instances of the family, verified on trained models",
}
_DATA = {
    "digits": "the 8×8 digits that ship with scikit-learn, with networks scaled to them; the paper uses MNIST",
    "mnist": "MNIST, as the paper does",
}


def reproduce(
    items: Sequence[str], out: Path, options: Options, *, page: bool, say: Callable[[str], None]
) -> Iterator[Path]:
    """Make each item and yield the files it wrote; with ``page``, a page of all at the end."""
    # Here, so that the command line knows the items without what it takes to make them.
    from ..pages.page import write_page
    from . import instances, noise_reconstructions, penalised, rules, table
    from .cells import one_thread
    from .datasets import fetch_mnist

    make = {
        "pairs": rules.pairs,
        "losses": rules.losses,
        "table": table.run,
        "noise-reconstructions": noise_reconstructions.run,
        "penalised": penalised.run,
        "instances": instances.run,
    }
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
            section = make[item](out, options)
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
