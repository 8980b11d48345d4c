"""Settings of the test run."""

from hypothesis import settings

# The same examples every time, and no judgement by the clock.
settings.register_profile("fvnce", deadline=None, derandomize=True)
settings.load_profile("fvnce")
