"""Derivative rules of what an elimination gives: solutions, steps, log-determinants, variances.

The elimination itself is a call of a library, which JAX cannot differentiate. Its results are known functions of H, so that
their derivatives need only H⁻¹, which is there, and directional derivatives of H·y, which JAX takes on the graph:

    y = H⁻¹b:     ẏ = H⁻¹(ḃ - Ḣy)
    δ = -H⁻¹g:    δ̇ = -H⁻¹(ġ + Ḣδ)
    log|det H|:   tr(H⁻¹Ḣ) = Σ Z_ij K̇_ij over the entries of K, with Z = K⁻¹ by selected inversion

Every rule is made of functions that have rules, so that they nest. `Place` holds what is differentiated; what the
elimination left (`Held`) is a constant. Nothing here runs, or is traced, unless somebody differentiates.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, NoReturn, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer

from gnewt._errors import DerivativeError
from gnewt._typing import PyTree
from gnewt.graph import Data, evaluate
from gnewt.kkt import Elimination, EliminationStatus, LocalModels, linearize
from gnewt.newton.objective import Point
from gnewt.newton.sensitivity import log_determinant_sensitivity
from gnewt.newton.system import System, gauss_newton_product

T = TypeVar("T")


class Place(NamedTuple):
    """Where H + μI is taken: what a derivative may be taken with respect to."""

    x: Array
    data: Data
    shift: Array


class Held(NamedTuple):
    """What an elimination left: constants to every rule."""

    models: LocalModels
    numbers: Elimination


def still(tree: T) -> T:
    """Take the same numbers, without their derivatives."""
    return jax.tree.map(lambda v: jax.lax.stop_gradient(v) if isinstance(v, Tracer) else v, tree)


def tell_unless(sound: Array, tell: Callable[..., None], *why: Array) -> None:
    """Call back to the host where something is not sound: a call that is not made costs nothing."""
    jax.lax.cond(sound, lambda *why: None, lambda *why: jax.debug.callback(tell, *why), *why)


def differentiable_engine(system: System) -> str:
    """The engine of a system inside of rules; the reference engine runs on the host."""
    return "auto" if system.engine.name == "reference" else system.engine.name


def gradient_at(system: System, x: Array, data: Data) -> Array:
    """∂f/∂x on the graph."""
    maps, structure = system.maps, system.structure
    return jax.grad(lambda x: evaluate(structure, maps, data, x)[0])(x)


def product_at(system: System, x: Array, data: Data, v: Array) -> Array:
    """H·v on the graph, or that of its Gauss-Newton part."""
    if system.curvature == "exact":
        return jax.jvp(lambda x: gradient_at(system, x, data), (x,), (v,))[1]
    point = Point(x, data, (), system.structure, None, True)
    return gauss_newton_product(system.maps, point, v)


def _shifted_products(system: System, place: Place, columns: Array) -> Array:
    product = jax.vmap(lambda v: product_at(system, place.x, place.data, v), 1, 1)(columns)
    return product + place.shift * columns


def solve_again(system: System, place: Place, held: Held, b: Array) -> Array:
    """(H + μI)⁻¹ b[N, k]: linear in b, with rules of any order in both directions; NaN where H is singular."""

    def by_factor(_: Callable, b: Array) -> Array:
        done = jnp.asarray(system.solve(held.models, held.numbers, b))
        return done * jnp.where(held.numbers.status == EliminationStatus.OK, 1.0, jnp.nan).astype(done.dtype)

    product = partial(_shifted_products, system, place)
    return jax.lax.custom_linear_solve(product, b, by_factor, symmetric=True)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def solution(system: System, place: Place, held: Held, b: Array) -> Array:
    """(H + μI)⁻¹ b[N, k]."""
    done = system.solve(held.models, held.numbers, b)
    return jnp.where(held.numbers.status == EliminationStatus.OK, done, jnp.nan)


@solution.defjvp
def _(
    system: System, primals: tuple[Place, Held, Array], tangents: tuple[Place, Held, Array]
) -> tuple[Array, Array]:
    place, held, b = primals
    y = solution(system, place, held, b)
    moved = _moved(lambda at: _shifted_products(system, at, y), place, tangents[0])
    return y, solve_again(system, place, held, tangents[2] - moved)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def newton_direction(system: System, place: Place, held: Held, raw: Array) -> Array:
    """-(H + μI)⁻¹ g, as the elimination gave it."""
    del system, place, held
    return raw


@newton_direction.defjvp
def _(
    system: System, primals: tuple[Place, Held, Array], tangents: tuple[Place, Held, Array]
) -> tuple[Array, Array]:
    place, held, raw = primals
    step = newton_direction(system, place, held, raw)

    def residual(at: Place) -> Array:
        return gradient_at(system, at.x, at.data) + _shifted_products(system, at, step[:, None])[:, 0]

    moved = _moved(residual, place, tangents[0])
    return step, -solve_again(system, place, held, moved[:, None])[:, 0]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def log_determinant(system: System, place: Place, held: Held) -> Array:
    """log|det(H + μI)|."""
    del system, place
    return held.numbers.logdet


@log_determinant.defjvp
def _(system: System, primals: tuple[Place, Held], tangents: tuple[Place, Held]) -> tuple[Array, Array]:
    place, held = primals

    def sources(at: Place) -> Array:
        structure = system.structure
        return linearize(structure, system.maps, at.data, at.x, system.curvature).sources

    at_place, moved = jax.jvp(sources, (place,), (tangents[0],))
    found = log_determinant_sensitivity(system, at_place, place.shift)
    change = jnp.vdot(found.sources, moved) + found.shift * tangents[0].shift
    return log_determinant(system, place, held), change


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def value(system: System, place: Place, models: LocalModels) -> Array:
    """f, as the linearisation gave it."""
    del system, place
    return models.value


@value.defjvp
def _(
    system: System, primals: tuple[Place, LocalModels], tangents: tuple[Place, LocalModels]
) -> tuple[Array, Array]:
    place, models = primals
    maps, structure = system.maps, system.structure
    moved = _moved(lambda at: evaluate(structure, maps, at.data, at.x)[0], place, tangents[0])
    return value(system, place, models), moved


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def gradient(system: System, place: Place, models: LocalModels) -> Array:
    """∂f/∂x, as the reverse sweep gave it."""
    del place
    return models.duals[: system.structure.num_inputs]


@gradient.defjvp
def _(
    system: System, primals: tuple[Place, LocalModels], tangents: tuple[Place, LocalModels]
) -> tuple[Array, Array]:
    place, models = primals
    moved = _moved(lambda at: gradient_at(system, at.x, at.data), place, tangents[0])
    return gradient(system, place, models), moved


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def input_variances(system: System, place: Place, held: Held, found: Array) -> Array:
    """The diagonal of (H + μI)⁻¹, as selected inversion gave it. Its derivative takes N solves."""
    del system, place, held
    return found


@input_variances.defjvp
def _(
    system: System, primals: tuple[Place, Held, Array], tangents: tuple[Place, Held, Array]
) -> tuple[Array, Array]:
    place, held, found = primals
    columns = solution(system, place, held, jnp.eye(len(found), dtype=found.dtype))
    moved = _moved(lambda at: _shifted_products(system, at, columns), place, tangents[0])
    return input_variances(system, place, held, found), -jnp.sum(columns * moved, axis=0)


OTHERS = "take the derivative of `solve`, `logdet`, `covariance` or the step instead, or detach it with jax.lax.stop_gradient"
"""What to do where a number of a `Factor` has no derivative."""


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def without_derivative(what: str, remedy: str, numbers: PyTree, found: PyTree) -> PyTree:
    """What was found from some numbers, whose derivative cannot be had: to ask for it is an error, and not silently zero."""
    del what, remedy, numbers
    return found


@without_derivative.defjvp
def _(what: str, remedy: str, primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> NoReturn:
    del primals, tangents
    raise DerivativeError(f"{what} cannot be differentiated", remedy=remedy)


def _moved(function: Callable[[Place], Array], place: Place, tangent: Place) -> Array:
    """The directional derivative of a function of a place."""
    return jax.jvp(function, (place,), (tangent,))[1]
