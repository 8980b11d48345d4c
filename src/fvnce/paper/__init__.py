"""The paper, reproduced: ``fvnce reproduce`` makes every figure and table.

=====================  ========================================================================
``figures``            the two figures of rules, pairs (f1, f0) and losses; the style of figures
``table``              the table, two networks and six rows, and its figure of reconstructed noise
``penalized``          the figure of the noise-penalized autoencoder
``instances``          the instances of the family, verified
``setting``            shared: the data, the networks, the noise; what an item gives
``datasets``           shared: MNIST and the digits
``cells``              shared: parts of an item, trained side by side, kept on disk and compared
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

#: What ``fvnce reproduce`` can make: the item's name, and what it is.
ITEMS = {
    "pairs": "the figure of pairs (f1, f0) as functions of r",
    "losses": "the figure of the same rules as classification losses of Δ",
    "table": "the table of average log p(x|g(x)) on data and noise, two networks, six rows",
    "noise-reconstructions": "the figure of noise samples and their reconstructions",
    "penalised": "the figure of the noise-penalised autoencoder, and its numbers",
    "instances": "the instances of the family, verified on trained models",
}


def reproduce(items: Sequence[str], out: Path, options: Options) -> Iterator[Result]:
    """Make each item, write its files into the folder ``out`` and yield its result."""
    # Here, so that the command line knows the items without what it takes to make them.
    from . import figures, instances, penalised, table
    from .cells import one_thread
    from .datasets import fetch_mnist

    make = {
        "pairs": figures.pairs,
        "losses": figures.losses,
        "table": table.run,
        "noise-reconstructions": table.noise_reconstructions,
        "penalised": penalised.run,
        "instances": instances.run,
    }
    out.mkdir(parents=True, exist_ok=True)
    if options.data == "mnist":
        fetch_mnist(options.say)  # here, once, and not by each process that needs it
    for item in items:
        start = time.perf_counter()
        options.say(f"{item} …")
        # Networks of 64 inputs are too small to share between two threads.
        with one_thread() if options.data == "digits" else nullcontext():
            result = make[item](out, options)
        yield replace(result, seconds=time.perf_counter() - start)
