"""Probability: N(0, (H + μI)⁻¹), as in a Laplace approximation. Functions of a `Factor`, which has them as methods.

Variances come from one selected inversion along the tree, never from N solves; a block between any quantities from as many
solves as it has columns.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.flatten_util import ravel_pytree

from gnewt._errors import CurvatureWarning, GraphError, StepError, explain_error, user_line
from gnewt._typing import PyTree
from gnewt.graph import Output, Structure, forward
from gnewt.graph.outputs import Kind
from gnewt.newton import rules
from gnewt.newton.sides import unravel_sides
from gnewt.newton.system import System, system_of

if TYPE_CHECKING:
    from gnewt.newton.factor import Factor


class Quantity(NamedTuple):
    """A function of the flat inputs, in which a covariance is asked for."""

    shape: tuple[int, ...]
    read: Callable[[Array], Array]
    """Flat inputs ↦ flat values."""


def slot_variances(factor: Factor) -> Array | np.ndarray:
    """Variances of all slots; NaN where H + μI is not positive definite, with a warning on the host."""
    if factor.is_traced:
        found = factor.system.variances(factor.models, factor.numbers)
        return jnp.where(factor.is_positive_definite, found, jnp.nan)
    factor.refuse_singular("invert")
    if not factor.is_positive_definite:
        warn_of_curvature(factor)
        return np.full(factor.system.structure.num_slots, np.nan)
    return np.asarray(factor.system.variances(factor.models, factor.numbers))


def warn_of_curvature(factor: Factor) -> None:
    """Say that there is no distribution here."""
    warnings.warn(
        explain_error(
            f"no variances: H + {float(factor.shift):.3g}·I is not positive definite, "
            f"its inertia is {tuple(factor.inertia)}; NaN is returned",
            remedy="factorize at a minimum, such as minimize(f, x).x, or give a larger shift; "
            "`solve` and `covariance` are exact for any H",
        ),
        CurvatureWarning,
        stacklevel=4,
    )


def input_variances(factor: Factor) -> PyTree:
    """The diagonal of (H + μI)⁻¹, in the form of the inputs."""
    structure = factor.system.structure
    found = slot_variances(factor)[: structure.num_inputs]
    if factor.is_traced:
        found = rules.input_variances(factor.system, factor.place, factor.held, jnp.asarray(found))
    return structure.unravel(found)


def output_variances(factor: Factor) -> PyTree:
    """Variances of the auxiliary data, in its form: those of the slots that hold it, zero for constants."""
    structure = factor.system.structure
    if structure.outputs is None:
        raise GraphError(
            "this Factor has no auxiliary data whose variances could be given",
            user_line(),
            "let f return (value, aux) and factorize with has_aux=True and keep=True",
        )
    found = slot_variances(factor)
    if factor.is_traced:
        found = rules.without_derivative("output_variances()", rules.OTHERS, factor.place, found)

    def read(output: Output) -> Array:
        _refuse_substituted(output)
        values = jnp.asarray(found)[np.maximum(output.slots, 0)]
        return jnp.where(np.asarray(output.is_slot), values, 0.0)

    is_output = lambda node: isinstance(node, Output)  # noqa: E731
    return jax.tree.map(read, structure.outputs, is_leaf=is_output)


def covariance(factor: Factor, of: object, to: object) -> Array:
    """Cov(a, b) = A (H + μI)⁻¹ Bᵀ with the Jacobians of two quantities: as many solves as b has numbers."""
    system, point = factor.system, factor.point
    first = _quantity(system, factor, of)
    second = first if to is None else _quantity(system, factor, to)
    x = jnp.asarray(point.x)
    count = math.prod(second.shape)
    columns = jax.vmap(jax.vjp(second.read, x)[1])(jnp.eye(count, dtype=x.dtype))[0].T
    if factor.is_traced or isinstance(columns, Tracer):
        solved = rules.solution(system, factor.place, factor.held, columns)
    else:
        factor.refuse_singular("invert")
        solved = jnp.asarray(factor.solve_flat(np.asarray(columns))[0], x.dtype)
    found = jax.vmap(lambda v: jax.jvp(first.read, (x,), (v,))[1], 1, 1)(solved)
    return found.reshape(*first.shape, *second.shape)


def _quantity(system: System, factor: Factor, of: object) -> Quantity:
    structure = system.structure
    if of is None:
        return Quantity((structure.num_inputs,), lambda x: x)
    if isinstance(of, str):
        return _named(system, factor, of)
    if callable(of):
        shape = jax.eval_shape(of, jax.tree_util.tree_unflatten(structure.in_tree, structure.in_avals))
        leaves = jax.tree.leaves(shape)
        size = sum(math.prod(leaf.shape) for leaf in leaves)
        form = leaves[0].shape if len(leaves) == 1 else (size,)
        return Quantity(form, lambda x: ravel_pytree(of(_unravel(structure, x)))[0])
    slots = np.asarray(of)
    if slots.dtype.kind not in "iu" or np.any(slots < 0) or np.any(slots >= structure.num_slots):
        raise GraphError(
            f"covariance was asked of {type(of).__name__} {of!r:.60}",
            user_line(),
            "give the name of an input or of an auxiliary entry, a function of the inputs, or slots",
        )
    return _of_slots(system, factor, slots)


def _named(system: System, factor: Factor, name: str) -> Quantity:
    structure = system.structure
    places = dict(zip(structure.in_names, jax.tree.leaves(structure.input_slots), strict=True))
    outputs = structure.outputs if isinstance(structure.outputs, dict) else {}
    if name in places:
        return _of_slots(system, factor, places[name])
    if name not in outputs:
        known = ", ".join(map(repr, (*places, *outputs)))
        raise GraphError(f"there is no input or auxiliary entry {name!r}", user_line(), f"use one of {known}")
    leaves: list[Output] = jax.tree.leaves(outputs[name], is_leaf=lambda node: isinstance(node, Output))
    for leaf in leaves:
        _refuse_substituted(leaf)
    slots = np.concatenate([np.ravel(leaf.slots) for leaf in leaves])
    found = _of_slots(system, factor, np.maximum(slots, 0))
    shape = leaves[0].shape if len(leaves) == 1 else (len(slots),)
    return Quantity(shape, lambda x: jnp.where(slots >= 0, found.read(x), 0.0))


def _of_slots(system: System, factor: Factor, slots: np.ndarray) -> Quantity:
    places, structure = np.ravel(slots), system.structure
    if np.all(places < structure.num_inputs):
        return Quantity(slots.shape, lambda x: x[places])
    data = factor.point.data
    return Quantity(slots.shape, lambda x: forward(structure, system.maps, data, x)[places])


def _refuse_substituted(output: Output) -> None:
    if np.any(output.kinds == Kind.SUBSTITUTED):
        raise GraphError(
            "no slot holds this auxiliary entry: it was written into whatever reads it",
            user_line(),
            "factorize with keep=True, or with keep=(names of entries,)",
        )


def _unravel(structure: Structure, x: Array) -> PyTree:
    """The inputs as a pytree, differentiable also where x is known."""
    ends = np.cumsum([math.prod(a.shape) for a in structure.in_avals]).tolist()
    leaves = [
        x[end - math.prod(a.shape) : end].reshape(a.shape).astype(a.dtype)
        for end, a in zip(ends, structure.in_avals, strict=True)
    ]
    return jax.tree_util.tree_unflatten(structure.in_tree, leaves)


def sample(factor: Factor, key: Array, shape: tuple[int, ...]) -> PyTree:
    """Draw from N(0, (H + μI)⁻¹): one walk down a causal tree for all draws."""
    system = factor.system
    structure, dtype = system.structure, system.structure.dtype
    count = math.prod(shape)
    noise = jax.random.normal(key, (structure.num_inputs, count)).astype(dtype)
    models, numbers, shift = factor.models, factor.numbers, factor.shift
    if not factor.is_traced and not factor.is_positive_definite:
        raise StepError(
            f"cannot sample: H + {float(shift):.3g}·I is not positive definite, its inertia is {tuple(factor.inertia)}",
            remedy="factorize at a minimum, or give a larger shift",
        )
    if not system.plan.causal:  # only a causal elimination has the pivots of H
        system = system_of(factor.point, "causal", system.curvature, system.engine.name)
        numbers = system.factor_solve(
            models, rules.still(shift), jnp.zeros((structure.num_inputs, 1), dtype)
        )[1]
    drawn = system.draw(models, numbers, noise)
    if factor.is_traced or isinstance(drawn, Tracer):
        drawn = jnp.where(factor.is_positive_definite, drawn, jnp.nan)
        drawn = rules.without_derivative("sample(key)", rules.OTHERS, factor.place, drawn)
    if shape == ():
        return structure.unravel(drawn[:, 0])
    many = unravel_sides(structure, drawn if isinstance(drawn, Tracer) else np.asarray(drawn))
    return jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), many)
