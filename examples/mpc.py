"""Model-predictive control: keep a cartpole upright and bring it home while something pushes it.

Every step plans anew from the state that was measured, beginning with the last plan and its gains; `mpc_step` is compiled once.
Run: python examples/mpc.py [--horizon 50] [--out mpc.png]; with --out mpc.gif it makes a film
"""

import argparse
import time

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.animation import FuncAnimation, PillowWriter

from gnewt import control

jax.config.update("jax_enable_x64", True)

DT, STEPS = 0.04, 200
CART, POLE, LENGTH, GRAVITY = 1.0, 0.2, 0.5, 9.81
START, GOAL = jnp.array([0.0, 0.0, 0.0, 0.0]), jnp.array([0.0, jnp.pi, 0.0, 0.0])
PUSHES = {70: 1.5, 100: -1.5}  # step: what the rate of the pole jumps by


def flow(x, u):
    _, angle, velocity, rate = x
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    mass = CART + POLE * sin**2
    push = u[0] + POLE * sin * (LENGTH * rate**2 + GRAVITY * cos)
    swing = -u[0] * cos - POLE * LENGTH * rate**2 * cos * sin - (CART + POLE) * GRAVITY * sin
    return jnp.stack([velocity, rate, push / mass, swing / (LENGTH * mass)])


@jax.jit
def dynamics(x, u):
    """One step of the explicit midpoint rule."""
    return x + DT * flow(x + DT / 2 * flow(x, u), u)


def stage_cost(x, u):
    return DT * (x[0] ** 2 + 5 * (1 + jnp.cos(x[1])) + 0.1 * x[2] ** 2 + 0.1 * x[3] ** 2 + 0.02 * u[0] ** 2)


def final_cost(x):
    return 10 * jnp.sum((x - GOAL) ** 2)


def disturb(x, step):
    return x.at[3].add(PUSHES.get(step, 0.0))


def draw(path, states, forces):
    times = DT * np.arange(STEPS + 1)
    fig, (top, bottom) = plt.subplots(2, 1, figsize=(8, 6), sharex=True, layout="constrained")
    top.plot(times, states[:, 1], label="angle (rad)")
    top.plot(times, states[:, 0], label="position (m)")
    top.axhline(np.pi, color="grey", ls=":")
    for step in PUSHES:
        top.axvline((step + 1) * DT, color="C3", ls="--", lw=0.8)
    top.legend()
    top.set(title="model-predictive control; dashed: a push")
    bottom.step(times[:-1], forces, where="post", color="C2")
    bottom.set(xlabel="time (s)", ylabel="force (N)")
    fig.savefig(path, dpi=120)


def film(path, states, forces):
    """The cart as it moves; every second step is a picture."""
    fig, axes = plt.subplots(figsize=(5, 2.6), layout="constrained")
    axes.set(xlim=(-1.6, 1.6), ylim=(-0.7, 0.7), aspect="equal", yticks=[])
    axes.axhline(0, color="0.8", lw=1)
    (cart,) = axes.plot([], [], "s", ms=14, color="C0")
    (pole,) = axes.plot([], [], "o-", ms=6, lw=3, color="C1", markevery=[1])
    (force,) = axes.plot([], [], lw=3, color="C2")
    told = axes.text(-1.5, 0.52, "")

    def show(step):
        x, angle = states[step, :2]
        cart.set_data([x], [0])
        pole.set_data([x, x + LENGTH * np.sin(angle)], [0, -LENGTH * np.cos(angle)])
        force.set_data([x, x + 0.05 * forces[min(step, STEPS - 1)]], [-0.15, -0.15])
        pushed = any(0 < step - push <= 8 for push in PUSHES)
        told.set_text(f"{step * DT:.1f} s" + ("   pushed" if pushed else ""))

    frames = FuncAnimation(fig, show, range(0, STEPS, 2))
    frames.save(path, PillowWriter(fps=12), dpi=70)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--horizon", type=int, default=50)
    parser.add_argument("--out", default="mpc.png")
    args = parser.parse_args()

    problem = control.Problem(dynamics, stage_cost, final_cost, START, args.horizon)
    us = 5 * np.sin((GRAVITY / LENGTH) ** 0.5 * DT * np.arange(args.horizon))[:, None]
    plan = control.solve(problem, us, "nonlinear-newton")  # a good first plan; then two iterations a step

    x, states, forces, seconds = START, [START], [], []
    for step in range(STEPS):
        begin = time.perf_counter()
        plan = jax.block_until_ready(control.mpc_step(problem, x, plan, iterations=2))
        seconds.append(time.perf_counter() - begin)
        x = disturb(dynamics(x, plan.u), step)
        states.append(x)
        forces.append(float(plan.u[0]))
    states = np.array(states)

    print(f"{'time':>5} {'position':>9} {'angle':>8} {'force':>8}")
    for step in range(0, STEPS, 20):
        print(f"{step * DT:5.2f} {states[step, 0]:9.4f} {states[step, 1]:8.4f} {forces[step]:8.3f}")
    error = float(np.linalg.norm(states[-1] - GOAL))
    print(f"{STEPS} steps, {len(PUSHES)} pushes; at the end {error:.4f} from the goal")
    print(
        f"{1 / np.median(seconds):.0f} plans a second (the first call, which compiles, took {seconds[0]:.1f} s)"
    )

    (film if args.out.endswith(".gif") else draw)(args.out, states, forces)


if __name__ == "__main__":
    main()
