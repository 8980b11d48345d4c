r"""Detection of batches that are far from the training rows, so that their scores are unreliable.

Three statistics of a batch are compared with those of training: the fraction of rows above the threshold, the fraction
of rows with an unusual number of gaps, and the distribution of scores. A statistic is called far if this happens by
chance in at most one of :data:`CHANCE` batches like the training rows, and if the difference is relevant: a fraction of
at least :data:`FAR_FRACTION` that is three times that of training, or a largest difference of two distribution
functions of at least :data:`FAR_SCORES`. The errors of both samples are included, by the beta-binomial distribution for
fractions, and by the bound of Dvoretzky, Kiefer and Wolfowitz for distributions. New rows score like held-out rows, but
training rows that are scored again do not, so a batch may lie anywhere between the two distributions. Batches of fewer
than :data:`MIN_ROWS` rows, which a person may have chosen as anomalous, are not compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..._validation import fields, number, require, stored_array
from ..rows import Array, as_counts, weight_up_to, weighted_quantiles

#: Each of the three statistics calls at most one in this number of batches like the training rows far.
CHANCE = 10_000
#: Smallest number of rows of a batch that is compared.
MIN_ROWS = 20
#: Smallest relevant fraction, ratio of fractions, and difference of distribution functions.
FAR_FRACTION, FAR_TIMES, FAR_SCORES = 0.2, 3.0, 0.4
#: Number of stored quantiles of training scores.
LEVELS = np.linspace(0.05, 0.95, 19)


class UnlikeTrainingWarning(UserWarning):
    """Warning that a batch of rows is far from the training rows.

    >>> import warnings
    >>> from fvnce import NoiseContrastiveDetector
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> with warnings.catch_warnings(record=True, action="always") as caught:
    ...     flagged = NoiseContrastiveDetector().fit(X).predict(X + 30)
    >>> caught[0].category.__name__
    'UnlikeTrainingWarning'
    """


@dataclass(frozen=True)
class Baseline:
    """Statistics of unlabeled training rows, with held-out scores where possible, that batches are compared with.

    Attributes:
        rows: number of rows, by weight.
        known: fraction of known outliers among all training rows; a batch may contain up to this fraction.
        flagged: fraction of all training rows that are known outliers or above the threshold.
        gappy: fraction of rows with more gaps than usual.
        scores: quantiles of the scores, ascending, shape (q,).
        below: fraction of rows with scores at most each quantile, shape (q,).
        seen: the same fraction for scores by the models that were trained on the rows, shape (q,).
    """

    rows: float
    known: float
    flagged: float
    gappy: float
    scores: Array
    below: Array
    seen: Array

    @classmethod
    def of(
        cls,
        scores: Array,
        weights: Array,
        threshold: float,
        gappy: NDArray[np.bool_],
        known_weight: float = 0.0,
        trained: Array | None = None,
    ) -> Self:
        """Make a baseline from weighted scores of unlabeled rows, and a mask of those with more gaps than usual.

        If ``scores`` are held out, ``trained`` are the scores by models that were trained on the rows.
        """
        chosen = np.unique(weighted_quantiles(scores, weights, LEVELS))
        below = weight_up_to(scores, weights, chosen)
        seen = below if trained is None else weight_up_to(trained, weights, chosen)
        above, with_gaps = (float(weights[which].sum() / weights.sum()) for which in (scores > threshold, gappy))
        known = known_weight / (known_weight + float(weights.sum()))
        flagged = known + (1 - known) * above
        return cls(float(as_counts(weights).sum()), known, flagged, with_gaps, chosen, below, seen)

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return the state as JSON content and arrays."""
        numbers = dict(vars(self))
        return numbers, {name: numbers.pop(name) for name in ("scores", "below", "seen")}

    @classmethod
    def from_state(cls, content: Any, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Restore the baseline from a state, which is checked."""
        positive, unit = partial(number, low=0.0, open_low=True), partial(number, low=0.0, high=1.0)
        checks = {"rows": positive, "known": unit, "flagged": unit, "gappy": unit}
        rows, known, flagged, gappy = fields(content, "the baseline", **checks)
        require(known < 1, "have unlabeled rows in the baseline", known)
        names = ("scores", "below", "seen")
        require(set(arrays) == set(names), "have scores in the baseline", sorted(arrays))
        size = np.shape(arrays["scores"])[:1]
        scores, below, seen = (stored_array(f"{n} of the baseline", arrays[n], np.float64, size) for n in names)
        rising = len(scores) > 0 and bool((np.diff(scores) > 0).all())
        require(rising, "have ascending scores in the baseline", "others")
        for fractions in (below, seen):
            ascending = bool((np.diff(fractions) >= 0).all() and fractions[0] >= 0 and fractions[-1] <= 1)
            require(ascending and below[0] > 0, "have ascending fractions in the baseline", "others")
        return cls(rows, known, flagged, gappy, scores, below, seen)


class Batch:
    """Counts of the rows of a batch, which may come in parts.

    >>> baseline = Baseline.of(np.arange(1000.0), np.ones(1000), 990.0, np.zeros(1000, bool))
    >>> batch = Batch(baseline, 990.0)
    >>> batch.add(np.full(50, 995.0), np.zeros(50, bool))
    >>> print(*batch.sentences(), sep=chr(10))
    50 of 50 rows (100 %) are above the threshold, 0.9 % of the training rows were
    >>> batch.add(np.arange(0.0, 1000.0, 0.5), np.zeros(2000, bool))
    >>> batch.sentences()
    []
    """

    def __init__(self, baseline: Baseline, threshold: float) -> None:
        self._baseline, self._threshold = baseline, threshold
        self._rows = self._examined = self._flagged = self._gappy = 0
        self._below = np.zeros(len(baseline.scores))

    def add(self, scores: Array, gappy: NDArray[np.bool_]) -> None:
        """Count rows by scores; ``gappy`` marks rows, possibly of a sample, with more gaps than usual."""
        self._rows += len(scores)
        self._flagged += int((scores > self._threshold).sum())
        self._examined += len(gappy)
        self._gappy += int(gappy.sum())
        self._below += np.searchsorted(np.sort(scores), self._baseline.scores, side="right")

    def sentences(self) -> list[str]:
        """Return a sentence for each statistic that is far from that of training."""
        base, found = self._baseline, []
        if self._rows < MIN_ROWS:
            return []
        for count, rows, usual, what, did in (
            (self._flagged, self._rows, base.flagged, "are above the threshold", "were"),
            (self._gappy, self._examined, base.gappy, "miss more values than usual", "did"),
        ):
            if _far(count, rows, usual, base.rows):
                shown = f"{count:,} of {rows:,} rows ({100 * count / rows:.0f} %) {what}"
                found.append(f"{shown}, {100 * usual:.2g} % of the training rows {did}")
        below = self._below / self._rows
        differences = below - np.clip(below, np.minimum(base.below, base.seen), np.maximum(base.below, base.seen))
        place = int(np.abs(differences).argmax())
        limit = math.sqrt(math.log(2 * CHANCE) / 2 * (1 / self._rows + 1 / base.rows))
        # A batch with more rows above the threshold has other scores; one sentence is enough.
        if not found and abs(differences[place]) > max(FAR_SCORES, limit) + base.known:
            shown = f"{100 * below[place]:.0f} % of {self._rows:,} rows"
            before = f"{100 * base.below[place]:.0f} % of the training rows did"
            found.append(f"{shown} score at most {base.scores[place]:.3g}, {before}")
        return found


def _far(count: int, rows: int, usual: float, n_training: float) -> bool:
    """Return whether a count of rows is far above a fraction of the training rows."""
    if not rows or count < max(FAR_FRACTION, FAR_TIMES * usual) * rows:
        return False
    from scipy.stats import betabinom  # it takes long to import, and few batches need it

    seen = usual * n_training
    return bool(betabinom.sf(count - 1, rows, seen + 1, n_training - seen + 1) < 1 / CHANCE)
