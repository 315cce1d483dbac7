"""Steps of random programs that call others: loops, branches, functions with their own derivatives, vmap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from helpers.random_programs import DEPTH, Draft, NothingFits, Step, fit, step


def _kinds(d: Draft, places: Sequence[int]) -> list[Any]:
    return [jax.ShapeDtypeStruct(d.avals[p].shape, d.avals[p].dtype) for p in places]


def _body(d: Draft, avals: Sequence[Any], outs: Sequence[Any]) -> Callable[..., list[Any]]:
    """Draft a function of the given inputs with the given results."""
    if d.depth <= 0:
        raise NothingFits
    inner = d.inner(avals, int(d.rng.integers(1, 3)))
    results = [inner.output(aval) for aval in outs]

    def run(*values: Any) -> list[Any]:
        found = inner.run(values)
        return [out(found) for out in results]

    return run


@step(4)
def _scan(d: Draft) -> Step:
    """A scan over a vector or the rows of a matrix; sometimes it reads a value of outside."""
    c, length = d.pick(), int(d.rng.integers(2, 4))
    x, others = d.pick(least=1), [d.pick() for _ in range(int(d.rng.integers(2)))]
    if d.chance(0.3):
        others += [d.pick("i")]
    carry, captured = _kinds(d, [c]), _kinds(d, others)
    row = jax.ShapeDtypeStruct((), d.avals[x].dtype)
    ys = jax.ShapeDtypeStruct((), d.avals[c].dtype)
    body = _body(d, [*captured, *carry, row], [*carry, ys])
    linear, reverse, which = d.chance(0.4), d.chance(0.3), int(d.rng.integers(3))
    decay, gain = d.number(0.2, 0.7), d.number(-0.3, 0.3)

    def run(v: Sequence[Any]) -> Any:
        outside = [v[o] for o in others]

        def advance(s: Any, t: Any) -> tuple[Any, Any]:
            new, y = body(*outside, s, t)
            return (decay * s + gain * new if linear else new), y

        xs = fit(v[x], (length,))
        last, collected = lax.scan(advance, v[c], xs, reverse=reverse)
        return [last, collected, jnp.sum(last) * collected][which]

    return run


@step(1.5)
def _detached_coefficient_scan(d: Draft) -> Step:
    """A loop that is linear in its carry, with a coefficient that is data: detached, or chosen by a condition."""
    c, x, table, mode = d.pick(rank=0), d.pick(least=1), d.table(3), int(d.rng.integers(5))
    decay = d.number(0.1, 0.6)

    def run(v: Sequence[Any]) -> Any:
        outer = v[c]

        def advance(s: Any, t: Any) -> tuple[Any, Any]:
            coefficient = [
                lambda: table[(s > 0.1).astype(int)],
                lambda: lax.stop_gradient(s),
                lambda: lax.stop_gradient(outer),
                lambda: lax.cond(s > t, lambda: table[0], lambda: table[1]),
                lambda: jnp.floor(3 * s) * 0.3,
            ][mode]()
            s = decay * s + t - 0.2 * coefficient.astype(s.dtype) * s
            return s, s

        return lax.scan(advance, outer, fit(v[x], (3,)).astype(outer.dtype))[1]

    return run


@step(1.5)
def _fori(d: Draft) -> Step:
    a, count = d.pick(), int(d.rng.integers(2, 4))
    kind = _kinds(d, [a])
    body = _body(d, [*kind, jax.ShapeDtypeStruct((), jnp.int32)], kind)
    return lambda v: lax.fori_loop(0, count, lambda i, s: body(s, jnp.asarray(i, jnp.int32))[0], v[a])


@step(1.5)
def _map(d: Draft) -> Step:
    a, other = d.pick(least=1), d.pick()
    row = jax.ShapeDtypeStruct((), d.avals[a].dtype)
    body = _body(d, [row, *_kinds(d, [other])], [row])
    return lambda v: lax.map(lambda t: body(t, v[other])[0], fit(v[a], (3,)))


@step(2.5)
def _vmap(d: Draft) -> Step:
    a, other = d.pick(least=1), d.pick()
    row = jax.ShapeDtypeStruct((2,), d.avals[a].dtype)
    scalar = jax.ShapeDtypeStruct((), d.avals[a].dtype)
    body = _body(d, [row, *_kinds(d, [other])], [scalar])
    return lambda v: jax.vmap(lambda t, o: body(t, o)[0], (0, None))(fit(v[a], (3, 2)), v[other])


@step(2)
def _cond(d: Draft) -> Step:
    places = [d.pick(), d.pick()]
    kinds = _kinds(d, places)
    yes, no = _body(d, kinds, kinds[:1]), _body(d, kinds, kinds[:1])
    given = d.pick("i") if d.chance(0.5) else -1
    bound = d.number(-0.5, 0.5)

    def run(v: Sequence[Any]) -> Any:
        test = jnp.sum(v[places[0]]) > bound if given < 0 else jnp.ravel(v[given])[0].astype(bool)
        return lax.cond(test, lambda *a: yes(*a)[0], lambda *a: no(*a)[0], *[v[p] for p in places])

    return run


@step(1)
def _switch(d: Draft) -> Step:
    a, i = d.pick(), d.pick("i")
    kinds = _kinds(d, [a])
    bodies = [_body(d, kinds, kinds) for _ in range(3)]
    return lambda v: lax.switch(
        jnp.ravel(v[i])[0].astype(jnp.int32) % 3, [lambda x, b=b: b(x)[0] for b in bodies], v[a]
    )


@step(1.5)
def _custom_jvp(d: Draft) -> Step:
    """A function with a rule of its own: its derivative is another one's."""
    a, scale, mode = d.pick(), d.number(0.5, 1.5), int(d.rng.integers(3))
    if mode == 1 and d.depth < DEPTH:
        # Inside a loop JAX's second derivatives follow the value, not the rule: they are no oracle for such a rule.
        mode = 0

    @jax.custom_jvp
    def call(x: Any) -> Any:
        return [lambda: jnp.sin(x) * scale, lambda: jnp.round(x), lambda: jnp.sum(x * x) * x][mode]()

    @call.defjvp
    def _rule(primals: Any, tangents: Any) -> Any:
        (x,), (t,) = primals, tangents
        if mode == 2:
            return call(x), jnp.sum(x * x) * t + 2 * jnp.sum(x * t) * x
        return call(x), [lambda: scale * jnp.cos(x) * t, lambda: t][mode]()

    return lambda v: call(v[a])


