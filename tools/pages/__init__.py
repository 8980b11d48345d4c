"""Generate the pages of the documentation that are made from results or from the program.

    python -m tools.pages            # write what is made from results or from the program
    python -m tools.pages --check    # fail if a page differs from what it is made from

=====================  ========================================================================
``blocks``             tables between marks in README.md, docs/index.md, docs/benchmarks.md and
                       docs/reproduction.md
``benchmarks``         results/bench/README.md; ``detection`` and ``estimators`` have its sections
``forgetting``         results/forgetting/README.md
``reproduction``       results/paper-mnist/README.md
``reliability``        results/coverage/README.md
``commands``           docs/reference/commands.md
``explorer``           docs/assets/explorer.html, where sliders move a scoring rule
``run_page``           what the code of a page prints and draws: ``make pages`` runs all of them
``boundaries``         docs/images/boundaries.png, detectors in the plane
``report_picture``     docs/images/report.png, the picture of a run's page
=====================  ========================================================================
"""
