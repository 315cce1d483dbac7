"""Plan: how to eliminate the KKT system of a structure. Integers only, made once, bit-reproducible.

Unknowns of the KKT system are numbered: the slot s is unknown s (that is δX_s); the dual of a non-input
slot s is unknown num_slots + (s - num_inputs) (that is δλ_s). S = num_slots, M = num_slots - num_inputs.

Numbers reach the plan through one long vector of *sources*: for each family in turn, J at the nonzeros of
`jac_pattern` (nodes only, row by row, [n, nnz]), then H at the nonzeros of `tril(hess_pattern)` ([n, nnz]).
"""

from __future__ import annotations

import dataclasses
import hashlib
from functools import cached_property

import numpy as np

from gnewt._errors import PlanError


@dataclasses.dataclass(frozen=True)
class Certificate:
    """What an elimination costs, known before anything runs. Sizes count scalars, Σ n_v over a bag (E7)."""

    width: int
    """max |χ| - 1 of the tree decomposition that the order gives. The other figures describe the fronts that
    run: small bags are merged into them where this is faster, and the largest may be wider than this."""
    num_fronts: int
    flops: float
    """Σ |ι||χ|² over the bags."""
    bytes: float
    """Factor and the largest stack of Schur complements, in float64."""
    dense_flops: float
    """N³/3: a Cholesky factorisation of the accumulated Hessian (its accumulation not counted)."""
    dense_bytes: float

    def __str__(self) -> str:
        return (
            f"width {self.width}, {self.num_fronts} fronts, {self.flops:.3g} flops "
            f"(dense Hessian: {self.dense_flops:.3g}), {self.bytes / 1e6:.3g} MB (dense: {self.dense_bytes / 1e6:.3g} MB)"
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """Elimination order, tree decomposition (T, χ), fronts, assembly and extend-add maps, certificate.

    Fronts are in postorder (a front comes before its parent). Front i works on the unknowns
    `[eliminated(i), separator(i)]`; local coordinates count in that order.
    """

    num_inputs: int
    num_slots: int
    order_name: str
    causal: bool
    """Every vertex is eliminated before the vertices it reads."""
    vertex_of_slot: np.ndarray
    """int32[S]: merged vertex of every slot."""
    order: np.ndarray
    """int32[V]: vertices in the order of their elimination."""
    parent: np.ndarray
    """int32[F]: parent front, -1 for a root."""
    elim_ptr: np.ndarray
    elim_idx: np.ndarray
    """Unknowns that front i eliminates: elim_idx[elim_ptr[i]:elim_ptr[i+1]]."""
    sep_ptr: np.ndarray
    sep_idx: np.ndarray
    """Unknowns of the separator ξ of front i, in the order of their elimination."""
    sep_pos: np.ndarray
    """Aligned with sep_idx: local coordinate of that unknown in the parent front (extend-add)."""
    entry_ptr: np.ndarray
    """Entries of the lower triangle of K that front i assembles: entry_ptr[i]:entry_ptr[i+1]."""
    entry_row: np.ndarray
    entry_col: np.ndarray
    """Local coordinates of each entry in its front, row >= col."""
    source: np.ndarray
    """int64: positions in the vector of sources ..."""
    target: np.ndarray
    """int64: ... and the entry each of them is added to."""
    pair_entry: np.ndarray
    """int64[M]: entries (λ_v, x_v), which hold -1."""
    input_entry: np.ndarray
    """int64[N]: diagonal entries of the inputs, where a shift μ is added: exactly H + μI."""
    certificate: Certificate
    considered: tuple[tuple[str, Certificate, float], ...] = ()
    """Every order that was priced: its name, its certificate before merging, its expected cost."""

    def __repr__(self) -> str:
        return f"<Plan: {self.order_name}, {self.certificate}>"

    @property
    def num_fronts(self) -> int:
        return len(self.parent)

    @property
    def num_unknowns(self) -> int:
        return 2 * self.num_slots - self.num_inputs

    @property
    def num_entries(self) -> int:
        return len(self.entry_row)

    def eliminated(self, i: int) -> np.ndarray:
        """Unknowns that front i eliminates."""
        return self.elim_idx[self.elim_ptr[i] : self.elim_ptr[i + 1]]

    def separator(self, i: int) -> np.ndarray:
        """Unknowns of ξ = χ(i) ∩ χ(parent)."""
        return self.sep_idx[self.sep_ptr[i] : self.sep_ptr[i + 1]]

    def slot_of_unknown(self, unknown: np.ndarray | int) -> np.ndarray:
        """Slot to which an unknown belongs, whether primal or dual."""
        unknown = np.asarray(unknown)
        return np.where(unknown < self.num_slots, unknown, unknown - self.num_slots + self.num_inputs)

    @cached_property
    def front_of_entry(self) -> np.ndarray:
        """The front that assembles each entry of K."""
        return np.repeat(np.arange(self.num_fronts), np.diff(self.entry_ptr))

    @cached_property
    def entry_unknowns(self) -> tuple[np.ndarray, np.ndarray]:
        """Row and column of each entry of K, as unknowns."""
        begin = np.asarray(self.elim_ptr, np.int64) + self.sep_ptr
        unknowns = np.empty(int(begin[-1]), np.int64)
        of_elim = np.repeat(np.arange(self.num_fronts), np.diff(self.elim_ptr))
        of_sep = np.repeat(np.arange(self.num_fronts), np.diff(self.sep_ptr))
        unknowns[np.arange(len(self.elim_idx)) + self.sep_ptr[of_elim]] = self.elim_idx
        unknowns[np.arange(len(self.sep_idx)) + self.elim_ptr[of_sep + 1]] = self.sep_idx
        at = begin[self.front_of_entry]
        return unknowns[at + self.entry_row], unknowns[at + self.entry_col]

    def bag(self, i: int) -> np.ndarray:
        """Slots of χ(i), sorted."""
        return np.unique(self.slot_of_unknown(np.concatenate([self.eliminated(i), self.separator(i)])))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all integers: equal plans have equal digests, on any machine."""
        h = hashlib.sha256()
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                h.update(field.name.encode() + str(value.shape).encode())
                h.update(np.ascontiguousarray(value, np.int64).tobytes())
            elif field.name not in ("certificate", "considered"):
                h.update(f"{field.name}={value}".encode())
        return h.hexdigest()


def check_plan(plan: Plan) -> None:
    """Raise PlanError unless the fronts eliminate every unknown once and pass separators to parents."""
    if not np.array_equal(np.sort(plan.elim_idx), np.arange(plan.num_unknowns)):
        raise PlanError("the fronts do not eliminate every unknown exactly once")
    for i in range(plan.num_fronts):
        p, sep = int(plan.parent[i]), plan.separator(i)
        if p == -1:
            if len(sep):
                raise PlanError(f"front {i} is a root but has a separator")
            continue
        if p <= i:
            raise PlanError(f"front {i} comes after its parent {p}")
        front = np.concatenate([plan.eliminated(p), plan.separator(p)])
        local = plan.sep_pos[plan.sep_ptr[i] : plan.sep_ptr[i + 1]]
        if not np.array_equal(front[local], sep):
            raise PlanError(f"the separator of front {i} does not lie in its parent {p}")
    if np.any(plan.entry_row < plan.entry_col):
        raise PlanError("an entry lies above the diagonal")
