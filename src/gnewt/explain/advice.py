"""What would make a step cheaper: sentences, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gnewt.explain.amounts import ratio
from gnewt.explain.blame import Blame
from gnewt.explain.flops import Cost
from gnewt.graph import Plan, Structure

_SMALL = 40
"""Inputs up to which the dense Hessian is hard to beat."""
_CLEARLY = 1.5
"""How many times as cheap something else has to be to be named."""


def advise(
    structure: Structure,
    plan: Plan,
    costs: Mapping[str, Cost],
    blamed: Sequence[Blame],
    engine: str,
    platform: str,
) -> list[str]:
    """List what would make a step cheaper, what helps most first."""
    return [
        *(_about_line(blame, plan.certificate.width, costs["tree"].flops) for blame in blamed[:3]),
        *_about_opaque(structure, plan),
        *_about_order(plan),
        *_about_rivals(structure, costs),
        *_about_engine(engine, platform),
    ]


def _about_line(blame: Blame, width: int, flops: float) -> str:
    line = blame.suspect
    often = f", {line.rounds} times" if line.rounds > 1 else ""
    cure = (
        "do it once behind the loop, or carry what it needs as a state of its own"
        if line.rounds > 1
        else "write the objective without it, or with fewer numbers in it"
    )
    return (
        f"{line.where}: the {line.what} joins {line.joined} numbers{often}. Without it the width is {blame.width} "
        f"instead of {width}, and a step takes {ratio(flops, blame.flops)} fewer flops: {cure}"
    )


def _about_opaque(structure: Structure, plan: Plan) -> list[str]:
    """Opaque parts that are nearly as wide as the tree."""
    said = []
    for family in structure.families:
        if "opaque" in family.note and 2 * (family.k + family.m) > plan.certificate.width:
            said.append(
                f"{family.where}: an opaque part joins {family.k} numbers ({family.note}); write it elementwise, "
                "or by smaller parts, if you can"
            )
    return list(dict.fromkeys(said))[:3]


def _about_order(plan: Plan) -> list[str]:
    own = next((cost for name, _, cost in plan.considered if name == plan.order_name), None)
    others = sorted((cost, name) for name, _, cost in plan.considered if name != plan.order_name)
    if own is not None and others and own > _CLEARLY * others[0][0]:
        return [f"order={others[0][1]!r} costs {ratio(own, others[0][0])} less than {plan.order_name}"]
    if plan.order_name == "given" or len(plan.considered) == 1:
        return ["leave order='auto': the order was given, and no other was priced"]
    return []


def _about_rivals(structure: Structure, costs: Mapping[str, Cost]) -> list[str]:
    tree, dense, sparse = costs["tree"].flops, costs["dense Hessian"].flops, costs["sparse Hessian"].flops
    said = []
    if tree > dense:
        said.append(
            f"the dense Hessian takes {ratio(tree, dense)} fewer flops: use jax.hessian and a dense solve, "
            "or gnewt.minimize, which takes products with H where the tree is too wide"
        )
    elif structure.num_inputs <= _SMALL:
        said.append(f"with {structure.num_inputs} inputs jax.hessian and a dense solve are hard to beat")
    if sparse * _CLEARLY < tree and sparse <= dense:
        said.append(
            f"H itself is sparse: a sparse factorisation takes {ratio(tree, sparse)} fewer flops, if its pattern is known"
        )
    return said


def _about_engine(engine: str, platform: str) -> list[str]:
    if engine == "xla" and platform == "cpu":
        return [
            "the native engine is missing: install a wheel, or a C++ compiler before `pip install` from source"
        ]
    if engine == "reference":
        return ["the reference engine is for comparison: leave engine='auto'"]
    return []
