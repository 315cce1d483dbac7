"""The filter: which trial points of a line search are good enough (Wächter and Biegler)."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt.newton.arithmetic import Array

SIZE = 64
"""Entries that a filter holds; the oldest is overwritten."""
GAMMA_THETA, GAMMA_PHI = 1e-5, 1e-8
S_THETA, S_PHI, DELTA = 1.1, 2.3, 1.0
ARMIJO = 1e-8
MIN_SHARE, MAX_SHARE = 1e-4, 1e4
"""θ_min and θ_max in units of max(1, θ₀)."""
LEAST_FACTOR = 0.05
"""Safety factor of the shortest step (γ_α)."""
_NOISE = 10.0
"""Roundings of φ by which a comparison may be off."""
_MOST_INCREASE = 5.0
"""Powers of ten by which φ may grow at once."""


class Filter(NamedTuple):
    entries: Array
    """[SIZE, 2]: (θ, φ); inf where unused."""
    count: Array
    theta_min: Array
    theta_max: Array


def empty_filter(theta: Array) -> Filter:
    """A filter for a run that begins with violation θ₀."""
    xp = _space(theta)
    unit = xp.maximum(1.0, theta)
    return Filter(xp.full((SIZE, 2), np.inf, unit.dtype), _zero(theta), MIN_SHARE * unit, MAX_SHARE * unit)


def reset_filter(old: Filter) -> Filter:
    """Forget all entries: the barrier problem is another one."""
    return old._replace(entries=_inf_like(old.entries), count=old.count * 0)


def add_entry(old: Filter, theta: Array, phi: Array, wanted: Array) -> Filter:
    """Keep later points away from (θ, φ), where that is wanted."""
    xp = jnp if any(isinstance(v, Tracer) for v in (theta, phi, wanted, old.entries)) else np
    entry = xp.stack([(1 - GAMMA_THETA) * theta, phi - GAMMA_PHI * theta])
    at = old.count % SIZE
    if xp is np:
        if not wanted:
            return old
        entries = old.entries.copy()
        entries[int(at)] = entry
        return old._replace(entries=entries, count=old.count + 1)
    entries = jnp.where(wanted, old.entries.at[at].set(entry), old.entries)
    return old._replace(entries=entries, count=old.count + wanted)


def acceptable(old: Filter, theta: Array, phi: Array) -> Array:
    """Whether no entry of the filter dominates (θ, φ)."""
    xp = jnp if any(isinstance(v, Tracer) for v in (theta, phi, old.entries)) else np
    slack = _NOISE * np.finfo(np.result_type(old.entries.dtype)).eps
    ok_theta = theta <= old.entries[:, 0] * (1 + slack)
    ok_phi = phi <= old.entries[:, 1] + slack * xp.abs(phi)
    return xp.all(ok_theta | ok_phi) & (theta <= old.theta_max)


class Slope(NamedTuple):
    """What a line search knows of its direction."""

    theta: Array
    phi: Array
    descent: Array
    """∇φᵀd"""


class Verdict(NamedTuple):
    accepted: Array
    by_descent: Array
    """Whether φ was what the step was taken for: then the filter is not extended."""


def judge(old: Filter, here: Slope, alpha: Array, theta: Array, phi: Array) -> Verdict:
    """Judge a trial point at length α."""
    xp = jnp if any(isinstance(v, Tracer) for v in (here.theta, alpha, theta, phi)) else np
    finite = xp.isfinite(theta) & xp.isfinite(phi)
    noise = _NOISE * np.finfo(np.result_type(old.entries.dtype)).eps * xp.abs(here.phi)
    armijo = phi - here.phi <= ARMIJO * alpha * here.descent + noise
    switching = is_descent_step(here, alpha)
    progress = (theta <= (1 - GAMMA_THETA) * here.theta) | (phi - here.phi <= -GAMMA_PHI * here.theta + noise)
    small = here.theta <= old.theta_min
    by_descent = small & switching
    growth = xp.where(phi > here.phi, xp.log10(xp.maximum(phi - here.phi, 1e-300)), -np.inf)
    base = xp.where(xp.abs(here.phi) > 10, xp.log10(xp.maximum(xp.abs(here.phi), 10.0)), 1.0)
    sane = growth <= _MOST_INCREASE + base
    ok = xp.where(by_descent, armijo, progress & sane)
    return Verdict(finite & ok & acceptable(old, theta, phi), by_descent & armijo)


def is_descent_step(here: Slope, alpha: Array) -> Array:
    """The switching condition: φ promises more than θ matters."""
    xp = _space(here.descent)
    down = xp.maximum(-here.descent, 0.0)
    return (here.descent < 0) & (alpha * down**S_PHI > DELTA * here.theta**S_THETA)


def shortest(old: Filter, here: Slope) -> Array:
    """The length below which a step is not tried any more."""
    xp = _space(here.descent)
    down = xp.maximum(-here.descent, 1e-300)
    general = xp.minimum(GAMMA_THETA, GAMMA_PHI * here.theta / down)
    close = xp.minimum(general, DELTA * here.theta**S_THETA / down**S_PHI)
    length = xp.where(here.theta <= old.theta_min, close, general)
    return LEAST_FACTOR * xp.where(here.descent < 0, length, GAMMA_THETA)


def _space(a: Any) -> Any:
    return jnp if isinstance(a, Tracer) else np


def _zero(like: Array) -> Array:
    return jnp.zeros((), jnp.int32) if isinstance(like, Tracer) else np.int32(0)


def _inf_like(a: Array) -> Array:
    return jnp.full_like(a, np.inf) if isinstance(a, Tracer) else np.full_like(a, np.inf)
