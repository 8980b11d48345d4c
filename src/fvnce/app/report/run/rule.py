"""The rule explorer, set to the rule of the run."""

from __future__ import annotations

import math
import re

from ....pages.page import Section
from .. import explorer


def rule_section(rule: str) -> Section:
    """What a rule is, and the sliders."""
    found = re.search(r"power\(([^)]*)\)", rule)
    alpha, beta, clip = _arguments(found.group(1)) if found else (0.0, 0.0, 10.0)
    reading = [
        f"This run was trained with the rule {rule}. A rule is a pair of functions of the ratio r of model to noise: "
        "f1 is what a data sample earns, f0 what a noise sample earns. Move the sliders to see what α, β and the clip "
        "T do."
    ]
    return Section("Rule explorer", reading, blocks=[explorer.explorer(alpha, beta, clip)])


def _arguments(text: str) -> tuple[float, float, float | None]:
    """α, β and T of a rule written as text, as far as they can be read; the explorer starts there."""
    values: dict[str, float | None] = {"alpha": 0.0, "beta": 0.0, "clip": 10.0}
    for name, argument in zip(
        values, [part for part in text.split(",") if part.strip() and "=" not in part], strict=False
    ):
        values[name] = _fraction(argument)
    for name, argument in re.findall(r"(alpha|beta|clip)\s*=\s*([^,]+)", text):
        values[name] = None if argument.strip().lower() == "none" else _fraction(argument)
    return values["alpha"] or 0.0, values["beta"] or 0.0, values["clip"]


def _fraction(text: str) -> float:
    above, _, below = text.partition("/")
    try:
        value = float(above) / float(below or 1)
    except (ValueError, ZeroDivisionError, OverflowError):
        return 0.0
    return value if math.isfinite(value) else 0.0
