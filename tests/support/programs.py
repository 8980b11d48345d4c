"""Programs of the repository that are no package, loaded by their path."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def load(path):
    specification = importlib.util.spec_from_file_location(f"program_{path.stem}", path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module
