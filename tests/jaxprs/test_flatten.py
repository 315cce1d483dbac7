"""The reader of jaxprs: calls are inlined, dead equations dropped, equal programs have equal keys."""

from __future__ import annotations

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt.jaxprs import flatten_jaxpr, run_program, scan_spec, where_of
from gnewt.jaxprs.flatten import CALLS
from gnewt.jaxprs.liveness import dependents, last_reads, needed, needed_inputs, varying_outputs


def read(f, *args, **options):
    hoisted = []
    return flatten_jaxpr(jax.make_jaxpr(f)(*args), hoisted, **options), hoisted


def test_calls_are_inlined():
    def f(x):
        inner = jax.jit(lambda y: jnp.sin(y) * 2.0)
        return jax.checkpoint(inner)(x) + inner(x)

    program, hoisted = read(f, 1.5)
    assert [i.prim for i in program.instrs] == ["sin", "mul", "sin", "mul", "add"]
    assert not hoisted
    np.testing.assert_allclose(run_program(program, [1.5])[0], f(1.5))


def test_functions_with_their_own_derivatives_are_inlined_on_request():
    program, _ = read(jax.nn.softplus, 1.0)
    assert [i.prim for i in program.instrs] == ["custom_jvp_call"]
    opened, _ = read(jax.nn.softplus, 1.0, inlined=CALLS | {"custom_jvp_call"})
    assert "custom_jvp_call" not in {i.prim for i in opened.instrs}
    np.testing.assert_allclose(run_program(opened, [1.0])[0], jax.nn.softplus(1.0))


def test_captured_arrays_are_hoisted_in_order():
    a, b = np.arange(3.0), np.ones(3)
    program, hoisted = read(lambda x: jnp.asarray(a) @ x + jnp.asarray(b) @ x, jnp.ones(3))
    assert [at for _, at in program.consts] == [0, 1]
    np.testing.assert_array_equal(hoisted[0], a)
    np.testing.assert_allclose(run_program(program, [jnp.ones(3)], hoisted)[0], 6.0)


def test_keys_do_not_depend_on_names_and_do_on_numbers():
    keys = [read(f, 1.0)[0].key for f in (lambda x: jnp.sin(x) * 2, lambda y: jnp.sin(y) * 2)]
    other = read(lambda x: jnp.sin(x) * 3, 1.0)[0].key
    assert keys[0] == keys[1] and hash(keys[0]) == hash(keys[1])
    assert keys[0] != other


def test_scans_have_one_description():
    def f(x, us):
        return jax.lax.scan(lambda c, u: (c * x + u, c), 0.0, us, reverse=True)

    program, _ = read(f, 2.0, jnp.arange(4.0))
    (scan,) = [i for i in program.instrs if i.prim == "scan"]
    spec = scan_spec(scan)
    assert (spec.num_consts, spec.num_carry, spec.length, spec.reverse) == (1, 1, 4, True)
    for got, expected in zip(
        run_program(program, [2.0, jnp.arange(4.0)]), f(2.0, jnp.arange(4.0)), strict=True
    ):
        np.testing.assert_allclose(got, expected)


def test_equations_know_their_line():
    program, _ = read(lambda x: jnp.sin(x), 1.0)
    assert where_of(program.instrs[0]).startswith(str(pathlib.Path("tests", "jaxprs", "test_flatten.py")))


# Liveness


@pytest.fixture
def straight_line():
    """(x, y) ↦ (sin x · x, cos y), and the equations by name."""
    program, _ = read(lambda x, y: (jnp.sin(x) * x, jnp.cos(y)), 1.0, 2.0)
    return program, {i.prim: i for i in program.instrs}


def test_needed(straight_line):
    program, by_name = straight_line
    kept, wanted = needed(program.instrs, program.outs[:1])
    assert kept == [by_name["sin"], by_name["mul"]]
    assert program.ins[0] in wanted and program.ins[1] not in wanted
    assert needed_inputs(program, [False, True]) == [False, True]


def test_dependents(straight_line):
    program, by_name = straight_line
    assert dependents(program.instrs, program.ins[1:]) == {program.ins[1], *by_name["cos"].outs}
    assert varying_outputs(program, [True, False]) == [True, False]


def test_last_reads(straight_line):
    program, by_name = straight_line
    last = dict(zip([i.prim for i in program.instrs], last_reads(program), strict=True))
    assert last["sin"] == []  # x is read again
    assert sorted(last["mul"]) == sorted([program.ins[0], *by_name["sin"].outs])
    assert last["cos"] == [program.ins[1]]


def test_dead_equations_are_dropped():
    def f(x):
        jnp.exp(x)
        return jnp.sin(x)

    assert [i.prim for i in read(f, 1.0)[0].instrs] == ["sin"]


def test_one_module_imports_the_core_types_of_jax():
    root = pathlib.Path(gnewt.__file__).parent
    users = [p for p in sorted(root.rglob("*.py")) if "jax.extend" in p.read_text()]
    assert users == [root / "jaxprs" / "compat.py"]
    assert not [p for p in root.rglob("*.py") if "jax._src" in p.read_text()]
