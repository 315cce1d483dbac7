"""The nouns: slots, families, structures and plans, with their invariants; and the hand-written Graph."""

from gnewt.graph.affine import Index, IndexMaker, Maps, distinct_rows, take_places
from gnewt.graph.builder import Graph, Handle
from gnewt.graph.evaluate import (
    UNROLL,
    Recurrence,
    RoundGiven,
    RunRounds,
    apply_family,
    evaluate,
    forward,
    node_values,
    objective,
    one_by_one,
)
from gnewt.graph.family import Family, check_family
from gnewt.graph.layout import Batch, Irregular
from gnewt.graph.outputs import Kind, Output, constant_output
from gnewt.graph.plan import Certificate, Plan, check_plan
from gnewt.graph.rounds import Rounds, RoundStep
from gnewt.graph.schedule import find_loops
from gnewt.graph.structure import Data, Structure, check_structure

__all__ = [
    "UNROLL",
    "Batch",
    "Certificate",
    "Data",
    "Family",
    "Graph",
    "Handle",
    "Index",
    "IndexMaker",
    "Irregular",
    "Kind",
    "Maps",
    "Output",
    "Plan",
    "Recurrence",
    "RoundGiven",
    "RoundStep",
    "Rounds",
    "RunRounds",
    "Structure",
    "apply_family",
    "check_family",
    "check_plan",
    "check_structure",
    "constant_output",
    "distinct_rows",
    "evaluate",
    "find_loops",
    "forward",
    "node_values",
    "objective",
    "one_by_one",
    "take_places",
]
