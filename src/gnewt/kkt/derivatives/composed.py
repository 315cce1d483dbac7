"""Local derivatives of a long function, by those of its cores (`cuts`).

With P_i = ∂(arguments of core i)/∂x and λ_i the adjoints of its results,

    ∂²(λ·ψ) = Σᵢ P_iᵀ ∂²(λ_i·core_i) P_i,

since everything between the cores is linear. The cores' own derivatives are scalar programs, where structural zeros have
vanished; P_i and λ_i take one sweep each. One core's derivatives are far fewer operations than the whole function's:
of a Runge-Kutta step of a quadrotor they cost a tenth.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
from jax import Array

from gnewt.graph import Family
from gnewt.jaxprs.compat import DType, Numeric
from gnewt.jaxprs.primitives import primitive
from gnewt.kkt.derivatives.arrays import Traced
from gnewt.kkt.derivatives.cuts import Combination, Core, Cuts, cut
from gnewt.kkt.derivatives.keep import Keeper
from gnewt.kkt.derivatives.scalars import NotScalar, ScalarProgram, Vectors, live_nodes
from gnewt.kkt.derivatives.symbolic import Differentiator
from gnewt.kkt.derivatives.writeout import write_out

_MAX_OPERATIONS = 3_000
"""Of all cores' derivatives together: XLA compiles about 500 a second."""


@dataclasses.dataclass(frozen=True, eq=False)
class CoreDerivatives:
    """∂core and ∂²(λ·core) as a scalar program."""

    program: ScalarProgram
    args: np.ndarray
    lam: np.ndarray
    given: list[int]
    jacobian: list[tuple[int, int, int]]
    """(result, argument, node) of what is not zero."""
    hessian: list[tuple[int, int, int]]
    """(argument, argument, node), both halves."""


@dataclasses.dataclass(frozen=True, eq=False)
class Composition:
    """A family's function as a program, taken apart."""

    program: ScalarProgram
    x: np.ndarray
    data: list[np.ndarray]
    outputs: list[int]
    cuts: Cuts
    derivatives: list[CoreDerivatives]


def compose(family: Family, traced: Traced, dtype: DType) -> Composition | None:
    """Take apart (x, *data) ↦ ψ, or return None where that is impossible or not worth it."""
    flat = traced.program
    if family.k < 2 or any(primitive(instr.prim).own_rule for instr in flat.instrs):
        return None
    program = ScalarProgram(_MAX_OPERATIONS)
    try:
        x = program.symbols((family.k,), dtype)
        data = [program.symbols(a.shape, a.dtype) for a in (flat.avals[v] for v in flat.ins[1:])]
        (y,) = write_out(program, flat, traced.hoisted, [x, *data])
        outputs = y.ravel().tolist()
        cuts = cut(program, x.tolist(), outputs)
        if len(cuts.cores) < 2:
            return None
        derivatives = [_differentiate(program, core) for core in cuts.cores]
    except NotScalar:
        return None
    if sum(_count(d) for d in derivatives) > _MAX_OPERATIONS:
        return None
    return Composition(program, x, data, outputs, cuts, derivatives)


def _count(derivatives: CoreDerivatives) -> int:
    wanted = [node for *_, node in (*derivatives.jacobian, *derivatives.hessian)]
    return len(live_nodes(derivatives.program, wanted))


def _differentiate(program: ScalarProgram, core: Core) -> CoreDerivatives:
    """Write the derivatives of a core out."""
    written = ScalarProgram(8 * _MAX_OPERATIONS)
    args, lam, given = (
        [int(written.symbols((), program.dtypes[node])) for node in nodes]
        for nodes in (core.args, core.outs, core.given)
    )
    env = dict(zip((*core.args, *core.given), (*args, *given), strict=True))
    for node in core.nodes:
        op = program.ops[node]
        assert op is not None
        ins = tuple(
            env[a] if a in env else written.constant(np.asarray(program.value[a])) for a in program.args[node]
        )
        env[node] = written.apply(program.names[node], program.keys[node], op, ins, program.dtypes[node])
        if node in program.exponents:
            written.exponents[env[node]] = program.exponents[node]
    outs = [env[out] for out in core.outs]
    along = Differentiator(written, args)
    gradient = along.gradient(outs, lam)

    def zero(node: int) -> bool:
        return bool(written.value.get(node) == 0)

    jacobian, hessian = [], []
    for a in range(len(args)):
        jacobian += [(o, a, node) for o, node in enumerate(along.tangents(outs, a)) if not zero(node)]
        for b, node in enumerate(along.tangents(gradient[: a + 1], a)):
            if not zero(node):
                hessian += [(a, b, node)] if a == b else [(a, b, node), (b, a, node)]
    return CoreDerivatives(written, np.array(args), np.array(lam), given, jacobian, hessian)


def bind_inputs(
    family: Family, nodes: np.ndarray, data_nodes: list[np.ndarray], x: Array, data: tuple[Numeric, ...]
) -> dict[int, Array]:
    """Return the values of a program's inputs: x[k, n] and the data of a family, one vector for each node."""
    inputs = dict(zip(nodes.tolist(), x, strict=True))
    for some, values, axis in zip(data_nodes, data, family.data_axes, strict=True):
        flat = jnp.reshape(values, (some.size,) if axis is None else (x.shape[1], some.size))
        inputs.update({int(node): flat[..., i] for i, node in enumerate(some.ravel())})
    return inputs


