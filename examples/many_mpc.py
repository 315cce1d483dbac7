"""Thousands of controllers at once: 4,096 pendulums of different lengths swing up, each by model-predictive control of its own.

One compiled function plans for all of them: `vmap` over first states, lengths and the last plans.
Run: python examples/many_mpc.py [--count 4096] [--horizon 30] [--out many_mpc.png]
"""

import argparse
import time

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from gnewt import control

jax.config.update("jax_enable_x64", True)

DT, STEPS, GRAVITY = 0.05, 80, 9.81


@jax.jit
def dynamics(x, u, params):
    """A pendulum, upright at angle π: one step of the semi-implicit Euler rule."""
    rate = x[1] + DT * (u[0] - GRAVITY / params * jnp.sin(x[0]))
    return jnp.stack([x[0] + DT * rate, rate])


def stage_cost(x, u, params):
    return DT * (5 * (1 + jnp.cos(x[0])) + 0.1 * x[1] ** 2 + 0.02 * u[0] ** 2)


def final_cost(x, params):
    return 20 * (1 + jnp.cos(x[0])) + x[1] ** 2


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=4096)
    parser.add_argument("--horizon", type=int, default=30)
    parser.add_argument("--out", default="many_mpc.png")
    args = parser.parse_args()

    rng = np.random.default_rng(0)
    lengths = jnp.asarray(rng.uniform(0.5, 2.0, args.count))
    x = jnp.asarray(rng.uniform(-1.0, 1.0, (args.count, 2)))
    problem = control.Problem(dynamics, stage_cost, final_cost, x[0], args.horizon, params=lengths[0])

    def plan_for(x, length, before):
        return control.mpc_step(problem.replace(params=length), x, before, iterations=2, method="newton")

    plan = jax.jit(jax.vmap(plan_for))
    move = jax.jit(jax.vmap(dynamics))
    before = jnp.broadcast_to(jnp.linspace(3.0, -3.0, args.horizon)[:, None], (args.count, args.horizon, 1))
    before, states, seconds = plan(x, lengths, before), [x], []
    for _ in range(STEPS):
        begin = time.perf_counter()
        before = jax.block_until_ready(plan(x, lengths, before))
        seconds.append(time.perf_counter() - begin)
        x = move(x, before.u, lengths)
        states.append(x)
    states = np.array(states)

    up = np.cos(states[-1, :, 0]) < -0.99
    rate = args.count / float(np.median(seconds[1:]))
    print(f"{args.count} pendulums, {STEPS} steps: {rate:,.0f} plans a second")
    print(f"upright at the end: {up.mean():.1%}")
    _, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    times = DT * np.arange(STEPS + 1)
    for i in range(min(200, args.count)):
        axes[0].plot(times, states[:, i, 0], color=plt.cm.viridis((float(lengths[i]) - 0.5) / 1.5), lw=0.4)
    axes[0].set(xlabel="time", ylabel="angle", title="200 of them, by length")
    axes[1].plot(times, (np.cos(states[:, :, 0]) < -0.99).mean(1))
    axes[1].set(xlabel="time", ylabel="share", title="upright")
    plt.savefig(args.out, dpi=120)


if __name__ == "__main__":
    main()
