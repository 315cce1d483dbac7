"""A parameter that every time step reads: fit a drag coefficient and the forces on a falling body at once.

The graph is a chain with a hub. Its Hessian is dense, and solvers for chains refuse the hub; here the width
grows by one. Run: python examples/shared_parameter.py
"""

import jax
import jax.numpy as jnp
import numpy as np

import gnewt
from gnewt.plan import make_plan

jax.config.update("jax_enable_x64", True)

T, DT = 80, 0.05
TRUE_DRAG = 0.35
START = jnp.array([0.0, 0.0])


def fall(x, drag, push):
    """One step of height and speed under gravity, quadratic drag and an unknown push."""
    height, speed = x
    force = -9.81 - drag[0] * speed * jnp.abs(speed) + push[0]
    return jnp.stack([height + DT * speed, speed + DT * force])


def misfit(x, seen):
    return 50.0 * (x[0] - seen) ** 2


def smallness(push):
    return 0.5 * push[0] ** 2


def prior(drag):
    return 0.5 * (drag[0] - 0.1) ** 2


def measure(seed):
    """Heights of a body with the true drag, with noise."""
    x, heights = START, []
    for _ in range(T):
        x = fall(x, jnp.array([TRUE_DRAG]), jnp.zeros(1))
        heights.append(float(x[0]))
    return np.array(heights) + 0.02 * np.random.default_rng(seed).standard_normal(T)


def main():
    g = gnewt.Graph()
    drag = g.input((1,), name="drag")
    push = [g.input((1,), name=f"push{t}") for t in range(T)]
    g.loss(prior, drag)
    x = g.constant(START)
    for t, seen in enumerate(measure(seed=0)):
        x = g.node(fall, x, drag, push[t])
        g.loss(smallness, push[t])
        g.loss(misfit, x, seen)

    print(g)
    print(make_plan(g.structure()).certificate)
    result = gnewt.minimize(g, [np.array([0.1])] + [np.zeros(1)] * T)
    # At the minimum H⁻¹ is the covariance of the Laplace approximation; it is dense and never formed.
    variance = gnewt.factorize(g)(result.x).marginal_variances()[0][0]
    print(f"{result.message} ({result.num_steps} steps, |g| = {result.grad_norm:.1e})")
    print(f"drag {result.x[0][0]:.3f} ± {np.sqrt(variance):.3f}, true {TRUE_DRAG}")


if __name__ == "__main__":
    main()
