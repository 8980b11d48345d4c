"""The application: the command line, and the runs that it makes.

==================  ===============================================================
``cli``             the commands
``runs``            folders that hold a trained model and its settings: fit, score, evaluate, load
``report``          the page of a run, and of the reproduction
``escaping``        text from files made harmless where it is shown
==================  ===============================================================
"""
