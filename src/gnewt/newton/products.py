"""ProductSystem: an objective whose tree is hopeless, seen through f, its gradient and products H·v."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from gnewt.graph import Maps, Structure
from gnewt.kkt import LocalModels
from gnewt.newton.objective import Point
from gnewt.newton.system import compiled, device_maps, gauss_newton_product, value_at

_PROBES = 3
"""Products that the scaling of the inputs is estimated with, once per iterate."""
_SMALLEST = 1e-6
"""Least size of a row of H, of the largest: an input that hardly matters is not blown up further by its scaling."""


@dataclasses.dataclass(frozen=True, eq=False)
class ProductSystem:
    """What `System` is, without a plan: nothing is eliminated.

    Its local models have the inputs as slots, the gradient as duals, and as sources the size of each row of H
    (estimated, relative to their geometric mean), which scales the inputs.
    """

    structure: Structure
    curvature: str
    bound: Maps | None = None

    @property
    def operands(self) -> Maps:
        """Index maps of the structure, on the device."""
        return device_maps(self.structure) if self.bound is None else self.bound

    maps = operands

    def bind(self, operands: Maps) -> ProductSystem:
        """Return this system with its integers as operands of the caller's compiled function."""
        return dataclasses.replace(self, bound=operands)

    def linearize(self, point: Point, slots: Array | None = None) -> LocalModels:
        """Compute value, gradient and scaling."""
        return compiled(self.structure, _models, self.curvature)(self.maps, point)

    def value(self, point: Point) -> Array:
        """Compute f alone."""
        return compiled(self.structure, value_at, "in_turn")(self.maps, point)

    def products_at(self, point: Point) -> Callable[[Array], Array]:
        """v ↦ H·v, or the product with its Gauss-Newton part; what depends on the point alone is computed once."""
        return _products(self.curvature, self.maps, point)

    def nonfinite(self, point: Point, models: LocalModels) -> tuple[str, str] | None:
        """Say that something is not finite; places are not known here."""
        return ("the objective, its gradient or a product with its Hessian is not finite", "")


def _products(curvature: str, maps: Maps, point: Point) -> Callable[[Array], Array]:
    if curvature == "exact":
        return jax.linearize(jax.grad(lambda x: point.original(maps, x)), point.x)[1]
    return partial(gauss_newton_product, maps, point)


def _models(curvature: str, maps: Maps, point: Point) -> LocalModels:
    value, gradient = jax.value_and_grad(lambda x: point.original(maps, x))(point.x)
    signs = jax.random.rademacher(jax.random.key(0), (_PROBES, point.x.size), point.x.dtype)
    rows = jax.lax.map(_products(curvature, maps, point), signs)
    size = jnp.sqrt(jnp.mean(rows**2, 0))
    top = jnp.max(size, initial=0.0)
    size = jnp.where(top > 0, jnp.maximum(size, _SMALLEST * top), 1.0)
    return LocalModels(value, point.x, gradient, size / jnp.exp(jnp.mean(jnp.log(size))))
