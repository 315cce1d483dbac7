"""Local order of convergence of an iteration, measured around its fixed point.

From x* + εd one full step leads to a distance C(d)·ε^p: p is the slope in logarithms. Only pairs well above the rounding of the step count, and
of these the closest, so that neither rounding nor far-away behaviour bends the line. A linear method has p = 1, and a rate ρ:
the factor per step that a run settles to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Step = Callable[[Any], Any]

ABOVE = 100.0
"""Distances count that are so many times the rounding of a step."""
PER_DECADE, POINTS = 4, 9
"""Distances tried per decade, and how many of the closest are fitted: two decades."""
FARTHEST, CLOSEST = 1e-1, 1e-11
"""Distances tried, of the size of x*."""
BEGIN, RUN = 1e-5, 100
"""Where a run begins that shows the rate, of the size of x*, and how many steps it has."""


class Local(NamedTuple):
    """Order and rate, over random directions."""

    order: float
    """Median of the slopes ..."""
    least: float
    most: float
    """... and their spread."""
    rate: float
    """Factor per step to which runs settle; NaN for methods of a higher order."""


def local_convergence(step: Step, best: Any, directions: int = 5, seed: int = 0) -> Local:
    """Measure the iteration x ← step(x) at its fixed point `best`, known to rounding."""
    best = np.asarray(best, np.float64)
    rng = np.random.default_rng(seed)
    away = [d / np.linalg.norm(d) for d in rng.normal(size=(directions, *best.shape))]
    floor = _rounding(step, best, away)
    slopes = np.array([_slope(step, best, d, floor) for d in away])
    slopes = slopes[np.isfinite(slopes)]
    if not len(slopes):
        return Local(*[float("nan")] * 4)
    order = float(np.median(slopes))
    rates = [_rate(step, best, d, floor) for d in away] if order < 1.5 else [float("nan")]
    return Local(order, float(slopes.min()), float(slopes.max()), float(np.median(rates)))


def _distance(step: Step, best: np.ndarray, x: np.ndarray) -> float:
    return float(np.linalg.norm(np.asarray(step(x), np.float64) - best))


def _size(best: np.ndarray) -> float:
    return float(np.linalg.norm(best)) or 1.0


def _rounding(step: Step, best: np.ndarray, away: list[np.ndarray]) -> float:
    """Where steps end that start within rounding of the fixed point."""
    size = _size(best)
    eps = np.finfo(np.float64).eps
    starts = [best, *(best + 4 * eps * size * d for d in away)]
    return max(eps * size, *(_distance(step, best, x) for x in starts))


def _slope(step: Step, best: np.ndarray, direction: np.ndarray, floor: float) -> float:
    size = _size(best)
    decades = np.arange(np.log10(FARTHEST), np.log10(CLOSEST), -1 / PER_DECADE)
    pairs = []
    for distance in size * 10**decades:
        after = _distance(step, best, best + distance * direction)
        if after < ABOVE * floor or distance < ABOVE * floor:
            break
        if np.isfinite(after):
            pairs.append((distance, after))
    if len(pairs) < 3:
        return float("nan")
    before, after = np.log(np.array(pairs[-POINTS:])).T
    return float(np.polyfit(before, after, 1)[0])


def _rate(step: Step, best: np.ndarray, direction: np.ndarray, floor: float) -> float:
    """Mean factor over the later half of a run that stays close to x*, and well above rounding."""
    size = _size(best)
    x = best + BEGIN * size * direction
    distances = [float(np.linalg.norm(x - best))]
    for _ in range(RUN):
        x = np.asarray(step(x), np.float64)
        distance = float(np.linalg.norm(x - best))
        if not ABOVE * floor < distance < FARTHEST * size:
            break
        distances.append(distance)
    if len(distances) < 3:
        return float("nan")
    middle = (len(distances) - 1) // 2
    return float((distances[-1] / distances[middle]) ** (1 / (len(distances) - 1 - middle)))
