"""Readings: programs that were read, to be recognised at the next call. Jaxpr → captured values of a known program.

Nothing is made for a program that is seen once, as inside jit: the second time it gets a pattern.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence

import jax
from jax.typing import ArrayLike

from gnewt.jaxprs import Program
from gnewt.jaxprs.compat import AnyJaxpr
from gnewt.jaxprs.recognize import Pattern, pattern_of, recognize
from gnewt.trace.auxiliary import Aux
from gnewt.trace.forms import Form


@dataclasses.dataclass(frozen=True, eq=False)
class Reading:
    """A program that was read, remembered for the next call that looks alike."""

    form: Form
    program: Program
    aux: Aux | None
    pattern: Pattern | None = None
    """Made when a program is read for the second time."""

    def recognize(self, closed: AnyJaxpr, aux: Aux | None) -> list[ArrayLike] | None:
        """Return the captured values of a call whose program is this one; None where that is not seen at once."""
        return None if self.pattern is None or aux != self.aux else recognize(self.pattern, closed)

    def repeated(self, closed: AnyJaxpr, known: Sequence[Reading]) -> Reading | None:
        """What to remember: this reading, with a pattern where the same program was read before."""
        same = [r for r in known if r.program.key == self.program.key and r.aux == self.aux]
        if any(r.pattern is not None for r in same):  # which did not recognise it
            return None
        return dataclasses.replace(self, pattern=pattern_of(closed)) if same else self


def precision() -> tuple[Hashable, ...]:
    """What decides how JAX computes: two traces of one function may differ with it."""
    config = jax.config
    return config.jax_enable_x64, config.jax_default_matmul_precision, config.jax_numpy_dtype_promotion  # type: ignore[attr-defined]
