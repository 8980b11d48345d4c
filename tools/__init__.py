"""Developer tools, run from the root of a checkout.

===================  ===========================================================================
``tools.pages``      the pages of the documentation that are made from results or the program
``tools.fuzz``       fuzzing with damaged files, killed runs and odd inputs
``tools.prose``      lint of docstrings, comments and pages
``tools.release``    build and check the wheel, the site and digests of seeded results
===================  ===========================================================================
"""
