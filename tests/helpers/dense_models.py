"""The oracle of linearisation: dense local derivatives, instance by instance in slot order. Slow and plain."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnewt.graph import Family, Structure


def instances(structure: Structure) -> list[tuple[int, int]]:
    """Node instances (family, row) in the order of the slots they define."""
    found = []
    for f in structure.nodes:
        outs = structure.families[f].outs
        found += [(int(o), f, i) for i, o in enumerate(outs.min(1))]
    return [(f, i) for _, f, i in sorted(found)]


def _on_all(family: Family, fn: Any, x: np.ndarray, data: tuple[Any, ...], *more: np.ndarray) -> np.ndarray:
    axes = (0, *[0] * len(more), *family.data_axes)
    return np.asarray(jax.jit(jax.vmap(fn, axes))(jnp.asarray(x), *more, *data))


def slots_of(structure: Structure, x: np.ndarray) -> np.ndarray:
    """Evaluate the graph one instance at a time."""
    s = np.concatenate([np.asarray(x), np.zeros(structure.num_pairs, structure.dtype)]).astype(
        structure.dtype
    )
    compiled = {f: jax.jit(structure.families[f].fn) for f in structure.nodes}
    for f, i in instances(structure):
        family = structure.families[f]
        data = [
            d if axis is None else d[i] for axis, d in zip(family.data_axes, structure.data[f], strict=True)
        ]
        np.add.at(s, family.outs[i], np.asarray(compiled[f](jnp.asarray(s[family.args[i]]), *data)))
    return s


def dense_models(
    structure: Structure, s: np.ndarray, curvature: str = "exact"
) -> tuple[float, np.ndarray, np.ndarray]:
    """Value, duals and sources at given slots, from dense Jacobians and Hessians."""
    value, duals, jacobians = 0.0, np.zeros(structure.num_slots), {}
    for f, family in enumerate(structure.families):
        x, data = s[family.args], structure.data[f]
        if family.is_loss:
            value += float(np.sum(_on_all(family, family.fn, x, data), dtype=np.float64))
            np.add.at(duals, family.args, _on_all(family, jax.grad(family.fn), x, data))
        else:
            jacobians[f] = _on_all(family, jax.jacfwd(family.fn), x, data)
    for f, i in reversed(instances(structure)):
        family = structure.families[f]
        np.add.at(duals, family.args[i], duals[family.outs[i]] @ jacobians[f][i])
    sources = [np.zeros(0)]
    for f, family in enumerate(structure.families):
        x, data = s[family.args], structure.data[f]
        if not family.is_loss:
            sources.append(jacobians[f][:, family.jac_pattern].ravel())
        low = np.tril(family.hess_pattern)
        if family.is_loss:
            dense = _on_all(family, jax.jacfwd(jax.grad(family.fn)), x, data)
        elif curvature == "gauss_newton":
            dense = np.zeros((family.n, family.k, family.k))
        else:
            lam = duals[family.outs].astype(structure.dtype)
            dense = _on_all(family, jax.jacfwd(jax.grad(_contracted(family))), x, data, lam)
        sources.append(dense[:, low].ravel())
    return value, duals, np.concatenate(sources)


def _contracted(family: Family) -> Any:
    return lambda x, lam, *data: jnp.vdot(lam, family.fn(x, *data).astype(lam.dtype))
