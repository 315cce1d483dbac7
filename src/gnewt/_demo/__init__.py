"""What `gnewt demo` runs: a swing-up of a cartpole, measured against the dense Hessian, and drawn."""

from gnewt._demo.cartpole import build_graph, first_guess, rollout
from gnewt._demo.measure import Exactness, Timing, compare_steps, split_inputs, time_steps

__all__ = [
    "Exactness",
    "Timing",
    "build_graph",
    "compare_steps",
    "first_guess",
    "rollout",
    "split_inputs",
    "time_steps",
]
