"""Long recurrences at once: the same slots and duals as round by round, and given up where that is not so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt.graph import Rounds, forward
from gnewt.kkt import linearize
from gnewt.kkt.derivatives import affine, paths
from gnewt.newton.objective import Objective
from gnewt.newton.system import system_of

LENGTH = 120


def pendulum(us):
    def stage(x, u):
        angle, rate = x
        after = jnp.stack([angle + 0.05 * rate, 0.97 * rate - 0.2 * jnp.sin(angle) + 0.1 * u])
        return after, jnp.sum(after**2) + jnp.cos(u)

    return jax.lax.scan(stage, jnp.array([0.5, 0.0]), us)[1].sum()


def late(us):
    """Reads what was three rounds ago, and a parameter that all rounds share."""

    def stage(carry, u):
        a, b, c = carry
        new = 0.5 * a + 0.2 * jnp.tanh(c * us[0]) + u
        return (new, a, b), new**2

    return jax.lax.scan(stage, (jnp.ones(()), jnp.zeros(()), jnp.ones(())), us)[1].sum()


def agents(us):
    """Three that do not meet, but in the objective."""
    rollouts = jax.vmap(lambda u: jax.lax.scan(lambda x, v: (0.9 * jnp.sin(x) + v,) * 2, 0.3, u)[1])(us)
    return jnp.sum(rollouts**2) + jnp.sum(us[0] * us[1])


def chaos(us):
    def stage(x, u):
        after = 3.9 * x * (1 - x) + 1e-3 * u
        return after, after

    return jax.lax.scan(stage, 0.3, us)[1].sum() + jnp.sum(us**2)


def inputs(*shape):
    return jnp.asarray(0.3 * np.random.default_rng(0).normal(size=shape))


def point_of(f, x):
    point = Objective(f).at((x,))
    (rounds,) = [s for s in point.structure.layout.segments if isinstance(s, Rounds)]
    return point, rounds


PROGRAMS = {
    "pendulum": (pendulum, (LENGTH,), (1, 2)),
    "late": (late, (LENGTH,), (1, 3)),
    "agents": (agents, (3, LENGTH), (3, 1)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_models(name):
    f, shape, parts = PROGRAMS[name]
    point, rounds = point_of(f, inputs(*shape))
    assert rounds.components.shape == parts
    assert affine.is_long(rounds)
    structure = point.structure

    def both(maps, data, x):
        return [linearize(structure, maps, data, x, at_once=at_once) for at_once in (False, True)]

    one, other = jax.jit(both)(structure.maps, point.data, point.x)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert np.max(np.abs(a - b), initial=0) <= 1e-13 * max(1.0, np.max(np.abs(a), initial=0))


def run(f):
    """x ↦ (what all rounds add, iterations, whether they did) and the same round by round."""
    point, _ = point_of(f, inputs(LENGTH))
    structure, told = point.structure, []

    def evaluate(x, near=None):
        def at_once(rounds, loop, maps):
            guess = jnp.broadcast_to(loop.start, (rounds.repeats, rounds.num_state))
            if near is not None:
                guess = paths.states_of(rounds, loop.start, rounds.slots.read_rows(near, maps))
            local, count, settled = paths.run_at_once(rounds, loop, guess)
            told.append((count, settled))
            return local

        told.clear()
        slots = forward(structure, structure.maps, point.data, x, at_once)
        return slots, forward(structure, structure.maps, point.data, x), *told[0]

    return evaluate


def test_a_warm_start_takes_fewer_iterations():
    evaluate = jax.jit(run(pendulum))
    x = inputs(LENGTH)
    slots, expected, cold, settled = evaluate(x)
    assert settled and np.allclose(slots, expected, atol=1e-13)
    again, _, warm, _ = evaluate(x, slots)
    assert warm == 1 < cold and np.allclose(again, slots, atol=1e-15)
    assert evaluate(x + 1e-6, slots)[2] < cold


def test_chaos_is_run_round_by_round():
    slots, expected, count, settled = jax.jit(run(chaos))(inputs(LENGTH))
    assert not settled and np.array_equal(slots, expected)
    assert count <= 24 + LENGTH // 48


def test_lanes_that_settle_and_lanes_that_do_not():
    x = jnp.stack([inputs(LENGTH), jnp.full(LENGTH, jnp.nan)])
    slots, expected, _, settled = jax.jit(jax.vmap(run(pendulum)))(x)
    assert settled.tolist() == [True, False]
    assert np.allclose(slots, expected, atol=1e-13, equal_nan=True)


@pytest.mark.parametrize("n", [1, 3, 20])
def test_composed_maps(n):
    rng = np.random.default_rng(n)
    a, b = rng.normal(size=(37, 2, n, n)) / np.sqrt(n), rng.normal(size=(37, 2, n))
    y, expected = np.zeros((2, n)), []
    for i in range(37):
        y = np.einsum("pij,pj->pi", a[i], y) + b[i]
        expected.append(y)
    assert np.allclose(affine.compose(jnp.asarray(a), jnp.asarray(b)), expected, rtol=1e-11, atol=1e-11)


def test_a_step_by_the_xla_engine(monkeypatch):
    monkeypatch.setenv("GNEWT_EVALUATION", "parallel")
    x = inputs(LENGTH)
    system = system_of(Objective(pendulum).at((x,)), engine="xla")
    assert system.evaluation == "at_once"
    step = jax.jit(gnewt.newton_step(pendulum, engine="xla"))(x)
    expected = -jnp.linalg.solve(jax.hessian(pendulum)(x), jax.grad(pendulum)(x))
    assert np.allclose(step, expected, rtol=1e-10, atol=1e-12)
    monkeypatch.setenv("GNEWT_EVALUATION", "fast")
    with pytest.raises(gnewt.OptionError, match="GNEWT_EVALUATION is 'fast'"):
        gnewt.newton_step(pendulum)(x)


@pytest.mark.slow
@pytest.mark.parametrize("inside", [False, True])
def test_a_run_starts_each_evaluation_from_the_last_one(monkeypatch, inside):
    expected = gnewt.minimize(pendulum, inputs(LENGTH))
    monkeypatch.setenv("GNEWT_EVALUATION", "parallel")
    started = []
    states_of = paths.states_of
    monkeypatch.setattr(paths, "states_of", lambda *args: started.append(args) or states_of(*args))

    def solve(x):
        return gnewt.minimize(pendulum, x, engine="xla").x

    found = (jax.jit(solve) if inside else solve)(inputs(LENGTH))
    assert started and np.allclose(found, expected.x, atol=1e-8)
