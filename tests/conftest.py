"""Settings of the test run."""

import pytest
import torch
from hypothesis import settings

# Imported by tests under its own name; collected for doctests, its classes would be registered twice.
collect_ignore = ["support/exact_models.py"]

# The same examples every time, and no judgement by the clock.
settings.register_profile("fvnce", deadline=None, derandomize=True)
settings.load_profile("fvnce")


@pytest.fixture
def double_precision():
    """float64 by default, and a fixed seed."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)
