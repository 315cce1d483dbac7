"""explain: the structure of an objective, its plan and its cost, as text and as attributes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gnewt._typing import Argument, PyTree
from gnewt.graph import Certificate, Graph, Plan, Structure
from gnewt.newton.objective import Objective
from gnewt.newton.options import check_kwargs
from gnewt.newton.system import System, system_of
from gnewt.trace.arguments import run_abstractly

_MOST_ROWS = 12
_MOST_NAMES = 6


@dataclasses.dataclass(frozen=True)
class FamilyRow:
    """One local function and where it is applied."""

    name: str
    instances: int
    arguments: int
    outputs: int
    """0 for a loss."""
    where: str
    note: str


@dataclasses.dataclass(frozen=True, eq=False)
class Report:
    """What `gnewt.explain` returns: print it, or read its attributes."""

    num_inputs: int
    """N."""
    num_kept: int
    """Intermediates that stay variables of the KKT system; all others are substituted."""
    families: tuple[FamilyRow, ...]
    width: int
    num_fronts: int
    flops: float
    bytes: float
    dense_flops: float
    dense_bytes: float
    order: str
    engine: str
    why_order: str
    why_engine: str
    widest: str
    """Where the widest front comes from."""
    considered: tuple[tuple[str, Certificate, float], ...]
    system: System

    def __str__(self) -> str:
        shown = self.families[:_MOST_ROWS]
        lines = [
            f"{self.num_inputs} inputs, {self.num_kept} kept intermediates, {len(self.families)} families",
            *(f"  {_describe(row)}" for row in shown),
        ]
        if len(self.families) > _MOST_ROWS:
            lines.append(f"  ... and {len(self.families) - _MOST_ROWS} more")
        lines += [
            f"width {self.width}, {self.num_fronts} fronts; the widest: {self.widest}",
            f"a step:  {_amount(self.flops)} flops, {_amount(self.bytes)}B along the tree",
            f"  dense: {_amount(self.dense_flops)} flops, {_amount(self.dense_bytes)}B "
            f"({_ratio(self.dense_flops, self.flops)} the flops, {_ratio(self.dense_bytes, self.bytes)} the bytes)",
            f"order {self.order}: {self.why_order}",
            f"engine {self.engine}: {self.why_engine}",
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)


def explain(
    target: Argument[Callable[..., object] | Graph | Structure],
    *args: PyTree,
    argnums: Argument[int | Sequence[int]] = 0,
    kwargs: Argument[Mapping[str, PyTree] | None] = None,
    has_aux: bool = False,
    order: str | Sequence[object] = "auto",
    engine: str = "auto",
) -> Report:
    """Say what gnewt finds in an objective at these arguments, and what a Newton step will cost. Runs nothing.

    Args:
        target: the objective, as in `gnewt.newton_step`.
        *args: its arguments; shapes and dtypes count, so that a `jax.ShapeDtypeStruct` will do.
        argnums: which arguments are the variables.
        kwargs: keyword arguments of the function.
        has_aux: the function returns `(value, aux)`.
        order: elimination order, as in `gnewt.newton_step`.
        engine: as in `gnewt.newton_step`.
    """
    objective = Objective(target, argnums, has_aux)

    def look(args: tuple[PyTree, ...], kwargs: Mapping[str, PyTree]) -> System:
        return system_of(objective.at(args, kwargs), objective.slots(order), engine=engine)

    system = run_abstractly(look, args, check_kwargs(kwargs))
    structure, plan = system.structure, system.plan
    cost = plan.certificate
    return Report(
        num_inputs=structure.num_inputs,
        num_kept=structure.num_pairs,
        families=tuple(
            FamilyRow(f.name, f.n, f.k, 0 if f.is_loss else f.m, f.where, f.note) for f in structure.families
        ),
        width=cost.width,
        num_fronts=plan.num_fronts,
        flops=cost.flops,
        bytes=cost.bytes,
        dense_flops=cost.dense_flops,
        dense_bytes=cost.dense_bytes,
        order=plan.order_name,
        engine=system.engine.name,
        why_order=_why_order(plan),
        why_engine=system.why_engine,
        widest=_widest(structure, plan),
        considered=plan.considered,
        system=system,
    )


def _describe(row: FamilyRow) -> str:
    kind = "loss" if row.outputs == 0 else f"node, {row.outputs} out"
    times = "once" if row.instances == 1 else f"{row.instances} times"
    tail = f" [{row.note}]" if row.note else ""
    return f"{row.name} ({kind}, {row.arguments} in), {times}, {row.where}{tail}"


def _why_order(plan: Plan) -> str:
    """Compare the chosen order with the next best."""
    others = sorted((cost, name, c) for name, c, cost in plan.considered if name != plan.order_name)
    own = next((cost for name, _, cost in plan.considered if name == plan.order_name), None)
    kind = "causal, so pairs are substituted and every input has a policy" if plan.causal else "free"
    if own is None or not others:
        return f"{kind}; as asked, nothing else was priced" if own is not None else kind
    cost, name, certificate = others[0]
    if cost <= own:
        return f"{kind}; as cheap as {name} (width {certificate.width})"
    return f"{kind}; {_ratio(cost, own)} cheaper than {name} (width {certificate.width})"


def _widest(structure: Structure, plan: Plan) -> str:
    """Name the variables of the largest front and the lines that bring them together."""
    sizes = np.diff(plan.elim_ptr) + np.diff(plan.sep_ptr)
    i = int(np.argmax(sizes))
    bag = plan.bag(i)
    names = [structure.slot_name(int(s)) for s in bag[:_MOST_NAMES]]
    more = f" and {len(bag) - _MOST_NAMES} more" if len(bag) > _MOST_NAMES else ""
    inside = np.zeros(structure.num_slots, bool)
    inside[bag] = True
    lines: list[str] = []
    for family in structure.families:
        if family.where and family.where not in lines and family.k and np.any(inside[family.args].all(1)):
            lines.append(family.where)
    places = f", coupled at {'; '.join(lines[:3])}" if lines else ""
    return f"{len(bag)} variables ({', '.join(names)}{more}){places}"


def _amount(x: float) -> str:
    """A number with a decimal prefix: 1.2 M."""
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if x >= size:
            return f"{x / size:.3g} {prefix}"
    return f"{x:.3g} "


def _ratio(a: float, b: float) -> str:
    if b <= 0:
        return "-"
    return f"{a / b:,.0f}×" if a >= 100 * b else f"{a / b:.3g}×"
