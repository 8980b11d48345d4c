"""Build and examine what is published, and compare seeded results bit by bit.

=================  ============================================================================
``check_package``  the wheel and the sdist, built; the wheel alone, installed and used
``build_site``     the site, by Zensical; ``equations`` and ``docstrings`` prepare its pages
``check_site``     every link and anchor of the built site
``digests``        fingerprints of seeded results
=================  ============================================================================
"""
