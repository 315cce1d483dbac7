"""minimize_batch: what each problem would get alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt.newton import LineSearch, Status


def cost(us, start, scale=1.0):
    def stage(x, u):
        new = jnp.stack([x[0] + 0.1 * x[1], x[1] + 0.1 * (u - scale * jnp.sin(x[0]))])
        return new, 0.1 * (1 + jnp.cos(x[0])) + 0.01 * u**2

    x, costs = jax.lax.scan(stage, start, us)
    return costs.sum() + 10 * (1 + jnp.cos(x[0])) + x[1] ** 2


def problems(size, T=12, seed=0):
    rng = np.random.default_rng(seed)
    return 0.1 * rng.normal(size=(size, T)), rng.normal(size=(size, 2))


def assert_alone(res, i, alone, tolerance=1e-8):
    assert int(res.code[i]) == alone.code, i
    np.testing.assert_allclose(res.x[i], alone.x, rtol=0, atol=tolerance)
    np.testing.assert_allclose(res.fun[i], alone.fun, rtol=1e-12, atol=1e-12)
    assert int(res.num_steps[i]) == alone.num_steps, i


def test_every_problem_gets_what_it_would_get_alone():
    """More problems than lanes: lanes are filled again. Some starts are solved at once, others take long."""
    us, starts = problems(23)
    starts[3] = 0.0  # a saddle: the pendulum hangs, and no input moves it
    seen = []
    res = gnewt.minimize_batch(cost, us, (starts,), width=8, callback=lambda p: seen.append(p) and None)
    assert res.x.shape == (23, 12)
    assert len({int(n) for n in res.num_steps}) > 1
    for i in range(0, 23, 3):
        assert_alone(res, i, gnewt.minimize(cost, us[i], (starts[i],)))
    assert [p.done for p in seen] == sorted({p.done for p in seen})
    assert seen[-1].done == seen[-1].total == 23
    assert sum(seen[-1].codes.values()) == 23
    assert "of shape (23,)" in repr(res)


def test_shared_arguments_pytrees_and_other_searches():
    _, starts = problems(5)
    tree = {"u": np.zeros((5, 6)), "v": np.full((5, 6), 0.1)}

    def f(x, start, scale):
        return cost(jnp.concatenate([x["u"], x["v"]]), start, scale)

    args, axes = (starts.T, 0.7), (1, None)
    res = gnewt.minimize_batch(f, tree, args, in_axes=axes, search=LineSearch())
    assert res.x["v"].shape == (5, 6)
    for i in (0, 4):
        one = gnewt.minimize(
            f, jax.tree.map(lambda v, i=i: v[i], tree), (starts[i], 0.7), search=LineSearch()
        )
        assert int(res.code[i]) == one.code
        np.testing.assert_allclose(res.x["u"][i], one.x["u"], rtol=0, atol=1e-8)


def test_numbers_are_never_stale():
    """The compiled functions serve other numbers, those that f captures too."""
    us, starts = problems(3)
    for scale in (0.5, 1.5):
        res = gnewt.minimize_batch(lambda u, x, scale=scale: cost(u, x, scale), us, (starts,))
        alone = gnewt.minimize(lambda u, x, scale=scale: cost(u, x, scale), us[1], (starts[1],))
        assert_alone(res, 1, alone)


@pytest.mark.slow
def test_constraints():
    us, starts = problems(10)
    limits = {
        "bounds": (-1.0, 1.0),
        "constraints": gnewt.between(lambda us, start: us.sum() + start[0], -2.0, 0.5),
    }
    res = gnewt.minimize_batch(cost, us, (starts,), width=4, **limits)
    for i in range(0, 10, 3):
        alone = gnewt.minimize(cost, us[i], (starts[i],), **limits)
        assert_alone(res, i, alone, 1e-7)
        assert res.violation[i] <= 1e-8
        np.testing.assert_allclose(res.multipliers[i], alone.multipliers, rtol=0, atol=1e-5)


def test_limits_of_time_and_steps():
    us, starts = problems(6)
    late = gnewt.minimize_batch(cost, us, (starts,), width=2, time_limit=0.0)
    assert (late.code == Status.TIME_LIMIT).all()
    few = gnewt.minimize_batch(cost, us, (starts,), max_steps=1)
    assert (few.code == Status.MAX_STEPS).all()
    assert (few.num_steps == 1).all()
    stopped = gnewt.minimize_batch(cost, us, (starts,), width=2, callback=lambda seen: True)
    assert (stopped.code == Status.STOPPED).any()
    assert np.isfinite(stopped.x).all()


def test_what_is_refused():
    us, starts = problems(4)
    with pytest.raises(gnewt.OptionError, match="leading axes"):
        gnewt.minimize_batch(cost, us, (starts[:3],))
    with pytest.raises(gnewt.OptionError, match="in_axes"):
        gnewt.minimize_batch(cost, us, (starts,), in_axes=(0, 0))
    with pytest.raises(gnewt.OptionError, match=r"jax\.vmap"):
        jax.jit(lambda u: gnewt.minimize_batch(cost, u, (starts,)))(us)
    with pytest.raises(gnewt.OptionError, match="width"):
        gnewt.minimize_batch(cost, us, (starts,), width=0)


def test_lanes_of_vmap_count_their_own_work():
    """The same numbers of factorisations as alone, whatever other lanes need."""
    us, starts = problems(6)
    run = jax.jit(jax.vmap(lambda u, x: gnewt.minimize(cost, u, (x,))))
    res = run(us, starts)
    for i in (0, 5):
        alone = jax.jit(lambda u, x: gnewt.minimize(cost, u, (x,)))(us[i], starts[i])
        assert int(res.num_steps[i]) == int(alone.num_steps)
        np.testing.assert_allclose(res.x[i], alone.x, rtol=0, atol=1e-9)
