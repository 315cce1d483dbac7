"""Train a deep and narrow network by exact Newton steps: 20 layers of three units, each layer with weights of its own.

A few numbers pass from layer to layer for each sample, so that the tree is narrow while the Hessian is dense. The dashed line is
L-BFGS, whose steps are cheaper and many more; the two end in different minima, of which either may be the lower one. Run: python examples/narrow_network.py [--layers 20] [--samples 4] [--out narrow_network.png]
"""

import argparse

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import scipy.optimize
from jax.flatten_util import ravel_pytree

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import gnewt

jax.config.update("jax_enable_x64", True)

DECAY = 5e-3


def network(params, x):
    def layer(h, p):
        return h + 0.5 * jnp.tanh(p["w"] @ h + p["b"]), None

    return jax.lax.scan(layer, jnp.stack([x, -x, jnp.ones_like(x)]), params)[0][0]


def lbfgs(loss, params, steps):
    """Values of the loss after each step of SciPy's L-BFGS-B."""
    flat, back = ravel_pytree(params)
    both = jax.jit(jax.value_and_grad(lambda v: loss(back(v))))
    values = []
    scipy.optimize.minimize(
        lambda v: tuple(np.asarray(part) for part in both(v)),
        np.asarray(flat),
        jac=True,
        method="L-BFGS-B",
        callback=lambda v: values.append(float(both(v)[0])),
        options={"maxiter": steps, "ftol": 0, "gtol": 1e-9},
    )
    return values


def draw(path, history, gradients, samples, targets, params):
    fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    curves = {"Newton": [row.value for row in history], "L-BFGS": gradients}
    for (name, values), style in zip(curves.items(), ("o-", "--"), strict=True):
        left.semilogy(
            np.array(values) - values[-1] + 1e-12, style, ms=3, label=f"{name}, ends at {values[-1]:.5f}"
        )
    left.set(xlabel="step", ylabel="loss above its own end")
    left.legend()
    line = np.linspace(-1.5, 1.5, 200)
    right.plot(line, jax.vmap(lambda x: network(params, x))(line), label="network")
    right.plot(samples, targets, "o", label="samples")
    right.legend()
    fig.savefig(path, dpi=100)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--out", default="narrow_network.png")
    args = parser.parse_args()

    samples = np.linspace(-1.2, 1.2, args.samples)
    targets = np.sin(2 * samples)
    key = jax.random.key(1)
    params = {"w": 0.3 * jax.random.normal(key, (args.layers, 3, 3)), "b": jnp.zeros((args.layers, 3))}

    def loss(params):
        errors = jax.vmap(lambda x: network(params, x))(samples) - targets
        return jnp.mean(errors**2) + DECAY * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))

    res = gnewt.minimize(loss, params, max_steps=150)
    print(res)
    gradients = lbfgs(loss, params, 1000)
    print(
        f"Newton takes {res.num_steps} steps to {res.fun:.6f}, L-BFGS {len(gradients)} to {gradients[-1]:.6f}"
    )
    draw(args.out, res.history, gradients, samples, targets, res.x)


if __name__ == "__main__":
    main()
