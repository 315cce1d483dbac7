"""What did the expert care about? Weights of a cost, learned from demonstrations under the same limits.

Two levels: the inner one plans with the weights that are tried, the outer one moves the weights until the plans are those of
the expert. The gradient of the outer loss goes through the plans by the implicit function theorem, at the cost of one
elimination each, wherever the force is at its limit or not.
Run: python examples/learned_cost.py [--horizon 40] [--out learned_cost.png]
"""

import argparse

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import scipy.optimize

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import gnewt

jax.config.update("jax_enable_x64", True)

DT, LIMIT, NOISE = 0.1, 2.0, 0.02
TRUTH = {"place": 4.0, "speed": 0.5, "end": 20.0}
STARTS = jnp.array([[2.0, 0.0], [-1.0, 1.5], [1.0, -2.0]])


def cost(us, start, weights):
    """A car on a hilly road, which is to stop at the origin; and its states."""

    def stage(x, u):
        speed = x[1] + DT * (u - jnp.sin(x[0]))
        x = jnp.stack([x[0] + DT * speed, speed])
        return x, (DT * (u**2 + weights[0] * x[0] ** 2 + weights[1] * x[1] ** 2), x)

    end, (costs, xs) = jax.lax.scan(stage, start, us)
    return jnp.sum(costs) + weights[2] * jnp.sum(end**2), {"xs": xs}


def plan(weights, start, horizon):
    return gnewt.minimize(cost, jnp.zeros(horizon), (start, weights), has_aux=True, bounds=(-LIMIT, LIMIT))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--horizon", type=int, default=40)
    parser.add_argument("--out", default="learned_cost.png")
    args = parser.parse_args()

    truth = jnp.array(list(TRUTH.values()))
    expert = plan(truth, STARTS[0], args.horizon)
    print(f"the expert: {expert.message}")
    rng = np.random.default_rng(0)
    clean = np.stack([np.asarray(plan(truth, start, args.horizon).x) for start in STARTS])
    shown = clean + NOISE * rng.standard_normal(clean.shape)

    def loss(log_weights):
        plans = jax.vmap(lambda start: plan(jnp.exp(log_weights), start, args.horizon).x)(STARTS)
        return jnp.mean((plans - shown) ** 2)

    both = jax.jit(jax.value_and_grad(loss))

    def evaluate(log_weights):
        value, slope = both(jnp.asarray(log_weights))
        return float(value), np.asarray(slope)

    first = np.zeros(3)
    found = scipy.optimize.minimize(evaluate, first, jac=True, method="BFGS", options={"gtol": 1e-5})
    print(f"{'weight':>8} {'first':>8} {'learned':>8} {'truth':>8}   ({found.nfev} losses and gradients)")
    for name, a, b in zip(TRUTH, np.exp(first), np.exp(found.x), strict=True):
        print(f"{name:>8} {a:8.3f} {b:8.3f} {TRUTH[name]:8.3f}")

    times = DT * np.arange(args.horizon)
    fig, axes = plt.subplots(1, len(STARTS), figsize=(12, 3.5), sharey=True, layout="constrained")
    for ax, start, seen in zip(axes, STARTS, shown, strict=True):
        ax.plot(times, seen, ".", ms=3, color="grey", label="shown")
        ax.plot(times, plan(jnp.exp(first), start, args.horizon).x, ":", label="first weights")
        ax.plot(times, plan(jnp.exp(found.x), start, args.horizon).x, label="learned weights")
        ax.set(xlabel="time (s)")
    axes[0].set(ylabel="force")
    axes[0].legend()
    fig.savefig(args.out, dpi=120)


if __name__ == "__main__":
    main()
