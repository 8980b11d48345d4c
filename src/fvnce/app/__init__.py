"""The application: the command line, runs and reports.

==================  ===============================================================
``cli``             the commands
``runs``            folders with a trained model and its settings: fit, score, evaluate, load
``report``          the page of a run, and of the reproduction
``escaping``        escaping of text from files for output
==================  ===============================================================
"""
