"""Can a trained objective be trusted, what would help, and what does its noise cost?

======================  ===============================================================
``report``              the noise term, the bound, the classifier and log Z, examined
``remedies``            ways to bring dead noise to life, tried on the model at hand
``efficiency``          the asymptotic variance of an estimator, and the best noise
======================  ===============================================================
"""

from .efficiency import NoiseEfficiency, noise_efficiency
from .report import Diagnostics, ReliabilityCurve, calibrate, diagnose

__all__ = ["Diagnostics", "NoiseEfficiency", "ReliabilityCurve", "calibrate", "diagnose", "noise_efficiency"]
