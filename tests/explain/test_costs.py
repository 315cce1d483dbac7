"""What `explain` says of flops and shapes: counted by an elimination that counts, and named by hand."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt.explain.flops import count_flops, count_product
from gnewt.explain.shape import KINDS
from gnewt.newton.system import num_sources
from helpers import unusual_programs
from helpers.batched_programs import BATCHED
from helpers.counted import dense_kkt, eliminate_counted
from helpers.rule_programs import RULE_PROGRAMS
from helpers.trace_programs import PROGRAMS

_SHAPES = {
    "chain": "checkpointed_scan rosenbrock softplus_at_zero inside_and_after single_precision reverse_scan nested_scans "
    "several_carries indexed_fori_loop extra_arguments convolution weight_on_the_last_state scan_control "
    "running_cost_as_carry second_order delay input_rate shared_parameters free_final_time unrolled_loop deep_network "
    "solve_in_dynamics cond_in_dynamics rk4_by_fori_loop traj_in_carry vmap_scan cumprods polyval matvec_scan_big "
    "scan_ys_gather carry_vector_const_part carry_is_input unrolled_gd grad_of_scan_inside scan_reverse_nested_rev "
    "scan_with_dict_and_none",
    "tree": "scenario_tree binary_reduction",
    "star": "logsumexp two_argnums row_sums_used_often partial_application squared_sum bundle_adjustment mean_field",
    "grid": "grid stencil_pde",
    "separable": "stopped_gradient lax_map mixed_precision interp while_const betas rounding_ste",
    "dense": "dicts_and_scalars real_fft nested_lifted_scans custom_rules dense_products scatters discontinuous_pieces rnn "
    "opaque_outside_loops assoc einsum expm chol eigh norm_where softmax_ce switch int_carry custom_root "
    "long_nested_lift sparse_bcoo float_of_int_idx cross_prod reduce_window",
}
"""What a person would call each program."""
_ALL = {**PROGRAMS, **unusual_programs.UNUSUAL}


def _program(name):
    made = _ALL[name]()
    f, args = made[0], made[1]
    argnums = made[2] if len(made) > 2 else 0
    if name == "rosenbrock":
        args = (args[0][:2000],)
    return f, args, argnums


def test_every_program_has_a_name():
    assert sorted(" ".join(_SHAPES.values()).split()) == sorted(_ALL)


@pytest.mark.parametrize(
    "name,expected", [(n, kind) for kind, names in _SHAPES.items() for n in names.split()]
)
def test_shapes(name, expected):
    f, args, argnums = _program(name)
    report = gnewt.explain(f, *args, argnums=argnums)
    assert report.structure == expected
    assert str(report).startswith(expected)


@pytest.mark.parametrize("name", RULE_PROGRAMS)
def test_shapes_of_small_programs_have_names(name):
    made = RULE_PROGRAMS[name]()
    assert gnewt.explain(made.f, made.x).structure in KINDS


@pytest.mark.parametrize(
    "name,expected",
    [
        ("planar_poses", {"network", "chain", "tree"}),
        ("many_bodies", {"separable"}),
        ("mean_field", {"star"}),
    ],
)
def test_shapes_of_batched_programs(name, expected):
    forms, x = BATCHED[name](40)
    found = {gnewt.explain(f, x).structure for f in forms.values()}
    assert len(found) == 1 and found <= expected


_COUNTED = (
    "indexed_fori_loop shared_parameters second_order grid binary_reduction bundle_adjustment dense_products delay rnn "
    "logsumexp deep_network inside_and_after custom_rules opaque_outside_loops input_rate"
)


def _small(name):
    f, args, argnums = _program(name)
    if name == "grid":
        args = (args[0][:9, :9],)
    if name == "binary_reduction":
        args = (args[0][:128],)
    return f, args, argnums


@pytest.mark.parametrize("name", _COUNTED.split())
def test_flops_are_those_of_an_elimination(name):
    """Predicted flops lie within 1.3 times of those that an elimination on counting numbers takes, which solves the system."""
    f, args, argnums = _small(name)
    report = gnewt.explain(f, *args, argnums=argnums)
    plan = report.system.plan
    rng = np.random.default_rng(0)
    sources = 0.3 * rng.standard_normal(num_sources(report.system.structure))
    rhs = np.zeros(plan.num_unknowns)
    rhs[: plan.num_inputs] = rng.standard_normal(plan.num_inputs)
    solution, counted = eliminate_counted(plan, sources, rhs)
    exact = np.linalg.solve(dense_kkt(plan, sources), rhs)[: plan.num_inputs]
    np.testing.assert_allclose(solution, exact, rtol=1e-7, atol=1e-9 * np.abs(exact).max())
    assert counted / 1.3 <= report.flops <= 1.3 * counted
    assert report.flops == count_flops(plan)


def test_a_full_tree_costs_what_a_dense_factorisation_does():
    def f(x):
        return jnp.sum(jnp.cos(x[:, None] * x + x))

    report = gnewt.explain(f, np.ones(60))
    assert report.structure == "dense"
    assert 60**3 / 3 <= report.flops <= 1.3 * (60**3 / 3 + 4 * 60**2)
    assert report.flops < report.dense_flops


def test_products_are_counted_as_they_are_made():
    g = gnewt.Graph()
    x = g.input((3,))
    y = g.node(lambda x: jnp.stack([x[0] * x[1], jnp.sin(x[2])]), x)
    g.loss(lambda y: y[0] ** 2 * y[1], y)
    structure = g.structure()
    jacobian = sum(int(structure.families[f].jac_pattern.sum()) for f in structure.nodes)
    hessian = sum(int(family.hess_pattern.sum()) for family in structure.families)
    assert count_product(structure) == 4 * jacobian + 2 * hessian


def _density(us, inside):
    """Agents that move by themselves; their squares are normalised in every stage, or once at the end."""

    def stage(x, u):
        x = x + 0.1 * jnp.sin(x) + u
        if inside:
            x = x / jnp.sum(x**2)  # the line to be blamed
        return x, jnp.sum(u**2) + jnp.sum(x**4)

    x, costs = jax.lax.scan(stage, jnp.ones(us.shape[1]), us)
    x = x if inside else x / jnp.sum(x**2)
    return costs.sum() + jnp.sum(x**2)


def test_a_normalisation_inside_a_loop_is_blamed_and_its_cure_helps():
    us = np.zeros((8, 20))
    bad = gnewt.explain(lambda us: _density(us, True), us)
    good = gnewt.explain(lambda us: _density(us, False), us)
    text = pathlib.Path(__file__).read_text(encoding="utf-8").splitlines()
    line = next(i for i, row in enumerate(text, 1) if "line to be blamed" in row)
    advice = bad.cheaper[0]
    assert f"test_costs.py:{line}: the sum joins 20 numbers, 8 times" in advice
    assert "behind the loop" in advice and advice in str(bad)
    assert good.width <= bad.blamed[0].width + 2 < bad.width / 4
    assert good.flops < bad.flops / 10
    assert not good.blamed


def test_programs_that_are_cheap_blame_nobody():
    assert not gnewt.explain(*_program("scan_control")[:1], np.zeros((20, 1))).blamed
    assert not gnewt.explain(*_program("binary_reduction")[:1], np.ones(64)).blamed


def test_steps_are_measured_when_asked():
    report = gnewt.explain(_program("scan_control")[0], np.zeros((20, 1)), measure=True)
    assert all(report.costs[name].ms > 0 for name in ("tree", "dense Hessian", "CG"))
    assert " ms" in str(report)
    assert gnewt.explain(_program("scan_control")[0], np.zeros((20, 1))).costs["tree"].ms is None
    with pytest.raises(gnewt.OptionError, match="needs numbers"):
        gnewt.explain(_program("scan_control")[0], jax.ShapeDtypeStruct((20, 1), float), measure=True)
