"""structure.outputs: which slots hold the auxiliary data. The oracle is evaluation: a slot must hold the value of its scalar."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt.graph import Kind, Output, Structure, forward
from gnewt.newton.objective import Objective
from gnewt.trace import trace_graph


def read(f: Callable, *args: Any, keep: Any = ()) -> tuple[Structure, Any]:
    """Trace f, and check every slot of its outputs against f's own values."""
    graph = trace_graph(f, *args, has_aux=True, keep=keep)
    value, aux = f(*args)
    assert np.allclose(graph(args[0]), value, rtol=1e-12)
    slots = np.asarray(
        forward(graph, jax.tree.map(jnp.asarray, graph.maps), graph.data, graph.ravel(args[0]))
    )
    found, tree = jax.tree.flatten(graph.outputs)
    assert tree == jax.tree.structure(aux)
    for output, leaf in zip(found, jax.tree.leaves(aux), strict=True):
        assert output.shape == np.shape(leaf)
        assert np.array_equal(output.is_slot, output.kinds == Kind.SLOT)
        held = output.is_slot
        if held.any():
            assert np.allclose(slots[output.slots[held]], np.asarray(leaf)[held], rtol=1e-12, atol=1e-14)
    return graph, graph.outputs


def kinds(output: Output) -> set[str]:
    return {Kind(k).name for k in np.unique(output.kinds)}


def same_structure(a: Structure, b: Structure) -> bool:
    if (a.num_slots, len(a.families)) != (b.num_slots, len(b.families)):
        return False
    return all(
        np.array_equal(p.args, q.args) and np.array_equal(p.hess_pattern, q.hess_pattern)
        for p, q in zip(a.families, b.families, strict=True)
    )


def advance(x: Any, u: Any) -> Any:
    return jnp.stack([x[0] + 0.1 * x[1], x[1] + 0.1 * jnp.sin(x[0]) + u])


def scanned(us: Any) -> Any:
    def stage(x: Any, u: Any) -> Any:
        y = advance(x, u)
        return y, (x, y, jnp.sum(x**2) + u**2)

    last, (before, after, costs) = jax.lax.scan(stage, jnp.array([0.3, -0.2]), us)
    states = {"before": before, "after": after, "last": last, "reversed": before[::-1], "one": after[2, 1]}
    return jnp.sum(costs) + jnp.sum(last**2), states | {"costs": costs}


US = jnp.asarray(np.random.default_rng(0).normal(size=6))


def test_stacked_states_of_a_scan() -> None:
    graph, out = read(scanned, US)
    assert same_structure(graph, trace_graph(lambda us: scanned(us)[0], US))
    for name in ("before", "after", "last", "reversed", "one"):
        assert kinds(out[name]) == {"SLOT"}, name
    assert np.array_equal(out["before"].slots[1:], out["after"].slots[:-1])
    assert np.array_equal(out["after"].slots[-1], out["last"].slots)
    assert np.array_equal(out["before"].slots[::-1], out["reversed"].slots)
    assert kinds(out["costs"]) == {"SUBSTITUTED"}


def test_keep_by_name_and_all() -> None:
    plain, _ = read(scanned, US)
    graph, out = read(scanned, US, keep="costs")
    assert kinds(out["costs"]) == {"SLOT"} and graph.num_slots == plain.num_slots + 6
    # What loops carry is there already: to keep it adds nothing.
    assert read(scanned, US, keep=("before", "after", "last"))[0].num_slots == plain.num_slots
    everything, out = read(scanned, US, keep=True)
    assert all(kinds(leaf) == {"SLOT"} for leaf in jax.tree.leaves(out))
    step = gnewt.newton_step(everything)(US)
    assert np.allclose(step, gnewt.newton_step(scanned, has_aux=True)(US)[0], rtol=1e-9)


def test_unrolled_loops() -> None:
    def f(us: Any, length: int) -> Any:
        x, total, states, totals = jnp.array([0.3, -0.2]), 0.0, [], []
        for t in range(length):
            states.append(x)
            x = advance(x, us[t])
            total += jnp.sum(x**2) + us[t] ** 2
            totals.append(total)
        return total, (states, totals)

    us = jnp.asarray(np.random.default_rng(1).normal(size=12))
    for length in (3, 12):  # a few equations, and enough of them to be rolled into a loop
        _, (states, totals) = read(lambda us, n=length: f(us, n), us)
        if length == 12:
            assert all(kinds(x) == {"SLOT"} for x in states[1:])
        # Sums that the objective peels off are in no slot, and a term of the sum must not pass for the sum.
        assert not any(total.is_slot.any() for total in totals)
        _, (states, totals) = read(lambda us, n=length: f(us, n), us, keep=True)
        # The first position after the start does not depend on the controls.
        assert all(kinds(x) == {"SLOT"} for x in [*states[2:], *totals])
        assert kinds(states[1]) <= {"SLOT", "CONSTANT"}


