"""System: a structure with its plan, its engine and compiled functions: everything that is made once per structure."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from gnewt._errors import OptionError, PlanError, WidthError
from gnewt._typing import PyTree
from gnewt._waiting import waiting
from gnewt.graph import Handle, Maps, Plan, Structure, forward, objective, one_by_one
from gnewt.jaxprs.compat import put
from gnewt.kkt import (
    CURVATURES,
    Elimination,
    LocalModels,
    Prepared,
    choose_engine,
    first_nonfinite,
    linearize,
    prepare,
    rounds_at_once,
)
from gnewt.newton.arithmetic import Array as AnyArray
from gnewt.newton.numbers import RealLike
from gnewt.newton.objective import Point
from gnewt.plan import make_plan

SlotOrder: TypeAlias = str | Sequence[int | np.integer | Sequence[int] | np.ndarray] | np.ndarray
"""An elimination order: a name, or slots, or groups of slots."""
OrderLike: TypeAlias = SlotOrder | Sequence[Handle | np.ndarray]
"""An elimination order that a user gives: for a Graph it may be one of handles."""
Operands: TypeAlias = tuple[Maps, PyTree]
"""Index maps of a structure, and integers of a plan."""
T = TypeVar("T")

EVALUATIONS = ("native", "at_once", "in_turn")
"""By the native library, whose numbers JAX cannot differentiate; by XLA, with all rounds of long recurrences at once; by
XLA, with one round after the other."""
_MEMORY_SHARE = 0.6
"""Share of the machine's memory that a factor may take: the iterate, its models and a second factor need the rest."""
_MEMORY_UNKNOWN = 8e9
"""Bytes that a factor may take where the machine's memory is not known."""


