"""Runs: folders that hold a trained model, the settings that make it again, its history, figures and a page.

==================  ===============================================================
``run``             a run, opened from its folder
``settings``        what a run is made from; ``config.toml``
``training_data``   files as training rows and known outliers
``labels``          columns that a person names, and known outliers that one of them marks
``fitting``         fit: from settings to a folder
``scoring``         score: from a file to scores, in parts
``evaluation``      evaluate: how well labelled outliers are found
==================  ===============================================================
"""
