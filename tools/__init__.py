"""Programs for developers, run from the root of a checkout.

===================  ===========================================================================
``tools.pages``      the pages of the documentation that are made from results or the program
``tools.fuzz``       damaged files, killed runs and odd inputs, counted by how they end
``tools.release``    the wheel, the site and the digests of seeded results, built and examined
===================  ===========================================================================
"""
