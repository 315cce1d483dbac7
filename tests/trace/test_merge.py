"""Equal parts of an objective and of kept outputs become one: the graph is no larger than if they had been written once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gnewt.graph import Kind, Structure, forward, objective
from gnewt.trace import trace_function, trace_graph

T = 12
START = jnp.array([1.0, 0.0])


def step(s: Any, u: Any) -> Any:
    return s + 0.1 * jnp.stack([s[1], jnp.sin(s[0]) + u])


def scanned(u: Any) -> Any:
    return jax.lax.scan(lambda s, v: (step(s, v), step(s, v)), START, u)[1]


def fori(u: Any) -> Any:
    first = jnp.zeros((T + 1, 2)).at[0].set(START)
    return jax.lax.fori_loop(0, T, lambda t, table: table.at[t + 1].set(step(table[t], u[t])), first)[1:]


def unrolled(u: Any) -> Any:
    states = [START]
    for t in range(T):
        states.append(step(states[-1], u[t]))
    return jnp.stack(states[1:])


def mapped(u: Any) -> Any:
    starts = jnp.array([[1.0, 0.0], [0.5, 0.1]])
    found = jax.vmap(lambda s0: jax.lax.scan(lambda s, v: (step(s, v), step(s, v)), s0, u)[1])(starts)
    return jnp.moveaxis(found, 0, 1).reshape(T, 4)


def nested(u: Any) -> Any:
    def outer(s: Any, part: Any) -> Any:
        return jax.lax.scan(lambda s, v: (step(s, v), step(s, v)), s, part)

    return jax.lax.scan(outer, START, u.reshape(3, 4))[1].reshape(T, 2)


def chosen(u: Any) -> Any:
    def body(s: Any, tu: Any) -> Any:
        s = jax.lax.cond(tu[0] > 5, lambda: step(s, tu[1]), lambda: s + tu[1])
        return s, s

    return jax.lax.scan(body, START, (jnp.arange(T), u))[1]


KINDS = {
    "scan": scanned,
    "fori_loop": fori,
    "python": unrolled,
    "vmap": mapped,
    "nested": nested,
    "jit": jax.jit(scanned),
    "checkpoint": jax.checkpoint(scanned),
    "cond": chosen,
}


def together(value: Callable, parts: list[Callable]) -> Callable:
    return lambda u: (value(u), [p(u) for p in parts])


def dense(structure: Structure, f: Callable, u: Any) -> None:
    """Objective and kept outputs of the graph are those of the function."""
    maps, data = jax.tree.map(jnp.asarray, structure.maps), structure.data
    slots = forward(structure, maps, data, structure.ravel(u))
    value, aux = f(u)
    assert np.allclose(objective(structure, maps, data, slots), value, rtol=1e-12)
    for output, leaf in zip(structure.outputs, jax.tree.leaves(aux), strict=True):
        assert np.all(output.is_slot | (output.kinds == Kind.CONSTANT))
        held = output.is_slot
        assert np.allclose(
            np.asarray(slots)[output.slots[held]], np.asarray(leaf)[held], rtol=1e-12, atol=1e-13
        )


@pytest.mark.parametrize("kind", KINDS)
def test_a_rollout_that_is_called_four_times_is_there_once(kind: str) -> None:
    rollout = KINDS[kind]

    def once(u: Any) -> Any:
        x = rollout(u)
        return jnp.sum(x**2) + jnp.sum(u**2), [x[-1] - 3.0, x[:, 0], jnp.sum(x[:, 1])]

    apart = together(
        lambda u: jnp.sum(rollout(u) ** 2) + jnp.sum(u**2),
        [lambda u: rollout(u)[-1] - 3.0, lambda u: rollout(u)[:, 0], lambda u: jnp.sum(rollout(u)[:, 1])],
    )
    u = jnp.linspace(-1, 1, T)
    one, many = (trace_graph(f, u, has_aux=True, keep=True) for f in (once, apart))
    assert many.num_slots <= one.num_slots + 2 * T
    dense(many, apart, u)


def test_loops_with_other_outputs_share_their_states() -> None:
    def cost(u: Any) -> Any:
        def body(carry: Any, v: Any) -> Any:
            total, s = carry
            return (0.9 * total + jnp.sum(s**2) + v**2, step(s, v)), jnp.cos(s[0])

        (total, _), extra = jax.lax.scan(body, (0.0, START), u)
        return total + jnp.sum(extra)

    def end(u: Any) -> Any:
        return jax.lax.scan(lambda s, v: (step(s, v), None), START, u)[0]

    def heights(u: Any) -> Any:
        return jax.lax.scan(lambda s, v: (step(s, v), (s, jnp.sin(s[1]))), START, u)[1][1]

    f = together(cost, [end, heights, lambda u: scanned(u)[:, 0]])
    u = jnp.linspace(-1, 1, T)
    found = trace_graph(f, u, has_aux=True, keep=True)
    alone = trace_graph(lambda u: (cost(u), ()), u, has_aux=True)
    dense(found, f, u)
    assert found.num_slots <= alone.num_slots + 3 * T
    assert np.array_equal(found.outputs[0].slots, [found.outputs[2].slots[-1], found.outputs[0].slots[1]])


def test_what_differs_is_not_merged() -> None:
    other = lambda u: jax.lax.scan(lambda s, v: (step(s, v), step(s, v)), START + 0.1, u)[1]  # noqa: E731
    late = lambda u: jax.lax.scan(lambda s, v: (step(s, v), step(s, v)), START, u**2)[1]  # noqa: E731
    slow = lambda u: jax.lax.scan(lambda s, v: (step(s, 0.5 * v),) * 2, START, u)[1]  # noqa: E731
    back = lambda u: jax.lax.scan(lambda s, v: (step(s, v),) * 2, START, u, reverse=True)[1]  # noqa: E731
    f = together(lambda u: jnp.sum(scanned(u) ** 2), [other, late, slow, back, scanned])
    u = jnp.linspace(-1, 1, T)
    dense(trace_graph(f, u, has_aux=True, keep=True), f, u)


def test_captured_values_that_were_equal_may_differ_later() -> None:
    starts = [jnp.array([1.0, 0.0]), jnp.array([1.0, 0.0])]

    def rollout(s0: Any, u: Any) -> Any:
        return jax.lax.scan(lambda s, v: (step(s, v), step(s, v)), s0, u)[1]

    f = together(lambda u: jnp.sum(rollout(starts[0], u) ** 2), [lambda u: rollout(starts[1], u)])
    traced = trace_function(f, has_aux=True, keep=True)
    u = jnp.linspace(-1, 1, T)
    sizes = []
    for second in ([1.0, 0.0], [0.3, 0.2], [1.0, 0.0]):
        starts[1] = jnp.array(second)
        structure, data = traced.structure_for((u,))
        maps = jax.tree.map(jnp.asarray, structure.maps)
        slots = np.asarray(forward(structure, maps, data, structure.ravel(u)))
        assert np.allclose(slots[structure.outputs[0].slots], f(u)[1][0], rtol=1e-12)
        sizes.append(structure.num_slots)
    assert sizes[0] == sizes[2] < sizes[1]


def test_inside_jit_with_traced_parameters() -> None:
    sizes = []

    @jax.jit
    def run(p: Any, u: Any) -> Any:
        rollout = lambda u: jax.lax.scan(lambda s, v: (step(s, v) * p[0],) * 2, p, u)[1]  # noqa: E731
        f = together(
            lambda u: jnp.sum(rollout(u) ** 2), [lambda u: rollout(u)[-1], lambda u: rollout(u)[:, 0]]
        )
        structure, data = trace_function(f, has_aux=True, keep=True).structure_for((u,))
        sizes.append(structure.num_slots)
        slots = forward(structure, structure.maps, data, structure.ravel(u))
        return slots[structure.outputs[0].slots], f(u)[1][0]

    found, wanted = run(START, jnp.linspace(-1, 1, T))
    assert np.allclose(found, wanted, rtol=1e-12)
    assert sizes[0] <= 5 * T
