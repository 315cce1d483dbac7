"""docs/from_scratch.md runs, and its steps are those of the library."""

import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from helpers.pages import DOCS, run

_PAGE = DOCS / "from_scratch.md"


@pytest.fixture(scope="module")
def page():
    """Execute the code blocks of the page as one program; its namespace."""
    return run(_PAGE)


def _library_graph(problem):
    """The same problem as a gnewt.Graph."""
    g = gnewt.Graph()
    vertices = [g.input((n,)) for n in problem.sizes[: problem.num_inputs]]
    for phi, pa in problem.nodes.values():
        vertices.append(g.node(phi, *[vertices[u] for u in pa]))
    for loss, scope in problem.losses:
        g.loss(loss, *[vertices[u] for u in scope])
    return g


@pytest.mark.parametrize("name", ["chain", "dag"])
def test_same_objective(page, name):
    problem, inputs = page[name], page[f"{name}_inputs"]
    np.testing.assert_allclose(
        _library_graph(problem)(inputs), page["objective"](problem, inputs), rtol=1e-14
    )


@pytest.mark.parametrize("name", ["chain", "dag"])
@pytest.mark.parametrize("order", ["causal", "free", "hessian"])
def test_step_agrees_with_library(page, name, order):
    problem, inputs = page[name], page[f"{name}_inputs"]
    step, info = gnewt.newton_step(_library_graph(problem), full_output=True)(inputs)
    step = np.concatenate([np.asarray(s) for s in step])
    np.testing.assert_allclose(page["steps"][name, order], step, rtol=1e-10, atol=1e-12 * np.abs(step).max())
    _, signs, logdet, _ = page["newton_step"](problem, inputs, page["orders"](problem)[order])
    assert tuple(int(n) for n in info.inertia) == tuple(int(n) for n in signs)
    np.testing.assert_allclose(float(info.logdet), logdet, rtol=1e-9)


@pytest.mark.parametrize("name", ["chain", "dag"])
def test_shift_agrees_with_library(page, name):
    problem, inputs = page[name], page[f"{name}_inputs"]
    step = gnewt.newton_step(_library_graph(problem), shift=0.7)(inputs)
    expected, *_ = page["newton_step"](problem, inputs, page["causal_order"](problem), shift=0.7)
    np.testing.assert_allclose(jnp.concatenate(step), expected, rtol=1e-10, atol=1e-12)


def test_breadth_first_duals_would_be_wrong(page):
    """E9: the triangle of the page is a case where reverse breadth-first order fails."""
    problem, inputs = page["dag"], page["dag_inputs"]
    X = page["forward"](problem, inputs)
    lam, jac = page["reverse_sweep"](problem, X)
    # As the sweep, but a (vertex 2) is passed on before b (vertex 3) has added its share to it.
    wrong = np.zeros(problem.S)
    for loss, scope in problem.losses:
        gradient, _, z = page["derivatives"](problem, loss, scope, X)
        np.add.at(wrong, problem.slots(*scope), np.asarray(gradient(z)))
    for v in (5, 4, 2, 3):
        np.add.at(wrong, problem.slots(*problem.nodes[v][1]), jac[v].T @ wrong[problem.slots(v)])
    _, g = page["dense_hessian"](problem, inputs)
    np.testing.assert_allclose(lam[: problem.N], g, rtol=1e-12)
    assert np.abs(wrong[: problem.N] - g).max() > 1e-2
