"""The table of primitives: every NumPy function in it agrees with JAX, every move with JAX's own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from gnewt.jaxprs import flatten_jaxpr, scan_spec
from gnewt.jaxprs.primitives import PRIMITIVES, fold_elementwise, fold_instr, primitive

RNG = np.random.default_rng(7)
UNIT = RNG.uniform(0.1, 0.9, (2, 3))
"""In the domain of all functions of one variable."""
WIDE = RNG.normal(size=(2, 3)) * 3
COUNTS = RNG.integers(-9, 9, (2, 3))
FLAGS = COUNTS > 0

LAX_NAMES = {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "not": "bitwise_not"}

CASES = {
    "integer_pow": (lambda x: lax.integer_pow(x, -3), WIDE),
    "convert_element_type": (lambda x: lax.convert_element_type(x, jnp.int32), WIDE),
    "select_n": (lax.select_n, FLAGS, UNIT, WIDE),
    "clamp": (lax.clamp, np.float64(-1.0), WIDE, np.float64(1.0)),
    "stop_gradient": (lax.stop_gradient, WIDE),
    "rem": (lax.rem, WIDE, UNIT),
    "div": (lax.div, COUNTS, np.where(COUNTS == 0, 3, -COUNTS)[::-1].copy()),
    "pow": (lax.pow, UNIT, WIDE),
    "bitcast_convert_type": (lambda x: lax.bitcast_convert_type(x, jnp.int32), WIDE),
    "iota": (lambda: lax.broadcasted_iota(jnp.int32, (2, 3), 1),),
    "reduce_and": (lambda x: jnp.all(x, 1), FLAGS),
    "reduce_or": (lambda x: jnp.any(x, 1), FLAGS),
    "reduce_sum": (lambda x: jnp.sum(x, 0), WIDE),
    "reduce_prod": (lambda x: jnp.prod(x, 1), WIDE),
    "reduce_max": (lambda x: jnp.max(x, 1), WIDE),
    "reduce_min": (lambda x: jnp.min(x, (0, 1)), WIDE),
    "gather": (lambda x, i: jnp.asarray(x)[:, i], WIDE, np.array([2, 0, -1, 7])),
    "dynamic_slice": (lambda x, i: lax.dynamic_slice(x, (0, i), (2, 2)), WIDE, np.int64(5)),
    "dynamic_update_slice": (lambda x, u: lax.dynamic_update_slice(x, u, (0, 1)), WIDE, UNIT[:, :2]),
    "scatter": (lambda x, i: jnp.asarray(x).at[i].set(9.0), WIDE, np.array([1, 5])),
    "copy": (jnp.copy, WIDE),
    "optimization_barrier": (lambda x, y: lax.optimization_barrier((x, y)), WIDE, UNIT),
    "name": (lambda x: checkpoint_name(x, "kept"), WIDE),
    "polynomial": (lambda x, a, b: lax.polynomial(x, [a, b, 0.5]), WIDE, UNIT, WIDE),
    "reshape": (lambda x: x.reshape(3, 2), WIDE),
    "expand_dims": (lambda x: jnp.expand_dims(x, 1), WIDE),
    "squeeze": (lambda x: jnp.squeeze(x, 0), WIDE[:1]),
    "transpose": (lambda x: x.T, WIDE),
    "rev": (lambda x: lax.rev(x, (1,)), WIDE),
    "slice": (lambda x: lax.slice(x, (0, 0), (2, 3), (1, 2)), WIDE),
    "broadcast_in_dim": (lambda x: lax.broadcast_in_dim(x, (3, 2, 4), (1, 0)), WIDE),
    "concatenate": (lambda x, y: lax.concatenate([x, y], 1), WIDE, UNIT),
    "split": (lambda x: lax.split(x, (1, 2), 1), WIDE),
    "pad": (lambda x: lax.pad(x, 7.0, ((1, 0, 0), (-1, 2, 1))), WIDE),
    "stack": (lambda x, y: jnp.stack([x, y], 1), WIDE, UNIT),
    "unstack": (lambda x: jnp.unstack(x, axis=1), WIDE),
    "tile": (lambda x: jnp.tile(x, (2, 1)), WIDE),
    "dot_general": (
        lambda a, b: jnp.einsum("bij,kbj->kib", a, b),
        RNG.random((2, 3, 4)),
        RNG.random((5, 2, 4)),
    ),
    "cumsum": (lambda x: lax.cumsum(x, 1, reverse=True), RNG.random((2, 3))),
    "scatter-add": (
        lambda x, y: jnp.asarray(x).at[jnp.array([0, 2, 0])].add(y),
        RNG.random((3, 2)),
        RNG.random((3, 2)),
    ),
}
"""Primitive → a function that makes it, and its operands. All other ones are elementwise functions of `jax.lax`."""

KNOWN = [n for n, known in PRIMITIVES.items() if known.numpy or known.fold or known.move]


def case_of(name):
    if name == "polynomial" and not hasattr(lax, name):
        return None
    if name in CASES:
        return CASES[name]
    function = getattr(lax, LAX_NAMES.get(name, name), None)
    if function is None:
        return None
    count = 2 if isinstance(known := PRIMITIVES[name].numpy, np.ufunc) and known.nin == 2 else 1
    operands = (FLAGS, FLAGS[::-1].copy()) if name in LAX_NAMES else (UNIT, WIDE)
    return (function, *operands[:count])


@pytest.mark.parametrize("name", KNOWN)
def test_numpy_agrees_with_jax(name):
    case = case_of(name)
    if case is None:
        pytest.skip(f"this version of JAX does not write {name}")
    function, *args = case
    hoisted = []
    program = flatten_jaxpr(jax.make_jaxpr(function)(*args), hoisted)
    if name not in {i.prim for i in program.instrs}:
        pytest.skip(f"this version of JAX does not write {name}")
    env = dict(zip(program.ins, [np.asarray(a)[None] for a in args], strict=True))
    env.update((v, np.asarray(hoisted[at])[None]) for v, at in program.consts)

    def values(operands):
        return [env[v] if isinstance(v, int) else np.asarray(v.value, v.dtype)[None] for v in operands]

    for instr in program.instrs:
        folded = fold_instr(instr, values(instr.ins))
        assert folded is not None
        env.update(zip(instr.outs, folded, strict=True))
    expected = jax.tree_util.tree_leaves(function(*args))
    for got, want in zip(values(program.outs), expected, strict=True):
        assert got.shape[1:] == want.shape
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got[0], want, rtol=1e-14, atol=1e-15)
        if primitive(name).exact:
            np.testing.assert_array_equal(got[0], want)


@pytest.mark.parametrize("name", [n for n in KNOWN if PRIMITIVES[n].move and n in CASES])
def test_moves_carry_a_batch_axis(name):
    """A move of a batch is the batch of the moves."""
    function, *args = CASES[name]
    closed = jax.make_jaxpr(function)(*args)
    instrs = [i for i in flatten_jaxpr(closed, []).instrs if i.prim == name]
    if not instrs:
        pytest.skip(f"this version of JAX does not write {name}")
    instr = instrs[-1]
    move = primitive(name).move
    shapes = [a.shape for a in instr.in_avals]
    arrays = [RNG.integers(0, 99, (2, *s)) for s in shapes]
    together = move(instr, *arrays)
    for b in range(2):
        alone = move(instr, *[a[b : b + 1] for a in arrays])
        for whole, part in zip(together, alone, strict=True):
            np.testing.assert_array_equal(whole[b], part[0])


@pytest.mark.parametrize("mode", ["fill", "clip", "promise_in_bounds"])
def test_places_out_of_bounds(mode):
    """Gather fills, or moves the place inside; scatter drops it, or moves it inside."""

    def function(x, i):
        return x.at[i].get(mode=mode), x.at[i].set(9.0, mode=mode)

    args = jnp.asarray(WIDE), jnp.array([1, 5])
    program = flatten_jaxpr(jax.make_jaxpr(function)(*args), [])
    env = dict(zip(program.ins, [np.asarray(a)[None] for a in args], strict=True))
    for instr in program.instrs:
        ins = [env[v] if isinstance(v, int) else np.asarray(v.value, v.dtype)[None] for v in instr.ins]
        env.update(zip(instr.outs, fold_instr(instr, ins), strict=True))
    for out, want in zip(program.outs, function(*args), strict=True):
        np.testing.assert_array_equal(env[out][0], want)


def test_elementwise_folds_keep_the_shape():
    program = flatten_jaxpr(jax.make_jaxpr(lambda x: lax.integer_pow(jnp.sin(x), 3))(UNIT), [])
    value = UNIT.ravel()
    for instr in program.instrs:
        value = fold_elementwise(instr, [value])
    np.testing.assert_allclose(value, np.sin(UNIT.ravel()) ** 3, rtol=1e-14)


def test_flat_primitives_have_no_curvature():
    for name, known in PRIMITIVES.items():
        if known.flat and known.elementwise:
            assert known.curvature == "none", name
    assert primitive("no such primitive") == primitive("another one")


@pytest.mark.parametrize("name", [n for n, known in PRIMITIVES.items() if known.elementwise and n in CASES])
def test_curvature_is_what_jax_finds(name):
    """Where the table says that no second derivative exists, JAX finds zeros."""
    function, *args = CASES[name]
    args = [np.broadcast_to(a, WIDE.shape) for a in args]
    floats = [i for i, a in enumerate(args) if np.asarray(a).dtype.kind == "f"]
    if PRIMITIVES[name].curvature != "none" or not floats:
        pytest.skip("curved, or of integers")

    def total(*moving):
        full = list(args)
        for i, value in zip(floats, moving, strict=True):
            full[i] = value
        return jnp.sum(jnp.asarray(function(*full), float))

    moving = tuple(jnp.asarray(args[i]) for i in floats)
    for row in jax.hessian(total, tuple(range(len(floats))))(*moving):
        for block in row:
            np.testing.assert_array_equal(block, 0)


def test_scan_parameters_are_read_once():
    closed = jax.make_jaxpr(lambda x: lax.scan(lambda c, _: (c * x, None), x, length=3)[0])(2.0)
    (scan,) = flatten_jaxpr(closed, []).instrs
    assert scan_spec(scan).length == 3
