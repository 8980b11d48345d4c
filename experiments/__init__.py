"""Studies with fvnce beyond the paper's figures and table.

Each file is one study and runs from the root of a checkout: ``python -m experiments.NAME --help`` prints its options.

=====================  ================================================================================
``search``             which choices that the paper does not state come closest to its table
``search_deep``        which of these choices matters for (1/16, 0) on the deeper network
``forgetting``         forgetting every class in turn, by a budget and by baselines
``tempering``          whether the profiled form can forget without a log-scale
``instances``          the paper's identities and inequalities, on trained models
``adaptive_noise``     fixed and refitted noise on a density whose log Z is known
``flow_contrastive``   noise that learns against the model, refitted and fixed noise, in the plane and on tables
``encoder_start``      where the σ of a Gaussian encoder should start
``messy_tables``       realistic messy files: how many are read correctly, and which outliers are found
``far_groups``         how many far groups are found without labels, and how many clean rows are flagged
``review``             which rows to review next, measured by average precision after three rounds
``coverage.NAME``      how often guarantees hold: ``conformal`` (p-values and alarms), ``alarms`` (false
                       alarms with outliers in training), ``evidence`` (intervals), ``detector``
                       (probabilities and π), ``choosing`` (the same on real tables), ``sampling`` (errors
                       of log Z), ``ratio`` (the error of a telescoped ratio), ``information`` (the error
                       of mutual information), ``monitor`` (alarms without a change)
``vnce.NAME``          the problems that variational NCE was published with: ``mixture`` (which α is
                       best), ``boltzmann`` (a machine small enough to enumerate), ``posterior`` (stars
                       and moons), ``missing`` (missing values), ``toys`` (energies in the plane)
=====================  ================================================================================
"""
