"""The nouns: slots, families, structures and plans, with their invariants; and the hand-written Graph."""

from gnewt.graph.builder import Graph, Handle
from gnewt.graph.evaluate import apply_family, evaluate, forward, objective, take_rows
from gnewt.graph.family import Family, check_family
from gnewt.graph.plan import Certificate, Plan, check_plan
from gnewt.graph.schedule import Schedule, Segment, Serial, make_schedule
from gnewt.graph.structure import Data, Structure, check_structure

__all__ = [
    "Certificate",
    "Data",
    "Family",
    "Graph",
    "Handle",
    "Plan",
    "Schedule",
    "Segment",
    "Serial",
    "Structure",
    "apply_family",
    "check_family",
    "check_plan",
    "check_structure",
    "evaluate",
    "forward",
    "make_schedule",
    "objective",
    "take_rows",
]