@dataclasses.dataclass(frozen=True, eq=False)
class System:
    """The KKT system of a structure, ready for numbers.

    Every method that takes a point works on the host and inside jit and vmap alike.
    """

    structure: Structure
    plan: Plan
    curvature: str
    engine: Prepared
    why_engine: str
    run_factor_solve: Callable[..., tuple[Array, Elimination]]
    """The engine's functions, compiled. Integers come as operands, so that they are not baked in."""
    run_solve: Callable[..., Array]
    run_step: Callable[..., tuple[LocalModels, Array, Elimination]]
    """Local models, step and elimination by one compiled function."""
    order: SlotOrder
    """The elimination order that was asked for: a name, or slots."""
    evaluation: str
    """How local models are computed: one of `EVALUATIONS`."""
    bound: Operands | None = None

    def __repr__(self) -> str:
        return f"<System: {self.structure!r}, {self.plan!r}, {self.curvature}, {self.engine.name}>"

    @property
    def operands(self) -> Operands:
        """Index maps of the structure and integers of the plan, on the device."""
        return self.maps, self.arrays

    def bind(self, operands: Operands) -> System:
        """Return this system with its integers as operands of the caller's compiled function."""
        return dataclasses.replace(self, bound=operands)

    @property
    def maps(self) -> Maps:
        return device_maps(self.structure) if self.bound is None else self.bound[0]

    @cached_property
    def arrays(self) -> PyTree:
        return on_device(self.engine.arrays) if self.bound is None else self.bound[1]

    def linearize(
        self,
        point: Point,
        slots: AnyArray | None = None,
        lam: AnyArray | None = None,
        near: AnyArray | None = None,
    ) -> LocalModels:
        """Compute values, duals and local derivatives; slots are computed unless they are given.

        Args:
            lam: multipliers of the nodes, for slots that need not satisfy their equations (`gnewt.kkt.linearize`).
            near: slots of a point nearby, where long recurrences are solved for all rounds at once.
        """
        function = compiled(self.structure, linearized, self.curvature, self.evaluation)
        with self._first_call("local derivatives", point):
            return function(self.maps, point, slots, lam, near)

    def slots(self, point: Point) -> Array:
        """Evaluate the graph."""
        return compiled(self.structure, slots_at, self.evaluation)(self.maps, point)

    def value(self, point: Point, near: AnyArray | None = None) -> Array:
        """Compute f alone, by evaluating the graph."""
        return compiled(self.structure, value_at, self.evaluation)(self.maps, point, near)

    def step(self, point: Point, shift: RealLike) -> tuple[LocalModels, Array, Elimination]:
        """Linearise, eliminate H + shift·I and solve for -g: one compiled function."""
        with self._first_call("step", point):
            return self.run_step(self.maps, self.arrays, point, shift)

    def factor_solve(self, models: LocalModels, shift: RealLike, rhs: Array) -> tuple[Array, Elimination]:
        """Eliminate K for H + shift·I and solve for rhs[N] or rhs[N, columns]."""
        columns = rhs.reshape(len(rhs), -1)
        done = self.run_factor_solve(self.arrays, models.sources, shift, columns)
        return done[0].reshape(rhs.shape), done[1]

    def solve(
        self, models: LocalModels, elimination: Elimination, rhs: Array | np.ndarray
    ) -> Array | np.ndarray:
        """Solve for another right-hand side; numbers of the host give numbers of the host."""
        columns = rhs.reshape(len(rhs), -1)
        if self.engine.name == "reference":
            columns = jnp.asarray(columns)
        done = self.run_solve(self.arrays, models.sources, elimination, columns)
        # Nothing is compiled to bring the numbers of the host into their shape.
        return (np.asarray(done) if isinstance(rhs, np.ndarray) else done).reshape(rhs.shape)

    def variances(self, models: LocalModels, elimination: Elimination) -> Array:
        """Compute the diagonal of K⁻¹ on all slots, by selected inversion."""
        return self._engine_call("variances")(self.arrays, models.sources, elimination)

    def draw(self, models: LocalModels, elimination: Elimination, noise: Array) -> Array:
        """Turn standard normal noise[N, columns] into draws of covariance H⁻¹; for causal plans and H ≻ 0."""
        return self._engine_call("draw")(self.arrays, models.sources, elimination, noise)

    def _engine_call(self, name: str) -> Callable[..., Array]:
        """A function of the engine, compiled once; the reference engine runs on the host."""
        call = getattr(self.engine, name)
        if self.engine.name == "reference":
            return call
        return self.structure.memo((name, self.engine), lambda: jax.jit(call))

    def derivatives(self, point: Point, v: Array | np.ndarray) -> tuple[Array, Array, Array]:
        """Compute (f, g, H·v) by JAX from the objective itself, independently of the local models.

        H·v is NaN where f is: the graph may be finite there, without what is multiplied by zero or not selected.
        """
        with self._first_call("product with H", point):
            return compiled(self.structure, derivatives_at)(self.maps, point, v)

    def gradient(self, point: Point) -> tuple[Array, Array]:
        """Compute (f, g) by JAX from the objective itself: where no H·v is asked for, it need not be compiled."""
        return compiled(self.structure, gradient_at)(self.maps, point)

    def product(self, point: Point, v: Array | np.ndarray) -> Array:
        """Compute the product of v with the matrix that is solved with: H, or its Gauss-Newton part."""
        if self.curvature == "exact":
            return self.derivatives(point, v)[2]
        return compiled(self.structure, gauss_newton_product)(self.maps, point, v)

    def products(self, point: Point, columns: Array | np.ndarray) -> Array:
        """`product` with each of columns[N, k]."""
        return compiled(self.structure, _products, self.curvature)(self.maps, point, columns)

    def _first_call(self, what: str, point: Point) -> contextlib.AbstractContextManager[None]:
        """Tell a person who waits for a compilation; later calls, and calls inside jit, compile nothing here."""
        called = self.structure.memo("called", lambda: set[tuple[str, str, str]]())
        key = (what, self.curvature, self.engine.name)
        if key in called or point.is_traced:
            return contextlib.nullcontext()
        called.add(key)
        size = f"{self.structure.num_inputs} inputs, {len(self.structure.families)} families"
        return waiting(f"compiling the {what} ({size})")

    def nonfinite(self, point: Point, models: LocalModels) -> tuple[str, str] | None:
        """Name the first value or derivative that is not finite."""
        return first_nonfinite(self.structure, point.data, models)


