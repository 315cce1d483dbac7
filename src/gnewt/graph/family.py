"""Family: one local function applied at many places."""

from __future__ import annotations

import dataclasses

import numpy as np

from gnewt._errors import GraphError
from gnewt._typing import LocalFn


@dataclasses.dataclass(frozen=True, eq=False)
class Family:
    """One local function ψ: Rᵏ → Rᵐ applied at n places.

    A *node* family defines slots: instance i adds ψ(s[args[i]], data_i) to s[outs[i]], so a slot named
    by several instances is their sum, s = Σᵢ ψ(xᵢ). A *loss* family (`outs is None`, m = 1) adds
    l(s[args[i]], data_i) to the objective.

    The patterns are structural: False means identically zero for every value of the arguments. They are
    what makes the KKT sparsity finer than the moral graph (E7).
    """

    fn: LocalFn
    """ψ(x[k], *data) → y[m]; a loss returns a scalar. Traceable by JAX, called under vmap."""
    args: np.ndarray
    """int32[n, k]: the slots read."""
    outs: np.ndarray | None = None
    """int32[n, m]: the slots defined, or None for a loss."""
    data_axes: tuple[int | None, ...] = ()
    """For each data argument 0 (one row per instance) or None (shared by all instances)."""
    jac_pattern: np.ndarray = None  # type: ignore[assignment]
    """bool[m, k]: where ∂ψ may be nonzero; dense if not given."""
    hess_pattern: np.ndarray = None  # type: ignore[assignment]
    """bool[k, k]: where ∂²(λ·ψ) may be nonzero; dense if not given."""
    name: str = "family"
    where: str = ""
    """`file:line` in the user's code."""
    labels: tuple[str, ...] | None = None
    """A name for each instance."""
    note: str = ""
    """Why the family is opaque, or anything else that a report should say."""

    def __post_init__(self) -> None:
        if self.jac_pattern is None:
            object.__setattr__(self, "jac_pattern", np.ones((self.m, self.k), bool))
        if self.hess_pattern is None:
            object.__setattr__(self, "hess_pattern", np.ones((self.k, self.k), bool))

    @property
    def n(self) -> int:
        """Number of instances."""
        return self.args.shape[0]

    @property
    def k(self) -> int:
        """Number of scalar arguments of ψ."""
        return self.args.shape[1]

    @property
    def m(self) -> int:
        """Number of scalars that ψ returns."""
        return 1 if self.outs is None else self.outs.shape[1]

    @property
    def is_loss(self) -> bool:
        return self.outs is None

    def label(self, i: int) -> str:
        """Name instance i as a person would."""
        if self.labels is not None:
            return self.labels[i]
        return self.name if self.n == 1 else f"{self.name}[{i}]"


def check_family(family: Family, num_inputs: int, num_slots: int) -> None:
    """Raise GraphError unless the family's integers are consistent with the slots.

    Invariants: slots exist; a definition never targets an input; every argument of an instance has a
    lower number than every slot the instance defines (which excludes cycles); patterns fit (m, k).
    """
    args, outs = family.args, family.outs
    if args.ndim != 2 or args.dtype != np.int32:
        raise GraphError(f"{family.name}: args must be int32[n, k], got {args.dtype}{list(args.shape)}")
    if args.size and (args.min() < 0 or args.max() >= num_slots):
        raise GraphError(f"{family.name}: an argument is not a slot (slots are 0..{num_slots - 1})")
    if family.jac_pattern.shape != (family.m, family.k) or family.hess_pattern.shape != (family.k, family.k):
        raise GraphError(f"{family.name}: sparsity patterns do not fit m = {family.m}, k = {family.k}")
    if not np.array_equal(family.hess_pattern, family.hess_pattern.T):
        raise GraphError(f"{family.name}: the Hessian pattern is not symmetric")
    if outs is None:
        return
    if outs.ndim != 2 or outs.dtype != np.int32 or outs.shape[0] != family.n:
        raise GraphError(f"{family.name}: outs must be int32[n, m], got {outs.dtype}{list(outs.shape)}")
    if outs.size and (outs.min() < num_inputs or outs.max() >= num_slots):
        raise GraphError(f"{family.name}: defines a slot that is an input or does not exist")
    if family.k and family.m and np.any(args.max(1) >= outs.min(1)):
        i = int(np.argmax(args.max(1) >= outs.min(1)))
        raise GraphError(
            f"{family.label(i)} reads slot {args[i].max()} to define slot {outs[i].min()}: "
            "slots must be in topological order, so this is a cycle or a wrong numbering"
        )
