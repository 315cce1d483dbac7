"""The oracle is a residual, not a stored answer."""

from __future__ import annotations

import numpy as np


def backward_error(h: np.ndarray, delta: np.ndarray, g: np.ndarray) -> float:
    """‖H·δ + g‖ / (‖H‖‖δ‖ + ‖g‖)."""
    h, delta, g = np.asarray(h), np.asarray(delta), np.asarray(g)
    scale = np.linalg.norm(h, 2) * np.linalg.norm(delta) + np.linalg.norm(g)
    return float(np.linalg.norm(h @ delta + g) / max(scale, 1e-300))


def inertia_of(h: np.ndarray) -> tuple[int, int, int]:
    """(n₊, n₋, n₀) from the eigenvalues of a dense matrix."""
    w = np.linalg.eigvalsh(np.asarray(h))
    tol = 1e-11 * max(np.abs(w).max(), 1e-300)
    return int(np.sum(w > tol)), int(np.sum(w < -tol)), int(np.sum(np.abs(w) <= tol))


def flatten(step: list) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(s)) for s in step])
