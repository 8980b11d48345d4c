"""Runs: a folder that holds a trained model, the settings that make it again, its history, figures and a page.

==================  ===============================================================
``settings``        what a run is made from; ``config.toml``
``material``        files as training rows and known outliers
``latent``          a latent-variable model as a detector
``scorer``          what scores rows, whichever kind of run it is
``study``           what the page tells of a run
``making``          fit: from settings to a folder
``streaming``       score: from a file to scores, in parts
==================  ===============================================================
"""
