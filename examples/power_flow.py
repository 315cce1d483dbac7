"""Optimal power flow: which generators of a small network feed which loads, over lines that carry only so much.

Voltages are variables beside the generation; the balance at every bus is an equality whose multiplier is its price.
Run: python examples/power_flow.py [--out power_flow.png]
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

# Six buses in a ring with two chords: (from, to, resistance, reactance), per unit.
LINES = [
    (0, 1, 0.02, 0.10),
    (1, 2, 0.02, 0.12),
    (2, 3, 0.03, 0.15),
    (3, 4, 0.02, 0.10),
    (4, 5, 0.02, 0.12),
    (5, 0, 0.03, 0.15),
    (0, 3, 0.02, 0.20),
    (1, 4, 0.03, 0.20),
]
FROM, TO = (np.array([line[i] for line in LINES]) for i in (0, 1))
ADMITTANCE = 1 / np.array([r + 1j * x for _, _, r, x in LINES])
LOAD, REACTIVE = np.array([0.0, 0.3, 0.9, 0.2, 0.8, 0.6]), np.array([0.0, 0.1, 0.3, 0.1, 0.2, 0.2])
AT, MOST = np.array([0, 1, 3]), np.array([2.0, 1.0, 1.2])
PRICE, RISE = np.array([1.0, 2.0, 1.5]), np.array([0.5, 0.3, 0.4])
CAPACITY = 0.6


def flows(angle, size):
    """Active and reactive power that enters every line at its two ends."""
    g, b = ADMITTANCE.real, ADMITTANCE.imag

    def into(i, j):
        turn, product = angle[i] - angle[j], size[i] * size[j]
        active = g * size[i] ** 2 - product * (g * jnp.cos(turn) + b * jnp.sin(turn))
        reactive = -b * size[i] ** 2 - product * (g * jnp.sin(turn) - b * jnp.cos(turn))
        return active, reactive

    return into(FROM, TO), into(TO, FROM)


def network(z):
    """The cost of generation, and what is constrained."""
    angle = jnp.concatenate([jnp.zeros(1), z["angle"]])
    there, back = flows(angle, z["size"])
    balance = []
    for k, load in enumerate((LOAD, REACTIVE)):
        made = jnp.zeros(len(LOAD)).at[AT].add(z["made"][k])
        sent = jnp.zeros(len(LOAD)).at[FROM].add(there[k]).at[TO].add(back[k])
        balance.append(load + sent - made)
    carried = jnp.stack([there[0] ** 2 + there[1] ** 2, back[0] ** 2 + back[1] ** 2])
    cost = jnp.sum(PRICE * z["made"][0] + RISE * z["made"][0] ** 2)
    return cost, {"active": balance[0], "reactive": balance[1], "carried": carried}


def draw(path, z, prices, carried):
    at = np.array([[np.cos(a), np.sin(a)] for a in np.linspace(0, 2 * np.pi, 7)[:-1]])
    fig, axes = plt.subplots(figsize=(7, 6), layout="constrained")
    for i, j, load in zip(FROM, TO, np.sqrt(carried).max(0) / CAPACITY, strict=True):
        color = "C3" if load > 0.999 else "0.6"
        axes.plot(*at[[i, j]].T, color=color, linewidth=1 + 5 * load)
        axes.text(*at[[i, j]].mean(0), f"{100 * load:.0f} %")
    spots = axes.scatter(*at.T, c=prices, s=600, cmap="viridis", zorder=3)
    for bus, place in enumerate(at):
        made = np.sum(np.asarray(z["made"][0])[bus == AT])
        axes.text(*(1.25 * place), f"bus {bus}\n+{made:.2f} -{LOAD[bus]:.2f}", ha="center", va="center")
    axes.set(xlim=(-1.6, 1.6), ylim=(-1.5, 1.5), title="power made and used, load of lines")
    axes.axis("off")
    fig.colorbar(spots, label="price of power")
    fig.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="power_flow.png")
    args = parser.parse_args()

    start = {
        "angle": jnp.zeros(5),
        "size": jnp.ones(6),
        "made": jnp.stack([jnp.asarray(MOST) / 2, jnp.zeros(3)]),
    }
    res = gnewt.minimize(
        network,
        start,
        has_aux=True,
        bounds=(
            {"angle": None, "size": 0.94, "made": jnp.array([[0.0], [-1.0]]) * jnp.ones(3)},
            {"angle": None, "size": 1.06, "made": jnp.stack([jnp.asarray(MOST), jnp.ones(3)])},
        ),
        constraints={"active": (0.0, 0.0), "reactive": (0.0, 0.0), "carried": (None, CAPACITY**2)},
    )
    print(res)
    prices, carried = np.asarray(res.multipliers["active"]), np.asarray(network(res.x)[1]["carried"])
    print("price of power at every bus: " + " ".join(f"{p:.4f}" for p in prices))
    print(f"lines at their capacity: {int(np.sum(np.asarray(res.active['carried']).any(0)))}")
    draw(args.out, res.x, prices, carried)


if __name__ == "__main__":
    main()
