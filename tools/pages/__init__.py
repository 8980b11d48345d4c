"""Make the pages of the documentation that no person writes.

    python -m tools.pages            # write what is made from results or from the program
    python -m tools.pages --check    # fail if a page differs from what it is made from

=====================  ========================================================================
``benchmarks``         docs/benchmarks.md; ``detection`` and ``estimators`` have its sections
``forgetting``         docs/forgetting.md
``reproduction``       docs/reproduction.md
``reliability``        docs/howto/reliability.md
``commands``           docs/reference/commands.md
``readme``             the results in README.md and docs/index.md
``explorer``           docs/assets/explorer.html, where sliders move a scoring rule
``run_page``           what the code of a page prints and draws: ``make pages`` runs the gallery
``report_picture``     docs/images/report.png, the picture of a run's page
=====================  ========================================================================
"""