def compiled(structure: Structure, make: Callable[..., T], *options: str) -> jax.stages.Wrapped:
    """Compile what does not depend on the order, once per structure; integers come as operands."""
    return structure.memo((make, *options), lambda: jax.jit(partial(make, *options)))


def on_device(arrays: T) -> T:
    """Put arrays on the device."""
    with jax.ensure_compile_time_eval():  # also when a system is made inside jit
        return jax.tree_util.tree_map(put, arrays)


def device_maps(structure: Structure) -> Maps:
    """Index maps of a structure on the device, once per structure."""
    return structure.memo("maps", lambda: on_device(structure.maps))


def linearized(
    curvature: str,
    evaluation: str,
    maps: Maps,
    point: Point,
    slots: Array | None,
    lam: Array | None = None,
    near: Array | None = None,
) -> LocalModels:
    """Compute values, duals and local derivatives."""
    return linearize(
        point.structure,
        maps,
        point.data,
        point.x,
        curvature,
        slots,
        evaluation == "native",
        lam,
        evaluation == "at_once",
        near,
    )


def _step(
    engine: Prepared,
    curvature: str,
    evaluation: str,
    maps: Maps,
    arrays: PyTree,
    point: Point,
    shift: RealLike,
) -> tuple[LocalModels, Array, Elimination]:
    structure = point.structure
    # Traced once: the self-check and the loop of `minimize` use the same function.
    models = compiled(structure, linearized, curvature, evaluation)(maps, point, None)
    step, numbers = engine.factor_solve(
        arrays, models.sources, jnp.asarray(shift), -models.duals[: structure.num_inputs, None]
    )
    return models, step[:, 0], numbers


def slots_at(evaluation: str, maps: Maps, point: Point, near: Array | None = None) -> Array:
    """Evaluate the graph."""
    run_rounds = rounds_at_once(near) if evaluation == "at_once" else one_by_one
    return forward(point.structure, maps, point.data, point.x, run_rounds)


def value_at(evaluation: str, maps: Maps, point: Point, near: Array | None = None) -> Array:
    """Compute f alone, by evaluating the graph."""
    return objective(point.structure, maps, point.data, slots_at(evaluation, maps, point, near))


def original_value(maps: Maps, point: Point) -> Array:
    """f(x) by JAX from the objective itself, without derivatives: JAX may compute another value beside them."""
    return point.original(maps, point.x)


def gradient_at(maps: Maps, point: Point) -> tuple[Array, Array]:
    """(f, g) by JAX from the objective itself."""
    return jax.value_and_grad(lambda x: point.original(maps, x))(point.x)


def derivatives_at(maps: Maps, point: Point, v: Array) -> tuple[Array, Array, Array]:
    """(f, g, H·v) by JAX from the objective itself."""
    f = jax.value_and_grad(lambda x: point.original(maps, x))
    (value, gradient), (_, curved) = jax.jvp(f, (point.x,), (v,))
    return value, gradient, jnp.where(jnp.isfinite(value), curved, jnp.nan)


def _products(curvature: str, maps: Maps, point: Point, columns: Array) -> Array:
    def product(v: Array) -> Array:
        if curvature == "exact":
            return derivatives_at(maps, point, v)[2]
        return gauss_newton_product(maps, point, v)

    return jax.vmap(product, 1, 1)(columns)


def gauss_newton_product(maps: Maps, point: Point, v: Array) -> Array:
    """Compute Sᵀ (∂²Σl) S v with S = ∂slots/∂x: the curvature of the losses, not of the nodes."""

    def slots_at(x: Array) -> Array:
        return forward(point.structure, maps, point.data, x)

    slots, tangent = jax.jvp(slots_at, (point.x,), (v,))
    gradient = jax.grad(lambda s: objective(point.structure, maps, point.data, s))
    curved = jax.jvp(gradient, (slots,), (tangent,))[1]
    return jax.vjp(slots_at, point.x)[1](curved)[0]


