"""Self-check of a new structure: its value, gradient and one H·v against JAX's derivatives of f itself.

Once per structure, when it is first used, on the host and inside jit alike (there at trace time, at random numbers). A
structure that fails is not used: the parts that may be wrong are made opaque, and the new structure is checked in its turn.
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from functools import partial

import jax
import numpy as np

from gnewt._errors import AccuracyWarning, InternalError, PerformanceNotice, UncheckedWarning, explain_error
from gnewt._typing import PyTree
from gnewt.graph import Structure
from gnewt.jaxprs import NumpyProgram, as_known, count_operations, flatten_jaxpr
from gnewt.jaxprs.compat import Numeric
from gnewt.jaxprs.flatten import VALUE_CALLS
from gnewt.kkt import LocalModels, lifted_product
from gnewt.newton.check_points import check_points
from gnewt.newton.objective import Point
from gnewt.newton.system import System, compiled, derivatives_at, gradient_at, linearized, original_value
from gnewt.trace import LOOPS, Distrust

_TOLERANCE, _COARSE = 1e-6, 2e-2
"""Relative differences that are no bug, in double and in coarser precision: sums are taken in other orders."""
_DOUBLE = 1e-12
"""An eps below this is that of double precision."""
_CANCELS = 64.0
"""How many roundings √eps of its largest term a number may be made of, where its terms cancel."""
_MOST_OPERATIONS = 100_000
"""Operations, those of all iterations of loops, that NumPy executes in about half a second; else XLA compiles them."""
_QUICKLY: dict[str, str | bool] = {
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": True,
}
"""How to compile what runs a few times."""
_CLEARLY = 10.0
"""How many times larger an error is than the uncertainty of a difference of values."""
_GRADIENT = "gradient"
_ENOUGH = 3
"""Points with finite derivatives that are compared where the function has branches; else one."""


@dataclasses.dataclass(frozen=True)
class _Made:
    """What one check has made to run functions at its points."""

    inside: bool
    """Inside jit, where what is compiled serves for nothing else."""
    compiled: dict[jax.stages.Wrapped, jax.stages.Compiled] = dataclasses.field(default_factory=dict)
    programs: dict[jax.stages.Wrapped, NumpyProgram | None] = dataclasses.field(default_factory=dict)
    """For NumPy; None where loops are too long for that."""


@dataclasses.dataclass(frozen=True)
class _Difference:
    """What the structure and the function do not agree in."""

    what: str
    error: float
    """Relative."""
    slot: int
    sides: tuple[np.ndarray, np.ndarray]
    """Ours and JAX's."""
    blames_jax: bool = False
    """Whether JAX's derivatives are not those of the function's own values."""


def is_checked(system: System) -> bool:
    """Whether the structure has been compared with its function."""
    return system.curvature in _done(system.structure)


def _done(structure: Structure) -> set[str]:
    """The curvatures for which a structure has been compared."""
    return structure.memo("checked", lambda: set[str]())


def checked(system: System, point: Point, models: LocalModels | None = None) -> Point:
    """Return the point if its structure has the derivatives of f, else the point with a structure that has.

    Args:
        system: that of the point; its plan is not used.
        point: structure and numbers of a call.
        models: those of the point, where they are there already.

    Raises:
        InternalError: no part of the function that could be made opaque gives the right derivatives.
    """
    first = _first_difference(point, system, models)
    if first is None:
        return point
    for distrust in _distrusts(point, first):
        mended = _remade(point, distrust)
        if mended is None or mended.entry is None or point.entry is None:
            continue
        if _first_difference(mended, dataclasses.replace(system, structure=mended.structure), None) is None:
            point.entry.become(mended.entry)
            _tell(point.structure, first)
            return mended
    raise InternalError(_sentence(point.structure, first), _suspects(point.structure, first), _REMEDY)


def _tell(structure: Structure, found: _Difference) -> None:
    """Say that a part was made opaque, and whose derivatives are in doubt."""
    where = _suspects(structure, found)
    if found.blames_jax:
        what = (
            f"JAX's own derivatives are not those of the function's values: its {found.what} differs from that of the graph "
            f"(relative difference {found.error:.1e} at {structure.slot_name(found.slot)}) and from differences of values"
        )
        warnings.warn(explain_error(what, where, _JAX_DIFFERS), AccuracyWarning, stacklevel=5)
    else:
        warnings.warn(
            explain_error(_sentence(structure, found), where, _MENDED), PerformanceNotice, stacklevel=5
        )


_JAX_DIFFERS = "check the function with jax.test_util.check_grads; steps are those of JAX's derivatives, with the part opaque"
_MENDED = (
    "nothing: the part was made opaque, and the derivatives agree now. This is a bug in gnewt: please report it with the "
    "function"
)
_REMEDY = (
    "this is a bug in gnewt: please report it with the function; meanwhile mark the part opaque "
    "(wrap it in a jax.custom_vjp), or build a gnewt.Graph by hand"
)


