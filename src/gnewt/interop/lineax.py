"""lineax: H + μI of a `Factor` as a linear operator, and the factor as its solver."""

from __future__ import annotations

import jax
import lineax

from gnewt._typing import PyTree
from gnewt.kkt import EliminationStatus
from gnewt.newton import Factor


def lineax_operator(factor: Factor) -> lineax.FunctionLinearOperator:
    """H + μI as a lineax operator: products with the Hessian, symmetric; tagged positive where that is known."""
    structure = factor.system.structure
    form = jax.tree_util.tree_unflatten(structure.in_tree, structure.in_avals)
    tags: list[object] = [lineax.symmetric_tag]
    if not factor.is_traced and factor.is_positive_definite:
        tags.append(lineax.positive_semidefinite_tag)
    return lineax.FunctionLinearOperator(lambda v: factor @ v, form, tuple(tags))


class LineaxFactor(lineax.AbstractLinearSolver):
    """A lineax solver that solves with a `Factor`, whatever the operator: for that of `lineax_operator(factor)`."""

    factor: Factor

    def init(self, operator: lineax.AbstractLinearOperator, options: dict[str, object]) -> Factor:
        """Nothing is left to compute."""
        del operator, options
        return self.factor

    def compute(
        self, state: Factor, vector: PyTree, options: dict[str, object]
    ) -> tuple[PyTree, lineax.RESULTS, dict[str, object]]:
        """Solve for one vector."""
        del options
        good = state.numbers.status == EliminationStatus.OK
        code = lineax.RESULTS.where(good, lineax.RESULTS.successful, lineax.RESULTS.singular)
        return state.solve(vector), code, {}

    def transpose(self, state: Factor, options: dict[str, object]) -> tuple[Factor, dict[str, object]]:
        """H is symmetric."""
        return state, options

    def conj(self, state: Factor, options: dict[str, object]) -> tuple[Factor, dict[str, object]]:
        """H is real."""
        return state, options

    def assume_full_rank(self) -> bool:
        """A singular H is reported, not solved in the sense of least squares."""
        return True
