"""Two planar arms carry a rod between their hands.

Each arm is a chain in time; a spring between the hands couples the chains at every stage. States are dictionaries.
Run: python examples/two_arms.py [--horizon 60] [--out two_arms.png]
"""

import argparse

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import gnewt
from gnewt import control

jax.config.update("jax_enable_x64", True)

SECONDS, ROD = 1.5, 0.6
BASES = {"left": jnp.array([-0.6, 0.0]), "right": jnp.array([0.6, 0.0])}
GOAL = jnp.array([0.3, 1.2])  # of the middle of the rod
REACH, INERTIA = 0.5, 1.0 / 12  # links of 1 kg and 1 m, in a horizontal plane


def accelerate(q, w, torque):
    """Accelerations of shoulder and elbow."""
    cos, sin = jnp.cos(q[1]), jnp.sin(q[1])
    m22 = INERTIA + REACH**2
    m12 = m22 + REACH * cos
    m11 = 2 * INERTIA + 1 + 2 * REACH**2 + 2 * REACH * cos
    b1 = torque[0] + REACH * sin * (2 * w[0] * w[1] + w[1] ** 2) - 0.1 * w[0]
    b2 = torque[1] - REACH * sin * w[0] ** 2 - 0.1 * w[1]
    determinant = m11 * m22 - m12**2
    return jnp.stack([m22 * b1 - m12 * b2, m11 * b2 - m12 * b1]) / determinant


def hand(base, q):
    elbow = base + jnp.stack([jnp.cos(q[0]), jnp.sin(q[0])])
    return elbow + jnp.stack([jnp.cos(q[0] + q[1]), jnp.sin(q[0] + q[1])])


def dynamics(x, u, dt):
    """Semi-implicit Euler, for each arm on its own."""
    after = {}
    for side in x:
        w = x[side]["w"] + dt * accelerate(x[side]["q"], x[side]["w"], u[side])
        after[side] = {"q": x[side]["q"] + dt * w, "w": w}
    return after


def coupling(x):
    """Energy of a stiff spring: the hands should be ROD apart."""
    apart = hand(BASES["right"], x["right"]["q"]) - hand(BASES["left"], x["left"]["q"])
    return 500 * (jnp.sum(apart**2) - ROD**2) ** 2


def stage_cost(x, u, dt):
    return dt * (coupling(x) + 0.01 * sum(jnp.sum(torque**2) for torque in u.values()))


def final_cost(x):
    middle = (hand(BASES["left"], x["left"]["q"]) + hand(BASES["right"], x["right"]["q"])) / 2
    rest = sum(jnp.sum(x[side]["w"] ** 2) for side in x)
    return 100 * jnp.sum((middle - GOAL) ** 2) + 10 * rest + coupling(x)


def start():
    """Hands ROD apart around (0, 0.9), by Newton's method on the angles."""

    def miss(q):
        left, right = hand(BASES["left"], q[:2]), hand(BASES["right"], q[2:])
        wanted = jnp.array([-ROD / 2, 0.9, ROD / 2, 0.9])
        return jnp.sum((jnp.concatenate([left, right]) - wanted) ** 2)

    q = gnewt.minimize(miss, np.array([2.2, -1.5, 0.9, 1.5])).x
    return {side: {"q": q[i : i + 2], "w": jnp.zeros(2)} for side, i in (("left", 0), ("right", 2))}


def draw(path, xs):
    fig, ax = plt.subplots(figsize=(7, 6), layout="constrained")
    horizon = len(xs["left"]["q"])
    for t in np.linspace(0, horizon - 1, 8).astype(int):
        hands = []
        for side, color in (("left", "C0"), ("right", "C1")):
            base, q = np.asarray(BASES[side]), np.asarray(xs[side]["q"][t])
            elbow = base + np.array([np.cos(q[0]), np.sin(q[0])])
            hands.append(np.asarray(hand(base, q)))
            ax.plot(*np.array([base, elbow, hands[-1]]).T, "o-", color=color, alpha=0.15 + 0.85 * t / horizon)
        ax.plot(*np.array(hands).T, color="k", lw=3, alpha=0.15 + 0.85 * t / horizon)
    ax.plot(*GOAL, "*", ms=15, color="C2")
    ax.set(aspect="equal", title="two arms carry a rod, faint to dark")
    fig.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--horizon", type=int, default=60)
    parser.add_argument("--out", default="two_arms.png")
    args = parser.parse_args()

    problem = control.Problem(dynamics, stage_cost, final_cost, start(), args.horizon, final_time=SECONDS)
    first = {side: np.zeros((args.horizon, 2)) for side in BASES}
    solution = control.solve(problem, first, "nonlinear-newton")

    left = jax.vmap(lambda q: hand(BASES["left"], q))(solution.xs["left"]["q"])
    right = jax.vmap(lambda q: hand(BASES["right"], q))(solution.xs["right"]["q"])
    apart = np.linalg.norm(np.asarray(right - left), axis=1)
    middle = np.asarray(left + right) / 2
    print(f"{'time':>5} {'rod at x':>9} {'y':>8} {'length':>8}")
    for t in np.linspace(0, args.horizon, 7).astype(int):
        print(f"{t * SECONDS / args.horizon:5.2f} {middle[t, 0]:9.4f} {middle[t, 1]:8.4f} {apart[t]:8.4f}")
    print(
        f"{solution.message} ({solution.num_steps} steps, cost {solution.fun:.5f}, |g| = {solution.grad_norm:.1e})"
    )
    print(f"width of both arms: {gnewt.explain(problem, problem.decision(first)).width}")
    draw(args.out, solution.xs)


if __name__ == "__main__":
    main()