def test_nested_scan_and_reverse() -> None:
    def f(us: Any) -> Any:
        def outer(x: Any, row: Any) -> Any:
            def inner(z: Any, u: Any) -> Any:
                return advance(z, u), z

            y, inside = jax.lax.scan(inner, x, row)
            return y, (x, inside, jnp.sum(jnp.cos(y)))

        last, (xs, inside, costs) = jax.lax.scan(outer, jnp.array([0.3, -0.2]), us, reverse=True)
        return jnp.sum(costs) + jnp.sum(last**2), {"xs": xs, "inside": inside, "last": last}

    us = jnp.asarray(np.random.default_rng(2).normal(size=(4, 3)))
    plain, out = read(f, us)
    assert same_structure(plain, trace_graph(lambda us: f(us)[0], us))
    assert kinds(out["xs"]) == {"SLOT"} and kinds(out["last"]) == {"SLOT"}
    _, out = read(f, us, keep=("inside",))
    assert out["inside"].is_slot[:-1].all()


def test_long_bodies_are_followed_inside() -> None:
    def f(us: Any) -> Any:
        def stage(x: Any, u: Any) -> Any:
            y = x + 0.1 * (jnp.roll(x, 1) - 2 * x + jnp.roll(x, -1)) + 0.05 * jnp.sin(x)
            y = y.at[0].add(u)
            return y, (x, y[::2], jnp.sum(x**2))

        last, (xs, even, costs) = jax.lax.scan(stage, jnp.linspace(0.0, 1.0, 120), us)
        return jnp.sum(costs) + jnp.sum(last**2) + jnp.sum(us**2), {"xs": xs, "even": even, "last": last}

    graph, out = read(f, US)
    assert same_structure(graph, trace_graph(lambda us: f(us)[0], US))
    assert out["xs"].is_slot[-1].any() and "SLOT" not in kinds(out["last"])
    inner = out["even"].is_slot[:-1]
    assert inner.any() and np.array_equal(out["even"].slots[:-1][inner], out["xs"].slots[1:, ::2][inner])


def test_vmap() -> None:
    def f(us: Any) -> Any:
        values, states = jax.vmap(scanned)(us)
        return jnp.sum(values), states

    us = jnp.asarray(np.random.default_rng(3).normal(size=(3, 5)))
    _, out = read(f, us)
    assert kinds(out["before"]) == {"SLOT"} and out["before"].shape == (3, 5, 2)
    assert len(np.unique(out["before"].slots[:, 1:])) == 3 * 4 * 2


def test_constants_integers_inputs_and_fused_values() -> None:
    scale = jnp.arange(3.0)

    def f(x: Any, y: Any) -> Any:
        aux = {
            "input": x[::-1],
            "other argument": y,
            "captured": scale * 2,
            "literal": jnp.ones(2),
            "count": jnp.argmax(x),
            "sign": (x > 0).astype(jnp.int32),
            "fused": jnp.sin(x),
            "mixed": jnp.concatenate([x[:1], y[:1], jnp.sin(x[:1])]),
            "python": 3,
            "text": "anything",
            "nothing": None,
        }
        return jnp.sum(jnp.sin(x) ** 2 * y), aux

    x, y = jnp.array([0.3, -0.4, 0.5]), jnp.array([1.0, 2.0, 3.0])
    for keep in ((), True):
        graph = trace_graph(f, x, y, has_aux=True, keep=keep)
        out = graph.outputs
        assert np.array_equal(out["input"].slots, [2, 1, 0])
        for name in ("other argument", "captured", "literal", "python", "text"):
            assert kinds(out[name]) == {"CONSTANT"}, name
        for name in ("count", "sign"):
            assert kinds(out[name]) == {"SUBSTITUTED"}, name
        assert kinds(out["fused"]) == {"SLOT" if keep else "SUBSTITUTED"}
        assert out["mixed"].kinds[:2].tolist() == [Kind.SLOT, Kind.CONSTANT]
        assert out["nothing"] is None
    assert "2 constant" in repr(out["literal"]) and "float64[2]" in repr(out["literal"])