def system_of(
    point: Point, order: SlotOrder = "auto", curvature: str = "exact", engine: str = "auto"
) -> System:
    """Return the system of a structure for the given options; plans and compiled functions are made once."""
    if curvature not in CURVATURES:
        raise PlanError(f"unknown curvature {curvature!r}", remedy=f"use one of {', '.join(CURVATURES)}")
    structure = point.structure
    platform = jax.default_backend()
    name, why = choose_engine(engine, platform)
    evaluation = choose_evaluation(name, platform)
    if isinstance(order, str) and order == "auto" and name == "xla" and platform != "cpu":
        order = "parallel"  # a GPU wants few levels of many fronts
    key = _order_key(order)

    def plan_now() -> Plan:
        with waiting(
            f"planning the elimination of {structure.num_inputs} inputs, {structure.num_slots} slots"
        ):
            return make_plan(structure, order)

    plan = structure.memo(("plan", key), plan_now)
    refuse_memory(plan)

    def make() -> System:
        ready = prepare(name, plan, num_sources(structure), structure.eps)
        first, again = ready.factor_solve, ready.solve
        step = partial(_step, ready, curvature, evaluation)
        if name != "reference":  # which runs on the host
            first, again, step = jax.jit(first), jax.jit(again), jax.jit(step)
        return System(structure, plan, curvature, ready, why, first, again, step, order, evaluation)

    return structure.memo(("system", key, curvature, name, evaluation), make)


def choose_evaluation(engine: str, platform: str) -> str:
    """How local models are computed (`EVALUATIONS`) for an engine on a platform (`cpu`, `gpu`, ...).

    The environment may say `GNEWT_EVALUATION=parallel` or `sequential` for the xla engine, whatever the platform.
    """
    asked = os.environ.get("GNEWT_EVALUATION", "auto")
    if asked not in ("auto", "parallel", "sequential"):
        raise OptionError(
            f"GNEWT_EVALUATION is {asked!r}",
            "the environment",
            "set it to parallel or sequential, or unset it: long recurrences are then run in parallel on a GPU",
        )
    if engine != "xla":
        # The reference engine is for checks: it takes derivatives that share nothing with the native library.
        return "native" if engine == "native" else "in_turn"
    return "at_once" if asked == "parallel" or (asked == "auto" and platform != "cpu") else "in_turn"


def _order_key(order: SlotOrder) -> str | tuple[object, ...]:
    """What two equal orders agree in. For an array of slots it takes no time, however long it is."""
    if isinstance(order, str):
        return order
    if isinstance(order, np.ndarray) and order.ndim == 1:
        return order.dtype.str, order.tobytes()
    return tuple(tuple(np.ravel(group).tolist()) for group in order)


def num_sources(structure: Structure) -> int:
    """Length of the vector of local derivatives (see `gnewt.graph.plan`)."""
    total = 0
    for family in structure.families:
        jacobian = 0 if family.is_loss else int(family.jac_pattern.sum())
        total += family.n * (jacobian + int(np.tril(family.hess_pattern).sum()))
    return total


def refuse_memory(plan: Plan) -> None:
    """Raise WidthError where the factor would not fit into memory, before anything is allocated."""
    available = memory_limit()
    if plan.certificate.bytes > available:
        raise WidthError(
            f"the tree is too wide for memory ({available / 1e9:.1f} GB may be used): {plan.certificate}",
            remedy="try order='best_of'; split global reductions into terms; or use a matrix-free method",
        )


def memory_limit() -> float:
    """Bytes that a factor may take: `GNEWT_MAX_BYTES`, or 60 % of the machine's memory."""
    given = os.environ.get("GNEWT_MAX_BYTES")
    if given is not None:
        try:
            limit = float(given)
        except ValueError:
            limit = -1.0
        if not limit >= 0:
            raise OptionError(
                f"GNEWT_MAX_BYTES is {given!r}",
                "the environment",
                "set it to a number of bytes, 8e9 for 8 GB, or unset it",
            )
        return limit
    try:
        return _MEMORY_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return _MEMORY_UNKNOWN
