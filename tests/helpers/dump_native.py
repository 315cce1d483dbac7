"""Write problems for the C++ program that runs the native engine without Python (cpp/tests/replay.cpp)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gnewt.kkt import native
from gnewt.kkt.native_layout import NativeLayout


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
