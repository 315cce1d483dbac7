"""Structure: slots + families + the input pytree; what the paper calls the computational structure of f."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gnewt._errors import GraphError, explain_error
from gnewt._typing import Array, Callable, Columns, PyTree, X
from gnewt.graph.evaluate import evaluate
from gnewt.graph.family import Family, check_family
from gnewt.graph.layout import Layout, make_layout
from gnewt.graph.schedule import Schedule, make_schedule
from gnewt.graph.show import show_structure
from gnewt.graph.tables import make_tables

Data: TypeAlias = tuple[Columns, ...]
"""For each family, its data arguments."""
_FEW = 8
"""Leaves of the inputs that are put on the device one by one."""


@dataclasses.dataclass(frozen=True, eq=False)
class Structure:
    """f(x) = Σ l(s) with slots s = (inputs, kept intermediates), in topological order.

    Slots 0..num_inputs-1 are the scalars of the input pytree; the others are defined by node families.
    Immutable; everything derived from it (schedule, plan, compiled functions) is made once.
    """

    families: tuple[Family, ...]
    num_inputs: int
    num_slots: int
    in_tree: object
    """Treedef of the input pytree."""
    in_avals: tuple[jax.ShapeDtypeStruct, ...]
    """Shape and dtype of each leaf; leaf order is slot order."""
    in_names: tuple[str, ...]
    """A name for each leaf."""
    data: Data = ()
    """Default data of the families; a traced function replaces them at every call."""
    outputs: PyTree = None
    """The auxiliary data of a traced function, with an `Output` for each leaf: which slots hold it. None without any."""

    @cached_property
    def dtype(self) -> np.dtype:
        """Working precision: the promotion of the input dtypes."""
        return jnp.result_type(*[a.dtype for a in self.in_avals])

    @cached_property
    def eps(self) -> float:
        """Relative rounding to expect: that of the coarsest input, wherever precisions are mixed."""
        return max(float(jnp.finfo(a.dtype).eps) for a in self.in_avals)

    @cached_property
    def schedule(self) -> Schedule:
        return make_schedule(self.families, self.num_slots)

    @cached_property
    def layout(self) -> Layout:
        return make_layout(self.families, self.schedule, self.num_inputs, self.num_slots)

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """Positions of the node families."""
        return tuple(f for f, family in enumerate(self.families) if not family.is_loss)

    @cached_property
    def losses(self) -> tuple[int, ...]:
        """Positions of the loss families."""
        return tuple(f for f, family in enumerate(self.families) if family.is_loss)

    @property
    def num_pairs(self) -> int:
        """M: number of (x_v, λ_v) pairs, in scalars."""
        return self.num_slots - self.num_inputs

    def ravel(self, tree: PyTree) -> jax.Array:
        """Flatten an input pytree into the vector of input slots, checking shapes and dtypes."""
        leaves, treedef = jax.tree_util.tree_flatten(tree)
        if treedef != self.in_tree:
            raise GraphError(
                explain_error(
                    f"the inputs have the structure {treedef}, the graph expects {self.in_tree}",
                    remedy="give the inputs in the form (and number) in which the graph was built",
                )
            )
        flat = []
        for leaf, aval, name in zip(leaves, self.in_avals, self.in_names, strict=True):
            leaf = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
            if leaf.shape != aval.shape:
                raise GraphError(
                    explain_error(
                        f"input {name} has shape {leaf.shape}, the graph expects {aval.shape}",
                        remedy="give an array of that shape, or build the graph for the new shape",
                    )
                )
            if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
                raise GraphError(
                    explain_error(
                        f"input {name} is complex ({leaf.dtype})",
                        remedy="give its real and imaginary parts as two real inputs",
                    )
                )
            flat.append(leaf)
        if any(isinstance(leaf, Tracer) for leaf in flat):
            return jnp.asarray(jnp.concatenate([jnp.ravel(leaf) for leaf in flat]), self.dtype)
        # Concrete leaves are joined by NumPy: eager JAX would dispatch an operation for each of them.
        return jnp.asarray(np.concatenate([np.ravel(leaf) for leaf in flat]), self.dtype)

    def unravel(self, x: Array) -> PyTree:
        """Turn a vector over the input slots into the input pytree (dtypes of the leaves)."""
        starts = self._input_starts
        x = x if isinstance(x, Tracer) else np.asarray(x)
        places = zip(starts, starts[1:], self.in_avals, strict=False)
        leaves = [x[i:j].reshape(a.shape).astype(a.dtype) for i, j, a in places]
        return jax.tree_util.tree_unflatten(
            self.in_tree, leaves if isinstance(x, Tracer) else self._put(leaves)
        )

    def _put(self, leaves: Sequence[Array]) -> Sequence[jax.Array]:
        """Put leaves on the device. Many of them go by a compiled function, a tenth of the time, from the second call on."""
        counts = self.memo("counts", lambda: Counter[str]())
        counts["put"] += 1
        if len(leaves) <= _FEW or counts["put"] == 1:
            return [jnp.asarray(leaf) for leaf in leaves]
        return self.memo("put", lambda: jax.jit(lambda many: many))(leaves)

    @cached_property
    def _input_starts(self) -> list[int]:
        return [0, *itertools.accumulate(math.prod(a.shape) for a in self.in_avals)]

    @property
    def input_slots(self) -> PyTree:
        """The input pytree, with the slots of its scalars for leaves."""
        leaves = [
            np.arange(begin, begin + math.prod(a.shape)).reshape(a.shape)
            for begin, a in zip(self._input_starts, self.in_avals, strict=False)
        ]
        return jax.tree_util.tree_unflatten(self.in_tree, leaves)

    def slot_name(self, slot: int) -> str:
        """Name a slot as a person would: `u3[0]` for an input, the defining instance otherwise."""
        if slot < self.num_inputs:
            leaf = int(np.searchsorted(self._input_starts, slot, side="right")) - 1
            shape = self.in_avals[leaf].shape
            if shape == ():
                return self.in_names[leaf]
            index = np.unravel_index(slot - int(self._input_starts[leaf]), shape)
            return f"{self.in_names[leaf]}[{', '.join(str(int(i)) for i in index)}]"
        for f in self.nodes:
            family = self.families[f]
            rows, cols = np.nonzero(family.outs == slot)
            if len(rows):
                suffix = f"[{int(cols[0])}]" if family.m > 1 else ""
                return family.label(int(rows[0])) + suffix
        return f"slot {slot}"

    def slot_where(self, slot: int) -> str:
        """Return `file:line` of the family that defines (or, for an input, first reads) a slot."""
        for family in self.families:
            places = family.args if slot < self.num_inputs else family.outs
            if places is not None and np.any(places == slot):
                return family.where
        return ""

    def __call__(self, *inputs: PyTree) -> Array:
        """Evaluate the objective; differentiable by JAX to any order."""
        tree = inputs[0] if len(inputs) == 1 else inputs
        return self.value(self.data, self.ravel(tree))

    def value(self, data: Data, x: Array) -> Array:
        """Evaluate the objective on flat inputs, with the given data."""
        return self._value(self.maps, data, x)

    @cached_property
    def _memo(self) -> dict[Hashable, object]:
        return {}

    def memo(self, key: Hashable, make: Callable[[], X]) -> X:
        """Return what `make` made for this key, once per structure: plans, compiled functions."""
        if key not in self._memo:
            self._memo[key] = make()
        return cast(X, self._memo[key])

    @cached_property
    def maps(self) -> tuple[np.ndarray, ...]:
        """Index arrays of the evaluation, passed to compiled functions as arguments, not baked in; the tables come last."""
        return (*self.layout.arrays, make_tables(self.families, self.schedule, self.num_slots))

    @cached_property
    def _value(self) -> Callable[..., jax.Array]:
        return jax.jit(lambda maps, data, x: evaluate(self, maps, data, x)[0])

    def __str__(self) -> str:
        return show_structure(self)

    def __repr__(self) -> str:
        return f"<Structure: {self.num_inputs} inputs, {self.num_slots} slots, {len(self.families)} families>"


def check_structure(structure: Structure) -> None:
    """Raise GraphError unless every family is consistent and every non-input slot is defined."""
    defined = np.zeros(structure.num_slots, bool)
    defined[: structure.num_inputs] = True
    if len(structure.data) != len(structure.families):
        raise GraphError(f"{len(structure.families)} families but data for {len(structure.data)}")
    for family, data in zip(structure.families, structure.data, strict=True):
        check_family(family, structure.num_inputs, structure.num_slots)
        if len(data) != len(family.data_axes):
            raise GraphError(f"{family.name}: {len(family.data_axes)} data axes but {len(data)} data arrays")
        for axis, column in zip(family.data_axes, data, strict=True):
            if axis == 0 and column.shape[:1] != (family.n,):
                raise GraphError(
                    f"{family.name}: a data column of shape {column.shape} for {family.n} instances"
                )
        if family.outs is not None:
            defined[family.outs] = True
    if not defined.all():
        raise GraphError(f"slot {int(np.argmin(defined))} is neither an input nor defined by a family")
    size = sum(math.prod(a.shape) for a in structure.in_avals)
    if size != structure.num_inputs:
        raise GraphError(f"the input pytree has {size} scalars, the graph {structure.num_inputs} input slots")
