"""optimistix: `optimistix.minimise(f, gnewt.interop.OptimistixNewton(), y0, args)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optimistix
from jax import Array

from gnewt._typing import PyTree
from gnewt.newton import minimize


class _State(NamedTuple):
    done: Array
    good: Array
    steps: Array
    factorizations: Array


class OptimistixNewton(optimistix.AbstractMinimiser):
    """An optimistix minimiser one step of which is a whole run of `gnewt.minimize`.

    optimistix differentiates its answers by its own adjoint. `stats` has the numbers of Newton steps and factorisations.
    """

    tol: float = 1e-8
    max_steps: int = 200
    engine: str = "auto"
    rtol: float = 1e-8
    """What optimistix's own adjoint solves to."""
    atol: float = 1e-8
    norm: Callable[[PyTree], Array] = optimistix.max_norm

    def init(
        self,
        fn: Callable[..., tuple[Array, PyTree]],
        y: PyTree,
        args: PyTree,
        options: dict[str, object],
        f_struct: PyTree,
        aux_struct: PyTree,
        tags: frozenset[object],
    ) -> _State:
        """Nothing has been done."""
        del fn, y, args, options, f_struct, aux_struct, tags
        zero = jnp.zeros((), jnp.int32)
        return _State(jnp.asarray(False), jnp.asarray(False), zero, zero)

    def step(
        self,
        fn: Callable[..., tuple[Array, PyTree]],
        y: PyTree,
        args: PyTree,
        options: dict[str, object],
        state: _State,
        tags: frozenset[object],
    ) -> tuple[PyTree, _State, PyTree]:
        """Minimise."""
        del options, tags, state
        found = minimize(
            lambda y: fn(y, args)[0], y, tol=self.tol, max_steps=self.max_steps, engine=self.engine
        )
        steps, factorizations = (
            jnp.asarray(count, jnp.int32) for count in (found.num_steps, found.num_factorizations)
        )
        state = _State(jnp.asarray(True), jnp.asarray(found.success), steps, factorizations)
        return found.x, state, jax.lax.stop_gradient(fn(found.x, args)[1])

    def terminate(
        self,
        fn: Callable[..., tuple[Array, PyTree]],
        y: PyTree,
        args: PyTree,
        options: dict[str, object],
        state: _State,
        tags: frozenset[object],
    ) -> tuple[Array, optimistix.RESULTS]:
        """One run is all; it failed unless it converged."""
        del fn, y, args, options, tags
        failed = state.done & ~state.good
        result = optimistix.RESULTS.where(
            failed, optimistix.RESULTS.nonlinear_divergence, optimistix.RESULTS.successful
        )
        return state.done, result

    def postprocess(
        self,
        fn: Callable[..., tuple[Array, PyTree]],
        y: PyTree,
        aux: PyTree,
        args: PyTree,
        options: dict[str, object],
        state: _State,
        tags: frozenset[object],
        result: optimistix.RESULTS,
    ) -> tuple[PyTree, PyTree, dict[str, object]]:
        """Report how much was done."""
        del fn, args, options, tags, result
        return y, aux, {"newton_steps": state.steps, "factorizations": state.factorizations}