def test_duplicates_share_a_slot_only_as_the_same_computation() -> None:
    def f(x: Any) -> Any:
        a, b = jnp.exp(x[0]), jnp.exp(x[1])
        return (a + b) ** 2 + a * b, {"a": a, "again": a, "b": b}

    _, out = read(f, jnp.array([0.5, 0.5]), keep=True)
    assert out["a"].slots == out["again"].slots and out["a"].slots != out["b"].slots


@pytest.mark.parametrize("wrap", [tuple, list, lambda parts: {"p": parts[0], "q": (None, parts[1])}])
def test_pytrees_are_mirrored(wrap: Callable) -> None:
    def f(x: Any) -> Any:
        return jnp.sum(x**2), wrap([x, jnp.sum(x)])

    read(f, jnp.ones(3))
    read(f, jnp.ones(3), keep=True)


def test_what_the_objective_does_not_need() -> None:
    def f(us: Any) -> Any:
        def stage(carry: Any, u: Any) -> Any:
            x, fuel = carry
            after = (advance(x, u), fuel - jnp.sqrt(1 + u**2))
            return after, (jnp.sum(x**2) + u**2, after)

        _, (costs, (xs, fuel)) = jax.lax.scan(stage, (jnp.array([0.3, -0.2]), jnp.array(1.0)), us)
        return jnp.sum(costs), {"xs": xs, "fuel": fuel, "square": us**3}

    _, out = read(f, US)
    assert not out["fuel"].is_slot.any() and not out["square"].is_slot.any()
    graph, out = read(f, US, keep=("fuel", "square"))
    assert kinds(out["fuel"]) == {"SLOT"} and kinds(out["square"]) == {"SLOT"}
    for engine in ("reference", "native", "xla"):
        step = gnewt.newton_step(graph, engine=engine)(US)
        dense = -np.linalg.solve(jax.hessian(lambda u: f(u)[0])(US), jax.grad(lambda u: f(u)[0])(US))
        assert np.allclose(step, dense, rtol=1e-9), engine
    assert len(gnewt.factorize(graph, order="causal")(US).policy()) == len(US)
    assert gnewt.minimize(graph, US).success


def test_inside_jit_and_new_captured_values() -> None:
    box = {"i": np.array([0, 2])}

    def f(x: Any, y: Any) -> Any:
        return jnp.sum(jnp.cos(x) * y), {"picked": x[jnp.asarray(box["i"])], "y": y, "x": x}

    seen = []

    @jax.jit
    def g(x: Any, y: Any) -> Any:
        point = Objective(f, has_aux=True).at((x, y))
        seen.append(point.structure.outputs)
        return gnewt.newton_step(f, has_aux=True)(x, y)[0]

    x = jnp.array([0.3, -0.4, 0.5])
    assert np.all(np.isfinite(g(x, x + 3)))
    assert np.array_equal(seen[0]["x"].slots, [0, 1, 2]) and kinds(seen[0]["y"]) == {"CONSTANT"}
    # An index that may change with the next call is looked at only where it is kept.
    for keep in ((), True):
        read(f, x, x + 3, keep=keep)
        box["i"] = np.array([1, 2])
        read(f, x, x + 3, keep=keep)
        box["i"] = np.array([0, 2])
    assert trace_graph(f, x, x, has_aux=True, keep=True).outputs["picked"].slots.tolist() == [0, 2]


def test_objective_keeps_through_the_same_cache() -> None:
    kept = Objective(scanned, has_aux=True, keep="costs").at((US,)).structure
    assert kept is Objective(scanned, has_aux=True, keep=("costs",)).at((US,)).structure
    assert kept is not Objective(scanned, has_aux=True).at((US,)).structure


def test_refusals_say_what_to_do() -> None:
    with pytest.raises(
        gnewt.TraceError, match=r"'cost'[\s\S]*'before'[\s\S]*test_outputs.py[\s\S]*names of its entries"
    ):
        trace_graph(scanned, US, has_aux=True, keep="cost")
    with pytest.raises(gnewt.TraceError, match=r"is a tuple[\s\S]*keep=True"):
        trace_graph(lambda x: (jnp.sum(x**2), (x,)), US, has_aux=True, keep="x")
    with pytest.raises(gnewt.TraceError, match=r"has_aux is False[\s\S]*has_aux=True"):
        trace_graph(lambda x: jnp.sum(x**2), US, keep=True)
