"""Causal elimination of a path in square-root form (footnote of section 4.1): ∂²V = RᵀR, and only R is kept.

Where the Hessian itself subtracts numbers of size ‖∂²V‖, here they have size ‖∂²V‖^½: twice as many digits survive where weights
differ by many orders. All pieces must be positive semidefinite (E22): duals are zero, and losses convex in their arguments.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from gnewt.kkt.causal.blocks import Numbers, Swept, Values, embed, take
from gnewt.kkt.causal.path import PathWalk, Wave
from gnewt.kkt.causal.rounds import Loop, PathStep


def eliminate_roots(
    walk: PathWalk, numbers: Numbers, keep_values: bool = False
) -> list[tuple[Swept, Values | None]]:
    """As `PathWalk.eliminate` with zero duals. NaN where a loss is not convex."""
    roots = {f: _root(block) for f, block in numbers.hessians.items() if walk.structure.families[f].is_loss}

    def gather(loop: Loop, step: PathStep) -> dict[str, Any]:
        return _gather(walk, numbers, roots, loop.repeats, step)

    def advance(step: PathStep, part: dict[str, Any], wave: Wave) -> tuple[Wave, Any]:
        root, gradient = _widen(wave, step, part["loss"])
        own, rest = take(gradient, step.mine), take(gradient, step.rest)
        mine, kept = take(root, step.mine, 1), take(root, step.rest, 1)
        if not step.is_input:
            jacobian = part["jacobian"]
            return (_compress(mine @ jacobian + kept), rest + jacobian.T @ own), None
        swept = _minimise(mine, kept, own + part["own"], numbers.shift)
        moved = mine @ swept.gain + kept
        push = swept.gain.T @ (own + part["own"]) + moved.T @ (mine @ swept.k)
        wave = (_compress(moved), rest + push)
        return wave, (swept, Values(part["lam"] + wave[1], wave[0].T @ wave[0]) if keep_values else None)

    return walk.walk(numbers.slots.dtype, gather, advance)


def _minimise(mine: Array, kept: Array, qu: Array, shift: Array) -> Swept:
    """QR of the stacked factor, inputs first: Q_uu + μI = R_uuᵀ R_uu, and K = -R_uu⁻¹ R_us."""
    e, b = mine.shape[1], kept.shape[1]
    below = jnp.concatenate(
        [jnp.sqrt(shift) * jnp.eye(e, dtype=mine.dtype), jnp.zeros((e, b), mine.dtype)], 1
    )
    r = jnp.linalg.qr(jnp.concatenate([jnp.concatenate([mine, kept], 1), below]), mode="r")
    ruu, rus = r[:e, :e], r[:e, e:]
    half = jax.scipy.linalg.solve_triangular(ruu, qu, trans=1)
    right = jnp.concatenate([rus, half[:, None]], axis=1)
    solved = -jax.scipy.linalg.solve_triangular(ruu, right)
    k, gain = solved[:, -1], solved[:, :-1]
    curve = jnp.sum((mine @ k) ** 2)
    return Swept(k, gain, jnp.min(jnp.abs(jnp.diagonal(ruu))) ** 2, jnp.vdot(qu, k), curve)


def _compress(root: Array) -> Array:
    """As few rows as columns: R of a QR decomposition, padded."""
    rows, columns = root.shape
    if rows > columns:
        return jnp.linalg.qr(root, mode="r")
    return jnp.pad(root, ((0, columns - rows), (0, 0)))


def _widen(wave: Wave, step: PathStep, losses: Array) -> Wave:
    more = step.size - step.num_before
    root = jnp.pad(wave[0], ((0, 0), (0, more)))
    return jnp.concatenate([root, losses]), jnp.pad(wave[1], (0, more))


def _gather(
    walk: PathWalk, numbers: Numbers, roots: dict[int, Array], rounds: int, step: PathStep
) -> dict[str, Any]:
    maps, duals = numbers.maps, numbers.duals
    rows = [jnp.zeros((rounds, 0, step.size), duals.dtype)]
    for use in step.losses:
        if use.family in roots:
            block = use.rows.read(roots[use.family], maps)
            block = block.reshape(rounds, len(use.args), *block.shape[1:])
            for c, args in enumerate(use.args):
                k = block.shape[-1]
                rows.append(embed(block[:, c], np.arange(k), args, k, step.size))
    part: dict[str, Any] = {
        "own": step.slots.read(duals, maps).reshape(rounds, -1),
        "loss": jnp.concatenate(rows, axis=1),
    }
    if step.is_input:
        part["lam"] = step.kept.read(duals, maps).reshape(rounds, -1)
    else:
        part["jacobian"] = walk.jacobian(maps, rounds, numbers.jacobians, step, duals.dtype)
    return part


def _root(block: Float[Array, "n k k"]) -> Float[Array, "n k k"]:
    """S with SᵀS = H, from the eigenvalues of H scaled to a unit diagonal; NaN where H is not positive semidefinite."""
    size = jnp.sqrt(jnp.diagonal(block, axis1=1, axis2=2))
    inverse = jnp.where(size > 0, 1 / jnp.where(size > 0, size, 1), 0)
    scaled = block * inverse[:, :, None] * inverse[:, None, :]
    values, vectors = jnp.linalg.eigh(scaled)
    noise = 8 * block.shape[1] * jnp.finfo(block.dtype).eps
    good = (values > -noise) & jnp.all(jnp.isfinite(size), axis=1, keepdims=True)
    weights = jnp.where(good, jnp.sqrt(jnp.maximum(values, 0)), jnp.nan)
    return weights[:, :, None] * jnp.swapaxes(vectors, 1, 2) * size[:, None, :]
