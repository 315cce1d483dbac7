"""Auxiliary data of a traced function: its form, which of it must be slots, and where it stands in the graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.core import Tracer

from gnewt._errors import TraceError, explain_error
from gnewt._typing import PyTree
from gnewt.graph import Output, constant_output

Keep: TypeAlias = bool | tuple[str, ...]
"""True for all, or names of entries."""


@dataclasses.dataclass(frozen=True)
class Aux:
    """The form of auxiliary data. Compared by value: part of the key of a structure."""

    tree: Any
    """Its treedef."""
    known: tuple[tuple[tuple[int, ...], np.dtype] | None, ...]
    """For each leaf None, if it was traced: then it is an output of the program; else shape and dtype."""

    def kept(self, keep: Keep, where: str) -> list[bool]:
        """For each traced leaf whether it must be slots; raise TraceError if a name is unknown."""
        traced = [i for i, known in enumerate(self.known) if known is None]
        if keep is True or not keep:
            return [bool(keep)] * len(traced)
        mirror = self._mirror(list(range(len(self.known))))
        if not isinstance(mirror, dict):
            raise TraceError(
                explain_error(
                    f"keep names {', '.join(map(repr, keep))}, but the auxiliary data is a {type(mirror).__name__}",
                    where,
                    "return it as a dict, or use keep=True for all of it",
                )
            )
        for name in keep:
            if name not in mirror:
                has = ", ".join(map(repr, mirror)) or "nothing"
                raise TraceError(
                    explain_error(
                        f"keep names {name!r}, but the auxiliary data has {has}",
                        where,
                        "use names of its entries",
                    )
                )
        chosen = {i for name in keep for i in jax.tree_util.tree_leaves(mirror[name])}
        return [i in chosen for i in traced]

    def outputs(self, found: Sequence[Output]) -> PyTree:
        """Put the descriptions of the traced leaves, and of the known ones, in the form of the auxiliary data."""
        traced = iter(found)
        return self._mirror([next(traced) if k is None else constant_output(*k) for k in self.known])

    def _mirror(self, leaves: list) -> PyTree:
        return jax.tree_util.tree_unflatten(self.tree, leaves)


def split_aux(f: Callable[..., PyTree], where: str) -> tuple[Callable[..., PyTree], list[Aux]]:
    """Return f with its traced auxiliary leaves in a list, and a list that a call of it fills with their form.

    Args:
        f: returns (value, auxiliary data).
        where: the line of f, for an error.
    """
    form: list[Aux] = []

    def flat(*args: PyTree) -> PyTree:
        out = f(*args)
        if not isinstance(out, tuple | list) or len(out) != 2:
            kind = "array" if isinstance(out, Tracer) else type(out).__name__
            count = f" of {len(out)}" if isinstance(out, tuple | list) else ""
            raise TraceError(
                f"has_aux is True, but the function returns one {kind}{count}, not (value, auxiliary data)",
                where,
                "return a pair, or leave has_aux out",
            )
        value, aux = out
        leaves, tree = jax.tree_util.tree_flatten(aux)
        known = [None if isinstance(leaf, Tracer) else (np.shape(leaf), _dtype(leaf)) for leaf in leaves]
        form[:] = [Aux(tree, tuple(known))]
        return value, [leaf for leaf in leaves if isinstance(leaf, Tracer)]

    return flat, form


def _dtype(leaf: object) -> np.dtype:
    """dtype of a leaf that may be anything."""
    return getattr(leaf, "dtype", None) or np.asarray(leaf).dtype
