"""Runs: folders that hold a trained model, the settings that make it again, its history, figures and a page.

==================  ===============================================================
``run``             a run, opened from its folder
``settings``        what a run is made from; ``config.toml``
``training_data``   files as training rows and known outliers
``scorer``          what scores rows, whichever kind of run it is
``fitting``         fit: from settings to a folder
``folder``          one writer at a time, file by file
``scoring``         score: from a file to scores, in parts
==================  ===============================================================
"""
