"""Lines: fronts that look alike and follow each other, of any shape. What the plan says of them, and what the engine makes of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from gnewt.graph import Family, Structure
from gnewt.kkt.engines.native import engine as native
from gnewt.kkt.engines.native.engine import Mode
from gnewt.kkt.engines.native.packing import lay_out_native
from gnewt.newton.objective import Objective
from gnewt.newton.system import system_of
from gnewt.plan import make_plan
from helpers.native_call import run
from helpers.random_kkt import dense, random_line, random_sources

pytestmark = pytest.mark.skipif(not native.available(), reason="the native library is not built")

LINES_AT, STRIDES_AT, NUM_LINES = 9, 10, 11
"""Places in the header of a plan (cpp/plan_format.hpp)."""


def lines_of(array):
    """(first, count, strides) of every line, and the records of the fronts: (shape, slots, sources, children)."""
    fronts = array[array[5] : array[5] + 4 * array[1]].reshape(-1, 4)
    records = array[array[LINES_AT] :][: 3 * array[NUM_LINES]].reshape(-1, 3)
    out = []
    for first, count, at in records:
        num = sum(array[array[6] + fronts[first, 0] :][4:6])
        out.append((first, count, array[array[STRIDES_AT] + at :][:num]))
    return out, fronts


def test_lines_are_what_the_plan_says():
    found = 0
    for seed in range(20):
        structure = random_line(seed)
        plan = make_plan(structure, "reverse_time")
        array = lay_out_native(plan, structure_size(structure)).array
        lines, fronts = lines_of(array)
        end = 0
        for first, count, strides in lines:
            assert first >= max(end, 1) and count >= 3
            end = first + count
            assert np.all(fronts[first:end, 0] == fronts[first, 0])
            assert np.all(fronts[first:end, 3] == 1)
            starts = [array[array[8] + fronts[f, 2] :][: len(strides)] for f in range(first, end)]
            assert np.all(np.diff(starts, axis=0) == strides)
            found += count
    assert found > 100


def structure_size(structure):
    return len(random_sources(structure, "normal", np.random.default_rng(0)))


def scan_with(shared):
    """A pendulum with a delayed reading and shared parameters, as a user would write it."""

    def cost(tree):
        p = tree["p"]

        def stage(carry, u):
            angle, speed, before = carry
            new = speed + 0.1 * (u - jnp.sin(angle) - p[0] * before)
            return (angle + 0.1 * new, new, speed), 0.5 * jnp.cos(angle) + 0.05 * u**2 + 0.1 * new**2 * p[-1]

        x, costs = jax.lax.scan(stage, (jnp.array(0.3), jnp.array(0.0), jnp.array(0.1)), tree["u"])
        return costs.sum() + sum(v**2 for v in x) + jnp.sum(p**2)

    return cost, {"u": 0.1 * np.cos(np.arange(60.0)), "p": np.full(shared, 0.5)}


def test_traced_chains_are_lines():
    f, x = scan_with(2)
    point = Objective(f).at((x,))
    system = system_of(point, "auto", engine="native")
    models = system.linearize(point)
    sources = np.asarray(models.sources)
    layout = lay_out_native(system.plan, len(sources))
    lines, fronts = lines_of(layout.array)
    assert sum(count for _, count, _ in lines) >= 0.7 * len(fronts)
    rhs = np.random.default_rng(0).normal(size=(layout.num_inputs, 1))
    z, form = ravel_pytree(x)
    hessian = np.asarray(jax.hessian(lambda y: f(form(y)))(z))
    for shift in (0.0, 3.0):
        exact = hessian + shift * np.eye(len(hessian))
        got = run(layout, sources, shift, rhs)
        w = np.linalg.eigvalsh(exact)
        assert got.inertia == (np.sum(w > 0), np.sum(w < 0), 0)
        for solution in (got.solution, got.again):
            assert (
                np.abs(exact @ solution - rhs).max() <= 1e-11 * np.abs(exact).max() * np.abs(solution).max()
            )
        single = run(layout, sources, shift, rhs, np.float32)
        assert single.inertia == got.inertia
        assert (
            np.abs(exact @ single.solution - rhs).max()
            <= 1e-3 * np.abs(exact).max() * np.abs(got.solution).max()
        )


def double_integrator(stages):
    """x' = [x₀ + x₁, x₁ + u] with x from zero, losses on x and u."""
    u = np.arange(stages, dtype=np.int32)[:, None]
    x = stages + np.arange(2 * stages, dtype=np.int32).reshape(stages, 2)

    def never(*_):
        raise AssertionError("these structures are never evaluated")

    families = []
    for t in range(stages):
        args = np.concatenate([x[t - 1], u[t]]) if t else u[t]
        jac = np.array([[True, True, False], [False, True, True]])[:, 3 - len(args) :]
        families.append(Family(never, args[None], x[t][None], (), jac, np.zeros((len(args),) * 2, bool)))
        names = np.concatenate([x[t], u[t]])[None]
        families.append(Family(never, names, None, (), np.ones((1, 3), bool), np.eye(3, dtype=bool)))
    return Structure(tuple(families), stages, 3 * stages, None, (), ())


def numbers_of(stages, effort):
    """Sources of the double integrator: unit Jacobians, unit curvature of the states, `effort` that of the inputs."""
    parts = []
    for t in range(stages):
        parts += [np.ones(4 if t else 1), np.array([1.0, 1.0, effort[t]])]
    return np.concatenate(parts)


def pivots_of(effort):
    """The pivots of the inputs, from the last stage to the first."""
    a, b, value = np.array([[1.0, 1.0], [0.0, 1.0]]), np.array([0.0, 1.0]), np.zeros((2, 2))
    out = np.zeros(len(effort))
    for t in reversed(range(len(effort))):
        inner = value + np.eye(2)
        gain = a.T @ inner @ b
        out[t] = effort[t] + b @ inner @ b
        value = a.T @ inner @ a - np.outer(gain, gain) / out[t]
    return out


