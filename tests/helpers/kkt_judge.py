"""What dense linear algebra says of an outcome of the native engine."""

from __future__ import annotations

import numpy as np

from helpers.native_call import Outcome
from helpers.random_kkt import Dense

REGULAR, SINGULAR = 1e-9, 1e-16
"""Pivots in natural units (1 = no cancellation): above the one a problem is regular, below the other singular."""


def judge(where: str, exact: Dense, got: Outcome, b: np.ndarray) -> str:
    """Compare an outcome with the dense Hessian. Which pivots are noise is an estimate, so a few may be misjudged: they are counted."""
    w, size = exact.spectrum()
    positive, negative, zero = got.inertia
    assert positive + negative + zero == len(w) == len(b), where
    assert (got.status == "singular") == (zero > 0) == (len(got.null) > 0), (where, got.status, got.inertia)
    assert got.status in ("ok", "singular"), (where, got.status)
    assert np.all(np.isfinite(got.solution)), where
    if got.status == "ok":
        # Whatever the condition: what is called a solution is one.
        assert exact.backward_error(got.solution, b) <= 1e-6, where
        assert exact.backward_error(got.again, b) <= 1e-6, where
        assert 0 < got.smallest_pivot < np.inf, where
    else:
        assert got.logdet == -np.inf, where
        assert got.smallest_pivot == 0, where
    pivots = exact.pivots()
    clear, nothing = pivots > REGULAR * size, pivots <= SINGULAR * size
    if np.all(clear):
        if got.status == "singular":
            return "false alarm"
        expected = int(np.sum(w > 0)), int(np.sum(w < 0)), 0
        assert got.inertia == expected, (where, got.inertia, expected, w)
        error = exact.backward_error(got.solution, b)
        assert error <= 1e-9, (where, error)
        assert exact.backward_error(got.again, b) <= 1e-9, where
        logdet = np.sum(np.log(np.abs(w))) - 2 * np.sum(np.log(exact.unit))
        assert abs(got.logdet - logdet) <= 1e-6, (where, got.logdet, logdet)
        return "regular"
    if np.all(clear | nothing):
        rank = int(np.sum(clear))
        large = w[np.argsort(-np.abs(w))[:rank]]
        if got.inertia == (int(np.sum(large > 0)), int(np.sum(large < 0)), len(w) - rank):
            return "singular"
        return "wrong rank" if got.status == "singular" else "missed"
    return "between"
