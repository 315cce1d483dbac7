"""The layout of the native engine, expanded again, is the plan: every number at its place in its front."""

import dataclasses
import itertools

import numpy as np
import pytest

import gnewt
from gnewt.kkt.engines.native import engine as native
from gnewt.kkt.engines.native.packing import lay_out_native
from gnewt.plan import make_plan
from helpers.native_factor import factorize_native
from helpers.random_graphs import random_graph, random_order

pytestmark = pytest.mark.skipif(not native.available(), reason="the native library is not built")

F, G, PP, C, R = range(5)
CHILD_IS_PAIRS, CROSS, NESTED, DENSE_JACOBIAN, INPUT_BELOW = 1, 2, 4, 8, 16


@dataclasses.dataclass
class Expanded:
    p: int
    q: int
    b: int
    flags: int
    numbers: list  # (part, row, column, source)
    diagonal: list  # (coordinate, source)
    pairs: list
    inputs: list
    runs: list
    slots: list
    num_children: int
    num_twins: int


def expand(array):
    """Fronts as the engine walks through them."""
    array, out = array.astype(int).tolist(), []
    for f in range(array[1]):
        shape_at, slots_at, sources_at, children = array[array[5] + 4 * f : array[5] + 4 * f + 4]
        shape, sources = array[array[6] + shape_at :][:20000], array[array[8] + sources_at :][:20000]
        p, q, b, flags, num_blocks, num_diag, num_pairs, num_inputs, num_runs, _, num_twins = shape[:11]
        numbers, at = [], 11
        for k in range(num_blocks):
            kind, transposed, rows, length, dlen, step, dstep, row, col = shape[at : at + 9]
            at += 9
            for i in range(rows):
                start = sources[k] + i * step + dstep * i * (i - 1) // 2
                places = [
                    (row + j, col + i) if transposed else (row + i, col + j) for j in range(length + i * dlen)
                ]
                numbers += [(kind, *place, start + j) for j, place in enumerate(places)]
        lists = []
        for length, width in ((num_diag, 1), (num_pairs, 2), (num_inputs, 1), (num_runs, 3)):
            lists.append([tuple(shape[at + width * k : at + width * (k + 1)]) for k in range(length)])
            at += width * length
        diagonal = [(c, s) for (c,), s in zip(lists[0], sources[num_blocks:], strict=False)]
        slots = array[array[7] + slots_at : array[7] + slots_at + p + q + b]
        out.append(Expanded(p, q, b, flags, numbers, diagonal, *lists[1:], slots, children, num_twins))
    return out


def expected(plan, i):
    """The parts of front i by their definition: coordinates [pairs, inputs, separator]."""
    mine = plan.eliminated(i).tolist()
    names = mine + plan.separator(i).tolist()
    if plan.causal:
        slots = [u for u in mine if plan.num_inputs <= u < plan.num_slots]
        p = len(slots)
        slots += [u for u in mine if u < plan.num_inputs] + plan.separator(i).tolist()
    else:
        duals = plan.num_slots - plan.num_inputs
        twins = [u for u in mine if plan.num_inputs <= u < plan.num_slots and u + duals in mine]
        slots, p = [name for u in twins for name in (u, u + duals)], 0
        slots += [u for u in names if u not in slots]
    place = {u: k for k, u in enumerate(slots)}
    if plan.causal:
        duals = plan.num_slots - plan.num_inputs
        place |= {u + duals: k for u, k in place.items() if plan.num_inputs <= u < plan.num_slots}
    numbers = []
    entries = range(int(plan.entry_ptr[i]), int(plan.entry_ptr[i + 1]))
    for n in np.flatnonzero(np.isin(plan.target, entries)):
        a, b = names[plan.entry_row[plan.target[n]]], names[plan.entry_col[plan.target[n]]]
        source = int(plan.source[n])
        if plan.causal and max(a, b) >= plan.num_slots:
            dual, primal = (place[a], place[b]) if a >= plan.num_slots else (place[b], place[a])
            numbers.append((G, dual, primal, source) if primal < p else (F, dual, primal - p, source))
            continue
        low, high = sorted([place[a], place[b]])
        kind = R if low >= p else PP if high < p else C
        numbers.append((kind, low - p * (kind == R), high - p * (kind != PP), source))
    return slots, p, sorted(numbers)