def _remade(point: Point, distrust: Distrust) -> Point | None:
    """The point with another structure of the same program."""
    entry = None if point.entry is None else point.entry.remade(point.captured, distrust)
    if entry is None:
        return None
    found = entry.find(point.captured)
    assert found is not None
    return dataclasses.replace(
        point, data=found.data, structure=found.structure, replay=found.replay, entry=entry
    )


def _distrusts(point: Point, found: _Difference) -> Iterator[Distrust]:
    """What to make opaque, from little to much: lines of code; all loops and branches; everything (None)."""
    if point.entry is None:
        return
    lines = frozenset(f.where for f in _readers(point.structure, found.slot) if f.where)
    yield lines
    yield lines | {LOOPS}
    yield None


def _first_difference(point: Point, system: System, models: LocalModels | None) -> _Difference | None:
    """Compare at a few points; None where all is well, or where nothing can be compared (with a warning)."""
    done = _done(point.structure)
    if system.curvature in done:
        return None
    made = _Made(point.is_traced)
    compared, wanted = 0, _ENOUGH if point.entry is not None and point.entry.has_branches else 1
    for at in check_points(point):
        given, models = models, None
        ours = None if given is None else jax.tree_util.tree_leaves(given)
        difference = _difference(at, system, ours, made)
        if isinstance(difference, _Difference):
            return dataclasses.replace(difference, blames_jax=_blames_jax(difference, at, system, made))
        compared += difference
        if compared >= wanted:
            break
    done.add(system.curvature)
    if point.entry is not None:
        point.entry.remake = None
    if not compared:
        where = point.structure.families[0].where
        what = "unchecked: the value or the derivatives of the function are not finite at any point that was tried"
        remedy = "check the step against jax.grad and jax.hessian once, or use check=False"
        warnings.warn(explain_error(what, where, remedy), UncheckedWarning, stacklevel=5)
    return None


def _difference(
    point: Point, system: System, given: Sequence[Numeric] | None, made: _Made
) -> _Difference | bool:
    """What differs at a point; else whether there was anything to compare."""
    structure = system.structure
    v = _direction(structure)
    try:
        theirs = _derivatives(system, point, v, made)
        ours = _models(system, point, made) if given is None else given
    except jax.errors.JaxRuntimeError:  # a callback that refuses random numbers
        return False
    value, gradient, curved = (np.atleast_1d(np.asarray(t, np.float64)) for t in theirs)
    if not all(np.all(np.isfinite(t)) for t in (value, gradient, curved)):
        return False
    found, slots, duals, sources = (np.asarray(a, np.float64) for a in ours)
    # At a solution the gradient is rounding: what cancels in it is as large as the other duals. And so is H·v of a function
    # that is linear but for rounding (the standard deviation of two numbers).
    terms = max(float(np.max(np.abs(a), initial=0.0)) for a in (sources, duals))
    floor = _CANCELS * structure.eps**0.5 * terms
    compare = partial(_compare, structure)
    worst = compare(_GRADIENT, duals[: structure.num_inputs], gradient, floor)
    if worst is None and system.curvature == "exact":
        worst = compare("Hessian-vector product", lifted_product(structure, sources, v), curved, floor)
    if worst is None:
        floor *= float(np.max(np.abs(slots), initial=0.0))
        other = compare("value", np.atleast_1d(found), value, floor)
        if other is not None:
            what = (
                f"the value of the function and that of its graph differ (relative difference {other.error:.1e}), and their "
                "derivatives agree: JAX's own derivatives may not belong to this value"
            )
            warnings.warn(explain_error(what, structure.families[0].where), AccuracyWarning, stacklevel=6)
    return True if worst is None else worst


def _direction(structure: Structure) -> np.ndarray:
    """A vector to multiply H by."""
    rng = np.random.default_rng(0)
    v = rng.choice([-1.0, 1.0], structure.num_inputs) * rng.uniform(0.5, 1.0, structure.num_inputs)
    return v.astype(structure.dtype)


def _blames_jax(found: _Difference, point: Point, system: System, made: _Made) -> bool:
    """Whether JAX's derivatives are not those of the values that the function has nearby (the graph's need not be, either)."""
    structure, v = system.structure, _direction(system.structure)
    x = np.asarray(point.x)
    h = structure.eps ** (1 / 3) * max(1.0, float(np.max(np.abs(x))))

    def near(length: float) -> np.ndarray:
        at = dataclasses.replace(point, x=x + (length * v).astype(x.dtype))
        if found.what == _GRADIENT:  # beside its derivatives, JAX may compute another value
            value = _run(compiled(structure, original_value), (system.maps, at), made, made.inside)[0]
            return np.atleast_1d(np.asarray(value, np.float64))
        return np.asarray(_derivatives(system, at, v, made)[1], np.float64)

    try:
        change, coarser = ((near(step) - near(-step)) / (2 * step) for step in (h, 2 * h))
    except jax.errors.JaxRuntimeError:
        return False
    ours, theirs = found.sides
    if found.what == _GRADIENT:
        ours, theirs = np.atleast_1d(ours @ v), np.atleast_1d(theirs @ v)
    wrong, unsure = np.max(np.abs(theirs - change)), np.max(np.abs(coarser - change))
    return bool(wrong > _CLEARLY * unsure and _CLEARLY * wrong > np.max(np.abs(theirs - ours)))


