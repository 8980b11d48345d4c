"""The application: what practitioners run from a terminal, and what it leaves behind.

==================  ===============================================================
``commands``        the command line
``readers``         files as rows
``runs``            folders that hold a trained model and all that belongs to it
``report``          the page of a run
==================  ===============================================================
"""