ORDERS = ["causal", "causal_min_fill", "min_degree", "nested_dissection", "hessian", "random"]


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_every_number_is_at_its_place(order, merge):
    for seed in range(6):
        problem = random_graph(seed)
        given = [problem.graph.slots(h) for h in random_order(problem, seed)] if order == "random" else order
        plan = make_plan(problem.graph.structure(), given, merge=merge)
        num_sources = int(plan.source.max()) + 1
        layout = lay_out_native(plan, num_sources)
        fronts = expand(layout.array)
        # Plans are in postorder already, so fronts keep their numbers.
        for i, front in enumerate(fronts):
            slots, p, numbers = expected(plan, i)
            assert front.slots == slots
            assert (front.p, front.p + front.q + front.b) == (p, len(slots))
            assert sorted(front.numbers) == numbers
            assert front.num_children == np.sum(plan.parent == i)
            if plan.causal:
                on_diagonal = sorted((r, s) for kind, r, c, s in numbers if kind == R and r == c)
                assert sorted(front.diagonal) == on_diagonal
            check_runs(plan, i, front, fronts)
            check_flags(plan, i, front, fronts)
        if not plan.causal:
            check_pairs_and_inputs(plan, fronts)
        check_groups(plan, layout.array.astype(int).tolist(), fronts)


def check_runs(plan, i, front, fronts):
    """A separator slot stands in the parent where the runs say, and no run crosses the end of the pairs."""
    covered = []
    for start, coordinate, length in front.runs:
        parent = fronts[plan.parent[i]]
        for k in range(length):
            assert parent.slots[coordinate + k] == front.slots[front.p + front.q + start + k]
        assert coordinate >= parent.p or coordinate + length <= parent.p
        covered += range(start, start + length)
    assert covered == list(range(front.b))


def check_flags(plan, i, front, fronts):
    if not plan.causal:
        assert front.flags == 0
        return
    kinds = [kind for kind, *_ in front.numbers]
    children = [fronts[k] for k in np.flatnonzero(plan.parent == i)]
    below = [c.slots[c.p + c.q :] for c in children]
    straddles = any(
        0 < sum(s in front.slots[: front.p] for s in separator) < len(separator) for separator in below
    )
    places = [(r, c) for kind, r, c, _ in front.numbers if kind == F]
    dense = len(set(places)) == len(places) == front.p * (front.q + front.b) and front.p > 0
    flags = {
        CHILD_IS_PAIRS: len(below) == 1 and below[0] == front.slots[: front.p],
        CROSS: straddles or C in kinds,
        NESTED: G in kinds,
        DENSE_JACOBIAN: dense,
        INPUT_BELOW: any(s < plan.num_inputs for s in front.slots[front.p + front.q :]),
    }
    assert front.flags == sum(flag for flag, on in flags.items() if on)


def check_pairs_and_inputs(plan, fronts):
    pairs = [(f.slots[d], f.slots[x]) for f in fronts for d, x in f.pairs]
    inputs = [f.slots[k] for f in fronts for (k,) in f.inputs]
    states = range(plan.num_inputs, plan.num_slots)
    assert sorted(pairs) == [(s + plan.num_slots - plan.num_inputs, s) for s in states]
    assert sorted(inputs) == list(range(plan.num_inputs))


def check_groups(plan, array, fronts):
    """Members of a group have the same sizes, and their children are members before them, in the same segment."""
    at, seen = array[12], set()
    for _ in range(array[13]):
        begin, end, num_groups, length = array[at : at + 4]
        here, k = set(), at + 4
        for _ in range(num_groups):
            count, group = array[k], []
            k += 1
            for _ in range(count):
                member, k = array[k], k + 1
                children = np.flatnonzero(plan.parent == member).tolist()
                assert array[k : k + len(children)] == children
                assert set(children) <= here
                k += len(children)
                group.append(member)
            assert len(group) >= 3
            assert len({(fronts[i].p, fronts[i].q, fronts[i].b, fronts[i].num_twins) for i in group}) == 1
            here |= set(group)
        assert k == at + length
        assert here <= set(range(begin, end)) - seen
        at, seen = k, seen | here


