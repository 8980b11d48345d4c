"""Reproduction of the paper: ``fvnce reproduce`` makes every figure and table.

=====================  ========================================================================
``figures``            the two figures of rules, pairs (f1, f0) and losses; style of all figures
``table``              the table, two networks and six rows, and the figure of reconstructed noise
``penalized``          the figure of the noise-penalized autoencoder
``setting``            shared: data, networks and noise; form of results
``datasets``           shared: MNIST and the digits
``cells``              shared: parallel training of the parts of an item, cached on disk
=====================  ========================================================================
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .setting import Options, Result

#: Items of ``fvnce reproduce``: name and description.
ITEMS = {
    "pairs": "the figure of pairs (f1, f0) as functions of r",
    "losses": "the figure of the same rules as classification losses of Δ",
    "table": "the table of average log p(x|g(x)) on data and noise, two networks, six rows",
    "noise-reconstructions": "the figure of noise samples and their reconstructions",
    "penalised": "the figure of the noise-penalized autoencoder, and its numbers",
}


def reproduce(items: Sequence[str], out: Path, options: Options) -> Iterator[Result]:
    """Reproduce each item, write its files into the folder ``out`` and yield its result."""
    # Imported here, so that the command line can list the items without heavy imports.
    from . import figures, penalised, table
    from .cells import one_thread
    from .datasets import fetch_mnist

    make = {
        "pairs": figures.pairs,
        "losses": figures.losses,
        "table": table.run,
        "noise-reconstructions": table.noise_reconstructions,
        "penalised": penalised.run,
    }
    out.mkdir(parents=True, exist_ok=True)
    if options.data == "mnist":
        fetch_mnist(options.say)  # once, instead of in each process
    for item in items:
        start = time.perf_counter()
        options.say(f"{item} …")
        # Networks of 64 inputs are too small to benefit from two threads.
        with one_thread() if options.data == "digits" else nullcontext():
            result = make[item](out, options)
        yield replace(result, seconds=time.perf_counter() - start)