def _derivatives(system: System, point: Point, v: np.ndarray, made: _Made) -> Sequence[Numeric]:
    """(f, g, H·v) of the function itself. On the host the compiled product serves for residuals later."""
    structure, given = system.structure, (system.maps, point, v)
    if point.replay is not None and point.is_long:
        return point.replay.derivatives(point.captured, np.asarray(point.x), v)
    if system.curvature == "exact":
        return _run(compiled(structure, derivatives_at), given, made, made.inside)
    # Of the Gauss-Newton part JAX knows no product that would be independent of the graph: v is not used.
    return (*_run(compiled(structure, gradient_at), given[:2], made, made.inside), v)


def _models(system: System, point: Point, made: _Made) -> Sequence[Numeric]:
    """The numbers of `LocalModels` (value, slots, duals, sources)."""
    # Solving long recurrences at once is for speed; what is checked is the structure.
    evaluation = "in_turn" if system.evaluation == "at_once" else system.evaluation
    function = compiled(system.structure, linearized, system.curvature, evaluation)
    return _run(function, (system.maps, point, None), made, True)


def _run(
    function: jax.stages.Wrapped, given: Sequence[PyTree], made: _Made, by_numpy: bool
) -> Sequence[Numeric]:
    """Run a function on known numbers: by NumPy where that is asked for and quick, else compiled."""
    leaves = jax.tree_util.tree_leaves(given)
    if by_numpy and function not in made.programs:
        made.programs[function] = _for_numpy(function.trace(*given))
    program = made.programs.get(function)
    if program is not None:
        try:
            with np.errstate(all="ignore"):
                return program.run([as_known(leaf) for leaf in leaves])
        except TypeError:  # NumPy lacks one of its types
            made.programs[function] = None
    if not made.inside:
        return jax.tree_util.tree_leaves(function(*given))
    # Inside jit a call would be staged. A loop of many rounds is quick on the host whatever the platform.
    with _host():
        if jax.default_backend() != "cpu":
            given = jax.tree.map(as_known, given)
        if function not in made.compiled:
            made.compiled[function] = function.trace(*given).lower().compile(_QUICKLY)
        return jax.tree_util.tree_leaves(made.compiled[function](*given))


def _host() -> contextlib.AbstractContextManager[object]:
    """Run on the processor of the host, where JAX knows it."""
    try:
        return jax.default_device(jax.devices("cpu")[0])
    except RuntimeError:  # JAX_PLATFORMS leaves it out
        return contextlib.nullcontext()


def _for_numpy(traced: jax.stages.Traced) -> NumpyProgram | None:
    """A traced function for NumPy; None where its loops are too long for that."""
    hoisted: list[Numeric] = []
    flat = flatten_jaxpr(traced.jaxpr, hoisted, VALUE_CALLS)
    return None if count_operations(flat) > _MOST_OPERATIONS else NumpyProgram(flat, hoisted)


def _compare(
    structure: Structure, what: str, ours: np.ndarray, theirs: np.ndarray, floor: float
) -> _Difference | None:
    tolerance = _TOLERANCE if structure.eps < _DOUBLE else _COARSE
    scale = max(float(np.max(np.abs(theirs), initial=0.0)), floor)
    error = np.where(np.isfinite(ours), np.abs(ours - theirs), np.inf)
    worst = int(np.argmax(error))
    if error[worst] <= tolerance * scale:
        return None
    slot = worst if len(ours) == structure.num_inputs else 0
    return _Difference(what, float(error[worst] / scale), slot, (ours, theirs))


def _sentence(structure: Structure, found: _Difference) -> str:
    return (
        f"the structure read from the objective has a wrong {found.what}: relative error {found.error:.1e} "
        f"at {structure.slot_name(found.slot)}"
    )


def _readers(structure: Structure, slot: int) -> list:
    """The families that read an input: the wrong one is among them or behind them."""
    return [f for f in structure.families if np.any(f.args == slot)]


def _suspects(structure: Structure, found: _Difference) -> str:
    readers = _readers(structure, found.slot)
    return "; ".join(f"family {f.name} ({f.where})" for f in readers[:3]) or "no family reads it"