def test_leaves_that_look_alike_are_in_groups():
    g = gnewt.Graph()
    shared = g.input(name="shared")
    for i in range(30):
        own = g.input((2,), name=f"own{i}")
        g.loss(lambda own, shared: (own * shared).sum(), own, shared)
    plan = make_plan(g.structure(), "causal", merge=False)
    layout = lay_out_native(plan, int(plan.source.max()) + 1)
    array = layout.array.astype(int).tolist()
    assert array[13] == 1
    assert array[array[12] + 2 :][2] >= 29
    check_groups(plan, array, expand(layout.array))


def renumber(plan, order):
    """The same plan with its fronts in another order, children before parents."""
    rank = np.argsort(order)

    def rows(ptr, *lists):
        length = np.diff(ptr)[order]
        index = np.concatenate([np.arange(ptr[i], ptr[i + 1]) for i in order])
        return np.concatenate([[0], np.cumsum(length)]), index, [v[index] for v in lists]

    elim_ptr, _, (elim_idx,) = rows(plan.elim_ptr, plan.elim_idx)
    sep_ptr, _, (sep_idx, sep_pos) = rows(plan.sep_ptr, plan.sep_idx, plan.sep_pos)
    entry_ptr, moved, (entry_row, entry_col) = rows(plan.entry_ptr, plan.entry_row, plan.entry_col)
    new_entry = np.argsort(moved)
    parent = plan.parent[order]
    return dataclasses.replace(
        plan,
        parent=np.where(parent < 0, -1, rank[parent]).astype(np.int32),
        **{
            "elim_ptr": elim_ptr,
            "elim_idx": elim_idx,
            "sep_ptr": sep_ptr,
            "sep_idx": sep_idx,
            "sep_pos": sep_pos,
        },
        **{"entry_ptr": entry_ptr, "entry_row": entry_row, "entry_col": entry_col},
        **{name: new_entry[getattr(plan, name)] for name in ("target", "pair_entry", "input_entry")},
    )


@pytest.mark.parametrize("order", ["causal", "nested_dissection"])
def test_fronts_are_brought_into_postorder(order):
    """Schur complements wait on a stack, so subtrees must be contiguous; a plan need not list them so."""
    changed = 0
    for seed in range(12):
        plan = make_plan(random_graph(seed).graph.structure(), order, merge=False)
        depth = np.zeros(plan.num_fronts, int)
        for i in range(plan.num_fronts - 1, -1, -1):
            depth[i] = depth[plan.parent[i]] + 1 if plan.parent[i] >= 0 else 0
        by_level = np.argsort(-depth, kind="stable")  # all leaves of one level before the next
        changed += np.any(np.diff(by_level) < 0)
        sources = np.random.default_rng(seed).normal(size=int(plan.source.max()) + 1)
        b = np.ones(plan.num_inputs)
        x = factorize_native(plan, sources, 0.5).solve(b)
        y = factorize_native(renumber(plan, by_level), sources, 0.5).solve(b)
        assert np.abs(x - y).max() <= 1e-9 * np.abs(x).max()
    assert changed


@pytest.mark.parametrize(
    "field", ["parent", "elim_idx", "sep_idx", "sep_pos", "entry_row", "source", "target", "pair_entry"]
)
def test_a_plan_with_wrong_integers_is_refused(field):
    plan = make_plan(random_graph(2).graph.structure(), "causal", merge=False)
    num_sources = int(plan.source.max()) + 1
    for bad, at in itertools.product([-7, 10**6], [0, -1]):
        values = getattr(plan, field).copy()
        values[at] = bad
        with pytest.raises(ValueError, match="contradict"):
            lay_out_native(dataclasses.replace(plan, **{field: values}), num_sources)
    with pytest.raises(ValueError, match="length"):
        lay_out_native(dataclasses.replace(plan, target=plan.target[1:]), num_sources)
