"""laplace: a Gaussian at the mode of a density, with its evidence.

p(x, y; θ) = exp(-f(x; θ)),   x* = argmin f,   log p(y; θ) ≈ -f(x*; θ) + N/2·log 2π - ½ log det H(x*; θ)
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Generic

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from gnewt._errors import CurvatureWarning, explain_error
from gnewt._typing import Argument, PyTree
from gnewt.newton.factor import Factor
from gnewt.newton.minimize import minimize
from gnewt.newton.numbers import Count, Real, RealLike, as_real, show
from gnewt.newton.result import Result, X
from gnewt.newton.step import factorize
from gnewt.newton.system import OrderLike

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Laplace(Generic[X]):
    """N(mode, H⁻¹), made by `gnewt.laplace`. A pytree."""

    __no_type_check__: ClassVar[bool] = True  # JAX also fills pytrees with placeholders, which are no numbers

    mode: X
    log_evidence: Real
    """-f(x*) + N/2·log 2π - ½ log det H; NaN where the run did not converge or H is not positive definite."""
    factor: Factor
    """H at the mode, eliminated."""
    result: Result[X]
    """How the mode was found."""

    @property
    def success(self) -> Count:
        """Whether the run converged, to a minimum with positive curvature."""
        return self.result.success & self.factor.is_positive_definite

    def variances(self) -> PyTree:
        """Marginal variances, in the form of the mode."""
        return self.factor.marginal_variances()

    def std(self) -> PyTree:
        """Marginal standard deviations, in the form of the mode."""
        return jax.tree.map(jnp.sqrt, self.variances())

    def covariance(self, of: object = None, to: object = None) -> Array:
        """Return a block of the covariance: see `Factor.covariance`."""
        return self.factor.covariance(of, to)

    def output_variances(self) -> PyTree:
        """Variances of the auxiliary data: see `Factor.output_variances`."""
        return self.factor.output_variances()

    def sample(self, key: Array, shape: tuple[int, ...] = ()) -> PyTree:
        """Draw from N(mode, H⁻¹): leaves have the axes `shape` in front."""
        return jax.tree.map(lambda m, d: m + d, self.mode, self.factor.sample(key, shape))

    def plot(self, of: str = "inputs", deviations: float = 2.0) -> Figure:
        """Draw marginal bands around the mode: see `Factor.plot`."""
        return self.factor.plot(of, deviations)

    def __repr__(self) -> str:
        return show(
            "Laplace",
            self.result.code,
            lambda: f"<Laplace: log evidence {float(self.log_evidence):.8g}, {self.factor!r}>",
        )


def laplace(
    neg_log_joint: Argument[Callable[..., PyTree]],
    x0: X | Result[X],
    args: Argument[tuple[PyTree, ...]] = (),
    *,
    kwargs: Argument[Mapping[str, PyTree] | None] = None,
    has_aux: bool = False,
    keep: bool | str | Sequence[str] = (),
    tol: Argument[RealLike] = 1e-8,
    max_steps: Argument[int] = 200,
    order: Argument[OrderLike] = "auto",
    engine: str = "auto",
    check: bool = True,
) -> Laplace[X]:
    """Approximate exp(-neg_log_joint(x, *args)) by a Gaussian at its mode. Works on the host, in `jit` and under `vmap`.

    The evidence can be differentiated with respect to `args`, `kwargs` and everything that the function closes over: the
    mode moves with them by the implicit function theorem, and log det H at the moving mode, third derivatives included.

    Args:
        neg_log_joint: f(x, *args, **kwargs) = -log p(x, y; θ), with all constants that the evidence is to count.
        x0: where the search for the mode starts, in the form of x; or a `Result`.
        args: hyper-parameters and data, held fixed.
        kwargs: the same, by name.
        has_aux: f returns (value, aux).
        keep: entries of aux that are to have variances: names, or True for all.
        tol: as in `minimize`.
        max_steps: as in `minimize`.
        order: as in `minimize`.
        engine: as in `minimize`.
        check: as in `minimize`.
    """
    named = dict(kwargs or {})
    result = minimize(
        neg_log_joint,
        x0,
        args,
        kwargs=named,
        has_aux=has_aux,
        tol=tol,
        max_steps=max_steps,
        order=order,
        engine=engine,
        check=check,
    )
    options = {"order": order, "engine": engine, "check": check}
    if has_aux:
        made = factorize(neg_log_joint, has_aux=True, keep=keep, **options)(result.x, *args, **named)
        factor = made[0]
    else:
        factor = factorize(neg_log_joint, **options)(result.x, *args, **named)
    return Laplace(result.x, _evidence(factor, result), factor, result)


def _evidence(factor: Factor, result: Result) -> Real:
    """The log evidence: NaN, with a warning on the host, where there is no minimum to expand at."""
    good = result.success & factor.is_positive_definite
    count = factor.system.structure.num_inputs
    found = -factor.value + count / 2 * math.log(2 * math.pi) - factor.logdet() / 2
    if factor.is_traced or isinstance(good, Tracer):
        return found * jnp.where(good, 1.0, jnp.nan)
    if good:
        return as_real(found)
    why = "H is not positive definite at the mode" if result.success else f"the run ended: {result.status}"
    warnings.warn(
        explain_error(
            f"no evidence: {why}; NaN is returned",
            remedy="start closer to the mode, raise max_steps, or check that the density has a maximum",
        ),
        CurvatureWarning,
        stacklevel=3,
    )
    return as_real(np.nan)
