"""The application: the command line, runs and reports.

==================  ===============================================================
``cli``             the commands
``runs``            folders with a trained model and its settings: fit, score, evaluate, load
``report``          the pages of a run and of fvnce monitor, the model card
``escaping``        escaping of text from files for output
==================  ===============================================================
"""
