"""The paper, one readable file per figure or table, and its predecessor's problems. Each has ``run(out, options)``."""

#: What ``fvnce reproduce`` can make: the item's name, and what it is.
ITEMS = {
    "pairs": "the figure of pairs (f1, f0) as functions of r",
    "losses": "the figure of the same rules as classification losses of Δ",
    "table": "the table of average log p(x|g(x)) on data and noise, two networks, six rows",
    "noise-reconstructions": "the figure of noise samples and their reconstructions",
    "penalised": "the figure of the noise-penalised autoencoder, and its numbers",
    "instances": "the instances of the family, verified on trained models",
}

#: The problems that variational NCE was published with, made when named, or all by the name of the group.
PREDECESSOR = {
    "vnce-mixture": "an unnormalised mixture of Gaussians: errors of MLE, NCE, VNCE and fvNCE, and which α is best",
    "vnce-boltzmann": "a restricted Boltzmann machine small enough to enumerate",
    "vnce-posterior": "stars and moons: learned posteriors against the true ones",
    "vnce-missing": "a truncated normal graphical model with missing values",
    "vnce-toys": "energy-based densities in the plane, with and without latents",
}

#: Names that stand for several items.
GROUPS = {"vnce": tuple(PREDECESSOR)}
