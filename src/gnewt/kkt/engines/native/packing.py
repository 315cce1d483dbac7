"""A plan as the native engine reads it: one flat int32 array, made once per plan.

cpp/plan_format.hpp defines the array, cpp/plan_writer.cpp writes it.

A causal front has p pairs, q inputs and a separator of b slots, in the coordinates [p | q | b]. Its numbers go to five
parts, each a matrix of its own:

    F   [p, q + b]      how the pairs depend on the rest: rows of Jacobians
    G   [p, p]          pairs of this front that read each other
    PP  [p, p]          Hessian entries between pairs
    C   [p, q + b]      ... between a pair and the rest
    R   [q + b, q + b]  ... between the rest

A front of a free plan is all R. Sources are moved in *blocks*: rectangles and packed triangles of the source vector that
are rectangles and triangles in the front. Fronts that look alike up to where their blocks begin share one *shape*, so
that a chain of a million stages has a handful of shapes.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from gnewt import _native
from gnewt._errors import PlanError
from gnewt.graph import Plan

SLACK = 1.5
"""How much larger than planned the factor of a free plan may grow by delayed pivots and still be kept."""


@dataclasses.dataclass(frozen=True, eq=False)
class NativeLayout:
    """What the native engine needs of a plan."""

    array: np.ndarray
    """int32: see cpp/plan_format.hpp."""
    num_inputs: int
    num_unknowns: int
    num_sources: int
    factor_size: int
    index_size: int
    largest_front: int
    """Unknowns of the largest front, without its pairs."""
    causal: bool


def lay_out_native(plan: Plan, num_sources: int) -> NativeLayout:
    """Turn a plan into the array of the native engine. Once per plan, O(nonzeros of K)."""
    tables = (plan.elim_ptr, plan.elim_idx, plan.sep_ptr, plan.sep_idx, plan.sep_pos)
    fronts = (plan.parent, *tables, plan.entry_ptr, plan.entry_row, plan.entry_col)
    nonzeros = (plan.source, plan.target, plan.pair_entry, plan.input_entry)
    try:
        array, numbers, integers, largest = _native.lay_out_for_engine(
            plan.num_inputs, plan.num_slots, plan.causal, fronts, nonzeros, num_sources
        )
    except OverflowError as error:
        raise PlanError(str(error)) from None
    if plan.causal:
        factor_size, index_size = max(numbers, 1), 4
    else:
        factor_size, index_size = int(SLACK * numbers) + 64, int(SLACK * integers) + 68
    return NativeLayout(
        array=array,
        num_inputs=plan.num_inputs,
        num_unknowns=plan.num_unknowns,
        num_sources=num_sources,
        factor_size=factor_size,
        index_size=index_size,
        largest_front=largest,
        causal=plan.causal,
    )
