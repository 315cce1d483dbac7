"""Write problems for the C++ program that runs the native engine without Python (cpp/tests/replay.cpp)."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from gnewt.kkt.engines.native import engine as native
from gnewt.kkt.engines.native.packing import NativeLayout, lay_out_native
from gnewt.plan import make_plan
from helpers.random_kkt import KINDS, random_line, random_sources, random_structure


def dump(path: Path, layout: NativeLayout, sources: np.ndarray, shift: float, rhs: np.ndarray) -> None:
    """Append one problem to a file: sizes, plan, sources, shift, right-hand sides."""
    factor_size, index_size = native.buffer_sizes(layout)
    head = [
        len(layout.array),
        len(sources),
        *rhs.shape,
        layout.num_unknowns,
        factor_size,
        index_size,
    ]
    with path.open("ab") as file:
        for part in (
            np.array(head, np.int64),
            layout.array,
            np.asarray(sources, np.float64),
            np.array([shift]),
            np.asarray(rhs, np.float64),
        ):
            file.write(np.ascontiguousarray(part).tobytes())


def dump_random(path: Path, count: int) -> None:
    """Write random problems of every kind, along causal and free orders, with one to four right-hand sides."""
    path.unlink(missing_ok=True)
    for number in range(count):
        structure = random_line(number) if number % 3 == 0 else random_structure(number)
        order = ("causal_min_degree", "min_degree", "reverse_time", "nested_dissection", "hessian")[
            number % 5
        ]
        plan = make_plan(structure, order)
        rng = np.random.default_rng(number)
        sources = random_sources(structure, KINDS[number // 5 % len(KINDS)], rng)
        if number % 97 == 0 and len(sources):
            sources[len(sources) // 2] = np.nan
        rhs = rng.normal(size=(plan.num_inputs, 1 + number // 3 % 4 * (number % 2)))
        dump(path, lay_out_native(plan, len(sources)), sources, 0.1 * (number % 2), rhs)


if __name__ == "__main__":
    dump_random(Path(sys.argv[1]), 1000)
