"""Decide now, learn later: control of a tank when the demand branches into scenarios.

The graph is a tree, not a chain: each branch has its own later decisions and shares the earlier ones.
Run: python examples/scenario_tree.py
"""

import jax
import jax.numpy as jnp
import numpy as np

import gnewt
from gnewt.plan import make_plan

jax.config.update("jax_enable_x64", True)

DEPTH, STEPS, TARGET = 5, 3, 1.0


def tank(level, flow, demand):
    """Level after a step: inflow, less demand, less a leak that grows with the level."""
    return level + 0.3 * (jnp.exp(flow) - demand - 0.2 * jnp.sqrt(1 + level**2))


def cost(level, flow, probability):
    return probability * (10 * (level[0] - TARGET) ** 2 + jnp.exp(flow[0]))


def add_branch(g, level, depth, probability, flows):
    """Grow a stretch of time steps, then split: the demand turns out low or high."""
    for demand in (0.6, 1.4) if depth else (1.0,):
        branch, share = level, probability * (0.5 if depth else 1.0)
        for _ in range(STEPS):
            flow = g.input((1,), name=f"flow{len(flows)}")
            flows.append(flow)
            branch = g.node(tank, branch, flow, np.array([demand]))
            g.loss(cost, branch, flow, np.array(share))
        if depth < DEPTH:
            add_branch(g, branch, depth + 1, share, flows)


def main():
    g, flows = gnewt.Graph(), []
    add_branch(g, g.constant(jnp.array([0.2])), 0, 1.0, flows)
    plan = make_plan(g.structure())
    print(f"{len(flows)} decisions in {2**DEPTH} scenarios; order {plan.order_name}: {plan.certificate}")
    result = gnewt.minimize(g, [np.zeros(1)] * len(flows))
    print(f"{result.message} ({result.num_steps} steps, |g| = {result.grad_norm:.1e})")
    print(f"expected cost {float(result.fun):.4f}; first inflow {float(np.exp(result.x[0][0])):.4f}")


if __name__ == "__main__":
    main()
