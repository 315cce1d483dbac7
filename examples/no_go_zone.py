"""Park a car in the least time, around a zone where nobody may drive.

The final time is a variable beside the controls; steering, pedals and the zone are limits.
Run: python examples/no_go_zone.py [--horizon 50] [--out no_go_zone.png]
"""

import argparse

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import gnewt

jax.config.update("jax_enable_x64", True)

WHEELBASE, STEERING, PEDAL, FASTEST = 2.5, 0.6, 2.0, 3.0
START, GOAL = jnp.array([-8.0, 4.0, 0.0, 0.0]), jnp.array([0.0, 0.0, 0.0, 0.0])
CENTRE, AXES = jnp.array([-4.0, 1.5]), jnp.array([1.5, 1.5])


def rate(x, u):
    """Position, heading, speed; u is acceleration and steering."""
    return jnp.stack([x[3] * jnp.cos(x[2]), x[3] * jnp.sin(x[2]), x[3] / WHEELBASE * jnp.tan(u[1]), u[0]])


def drive(decision):
    """The time of a plan (and a little for comfort), and what is constrained. The midpoint rule."""
    us, seconds = decision["us"], decision["seconds"]
    dt = seconds / len(us)

    def stage(x, u):
        after = x + dt * rate(x + dt / 2 * rate(x, u), u)
        return after, after

    end, states = jax.lax.scan(stage, START, us)
    zone = jnp.sum(((states[:, :2] - CENTRE) / AXES) ** 2, -1)
    comfort = 1e-3 * dt * jnp.sum(us**2)
    return seconds + comfort, {"states": states, "zone": zone, "speed": states[:, 3], "end": end - GOAL}


def draw(path, states, us, seconds):
    times = np.linspace(0, seconds, len(us) + 1)
    fig, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    angles = np.linspace(0, 2 * np.pi, 100)
    left.fill(CENTRE[0] + AXES[0] * np.cos(angles), CENTRE[1] + AXES[1] * np.sin(angles), color="0.8")
    for t in np.linspace(0, len(us) - 1, 10).astype(int):
        heading = states[t, 2]
        turn = np.array([[np.cos(heading), np.sin(heading)], [-np.sin(heading), np.cos(heading)]])
        corners = np.array([[-0.6, -0.7], [3.1, -0.7], [3.1, 0.7], [-0.6, 0.7], [-0.6, -0.7]]) @ turn
        left.plot(*(corners + states[t, :2]).T, color="C0", alpha=0.15 + 0.85 * t / len(us))
    left.plot(states[:, 0], states[:, 1], color="C1")
    left.set(aspect="equal", xlabel="x (m)", ylabel="y (m)", title=f"{seconds:.2f} s")
    right.step(times[:-1], us, where="post", label=["acceleration (m/s²)", "steering (rad)"])
    right.plot(times[1:], states[:, 3], label="speed (m/s)")
    right.set(xlabel="time (s)")
    right.legend()
    fig.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--horizon", type=int, default=50)
    parser.add_argument("--out", default="no_go_zone.png")
    args = parser.parse_args()

    # A car at rest cannot be steered: the first plan moves, a little to the left, and brakes.
    early = jnp.arange(args.horizon) < args.horizon / 2
    plan = jnp.stack([jnp.where(early, 1.0, -1.0), jnp.full(args.horizon, 0.1)], -1)
    most = jnp.array([PEDAL, STEERING])
    res = gnewt.minimize(
        drive,
        {"us": plan, "seconds": jnp.array(6.0)},
        has_aux=True,
        bounds=({"us": -most, "seconds": 1.0}, {"us": most, "seconds": 30.0}),
        constraints={"zone": (1.0, None), "speed": (-FASTEST, FASTEST), "end": (0.0, 0.0)},
    )
    print(res)
    print(f"{float(res.x['seconds']):.4f} s; the zone is touched in {int(np.sum(res.active['zone']))} steps")
    draw(args.out, np.asarray(drive(res.x)[1]["states"]), np.asarray(res.x["us"]), float(res.x["seconds"]))


if __name__ == "__main__":
    main()