@step(1.5)
def _custom_vjp(d: Draft) -> Step:
    a, b, scale = d.pick(), d.pick(), d.number(0.5, 1.5)

    def plain(x: Any, y: Any) -> Any:
        return jnp.sin(x) * jnp.sum(y * y) * scale

    @jax.custom_vjp
    def call(x: Any, y: Any) -> Any:
        return plain(x, y)

    def forward(x: Any, y: Any) -> Any:
        return plain(x, y), (x, y)

    def backward(kept: Any, t: Any) -> Any:
        x, y = kept
        return scale * jnp.cos(x) * jnp.sum(y * y) * t, 2 * scale * y * jnp.sum(jnp.sin(x) * t).astype(
            y.dtype
        )

    call.defvjp(forward, backward)
    return lambda v: call(v[a], v[b].astype(v[a].dtype))


@step(0.7)
def _while_detached(d: Draft) -> Step:
    a, b = d.pick(), d.pick()

    def run(v: Sequence[Any]) -> Any:
        start = jnp.sum(lax.stop_gradient(v[a]))
        count = lax.while_loop(
            lambda s: s[0] < 2, lambda s: (s[0] + 0.7, s[1] + 1), (start, jnp.zeros_like(start))
        )[1]
        return 0.2 * lax.stop_gradient(jnp.minimum(count, 5)).astype(v[b].dtype) * v[b]

    return run


@step(0.7)
def _checkpoint(d: Draft) -> Step:
    a = d.pick()
    kinds = _kinds(d, [a])
    body = _body(d, kinds, kinds)
    inside = jax.checkpoint if d.chance(0.5) else jax.jit
    return lambda v: inside(lambda x: body(x)[0])(v[a])
