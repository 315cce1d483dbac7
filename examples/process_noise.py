"""How much is a pendulum pushed around? The process noise of a nonlinear state-space model, learned from noisy angles.

For each size of the noise, Laplace's approximation integrates the unknown pushes out; the evidence that is left is maximised
by its exact gradient. With the pushes estimated along with the noise, the noise would go to zero.
Run: python examples/process_noise.py [--horizon 300] [--out process_noise.png]
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

DT, TRUTH = 0.05, {"push": 0.6, "seen": 0.1}
START = jnp.array([1.0, 0.0])


def advance(x, push):
    rate = x[1] + DT * (push - 9.81 * jnp.sin(x[0]) - 0.2 * x[1])
    return jnp.stack([x[0] + DT * rate, rate])


def simulate(horizon):
    """True states and measured angles."""
    rng = np.random.default_rng(0)
    pushes = TRUTH["push"] / np.sqrt(DT) * rng.standard_normal(horizon)
    _, xs = jax.lax.scan(lambda x, u: (advance(x, u),) * 2, START, jnp.asarray(pushes))
    return np.asarray(xs), np.asarray(xs[:, 0]) + TRUTH["seen"] * rng.standard_normal(horizon)


def neg_log_joint(shocks, log_sizes, angles):
    """-log p(shocks, angles; sizes), and the states."""
    push, seen = jnp.exp(log_sizes)

    def stage(x, now):
        shock, angle = now
        x = advance(x, push / np.sqrt(DT) * shock)
        missed = (angle - x[0]) / seen
        return x, (0.5 * missed**2 + 0.5 * shock**2 + jnp.log(2 * jnp.pi) + log_sizes[1], x)

    _, (terms, xs) = jax.lax.scan(stage, START, (shocks, angles))
    return jnp.sum(terms), {"xs": xs}


def learn(angles):
    """Maximise the evidence over the logarithms of both sizes; every evaluation finds a mode and its determinant."""
    start = jnp.zeros(len(angles))

    def loss(log_sizes):
        return -gnewt.laplace(neg_log_joint, start, (log_sizes, angles), has_aux=True).log_evidence

    both = jax.jit(jax.value_and_grad(loss))

    def evaluate(log_sizes):
        value, slope = both(jnp.asarray(log_sizes))
        return float(value), np.asarray(slope)

    return scipy.optimize.minimize(
        evaluate, np.log([0.2, 0.3]), jac=True, method="BFGS", options={"gtol": 1e-4}
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--horizon", type=int, default=300)
    parser.add_argument("--out", default="process_noise.png")
    args = parser.parse_args()

    truth, angles = simulate(args.horizon)
    best = learn(jnp.asarray(angles))
    print(f"{'noise':>8} {'learned':>8} {'truth':>8}   ({best.nfev} evidences and gradients)")
    for name, size in zip(TRUTH, np.exp(best.x), strict=True):
        print(f"{name:>8} {size:8.3f} {TRUTH[name]:8.3f}")

    args_of = (jnp.asarray(best.x), jnp.asarray(angles))
    found = gnewt.laplace(neg_log_joint, jnp.zeros(args.horizon), args_of, has_aux=True, keep=True)
    print(f"at the learned sizes: {found.result.message}; log evidence {float(found.log_evidence):.2f}")
    xs = np.asarray(neg_log_joint(found.mode, *args_of)[1]["xs"])
    std = np.sqrt(found.output_variances()["xs"])

    times = DT * np.arange(1, args.horizon + 1)
    fig, axes = plt.subplots(2, 1, figsize=(9, 6), sharex=True, layout="constrained")
    for i, (ax, name) in enumerate(zip(axes, ("angle (rad)", "rate (rad/s)"), strict=True)):
        ax.fill_between(times, xs[:, i] - 2 * std[:, i], xs[:, i] + 2 * std[:, i], alpha=0.3, label="± 2 std")
        ax.plot(times, xs[:, i], label="mode")
        ax.plot(times, truth[:, i], ":", color="black", label="truth")
        ax.set(ylabel=name)
    axes[0].plot(times, angles, ".", ms=3, color="grey", label="measured")
    axes[1].set(xlabel="time (s)")
    axes[0].legend(loc="upper right")
    fig.savefig(args.out, dpi=120)


if __name__ == "__main__":
    main()
