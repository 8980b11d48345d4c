"""Studies with fvnce beyond the paper's own figures and table.

Each file is one study and runs from the root of a checkout: ``python -m experiments.NAME --help`` prints its options.

=====================  ================================================================================
``search``             which setting of what the paper leaves open comes closest to its table
``search_deep``        which of these choices decides where (1/16, 0) ends on the deeper network
``forgetting``         every class forgotten in turn, by a budget and by the obvious other ways
``tempering``          whether the profiled form can forget without a log-scale
``adaptive_noise``     fixed and refitted noise on a density whose log Z is known
``encoder_start``      where the σ of a Gaussian encoder should start
``messy_tables``       files as people have them: how many are read right, and what is found in them
``far_groups``         how many far groups are found without labels, and how many clean rows are flagged
``coverage.NAME``      how often promises hold: ``conformal`` (p-values and alarms), ``evidence``
                       (intervals), ``detector`` (probabilities and π), ``sampling`` (errors of log Z
                       and of efficiencies), ``ratio`` (the error of a telescoped ratio), ``monitor``
                       (alarms without a change)
``vnce.NAME``          the problems that variational NCE was published with: ``mixture`` (which α is
                       best), ``boltzmann`` (a machine small enough to enumerate), ``posterior`` (stars
                       and moons), ``missing`` (missing values), ``toys`` (energies in the plane)
=====================  ================================================================================
"""
