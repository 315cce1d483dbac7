"""The solvers of `minimize.py`: gnewt, SciPy, optimistix; all stop at the same test of the gradient.

Gradients are counted as each solver asks for them. SciPy's trust regions and optimistix' BFGS, like gnewt, evaluate f
alone where a step is refused; L-BFGS-B asks for both at every trial. Hessians are counted apart.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np

DENSE = 2000
"""Variables up to which trust-exact, which needs a dense Hessian, is run."""
DENSE_INVERSE = 12_000
"""The same for BFGS: 1.2 GB for its inverse Hessian."""


@dataclasses.dataclass(frozen=True)
class Small:
    """The test of the gradient: ‖g‖∞ ≤ max(tol, tol/1000·‖g(x₀)‖∞, tol/100·|f|)."""

    tol: float
    start: float

    def __call__(self, value: float, size: float) -> bool:
        return size <= max(self.tol, 1e-3 * self.tol * self.start, 1e-2 * self.tol * abs(value))


class _Enough(Exception):
    """Thrown through a solver that has no callback for it."""


def too_large(solver: str, size: int) -> str | None:
    """Say why a solver is not even started on a problem of this size."""
    if solver == "trust-exact" and size > DENSE:
        return f"N > {DENSE}, dense Hessian"
    if solver == "optimistix-bfgs" and size > DENSE_INVERSE:
        return f"N > {DENSE_INVERSE}, dense inverse Hessian"
    return None


def run(solver: str, f: Any, x0: np.ndarray, small: Small, end: float) -> tuple[Any, dict[str, Any]]:
    """Return (x, counts and message). `end` is in seconds of this process."""
    if solver.startswith("gnewt"):
        return _gnewt(f, x0, small, end)
    if solver.startswith("optimistix"):
        return _optimistix(f, x0, small, end)
    return _scipy(solver, f, x0, small, end)


def _gnewt(f: Any, x0: np.ndarray, small: Small, end: float) -> tuple[Any, dict[str, Any]]:
    import gnewt

    begin, setup = time.process_time(), []

    def watch(progress: Any) -> bool:
        setup.append(time.process_time() - begin)
        return small(progress.fun, progress.grad_norm) or time.process_time() > end

    res = gnewt.minimize(f, x0, tol=small.tol, max_steps=10**6, callback=watch, check=False)
    late = res.status == "stopped" and time.process_time() > end
    return res.x, {
        "gradients": res.num_gradients,
        "evaluations": res.num_evaluations,
        "factorizations": res.num_factorizations,
        "steps": res.num_steps,
        "setup": setup[0] if setup else time.process_time() - begin,
        "message": "time limit" if late else f"{res.status}: {res.message}",
    }


def _scipy(solver: str, f: Any, x0: np.ndarray, small: Small, end: float) -> tuple[Any, dict[str, Any]]:
    import jax
    import scipy.optimize

    value, value_and_grad = jax.jit(f), jax.jit(jax.value_and_grad(f))
    counts = {"gradients": 0, "evaluations": 0, "hessians": 0}
    best: list[Any] = [np.inf, x0]

    def look(x: np.ndarray, found: float) -> None:
        if found < best[0]:
            best[:] = [found, x.copy()]
        if time.process_time() > end:
            raise _Enough("time limit")

    def fun(x: np.ndarray) -> float:
        counts["evaluations"] += 1
        found = float(value(x))
        look(x, found)
        return found

    def jac(x: np.ndarray) -> np.ndarray:
        return both(x)[1]

    def both(x: np.ndarray) -> tuple[float, np.ndarray]:
        counts["gradients"] += 1
        found, gradient = value_and_grad(x)
        found, gradient = float(found), np.asarray(gradient, float)
        look(x, found)
        if small(found, float(np.max(np.abs(gradient)))):
            best[:] = [found, x.copy()]
            raise _Enough("the gradient is below the tolerance")
        return found, gradient

    options: dict[str, Any] = {"maxiter": 10**7, "gtol": 0.0}
    more: dict[str, Any] = {"fun": fun, "jac": jac}
    if solver == "L-BFGS-B":
        more = {"fun": both, "jac": True}
        options |= {"ftol": 0.0, "maxfun": 10**8, "maxcor": 10}
    elif solver == "trust-exact":
        hessian = jax.jit(jax.hessian(f))

        def hess(x: np.ndarray) -> np.ndarray:
            counts["hessians"] += 1
            return np.asarray(hessian(x), float)

        more["hess"] = hess
    else:
        product = jax.jit(lambda x, v: jax.jvp(jax.grad(f), (x,), (v,))[1])

        def hessp(x: np.ndarray, v: np.ndarray) -> np.ndarray:
            counts["hessians"] += 1
            if time.process_time() > end:
                raise _Enough("time limit")
            return np.asarray(product(x, v), float)

        more["hessp"] = hessp
    try:
        res = scipy.optimize.minimize(x0=x0, method=solver, options=options, **more)
        return res.x, {**counts, "message": str(res.message)}
    except _Enough as reason:
        return best[1], {**counts, "message": str(reason)}
    except Exception as error:  # a peer that fails has failed, whatever the reason
        return best[1], {**counts, "message": f"{type(error).__name__}: {error}"}


def _optimistix(f: Any, x0: np.ndarray, small: Small, end: float) -> tuple[Any, dict[str, Any]]:
    """BFGS by its own `init`, `step` and `terminate`, compiled in rounds between which the clock is read.

    Its own test (of steps and differences of f) is set to rounding, since it never looks at the gradient.
    """
    import equinox
    import jax
    import jax.numpy as jnp
    import optimistix

    solver = optimistix.BFGS(rtol=1e-15, atol=1e-15)

    def fn(y: Any, _: Any) -> Any:
        return f(y), None

    def begin(y: Any) -> Any:
        out = jax.ShapeDtypeStruct((), y.dtype)
        return solver.init(fn, y, None, {}, out, None, frozenset())

    y = jnp.asarray(x0)
    state = equinox.filter_jit(begin)(y)
    numbers, static = equinox.partition(state, equinox.is_array)

    def is_done(y: Any, numbers: Any) -> Any:
        state = equinox.combine(numbers, static)
        info = state.f_info
        size, limit = jnp.max(jnp.abs(info.grad)), 1e-2 * small.tol * jnp.abs(info.f)
        passes = size <= jnp.maximum(max(small.tol, 1e-3 * small.tol * small.start), limit)
        ended, result = solver.terminate(fn, y, None, {}, state, frozenset())
        return ~state.first_step & (passes | ended | (result != optimistix.RESULTS.successful))

    @jax.jit
    def several(y: Any, numbers: Any, most: Any) -> Any:
        def one(carry: Any) -> Any:
            y, numbers, count = carry
            state = equinox.combine(numbers, static)
            y, state, _ = solver.step(fn, y, None, {}, state, frozenset())
            return y, equinox.partition(state, equinox.is_array)[0], count + 1

        def goes_on(carry: Any) -> Any:
            return ~is_done(carry[0], carry[1]) & (carry[2] < most)

        y, numbers, count = jax.lax.while_loop(goes_on, one, (y, numbers, jnp.zeros((), int)))
        return y, numbers, count, is_done(y, numbers)

    steps, most, message = 0, 1, "time limit"
    try:
        while time.process_time() < end:
            before = time.process_time()
            y, numbers, count, done = several(y, numbers, most)
            steps += int(count)
            most = 4 * most if time.process_time() - before < 0.1 else most
            if bool(done):
                message = "it stopped by its own test, or by ours"
                break
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
    gradients = int(equinox.combine(numbers, static).num_accepted_steps)
    return np.asarray(y), {"gradients": gradients, "evaluations": steps, "message": message}
