"""Pictures of solutions: states, controls, limits, multipliers and bands."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt import control

if importlib.util.find_spec("matplotlib") is None:
    pytest.skip("matplotlib is missing", allow_module_level=True)

_STEP = 0.2


def _problem(**more):
    def dynamics(x, u):
        return x + _STEP * jnp.stack([x[1], u[0] - 0.3 * jnp.sin(x[0])])

    def stage_cost(x, u):
        return 0.1 * u[0] ** 2 + jnp.sum(x**2)

    return control.Problem(
        dynamics, stage_cost, lambda x: 5 * jnp.sum(x**2), jnp.array([1.0, 0.0]), 12, **more
    )


def test_bands_are_those_of_many_disturbed_runs():
    problem = _problem()
    solution = control.solve(problem, np.zeros((12, 1)))
    noise = 0.01
    figure = solution.plot(noise)
    band = figure.subfigs[0].axes[0].collections[0].get_paths()[0].vertices[:, 1]
    xs, gains, us = np.asarray(solution.xs), np.asarray(solution.gains), np.asarray(solution.us)
    w = noise * np.ptp(xs, axis=0)
    rng = np.random.default_rng(0)
    x = np.tile(xs[0], (4000, 1))
    move = jax.jit(jax.vmap(problem.stages.dynamics))
    for t in range(12):
        u = us[t] + (x - xs[t]) @ gains[t].T
        x = np.asarray(move(x, u)) + w * rng.standard_normal(x.shape)
    half = 2 * x[:, 0].std()
    upper = figure.subfigs[0].axes[0].collections[0].get_paths()[0].vertices
    last = upper[np.isclose(upper[:, 0], 12.0), 1]
    np.testing.assert_allclose(
        [last.min(), last.max()], [xs[-1, 0] - half, xs[-1, 0] + half], rtol=0.06, atol=2e-4
    )
    assert band.max() > xs[:, 0].max() - 1e-12


def test_limits_and_their_prices_are_drawn(tmp_path):
    solution = control.solve(_problem(control_limits=(-1.0, 1.0)), np.zeros((12, 1)), "newton")
    figure = solution.plot()
    controls, prices = figure.subfigs[1].axes[:2]
    dashed = [line.get_ydata() for line in controls.get_lines() if line.get_linestyle() == "--"]
    assert [set(line) for line in dashed] == [{-1.0}, {1.0}]
    drawn = prices.get_lines()[0].get_ydata()
    np.testing.assert_allclose(drawn[:12], np.asarray(solution.multipliers["control_limits"])[:, 0])
    assert np.abs(drawn).max() > 0.01
    figure.savefig(tmp_path / "solution.png")
    assert (tmp_path / "solution.png").stat().st_size > 20_000


def test_noise_is_a_share():
    solution = control.solve(_problem(), np.zeros((12, 1)))
    assert not solution.plot(noise=0).subfigs[0].axes[0].collections
    with pytest.raises(gnewt.OptionError, match="noise is -1"):
        solution.plot(-1)
