"""The paper, one readable file per figure or table. Each has ``run(out) -> list of files written``."""

#: What ``fvnce reproduce`` can make: the item's name, and what it is.
ITEMS = {
    "pairs": "the figure of pairs (f1, f0) as functions of r",
    "losses": "the figure of the same rules as classification losses of Δ",
}
