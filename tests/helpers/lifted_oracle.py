"""The oracle: gradient and H·v through the lifted system, by JAX on each family, against JAX on f itself.

Shares nothing with `gnewt.kkt`: local Jacobians and Hessians by `jacfwd` and `hessian`, sums over instances in
NumPy, sweeps instance by instance in slot order.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.flatten_util
import numpy as np

from gnewt.graph import Structure, forward


def local_models(graph: Structure, s: np.ndarray) -> list[tuple[np.ndarray, ...]]:
    """For each family J[n, m, k], the Hessian of every output H[n, m, k, k] and the values [n, m]: one program."""
    models = []
    for family, data in zip(graph.families, graph.data, strict=True):
        axes = (0, *family.data_axes)
        x = s[family.args]

        def psi(v: Any, *d: Any, family: Any = family) -> Any:
            return family.fn(v, *d).reshape(-1)

        def model(v: Any, *d: Any, psi: Any = psi) -> tuple[Any, Any, Any]:
            return jax.jacfwd(psi)(v, *d), jax.jacfwd(jax.jacrev(psi))(v, *d), psi(v, *d)

        models.append(tuple(np.asarray(part) for part in jax.jit(jax.vmap(model, axes))(x, *data)))
    return models


def node_order(graph: Structure) -> list[tuple[int, int]]:
    """Instances (family, row) in the order of the slots they define."""
    found = []
    for f in graph.nodes:
        first = graph.families[f].outs.min(1)
        found += [(int(o), f, i) for i, o in enumerate(first)]
    return [(f, i) for _, f, i in sorted(found)]


def lifted(graph: Structure, x: np.ndarray, v: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Value, gradient and H·v on flat vectors."""
    s = np.asarray(jax.jit(lambda m, d, z: forward(graph, m, d, z))(graph.maps, graph.data, x))
    models = local_models(graph, s)
    check_patterns(graph, models)
    order = node_order(graph)
    N = graph.num_inputs
    lam = np.zeros(graph.num_slots)
    value = 0.0
    for f in graph.losses:
        value += float(np.sum(models[f][2], dtype=np.float64))
        np.add.at(lam, graph.families[f].args, models[f][0][:, 0, :])
    for f, i in reversed(order):
        family = graph.families[f]
        np.add.at(lam, family.args[i], models[f][0][i].T @ lam[family.outs[i]])
    ds = np.zeros(graph.num_slots)
    ds[:N] = v
    for f, i in order:
        family = graph.families[f]
        np.add.at(ds, family.outs[i], models[f][0][i] @ ds[family.args[i]])
    dlam = np.zeros(graph.num_slots)
    for f, family in enumerate(graph.families):
        weight = np.ones((family.n, 1)) if family.is_loss else lam[family.outs]
        local = np.einsum("nm,nmij,nj->ni", weight, models[f][1], ds[family.args])
        np.add.at(dlam, family.args, local)
    for f, i in reversed(order):
        family = graph.families[f]
        np.add.at(dlam, family.args[i], models[f][0][i].T @ dlam[family.outs[i]])
    return value, lam[:N], dlam[:N]


def check_patterns(graph: Structure, models: list[tuple[np.ndarray, ...]]) -> None:
    """A pattern never hides a nonzero."""
    for family, (J, H, _) in zip(graph.families, models, strict=True):
        assert not np.any(J[:, ~family.jac_pattern]), f"{family.name}: Jacobian pattern"
        assert not np.any(H[:, :, ~family.hess_pattern]), f"{family.name}: Hessian pattern"


def errors(
    graph: Structure, f: Any, args: tuple[Any, ...], argnums: Any = 0, seed: int = 0, jit: bool = True
) -> tuple[float, float, float]:
    """Relative errors of value, gradient and H·v at `args`.

    `jit=False` evaluates f itself eagerly: XLA takes minutes to compile derivatives of unrolled code.
    """
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    x, unravel = jax.flatten_util.ravel_pytree(tuple(args[i] for i in numbers))
    v = np.random.default_rng(seed).standard_normal(x.size).astype(x.dtype)

    def flat(z: Any) -> Any:
        full = list(args)
        for i, part in zip(numbers, unravel(z), strict=True):
            full[i] = part
        return f(*full)

    value, grad, hvp = lifted(graph, np.asarray(x), v)
    compiled = jax.jit if jit else lambda fn: fn
    (true, g), (_, Hv) = compiled(lambda z, t: jax.jvp(jax.value_and_grad(flat), (z,), (t,)))(x, v)
    true = float(true)
    return (
        abs(value - true) / max(1.0, abs(true)),
        _relative(grad, np.asarray(g)),
        _relative(hvp, np.asarray(Hv)),
    )


def _relative(a: np.ndarray, b: np.ndarray) -> float:
    assert np.array_equal(np.isfinite(a), np.isfinite(b)), "one is finite where the other is not"
    ok = np.isfinite(b)
    return float(np.linalg.norm((a - b)[ok]) / max(1e-300, np.linalg.norm(b[ok]), 1e-12))
