"""minimize_batch: many problems of one form, a pack of them at a time, by one compiled function for a few steps.

Lanes whose problem is solved are given the next one, so that no problem waits for another. What a lane computes is the
loop of `minimize` under vmap: equal decisions, step by step.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt._errors import OptionError, user_line
from gnewt._typing import Argument, PyTree
from gnewt.graph import Graph, Structure
from gnewt.newton.batch_programs import Lanes, Numbers, constrained_lanes, free_lanes
from gnewt.newton.constrained import is_constrained
from gnewt.newton.loop import Search
from gnewt.newton.numbers import RealLike
from gnewt.newton.options import check_args, check_kwargs, check_limits, check_tolerance
from gnewt.newton.result import Result, X
from gnewt.newton.statuses import Status
from gnewt.newton.system import OrderLike

_WIDTH = 256
"""Lanes at most: enough to share the cost of a compiled step, few enough that the last problems leave few of them idle."""
_SHARE = 4
"""Lanes are filled anew by a quarter of them at a time."""
_AT_ONCE = 2
"""Steps between two looks at which lanes have ended."""


class BatchProgress(NamedTuple):
    """What the callback of a batch sees whenever some problems have ended."""

    done: int
    total: int
    codes: dict[Status, int]
    """How many problems ended with each status."""
    seconds: float


def minimize_batch(
    target: Argument[Callable[..., PyTree] | Graph | Structure],
    x0s: X,
    args: Argument[tuple[PyTree, ...]] = (),
    *,
    in_axes: Argument[int | Sequence[PyTree] | None] = 0,
    kwargs: Argument[Mapping[str, PyTree] | None] = None,
    bounds: Argument[object] = None,
    constraints: Argument[object] = None,
    search: Argument[Search | None] = None,
    has_aux: bool = False,
    tol: Argument[RealLike] = 1e-8,
    max_steps: Argument[int] = 200,
    order: Argument[OrderLike] = "auto",
    curvature: str = "exact",
    engine: str = "auto",
    width: int | None = None,
    verbose: bool = False,
    callback: Argument[Callable[[BatchProgress], object] | None] = None,
    time_limit: Argument[float] = float("inf"),
    check: bool = True,
) -> Result[X]:
    """Minimise many objectives of one form: `minimize` for each x0, at the throughput of a batch.

    A host driver: it keeps a full pack of problems in one compiled function, gives a lane the next problem when its own
    has ended, and each lane factorises the shifts that it tries itself. Inside jit use `jax.vmap` of `minimize`.

    Args:
        target, kwargs, search, has_aux, tol, max_steps, order, curvature, engine, check: as in `minimize`.
        x0s: starts, in the form of the inputs with a leading axis for the problems.
        args: further arguments of the function.
        in_axes: for all args, or for each: the axis of the problems, or None for an argument that all share, as in `jax.vmap`.
        bounds, constraints: as in `minimize`, the same for all problems; functions of constraints get each problem's args.
        width: problems in a pack; at most 256 unless given.
        verbose: show on standard error how many problems have ended.
        callback: called with a `BatchProgress` when problems have ended; the run stops if it returns True.
        time_limit: seconds after which no further step is begun; problems that have not ended have the status TIME_LIMIT.

    Returns:
        A `Result` whose numbers have a leading axis for the problems: `res.code[i]` is the status of problem i (a
        `gnewt.newton.Status`), `res.history` the last step of each. `factor` and `memory` are None.
    """
    tol, max_steps = check_tolerance(tol), check_limits(max_steps, time_limit, callback)
    args, options = check_args(args), check_kwargs(kwargs)
    axes = _axes(in_axes, args)
    size = _size(x0s, args, axes)
    first = jax.tree.map(lambda v: jnp.asarray(v)[0], x0s), _take(args, axes, 0)
    if is_constrained(target, bounds, constraints, False):
        given = (bounds, constraints, has_aux)
        make = constrained_lanes(target, first, options, given, (search, order, curvature, engine), max_steps)
    else:
        make = free_lanes(target, first, options, has_aux, (search, order, curvature, engine), check)
    lanes, numbers = make(x0s, args, axes)
    most = min(size, _WIDTH if width is None else _check_width(width))
    run = _Run(lanes, numbers, size, most, tol, max_steps, _Show(verbose), callback, float(time_limit))
    return run.run()


def _check_width(width: Any) -> int:
    if not isinstance(width, int) or width < 1:
        raise OptionError(f"width is {width!r}", user_line(), "give a number of problems, 1 or more, or None")
    return width


def _axes(in_axes: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    if in_axes is None or isinstance(in_axes, int):
        return (in_axes,) * len(args)
    if not isinstance(in_axes, Sequence) or len(in_axes) != len(args):
        raise OptionError(
            f"in_axes is {in_axes!r} for {len(args)} arguments",
            user_line(),
            "give one axis for all args, or a tuple with an axis (or None) for each",
        )
    return tuple(in_axes)


def _spread(axis: Any, arg: Any) -> list[tuple[int | None, Any]]:
    """The axis of every leaf of an argument."""
    leaves = jax.tree.leaves(arg)
    if axis is None or isinstance(axis, int):
        return [(axis, leaf) for leaf in leaves]
    wide = jax.tree.map(lambda a, part: jax.tree.map(lambda _: -1 if a is None else a, part), axis, arg,
                        is_leaf=lambda a: a is None)  # fmt: skip
    return [(None if a == -1 else a, leaf) for a, leaf in zip(jax.tree.leaves(wide), leaves, strict=True)]


def _size(x0s: Any, args: tuple[Any, ...], axes: tuple[Any, ...]) -> int:
    """How many problems there are."""
    leaves = [(0, leaf) for leaf in jax.tree.leaves(x0s)]
    leaves += [pair for axis, arg in zip(axes, args, strict=True) for pair in _spread(axis, arg)]
    if any(isinstance(leaf, Tracer) for _, leaf in leaves):
        raise OptionError(
            "minimize_batch is called inside a transformation, and it is a loop of the host",
            user_line(),
            "use jax.vmap of gnewt.minimize there",
        )
    sizes = {
        np.shape(leaf)[axis] if np.ndim(leaf) > axis else None for axis, leaf in leaves if axis is not None
    }
    if len(sizes) != 1 or sizes & {None, 0}:
        told = ", ".join(sorted(map(str, sizes))) or "nothing"
        raise OptionError(
            f"the leading axes of x0s and args have the sizes {told}",
            user_line(),
            "give every start, and every argument that in_axes names, one entry for each problem",
        )
    return sizes.pop()  # type: ignore[return-value]


def _take(args: tuple[Any, ...], axes: tuple[Any, ...], at: int) -> tuple[Any, ...]:
    """The arguments of one problem."""
    taken = []
    for axis, arg in zip(axes, args, strict=True):
        leaves = [leaf if a is None else jnp.take(leaf, at, a) for a, leaf in _spread(axis, arg)]
        taken.append(jax.tree.unflatten(jax.tree.structure(arg), leaves))
    return tuple(taken)


class _Functions(NamedTuple):
    """What is compiled, once for a structure and a width."""

    start: Callable[..., Any]
    step: Callable[..., Any]
    put: Callable[..., Any]
    finish: Callable[..., Any]


def _compile(lanes: Lanes) -> _Functions:
    def of(numbers: Numbers, at: jax.Array) -> tuple[list[jax.Array], list[Any]]:
        return [v[at] for v in numbers.own], numbers.shared

    def many(function: Callable[..., Any], shared: Any, *mapped: Any) -> Any:
        return jax.vmap(lambda own, *rest: function(lanes.join(own, shared), *rest))(*mapped)

    def start(numbers: Numbers, at: jax.Array, tol: jax.Array, most: jax.Array) -> Any:
        own, shared = of(numbers, at)
        return many(lambda leaves: lanes.begin(leaves, tol, most), shared, own)

    def step(
        numbers: Numbers, at: jax.Array, carry: Any, steps: jax.Array, tol: jax.Array
    ) -> tuple[Any, jax.Array]:
        own, shared = of(numbers, at)
        carry = many(lambda leaves, c: lanes.advance(leaves, c, steps, tol), shared, own, carry)
        return carry, lanes.code(carry)

    def put(carry: Any, fresh: Any, places: jax.Array) -> Any:
        return jax.tree.map(lambda old, new: old.at[places].set(new, mode="drop"), carry, fresh)

    def finish(numbers: Numbers, at: jax.Array, carry: Any, places: jax.Array, tol: jax.Array) -> Result:
        own, shared = of(numbers, at)
        ended = jax.tree.map(lambda v: v[places], carry)
        return many(lambda leaves, c: lanes.finish(leaves, c, tol), shared, own, ended)

    return _Functions(
        jax.jit(start), jax.jit(step, donate_argnums=2), jax.jit(put, donate_argnums=0), jax.jit(finish)
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Run:
    """The loop: which problem is in which lane."""

    lanes: Lanes
    numbers: Numbers
    size: int
    width: int
    tol: Any
    max_steps: int
    show: _Show
    callback: Callable[[BatchProgress], object] | None
    time_limit: float

    def run(self) -> Result:
        began = time.monotonic()
        functions = self.lanes.memo(("functions", len(self.numbers.own)), lambda: _compile(self.lanes))
        chunk = max(1, self.width // _SHARE)
        width = chunk * -(-self.width // chunk)
        tol = self.lanes.real(self.tol)
        most = np.int32(self.max_steps)
        owner = np.where(np.arange(width) < self.size, np.arange(width), -1)
        at = np.maximum(owner, 0)
        parts = [functions.start(self.numbers, at[i : i + chunk], tol, most) for i in range(0, width, chunk)]
        carry = parts[0] if len(parts) == 1 else jax.tree.map(lambda *v: jnp.concatenate(v), *parts)
        books = _Books(self.size)
        following, ended = min(width, self.size), None
        codes = np.asarray(self.lanes.code(carry))
        while books.done < self.size:
            over = np.flatnonzero((owner >= 0) & (codes != Status.RUNNING))
            runs = np.any((owner >= 0) & (codes == Status.RUNNING))
            if ended is not None:  # nobody goes on: all that are left are written down as they are
                over, runs = np.flatnonzero(owner >= 0), False
            if len(over) >= chunk or (len(over) and (not runs or following >= self.size)):
                over = over[:chunk]
                places = np.resize(over, chunk)
                found = functions.finish(self.numbers, at[places], carry, places, tol)
                books.write(owner[over], found, ended)
                fresh = np.arange(following, min(following + len(over), self.size))
                following += len(fresh)
                owner[over] = -1
                if len(fresh):
                    owner[over[: len(fresh)]] = at[over[: len(fresh)]] = fresh
                    begun = functions.start(self.numbers, np.resize(fresh, chunk), tol, most)
                    outside = np.full(chunk - len(fresh), width)
                    carry = functions.put(carry, begun, np.concatenate([over[: len(fresh)], outside]))
                    codes = np.asarray(self.lanes.code(carry))
                ended = ended or self._ended(books, began)
                continue
            if ended is None and runs:
                try:
                    carry, found_codes = functions.step(self.numbers, at, carry, np.int32(_AT_ONCE), tol)
                    codes = np.asarray(found_codes)
                except KeyboardInterrupt:
                    ended = Status.INTERRUPTED
                if time.monotonic() - began > self.time_limit:
                    ended = Status.TIME_LIMIT
        self.show.end()
        return books.result(self.tol)

    def _ended(self, books: _Books, began: float) -> Status | None:
        seen = BatchProgress(books.done, self.size, books.counts(), time.monotonic() - began)
        self.show(seen)
        stops = self.callback is not None and self.callback(seen) is True
        return Status.STOPPED if stops and books.done < self.size else None


class _Books:
    """Results, as they come in."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.done = 0
        self._leaves: list[np.ndarray] = []
        self._codes: list[np.ndarray] = []
        self._form: Any = None

    def write(self, problems: np.ndarray, found: Result, ended: Status | None) -> None:
        """Write down the results of some problems, which are the first of a chunk."""
        count = len(problems)
        if ended is not None:
            running = (np.asarray(found.code) == Status.RUNNING) | (
                np.asarray(found.code) == Status.MAX_STEPS
            )
            found = dataclasses.replace(found, code=np.where(running, np.int32(ended), found.code))
        leaves, self._form = jax.tree.flatten(found)
        if not self._leaves:
            self._leaves = [np.zeros((self._size, *np.shape(v)[1:]), v.dtype) for v in leaves]
        for whole, part in zip(self._leaves, leaves, strict=True):
            whole[problems] = np.asarray(part)[:count]
        self._codes.append(np.asarray(found.code)[:count])
        self.done += count

    def counts(self) -> dict[Status, int]:
        codes, counts = np.unique(np.concatenate(self._codes), return_counts=True)
        return {Status(int(code)): int(count) for code, count in zip(codes, counts, strict=True)}

    def result(self, tol: Any) -> Result:
        found = jax.tree.unflatten(self._form, self._leaves)
        return dataclasses.replace(found, tol=tol)


@dataclasses.dataclass(frozen=True)
class _Show:
    """A line on standard error: one that is written over where a person watches."""

    verbose: bool

    def __call__(self, seen: BatchProgress) -> None:
        if not self.verbose:
            return
        kinds = ", ".join(f"{count} {status.text}" for status, count in seen.codes.items())
        line = f"{seen.done} of {seen.total} problems in {seen.seconds:.1f} s: {kinds}"
        live = sys.stderr.isatty()
        print(f"\r{line:<78}" if live else line, end="" if live else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self.verbose and sys.stderr.isatty():
            print(file=sys.stderr)
