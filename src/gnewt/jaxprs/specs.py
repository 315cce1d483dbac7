"""What the equations of loops say, whatever the version of JAX."""

from __future__ import annotations

import dataclasses

from gnewt.jaxprs import compat
from gnewt.jaxprs.program import Instr, Program


@dataclasses.dataclass(frozen=True)
class ScanSpec:
    """What a scan equation says."""

    body: Program
    num_consts: int
    num_carry: int
    length: int
    reverse: bool


@dataclasses.dataclass(frozen=True)
class WhileSpec:
    """What a while equation says. Its operands: constants of the predicate, constants of the body, carries."""

    cond: Program
    """(its constants, carries) ↦ whether to go on."""
    body: Program
    """(its constants, carries) ↦ carries."""
    cond_consts: int
    body_consts: int


def scan_spec(instr: Instr) -> ScanSpec:
    """Read the parameters of a scan equation."""
    num_consts, num_carry = compat.scan_counts(instr.params)
    return ScanSpec(
        instr.bodies[0], num_consts, num_carry, int(instr.params["length"]), bool(instr.params["reverse"])
    )


def while_spec(instr: Instr) -> WhileSpec:
    """Read the parameters of a while equation."""
    cond, body = instr.bodies
    return WhileSpec(cond, body, int(instr.params["cond_nconsts"]), int(instr.params["body_nconsts"]))
