"""What was measured with fvnce beyond the paper's own figures and table: programs of this repository.

Each runs from the root of a checkout with ``python -m experiments.NAME``, and tells its options with ``--help``.

=====================  ================================================================================
``vnce_mixture``       the problems that variational NCE was published with: an unnormalised mixture of
                       Gaussians, and which α is best
``vnce_boltzmann``     a restricted Boltzmann machine small enough to enumerate
``vnce_posterior``     stars and moons: learned posteriors against the true ones
``vnce_missing``       a truncated normal graphical model with missing values
``vnce_toys``          energy-based densities in the plane, with and without latents
``search``             which setting of what the paper leaves open comes closest to its table
``search_deep``        which of these choices decides where (1/16, 0) ends on the deeper network
``forgetting``         every class forgotten in turn, by a budget and by the obvious other ways
``tempering``          whether the profiled form can forget without a log-scale
``adaptive_noise``     fixed and refitted noise on a density whose log Z is known
``coverage_conformal`` how often p-values and alarms keep their guarantee
``coverage_evidence``  how often intervals cover, on scores whose truth is known
``coverage_detector``  how far evidence, probabilities and π of a default detector agree with the truth
``coverage_sampling``  how often the errors of log Z and of efficiencies hold
``coverage_ratio``     how often the error of a telescoped ratio holds
``encoder_start``      where the σ of a Gaussian encoder should start
``pages``              the pages of the documentation and the part of the README that are made from
                       ``results`` or from the program
=====================  ================================================================================

The others are parts of these, and do nothing by themselves: ``vnce_common``, ``vnce_mixture_theory``,
``vnce_boltzmann_estimates``, ``truncated_normal``, ``toys`` and ``scoring_method`` of the problems; ``latent_bridges``
and ``adaptive_problems`` of tempering and adaptive noise; ``benchmark_page``, ``detection_page``,
``estimator_sections``, ``forgetting_page``, ``reliability_page``, ``reproduction_page``, ``readme_results`` and
``commands_page`` of the pages; ``coverage`` of the studies of coverage.
"""
