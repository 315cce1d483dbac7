"""Decide now, learn later: control of a tank when the demand branches into scenarios.

A plain JAX function over a binary tree: scenarios share their decisions until they part. No solver for chains fits; the elimination
follows the tree. Run: python examples/scenario_tree.py [--depth 5] [--out scenario_tree.png]
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

STEPS, START, TARGET = 3, 0.2, 1.0
DEMANDS = np.array([0.6, 1.4])  # at every branching: low or high


def tank(level, flow, demand):
    """Level after a step: inflow, less demand, less a leak that grows with the level."""
    return level + 0.3 * (jnp.exp(flow) - demand - 0.2 * jnp.sqrt(1 + level**2))


def expected_cost(flows):
    """flows[d] has a row of decisions for each of the 2^d branches at depth d."""
    level, last, total = jnp.array([START]), jnp.zeros(1), 0.0
    for depth, decisions in enumerate(flows):
        branches = 2**depth
        demand = np.ones(1) if depth == 0 else np.tile(DEMANDS, branches // 2)
        if depth:  # the demand becomes known: every branch splits
            level, last = jnp.repeat(level, 2), jnp.repeat(last, 2)
        for step in range(STEPS):
            flow = decisions[:, step]
            level = tank(level, flow, demand)
            # The pump is slow to change, so it pays to be prepared for either demand.
            cost = 10 * (level - TARGET) ** 2 + jnp.exp(flow) + 20 * (flow - last) ** 2
            total, last = total + jnp.sum(cost) / branches, flow
    return total


def draw(path, flows):
    fig, (top, bottom) = plt.subplots(2, 1, figsize=(8, 7), sharex=True, layout="constrained")
    level = {(): START}
    for depth, decisions in enumerate(flows):
        grown = {}
        for branch, row in enumerate(decisions):
            code = tuple(int(b) for b in format(branch, f"0{depth}b")) if depth else ()
            demand = DEMANDS[code[-1]] if depth else 1.0
            path_levels = [level[code[:-1]]]
            for flow in row:
                path_levels.append(float(tank(path_levels[-1], flow, demand)))
            times = depth * STEPS + np.arange(STEPS + 1)
            color = "grey" if not depth else ("C0", "C3")[code[-1]]
            top.plot(times, path_levels, color=color, lw=1)
            bottom.step(times, np.exp([*row, row[-1]]), where="post", color=color, lw=1)
            grown[code] = path_levels[-1]
        level = grown
    top.axhline(TARGET, color="grey", ls=":")
    top.set(ylabel="level", title="blue: the demand turned out low, red: high")
    bottom.set(ylabel="inflow", xlabel="step")
    fig.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--out", default="scenario_tree.png")
    args = parser.parse_args()

    first = [np.zeros((2**depth, STEPS)) for depth in range(args.depth + 1)]
    report = gnewt.explain(expected_cost, first)
    print(report)
    result = gnewt.minimize(expected_cost, first)
    print(f"\n{'depth':>6} {'branches':>9} {'mean inflow':>12} {'least':>8} {'most':>8}")
    for depth, row in enumerate(result.x):
        flow = np.exp(np.asarray(row))
        print(f"{depth:6d} {len(row):9d} {flow.mean():12.4f} {flow.min():8.4f} {flow.max():8.4f}")
    print(f"{result.message} ({result.num_steps} steps, |g| = {result.grad_norm:.1e})")
    print(
        f"{report.num_inputs} decisions in {2**args.depth} scenarios, width {report.width}; expected cost {result.fun:.5f}"
    )
    draw(args.out, [np.asarray(row) for row in result.x])


if __name__ == "__main__":
    main()
