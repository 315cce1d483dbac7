"""Constrained and bounded CUTEst problems of sif2jax as functions of one vector, and the judge of a solution.

minimise f(x),  c_E(x) = 0,  c_I(x) ≥ 0,  l ≤ x ≤ u,        L = f + yᵀc + zᵀx
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import importlib.metadata
import pathlib
import sys
import types
from typing import Any

import numpy as np

LARGEST, MOST_ROWS = 300, 600
TOL = 1e-6
UNBOUNDED = -1e15
"""A feasible point with a value below this certifies that a problem has no minimum."""


@dataclasses.dataclass(eq=False)
class Program:
    """A problem over a flat vector."""

    name: str
    x0: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    num_equalities: int
    num_inequalities: int
    objective: Any
    equalities: Any
    """x ↦ c_E; None where there are none."""
    inequalities: Any

    @property
    def m(self) -> int:
        return self.num_equalities + self.num_inequalities

    @property
    def bounded_only(self) -> bool:
        return self.m == 0

    def rows(self, x: Any) -> Any:
        """c = (c_E, c_I)."""
        import jax.numpy as jnp

        parts = [c(x) for c in (self.equalities, self.inequalities) if c is not None]
        return jnp.concatenate(parts) if parts else jnp.zeros(0, x.dtype)

    @functools.cached_property
    def values(self) -> Any:
        """x ↦ (f, c), compiled."""
        import jax

        return jax.jit(lambda x: (self.objective(x), self.rows(x)))

    @functools.cached_property
    def slopes(self) -> Any:
        """x ↦ (∇f, J), compiled."""
        import jax

        return jax.jit(lambda x: (jax.grad(self.objective)(x), jax.jacrev(self.rows)(x)))

    @functools.cached_property
    def hessian(self) -> Any:
        """(x, weight, y) ↦ ∇²(weight·f + yᵀc), compiled."""
        import jax
        import jax.numpy as jnp

        def lagrangian(x: Any, weight: Any, y: Any) -> Any:
            return weight * self.objective(x) + jnp.vdot(y, self.rows(x))

        return jax.jit(jax.hessian(lagrangian))


_SETS = ("bounded_minimisation", "constrained_minimisation", "quadratic")


@functools.cache
def _catalogue() -> dict[str, tuple[str, str]]:
    """Module and class of every bounded or constrained problem, by the name of its class.

    The package imports all of its modules (a minute), so that its lists are read as text instead.
    """
    root = pathlib.Path(importlib.metadata.distribution("sif2jax").locate_file("sif2jax/cutest"))  # type: ignore[arg-type]
    found: dict[str, tuple[str, str]] = {}
    for kind in _SETS:
        package = f"_{kind}_problems" if kind == "quadratic" else f"_{kind}"
        modules: dict[str, str] = {}
        for item in ast.parse((root / package / "__init__.py").read_text()).body:
            if isinstance(item, ast.ImportFrom) and item.module:
                modules |= {(a.asname or a.name): f"{package}.{item.module}" for a in item.names}
            elif isinstance(item, ast.Assign) and isinstance(item.value, ast.Tuple):
                for call in item.value.elts:
                    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
                    found[call.func.id] = modules[call.func.id], call.func.id
    return found


def names() -> list[str]:
    """All bounded and constrained problems; which are small enough is known when they are loaded."""
    return sorted(_catalogue())


@functools.cache
def _stand_for_packages() -> None:
    """Put empty packages in the place of those that import everything."""
    root = pathlib.Path(importlib.metadata.distribution("sif2jax").locate_file("sif2jax"))  # type: ignore[arg-type]
    below = [f"cutest._{kind}_problems" if kind == "quadratic" else f"cutest._{kind}" for kind in _SETS]
    for name in ("", "cutest", *below):
        package = types.ModuleType(f"sif2jax.{name}".rstrip("."))
        package.__path__ = [str(root / name.replace(".", "/"))]
        sys.modules[package.__name__] = package
    bases = importlib.import_module("sif2jax._problem")
    sys.modules["sif2jax"].__dict__.update({k: v for k, v in vars(bases).items() if k.startswith("Abstract")})


def _problem(name: str) -> Any:
    _stand_for_packages()
    module, kind = _catalogue()[name]
    return getattr(importlib.import_module(f"sif2jax.cutest.{module}"), kind)()


def _shapes(problem: Any) -> tuple[Any, Any]:
    import jax

    if not hasattr(problem, "constraint"):
        return None, None
    return jax.eval_shape(problem.constraint, problem.y0)


def _count(part: Any) -> int:
    import jax

    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree_util.tree_leaves(part))


def load(name: str) -> Program | None:
    """The problem as functions of a vector; None where it is too large."""
    import jax
    from jax.flatten_util import ravel_pytree

    problem = _problem(name)
    if _count(jax.eval_shape(lambda: problem.y0)) > LARGEST or sum(map(_count, _shapes(problem))) > MOST_ROWS:
        return None
    x0, unravel = ravel_pytree(problem.y0)
    shapes = _shapes(problem)

    def side(which: int) -> Any:
        if _count(shapes[which]) == 0:
            return None
        return lambda x: ravel_pytree(problem.constraint(unravel(x))[which])[0]

    lower, upper = np.full(x0.size, -np.inf), np.full(x0.size, np.inf)
    if getattr(problem, "bounds", None) is not None:
        lower, upper = (np.broadcast_to(np.asarray(ravel_pytree(b)[0]), x0.shape) for b in problem.bounds)
    return Program(
        name,
        np.asarray(x0, np.float64),
        np.asarray(lower, np.float64),
        np.asarray(upper, np.float64),
        _count(shapes[0]),
        _count(shapes[1]),
        lambda x: problem.objective(unravel(x), problem.args),
        side(0),
        side(1),
    )


def judge(p: Program, x: np.ndarray, y: np.ndarray | None, z: np.ndarray | None) -> dict[str, Any]:
    """Violation and scaled KKT residual of a point, by JAX's derivatives of the functions.

    Args:
        y, z: multipliers; where a solver has none they are fitted by least squares with the right signs.
    """
    f, c = (np.asarray(v) for v in p.values(x))
    slopes = tuple(np.asarray(v) for v in p.slopes(x))
    if not all(np.all(np.isfinite(v)) for v in (x, f, c, *slopes)):
        return {"fun": float(f), "violation": np.inf, "kkt": np.inf}
    low, up = x - p.lower, p.upper - x
    violation = max(
        np.max(np.abs(c[: p.num_equalities]), initial=0.0),
        np.max(-c[p.num_equalities :], initial=0.0),
        np.max(-low, initial=0.0),
        np.max(-up, initial=0.0),
    )
    first = float(np.max(np.abs(np.asarray(p.slopes(np.clip(p.x0, p.lower, p.upper))[0])), initial=0.0))
    if y is None or z is None:
        y, z = _fit(p, slopes, c, low, up)
    kkt = _residual(p, first, slopes, c, low, up, y, z)
    return {"fun": float(f), "violation": float(violation), "kkt": kkt if np.isfinite(kkt) else np.inf}


def _residual(
    p: Program, first: float, slopes: Any, c: Any, low: Any, up: Any, y: np.ndarray, z: np.ndarray
) -> float:
    """Stationarity and complementarity, divided as interior points divide them.

    What is violated counts as violated, and for complementarity as active.
    """
    gradient, jacobian = slopes
    free = p.lower < p.upper
    mean = (np.sum(np.abs(y)) + np.sum(np.abs(z[free]))) / max(1, len(y) + len(z))
    first = first if np.isfinite(first) else 0.0
    scale = max(1.0, first / 100, float(np.max(np.abs(gradient), initial=0.0)) / 100, mean / 100)
    stationary = np.abs((gradient + jacobian.T @ y + z)[free])
    other, rows = y[p.num_equalities :], c[p.num_equalities :]
    products = [
        np.where(other <= 0, -other * np.maximum(rows, 0.0), other),
        np.where(z < 0, _product(-z, low), 0.0)[free],
        np.where(z > 0, _product(z, up), 0.0)[free],
    ]
    return float(max(np.max(v, initial=0.0) for v in (stationary, *products)) / scale)


def _product(z: np.ndarray, gap: np.ndarray) -> np.ndarray:
    return np.abs(z) * np.where(np.isfinite(gap), np.maximum(gap, 0.0), 1.0)


def _fit(p: Program, slopes: Any, c: Any, low: Any, up: Any) -> tuple[np.ndarray, np.ndarray]:
    """Multipliers of the active limits by bounded least squares."""
    from scipy.optimize import lsq_linear

    gradient, jacobian = slopes
    n, m = len(gradient), len(c)
    near = 1e-5
    active = np.concatenate([np.ones(p.num_equalities, bool), c[p.num_equalities :] <= near])
    at_low, at_up = low <= near * (1 + np.abs(low)), up <= near * (1 + np.abs(up))
    columns = np.concatenate([jacobian.T[:, active], np.eye(n)[:, at_low | at_up]], 1)
    if columns.shape[1] == 0:
        return np.zeros(m), np.zeros(n)
    unlimited = np.full(columns.shape[1], np.inf)
    most, least = unlimited.copy(), -unlimited
    most[np.flatnonzero(np.flatnonzero(active) >= p.num_equalities)] = 0.0
    inside = slice(int(active.sum()), None)
    least[inside] = np.where(at_up, -np.inf, -np.inf)[at_low | at_up]
    most[inside] = np.where(at_up, np.inf, 0.0)[at_low | at_up]
    least[inside] = np.where(at_low, -np.inf, 0.0)[at_low | at_up]
    found = lsq_linear(columns, -gradient, (least, most + 1e-300), tol=1e-14).x
    y, z = np.zeros(m), np.zeros(n)
    y[active] = found[: int(active.sum())]
    z[at_low | at_up] = found[inside]
    return y, z
