"""However a sum over instances is batched, the structure and its plan are the same."""

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt.plan import make_plan
from gnewt.trace import trace_graph
from gnewt.trace.argument_sets import EMPTY, OVER, ArgumentSets
from helpers.batched_programs import BATCHED
from helpers.lifted_oracle import errors


def certificate(f, x):
    graph = trace_graph(f, x)
    return graph, make_plan(graph).certificate


@pytest.mark.parametrize("name", [name for name in BATCHED if name != "many_bodies"])
def test_forms_have_one_plan(name):
    forms, x = BATCHED[name](12)
    found = {form: certificate(f, x) for form, f in forms.items()}
    graph, plan = found.pop("vmap")
    for other, cert in found.values():
        assert other.num_slots == graph.num_slots
        assert (cert.width, cert.flops) == (plan.width, plan.flops)


def test_batched_loops_have_plans_of_one_cost():
    """Some forms hold the constant first states in slots, others have a function of their own for the first stage."""
    forms, x = BATCHED["many_bodies"](12)
    found = [certificate(f, x)[1] for f in forms.values()]
    assert max(c.flops for c in found) <= 1.2 * min(c.flops for c in found)
    assert max(c.width for c in found) <= 4


@pytest.mark.parametrize("name", ["planar_poses", "mean_field"])
def test_vmap_is_exact(name):
    forms, x = BATCHED[name](5)
    graph = trace_graph(forms["vmap"], x)
    assert max(errors(graph, forms["vmap"], (x,), jit=False)) <= 1e-11


@pytest.mark.slow
@pytest.mark.parametrize("form", ["vmap", "map"])
@pytest.mark.parametrize("name", list(BATCHED))
def test_all_forms_are_exact(name, form):
    forms, x = BATCHED[name](4)
    graph = trace_graph(forms[form], x)
    assert max(errors(graph, forms[form], (x,))) <= 1e-11


@pytest.mark.parametrize("form", ["vmap", "map"])
def test_step_equals_that_of_the_dense_hessian(form):
    forms, x = BATCHED["robust_planar_poses"](5)
    flat, unravel = jax.flatten_util.ravel_pytree(x)
    g, h = (np.asarray(d(lambda v: forms[form](unravel(v)))(flat)) for d in (jax.grad, jax.hessian))
    step = jax.flatten_util.ravel_pytree(gnewt.newton_step(forms[form])(x))[0]
    np.testing.assert_allclose(h @ step, -g, atol=1e-9 * np.abs(g).max())


def test_nothing_is_kept_inside_an_edge():
    for name in ("planar_poses", "robust_planar_poses", "spatial_poses", "inertial_factors"):
        forms, x = BATCHED[name](8)
        assert trace_graph(forms["vmap"], x).num_pairs == 0


def test_a_value_that_all_instances_share_is_computed_once():
    def f(x):
        shared = jnp.exp(jnp.sin(x[0] * x[1]) * jnp.cos(x[1] - x[2])) * jnp.tanh(x[0] * x[2] + x[1])
        shared = jnp.sqrt(1 + shared**2) - jnp.log1p(jnp.exp(shared * x[0])) + jnp.cos(shared * x[1])
        return jnp.sum(jnp.log1p((x[3:] * shared - 1) ** 2))

    graph = trace_graph(f, jnp.linspace(0.1, 1.0, 60))
    assert 1 <= graph.num_pairs <= 3


def test_a_tree_over_variables_of_its_own_stays_narrow():
    def f(x):
        return jnp.sum(jnp.log1p(jnp.sum(jnp.exp(x), axis=1)))

    graph, plan = certificate(f, jnp.zeros((6, 12)))
    assert graph.num_pairs == 6
    assert plan.width <= 2


@pytest.mark.parametrize("n", [64, 256])
def test_an_associative_scan_stays_narrow(n):
    """Nodes of its tree read many inputs, all of which are coupled; yet they are no instances, since the tree is narrow."""
    matrix = jnp.array([[0.9, 0.1], [-0.1, 0.8]])

    def f(u):
        def combine(p, q):
            return q[0] @ p[0], (q[0] @ p[1][..., None])[..., 0] + q[1]

        scales = 1 + 0.1 * u[:, :1, None]
        _, states = jax.lax.associative_scan(combine, (matrix * scales, u))
        return jnp.sum(states**2) + jnp.sum(u**2)

    _, plan = certificate(f, jnp.full((n, 2), 0.1))
    assert plan.width <= 45
    assert plan.flops <= 8_000 * n


def test_parallel_edges_are_one_family():
    i, j = np.array([0, 0, 1, 2, 2, 2]), np.array([1, 1, 2, 3, 3, 3])

    def edge(p, q):
        d = jnp.sin(p) * jnp.cos(q[::-1])
        return jnp.log1p(d @ d) * jnp.exp(-d[0] * d[1])

    graph = trace_graph(lambda x: jnp.sum(jax.vmap(edge)(x[i], x[j])), jnp.ones((4, 3)))
    assert [f.n for f in graph.families] == [6]


def test_carried_values_of_a_lane_are_one_function():
    """It has several results; their order in time allows it."""
    forms, x = BATCHED["many_bodies"](6)
    graph = trace_graph(forms["vmap"], x)
    assert {f.outs.shape[1] for f in graph.families if f.outs is not None} == {2}
    assert max(errors(graph, forms["vmap"], (x,), jit=False)) <= 1e-11


def test_argument_sets():
    sets = ArgumentSets(10, limit=3)
    single = sets.singles(np.arange(10))
    a = sets.union(single[[0, 1, 2]], single[[1, 2, 3]])
    b = sets.union(single[[1, 2, 3]], single[[0, 1, 2]])
    assert (a == b).all()
    wide = sets.union(a[[0, 0, 0]], sets.union(a, b)[[0, 1, 2]])
    assert sets.count(wide).tolist() == [2, 3, 4]
    assert wide[2] == OVER
    assert (sets.union(a, np.full(3, EMPTY, np.int32)) == a).all()
    members, owner = sets.members(wide[:2])
    assert members.tolist() == [0, 1, 0, 1, 2]
    assert owner.tolist() == [0, 0, 1, 1, 1]