@pytest.mark.parametrize(
    ("bad", "size"), [((12,), 0.0), ((12,), -1e-9), ((3, 17), 1e-6), ((3, 17), -1e-9), ((5, 11, 18), -1e-7)]
)
def test_a_doubtful_pivot_sends_one_front_to_the_careful_form(bad, size):
    """The rest of the line is eliminated as before, and inertia and solution are right."""
    stages = 24
    structure = double_integrator(stages)
    plan = make_plan(structure, "reverse_time")
    effort = np.full(stages, 0.5)
    for t in sorted(bad, reverse=True):
        effort[t] += size - pivots_of(effort)[t]
    sources = numbers_of(stages, effort)
    layout = lay_out_native(plan, len(sources))
    lines, fronts = lines_of(layout.array)
    assert sum(count for _, count, _ in lines) >= len(fronts) // 2
    rhs = np.random.default_rng(0).normal(size=(stages, 1))
    exact = dense(structure, sources, 0.0)
    w, _ = exact.spectrum()
    got = run(layout, sources, 0.0, rhs)
    assert got.status == "ok" and got.mode == Mode.GENERAL
    assert got.delayed <= 2 * len(bad)
    assert got.inertia == (np.sum(w > 0), np.sum(w < 0), 0)
    assert exact.backward_error(got.solution, rhs) <= 1e-12
    assert exact.backward_error(got.again, rhs) <= 1e-12


def test_a_line_without_curvature_is_singular_and_says_where():
    stages = 20
    structure = double_integrator(stages)
    plan = make_plan(structure, "reverse_time")
    sources = numbers_of(stages, np.zeros(stages))
    sources[4 + np.flatnonzero(sources == 0)[0] :] *= 0  # nothing but the first stage has curvature
    got = run(lay_out_native(plan, len(sources)), sources, 0.0, np.ones((stages, 1)))
    assert got.status == "singular" and got.inertia[2] > 0 and got.smallest_pivot == 0
    assert np.all(np.isfinite(got.solution))


def tridiagonal(diagonal, beside):
    """A path of inputs, and the numbers of its Hessian."""
    n, ones = len(diagonal), np.ones
    pairs = np.stack([np.arange(n - 1), np.arange(1, n)], 1).astype(np.int32)
    last = np.array([[n - 1]], np.int32)
    families = (
        Family(_never, pairs, None, (), ones((1, 2), bool), np.array([[1, 1], [1, 0]], bool)),
        Family(_never, last, None, (), ones((1, 1), bool), ones((1, 1), bool)),
    )
    sources = np.concatenate([np.stack([diagonal[:-1], beside], 1).ravel(), diagonal[-1:]])
    return Structure(families, n, n, None, (), ()), sources


def _never(*_):
    raise AssertionError("these structures are never evaluated")


@pytest.mark.parametrize("real", [np.float64, np.float32])
@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("kind", ["definite", "negative", "both signs", "one doubtful", "huge", "singular"])
def test_paths_of_inputs(kind, merge, real):
    """Fronts whose rows of L have one or two numbers: merged ones have eight pivots."""
    n, rng = 200, np.random.default_rng(0)
    diagonal, beside = rng.uniform(3, 4, n), rng.uniform(-1, 1, n - 1)
    if kind == "negative":
        diagonal *= -1
    if kind == "both signs":
        diagonal *= rng.choice([-1, 1], n)
    if kind == "one doubtful":
        pivot = diagonal[0]
        for i in range(101):
            pivot = diagonal[i + 1] - beside[i] ** 2 / pivot
        diagonal[101] -= pivot * (
            1 - 1e-6
        )  # what is left of this pivot is little, and its neighbour is large
        beside[101] = 1.0
    if kind == "huge":
        scale = 1e30 if real is np.float64 else 1e10  # the product of eight pivots leaves its bounds
        diagonal, beside = scale * diagonal, scale * beside
    if kind == "singular":
        beside = -np.ones(n - 1)
        diagonal = np.append(1.0, np.full(n - 1, 2.0))
        diagonal[-1] = 1.0
    structure, sources = tridiagonal(diagonal, beside)
    plan = make_plan(structure, "reverse_time", merge=merge)
    layout = lay_out_native(plan, len(sources))
    lines, _ = lines_of(layout.array)
    assert sum(count for _, count, _ in lines) > 0.8 * layout.array[1]
    b = rng.normal(size=(n, 1)).astype(real)
    got = run(layout, sources, 0.0, b, real)
    sources = sources.astype(real).astype(float)
    h = np.diag(diagonal.astype(real).astype(float))
    h += np.diag(beside.astype(real).astype(float), 1) + np.diag(beside.astype(real).astype(float), -1)
    w = np.linalg.eigvalsh(h)
    if kind == "singular":
        assert got.status == "singular" and got.inertia == (n - 1, 0, 1)
        return
    assert got.inertia == (np.sum(w > 0), np.sum(w < 0), 0)
    size = np.abs(h).max()
    error = np.abs(h @ got.solution - b).max() / (size * np.abs(got.solution).max() + np.abs(b).max())
    assert error < (1e-14 if real is np.float64 else 1e-5)
    np.testing.assert_allclose(got.again, got.solution, rtol=1e-2, atol=1e-4 * np.abs(got.solution).max())
    np.testing.assert_allclose(
        got.logdet, np.linalg.slogdet(h)[1], rtol=1e-10 if real is np.float64 else 1e-4
    )
    assert (got.mode == Mode.GENERAL) == (kind == "one doubtful")