class Composed:
    """Derivatives by those of the cores."""

    def __init__(
        self, made: Composition, family: Family, x: Array, data: tuple[Numeric, ...], keeper: Keeper
    ) -> None:
        self._made, self._family, self._n, self._dtype, self._keeper = (
            made,
            family,
            x.shape[1],
            x.dtype,
            keeper,
        )
        inputs = bind_inputs(family, made.x, made.data, x, data)
        cores = made.cuts.cores
        read = dict.fromkeys(node for core in cores for node in (*core.args, *core.given))
        values = Vectors(made.program, inputs, [*read, *made.outputs], keeper)
        self._outputs = values.get(made.outputs)
        self._cores = []
        for core, derivatives in zip(cores, made.derivatives, strict=True):
            names = [*derivatives.args.tolist(), *derivatives.given]
            at = dict(zip(names, values.get([*core.args, *core.given]), strict=True))
            wanted = [node for *_, node in (*derivatives.jacobian, *derivatives.hessian)]
            self._cores.append(Vectors(derivatives.program, at, wanted, keeper))
        self._jacobians = [
            [(o, a, v) for (o, a, _), v in zip(d.jacobian, c.get([n for *_, n in d.jacobian]), strict=True)]
            for d, c in zip(made.derivatives, self._cores, strict=True)
        ]
        self._tangents: dict[int, Array] = {}
        """Base → its derivatives along x, [k, n]; of inputs they are unit vectors, not stored."""
        self._columns = [self._sweep(core, jac) for core, jac in zip(cores, self._jacobians, strict=True)]

    def _sweep(self, core: Core, jacobian: list[tuple[int, int, Numeric]]) -> dict[int, Array]:
        """Return P_i by arguments, and set the tangents of the core's results."""
        used = sorted({a for _, a, _ in jacobian})
        rows = dict(zip(used, self._keep([self._combine(core.args[a]) for a in used]), strict=True))
        results: list[Array | None] = [None] * len(core.outs)
        for o, a, v in jacobian:
            term = jnp.asarray(v, self._dtype) * rows[a]
            so_far = results[o]
            results[o] = term if so_far is None else so_far + term
        empty = jnp.zeros((self._family.k, 1), self._dtype)
        kept = self._keep([empty if r is None else r for r in results])
        self._tangents.update(zip(core.outs, kept, strict=True))
        return rows

    def _keep(self, rows: list[Array]) -> list[Array]:
        """Have rows of tangents computed once."""
        if not rows:
            return []
        shape = (self._family.k, self._n)
        whole = self._keeper.keep(jnp.stack([jnp.broadcast_to(r, shape) for r in rows]), costly=False)
        return list(whole)

    def _combine(self, node: int) -> Array:
        """Return the tangents of a node between the cores."""
        unit = np.zeros((self._family.k, 1))
        total: Array | None = None
        place = {int(s): i for i, s in enumerate(self._made.x)}
        for base, c in self._made.cuts.combination[node].items():
            if base in place:
                unit[place[base]] += c
            else:
                term = self._tangents[base] if c == 1 else c * self._tangents[base]
                total = term if total is None else total + term
        constant = jnp.asarray(unit, self._dtype)
        return constant if total is None else total + constant if unit.any() else total

    def values(self) -> Array:
        return jnp.broadcast_to(jnp.asarray(self._outputs[0], self._dtype), (self._n,))

    def jacobian(self) -> Array:
        """Return ∂ψ[m, k, n]."""
        return jnp.stack(self._keep([self._combine(node) for node in self._made.outputs]))

    def hessian(self, lam: Array | None) -> Array:
        """Return ∂²(λ·ψ)[k, k, n]."""
        made, k, n = self._made, self._family.k, self._n
        adjoints: dict[int, Array] = {}
        weights = jnp.ones((1, n), self._dtype) if lam is None else lam
        for node, weight in zip(made.outputs, weights, strict=True):
            _push(adjoints, made.cuts.combination[node], weight)
        total = jnp.zeros((k, k, n), self._dtype)
        for core, derivatives, vectors, jacobian, rows in reversed(
            list(
                zip(
                    made.cuts.cores,
                    made.derivatives,
                    self._cores,
                    self._jacobians,
                    self._columns,
                    strict=True,
                )
            )
        ):
            zero = jnp.zeros(n, self._dtype)
            duals = [adjoints.get(out, zero) for out in core.outs]
            duals = list(self._keeper.keep(jnp.stack(duals), costly=False)) if duals else []
            vectors.give(derivatives.lam, duals)
            back: dict[int, Array] = {}
            for o, a, v in jacobian:
                term = jnp.asarray(v, self._dtype) * duals[o]
                back[a] = back[a] + term if a in back else term
            for a, v in back.items():
                _push(adjoints, made.cuts.combination[core.args[a]], v)
            found = vectors.get([node for *_, node in derivatives.hessian])
            products: dict[int, Array] = {}
            for (a, b, _), v in zip(derivatives.hessian, found, strict=True):
                term = jnp.asarray(v, self._dtype) * rows[b]
                products[a] = products[a] + term if a in products else term
            if products:
                kept = self._keep(list(products.values()))
                for a, product in zip(products, kept, strict=True):
                    total = total + rows[a][:, None] * product[None]
        return total


def _push(adjoints: dict[int, Array], combination: Combination, weight: Array) -> None:
    for base, c in combination.items():
        term = c * weight
        adjoints[base] = adjoints[base] + term if base in adjoints else term
