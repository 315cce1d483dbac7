"""Constraints inside jit and vmap: the same steps, traced limits, single precision."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gnewt
from gnewt.newton import Status

T = 10


def rollout(u: Any, x0: Any) -> Any:
    def step(x: Any, v: Any) -> Any:
        x = x + 0.2 * jnp.stack([x[1], jnp.sin(x[0]) + v])
        return x, x

    return jax.lax.scan(step, x0, u)[1]


def cost(u: Any, x0: Any) -> Any:
    return jnp.sum(u**2) + 0.1 * jnp.sum(rollout(u, x0) ** 2)


def rows(reach: Any = 0.8) -> dict[str, Any]:
    return {
        "end": gnewt.equal(lambda u, x0: rollout(u, x0)[-1], jnp.zeros(2)),
        "fast": gnewt.between(lambda u, x0: rollout(u, x0)[:, 1], -reach, reach),
    }


def solve(u: Any, x0: Any, reach: Any = 0.8, most: Any = 2.0, **options: Any) -> Any:
    return gnewt.minimize(cost, u, (x0,), bounds=(-most, most), constraints=rows(reach), **options)


FROM = jnp.array([0.5, 0.0])


def test_jit_takes_the_steps_of_the_host() -> None:
    host = solve(jnp.zeros(T), FROM)
    compiled = jax.jit(solve)(jnp.zeros(T), FROM)
    assert host.success and compiled.code == host.code
    assert compiled.num_steps == host.num_steps and compiled.num_factorizations == host.num_factorizations
    assert np.allclose(compiled.x, host.x, atol=1e-9)
    assert np.allclose(compiled.multipliers["fast"], host.multipliers["fast"], atol=1e-7)
    assert np.allclose(compiled.history.mu[: host.num_steps], [float(r.mu) for r in host.history], rtol=1e-6)
    assert np.isnan(compiled.history.mu[host.num_steps :]).all()


def test_lanes_end_as_runs_do() -> None:
    starts = 0.6 * jax.random.normal(jax.random.key(0), (6, 2))
    batch = jax.vmap(lambda x0: solve(jnp.zeros(T), x0))(starts)  # without jit: what lanes share is known
    single = jax.jit(lambda x0: solve(jnp.zeros(T), x0))
    for i, x0 in enumerate(starts):
        alone = single(x0)
        assert batch.code[i] == alone.code and batch.num_steps[i] == alone.num_steps
        assert np.allclose(batch.x[i], alone.x, atol=1e-8)


def test_limits_are_arguments_of_compiled_functions() -> None:
    traces = []

    @jax.jit
    def run(reach: Any, most: Any) -> Any:
        traces.append(1)
        return solve(jnp.zeros(T), FROM, reach, most)

    for reach, most in [(0.8, 2.0), (0.4, 1.5), (np.inf, np.inf)]:
        res = run(reach, most)
        assert res.code == Status.CONVERGED
        host = solve(jnp.zeros(T), FROM, reach, most)
        assert np.allclose(res.x, host.x, atol=1e-6)
        assert np.max(np.abs(rollout(res.x, FROM)[:, 1])) <= reach + 1e-7
    assert len(traces) == 1


def test_limits_may_differ_by_lane() -> None:
    most = jnp.array([0.9, 1.2, 2.0])
    batch = jax.vmap(lambda m: solve(jnp.zeros(T), FROM, 0.8, m))(most)
    assert np.all(batch.code == Status.CONVERGED)
    assert np.all(np.max(np.abs(batch.x), 1) <= most)
    for i, m in enumerate(most):
        assert np.allclose(batch.x[i], solve(jnp.zeros(T), FROM, 0.8, float(m)).x, atol=1e-6)


def test_single_precision() -> None:
    res = solve(jnp.zeros(T, np.float32), FROM.astype(np.float32), tol=1e-4)
    double = solve(jnp.zeros(T), FROM)
    assert res.success and res.x.dtype == np.float32
    assert np.allclose(res.x, double.x, atol=2e-3)
    # No number on the way is wider.
    for tree in (res.history, res.memory, res.multipliers, res.bound_multipliers):
        floats = [np.result_type(np.asarray(v)) for v in jax.tree_util.tree_leaves(tree)]
        assert np.float64 not in floats


def test_rows_that_do_not_depend_on_x_inside_jit() -> None:
    def run(limit: Any) -> Any:
        row = gnewt.between(lambda x: jnp.stack([jnp.ones(()), x[0]]), None, limit)
        return gnewt.minimize(lambda x: jnp.sum((x - 3) ** 2), jnp.zeros(2), constraints=[row])

    compiled = jax.jit(run)
    assert compiled(2.0).code == Status.CONVERGED and np.allclose(compiled(2.0).x, [2, 3], atol=1e-6)
    assert compiled(0.5).code == Status.INFEASIBLE


def test_rollouts_of_several_functions_are_one() -> None:
    def together(u: Any, x0: Any) -> Any:
        x = rollout(u, x0)
        return jnp.sum(u**2) + 0.1 * jnp.sum(x**2), {"end": x[-1], "fast": x[:, 1]}

    apart = solve(jnp.zeros(T), FROM)
    limits = {"end": (0.0, 0.0), "fast": (-0.8, 0.8)}
    one = gnewt.minimize(together, jnp.zeros(T), (FROM,), has_aux=True, bounds=(-2, 2), constraints=limits)
    assert apart.num_steps == one.num_steps and np.allclose(apart.x, one.x, atol=1e-9)
    assert apart.factor.certificate.width == one.factor.certificate.width
