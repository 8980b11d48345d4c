"""The paper, one readable file per figure or table. Each has ``run(out, options)``; ``fvnce reproduce`` calls them."""

#: What ``fvnce reproduce`` can make: the item's name, and what it is.
ITEMS = {
    "pairs": "the figure of pairs (f1, f0) as functions of r",
    "losses": "the figure of the same rules as classification losses of Δ",
    "table": "the table of average log p(x|g(x)) on data and noise, two networks, six rows",
    "noise-reconstructions": "the figure of noise samples and their reconstructions",
    "penalised": "the figure of the noise-penalised autoencoder, and its numbers",
    "instances": "the instances of the family, verified on trained models",
}
