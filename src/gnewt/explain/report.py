"""explain: the structure of an objective, its plan and its cost, as text, as a page and as attributes."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from gnewt._errors import OptionError
from gnewt._typing import Argument, PyTree
from gnewt.explain.advice import advise
from gnewt.explain.amounts import ratio
from gnewt.explain.blame import Blame, blame_lines
from gnewt.explain.flops import Cost, count_flops, dense_cost, krylov_cost
from gnewt.explain.measure import measure_steps
from gnewt.explain.names import Names
from gnewt.explain.plain import report_data
from gnewt.explain.shape import Shape, name_shape
from gnewt.explain.sparse import HessianPattern, hessian_pattern, sparse_cost
from gnewt.explain.text import show_report
from gnewt.graph import Certificate, Graph, Plan, Structure
from gnewt.newton.objective import Objective
from gnewt.newton.options import check_kwargs
from gnewt.newton.system import System, system_of
from gnewt.trace.arguments import run_abstractly

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_NAMES = 6
_NARROW = 6
"""Width up to which no line is looked for that makes the tree wide."""
_MOST_SLOTS = 30_000
"""Slots up to which one is: every line that is tried is planned again."""


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
    """What `gnewt.explain` returns: print it, look at it in a notebook, write a page, or read its attributes."""

    num_inputs: int
    """N."""
    num_kept: int
    """Intermediates that stay variables of the KKT system; all others are substituted."""
    families: tuple[FamilyRow, ...]
    width: int
    num_fronts: int
    flops: float
    """Additions, multiplications and divisions of one elimination along the tree, with one right-hand side."""
    bytes: float
    dense_flops: float
    """Of the dense Hessian: N products with H, and N³/3."""
    dense_bytes: float
    order: str
    engine: str
    why_order: str
    why_engine: str
    considered: tuple[tuple[str, Certificate, float], ...]
    system: System
    measured: Mapping[str, float]
    """Milliseconds of one compiled step, by method; empty unless they were asked for."""
    find_blame: Callable[[], list[Blame]]

    @cached_property
    def shape(self) -> Shape:
        """What the structure looks like: `shape.name` is chain, tree, star, grid, network, dense or separable."""
        return name_shape(self.system.structure, self.system.plan)

    @property
    def structure(self) -> str:
        """The name of the structure."""
        return self.shape.name

    @cached_property
    def names(self) -> Names:
        """Names and lines of slots and fronts."""
        return Names(self.system.structure, self.system.plan)

    @cached_property
    def hessian(self) -> HessianPattern | None:
        """Where the accumulated Hessian may be nonzero; None where it is far too full."""
        return hessian_pattern(self.system.structure)

    @cached_property
    def costs(self) -> dict[str, Cost]:
        """What one step costs along the tree, and by the dense Hessian, the sparse Hessian and conjugate gradients."""
        structure = self.system.structure
        tree = Cost("tree", self.flops, self.bytes, "")
        rivals = (
            dense_cost(structure),
            sparse_cost(structure, self.hessian),
            krylov_cost(structure, self.flops),
        )
        costs = {cost.method: cost for cost in (tree, *rivals)}
        return {name: dataclasses.replace(cost, ms=self.measured.get(name)) for name, cost in costs.items()}

    @cached_property
    def blamed(self) -> list[Blame]:
        """Lines without which the tree would be much narrower."""
        return self.find_blame()

    @cached_property
    def cheaper(self) -> list[str]:
        """What would make a step cheaper."""
        system = self.system
        return advise(
            system.structure, system.plan, self.costs, self.blamed, self.engine, jax.default_backend()
        )

    @cached_property
    def widest(self) -> str:
        """Where the widest front comes from: its variables, and the lines that bring them together."""
        plan = self.system.plan
        i = int(np.argmax(np.diff(plan.elim_ptr) + np.diff(plan.sep_ptr)))
        lines = self.names.lines(i)[:3]
        places = f", coupled at {'; '.join(lines)}" if lines else ""
        return f"{len(plan.bag(i))} variables ({self.names.bag(i, _MOST_NAMES)}){places}"

    def __str__(self) -> str:
        return show_report(self)

    def __repr__(self) -> str:
        lines = str(self).splitlines()
        return "\n".join([*lines[:1], "print(report) shows all of it"])

    def _repr_html_(self) -> str:
        """Show the page in a notebook."""
        from gnewt.explain.page import embed_page

        return embed_page(self)

    def to_html(self, path: str | pathlib.Path | None = None) -> str:
        """Write one interactive page that needs nothing else, and return it as text.

        Args:
            path: where to write it; None writes nothing.
        """
        from gnewt.explain.page import make_page

        page = make_page(self)
        if path is not None:
            pathlib.Path(path).write_text(page, encoding="utf-8")
        return page

    def to_dict(self) -> dict[str, object]:
        """Return what the report says as plain data, ready for JSON."""
        return report_data(self)

    def plot(self) -> Figure:
        """Draw costs, fronts, and the KKT matrix in the order of elimination. Needs matplotlib."""
        from gnewt.explain.picture import draw_report

        return draw_report(self)


def explain(
    target: Argument[Callable[..., object] | Graph | Structure],
    *args: PyTree,
    argnums: Argument[int | Sequence[int]] = 0,
    kwargs: Argument[Mapping[str, PyTree] | None] = None,
    has_aux: bool = False,
    order: str | Sequence[object] = "auto",
    engine: str = "auto",
    measure: bool = False,
) -> Report:
    """Say what gnewt finds in an objective at these arguments, and what a Newton step will cost.

    Runs nothing of the objective unless `measure` asks for it.

    Args:
        target: the objective, as in `gnewt.newton_step`.
        *args: its arguments; shapes and dtypes count, so that a `jax.ShapeDtypeStruct` will do.
        argnums: which arguments are the variables.
        kwargs: keyword arguments of the function.
        has_aux: the function returns `(value, aux)`.
        order: elimination order, as in `gnewt.newton_step`.
        engine: as in `gnewt.newton_step`.
        measure: compile and time one step along the tree, by the dense Hessian, one product with H, and value and gradient.
    """
    if not isinstance(measure, bool):
        raise OptionError(f"measure is {measure!r}", "explain", "give True or False")
    objective = Objective(target, argnums, has_aux)
    given = check_kwargs(kwargs)
    measured: dict[str, float] = {}

    def look(args: tuple[PyTree, ...], kwargs: Mapping[str, PyTree]) -> System:
        point = objective.at(args, kwargs)
        system = system_of(point, objective.slots(order), engine=engine)
        if measure:
            measured.update(measure_steps(system, point))
        return system

    system = run_abstractly(look, args, given)

    def find_blame() -> list[Blame]:
        return _find_blame(target, system, args, given, (argnums, has_aux))

    return _report(system, measured, find_blame)


def _report(system: System, measured: Mapping[str, float], find_blame: Callable[[], list[Blame]]) -> Report:
    structure, plan = system.structure, system.plan
    cost, dense = plan.certificate, dense_cost(structure)
    return Report(
        num_inputs=structure.num_inputs,
        num_kept=structure.num_pairs,
        families=tuple(
            FamilyRow(f.name, f.n, f.k, 0 if f.is_loss else f.m, f.where, f.note) for f in structure.families
        ),
        width=cost.width,
        num_fronts=plan.num_fronts,
        flops=count_flops(plan),
        bytes=cost.bytes,
        dense_flops=dense.flops,
        dense_bytes=dense.bytes,
        order=plan.order_name,
        engine=system.engine.name,
        why_order=_why_order(plan),
        why_engine=system.why_engine,
        considered=plan.considered,
        system=system,
        measured=measured,
        find_blame=find_blame,
    )


def _find_blame(
    target: Any,
    system: System,
    args: tuple[PyTree, ...],
    kwargs: Mapping[str, PyTree],
    options: tuple[Any, bool],
) -> list[Blame]:
    structure, width = system.structure, system.plan.certificate.width
    if isinstance(target, Graph | Structure) or width <= _NARROW or structure.num_slots > _MOST_SLOTS:
        return []

    def measure(function: Callable[..., Any]) -> tuple[int, float, int]:
        def look(args: tuple[PyTree, ...], kwargs: Mapping[str, PyTree]) -> tuple[int, float, int]:
            found = system_of(Objective(function, *options).at(args, kwargs), engine="reference")
            plan, families = found.plan, found.structure.families
            read = np.zeros(found.structure.num_slots, bool)
            for family in families:
                read[family.args] = True
            return plan.certificate.width, count_flops(plan), int(read[: plan.num_inputs].sum())

        return run_abstractly(look, args, kwargs)

    return blame_lines(target, args, kwargs, measure, width)


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
    return f"{kind}; {ratio(cost, own)} cheaper than {name} (width {certificate.width})"
