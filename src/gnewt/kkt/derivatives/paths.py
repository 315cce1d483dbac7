"""Values of long recurrences, all rounds at once: Newton's method on x_{r+1} = N_r(x_r).

An iteration evaluates every round at the states that it has, with its Jacobian, and solves the affine recurrence of the
corrections (`affine.py`). Rounds are final from the front: those whose states follow from the one before to rounding. A
window of rounds beyond them is worked on. It is everything at first, becomes shorter where the iteration does not
contract (a round alone is exact at once), and longer where it does. Where it takes too many iterations, for example over
long chaotic stretches, the rounds are run one by one.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from gnewt.graph import Maps, Recurrence, RoundGiven, Rounds, RunRounds, one_by_one
from gnewt.kkt.derivatives.adjoints import ReverseGiven, ReverseRounds, backwards
from gnewt.kkt.derivatives.affine import Parts, apply, compose, is_long
from gnewt.kkt.needed import hoist, where_needed

ROUNDING = 16.0
"""A state follows from the one before if the difference is no more than so many roundings of what it is made of."""
_FIRST, _EACH = 24, 48
"""Iterations after which rounds are run one by one: so many, and one more for each so many rounds. An iteration takes as
long as about ten rounds."""
_PATIENCE = 8
"""Iterations that a window may take. One that takes more becomes shorter where it is slow, ..."""
_SHORTER, _LONGER = 8, 4
"""... by this factor, and one that took less makes the next one longer by that."""


_REFINEMENTS = 4
"""Solutions, at most, of the recurrence of the duals."""


class _Work(NamedTuple):
    """Where the iteration stands."""

    states: Float[Array, "rounds state"]
    """Before each round."""
    done: Int[Array, ""]
    """States up to this one are final."""
    begin: Int[Array, ""]
    """The window: how many states were final when it was chosen, and up to which state it goes."""
    end: Int[Array, ""]
    age: Int[Array, ""]
    """Iterations in this window."""
    iterations: Int[Array, ""]


def rounds_at_once(near: Float[Array, " slots"] | None = None) -> RunRounds:
    """Make what runs long recurrences at once.

    Args:
        near: slots of another evaluation, to start from.
    """

    def run(rounds: Rounds, loop: Recurrence, maps: Maps) -> Float[Array, "rounds slots"]:
        if not is_long(rounds):
            return one_by_one(rounds, loop, maps)
        if near is None:
            guess = jnp.broadcast_to(loop.start, (rounds.repeats, rounds.num_state))
        else:
            guess = states_of(rounds, loop.start, rounds.slots.read_rows(near, maps))
        return run_at_once(rounds, loop, guess)[0]

    return run


def run_at_once(
    rounds: Rounds, loop: Recurrence, guess: Float[Array, "rounds state"]
) -> tuple[Float[Array, "rounds slots"], Int[Array, ""], Bool[Array, ""]]:
    """(what all rounds add to their slots, iterations, whether they did), from a guess of the states."""
    states, count, settled = solve_states(rounds, loop, guess)
    local = jax.vmap(loop.advance)(states, loop.given)[1]

    def sequential(loop_start: Array, given: RoundGiven) -> Array:
        return jax.lax.scan(loop.advance, loop_start, given, rounds.repeats)[1]

    serial_run, captured = hoist(sequential, loop.start, loop.given)
    serial = where_needed(serial_run, ~settled, captured, loop.start, loop.given)
    return jnp.where(settled, local, serial), count, settled


def states_of(
    rounds: Rounds, start: Float[Array, " state"], slots: Float[Array, "rounds slots"]
) -> Float[Array, "rounds state"]:
    """The state before each round, from the slots of all rounds."""
    columns = []
    number = {(int(late), int(place)): j for j, (late, place) in enumerate(rounds.lags)}
    for late, place in rounds.lags.tolist():
        first = [start[number[late - r, place]] for r in range(min(late, rounds.repeats))]
        columns.append(jnp.concatenate([jnp.stack(first), slots[: rounds.repeats - len(first), place]]))
    return jnp.stack(columns, axis=1)


def solve_states(
    rounds: Rounds, loop: Recurrence, guess: Float[Array, "rounds state"]
) -> tuple[Float[Array, "rounds state"], Int[Array, ""], Bool[Array, ""]]:
    """(the state before each round, iterations, whether every state is final)."""
    parts, last, dtype = Parts.of(rounds), rounds.repeats - 1, guess.dtype
    directions = jnp.asarray(parts.directions, dtype)
    given = jax.tree.map(lambda v: v[:-1], loop.given)
    tolerance = ROUNDING * float(jnp.finfo(dtype).eps)
    limit = _FIRST + rounds.repeats // _EACH
    rank = jnp.arange(last)

    def look(state: Array, given: RoundGiven) -> tuple[Array, Array]:
        """(the next state, its change along each direction)."""

        def push(direction: Array) -> tuple[Array, Array]:
            return jax.jvp(lambda s: loop.advance(s, given)[0], (state,), (direction,))

        return jax.vmap(push, out_axes=(None, 0))(directions)

    def step(work: _Work) -> _Work:
        here, after = work.states[:-1], work.states[1:]
        found, images = jax.vmap(look)(here, given)
        matrices = parts.matrices(images)
        gap = found - after
        size = jnp.abs(found) + jnp.abs(after)
        size = size + parts.join(apply(jnp.abs(matrices), parts.split(jnp.abs(here))))
        final = jnp.all(jnp.abs(gap) <= tolerance * size, axis=1)
        done = jnp.min(jnp.where((rank >= work.done) & ~final, rank, last))
        mine = (rank >= done) & (rank < work.end)
        change = compose(
            jnp.where(mine[:, None, None, None], matrices, 0),
            parts.split(jnp.where(mine[:, None], gap, 0)),
        )
        # Final states become what the round before makes of them: a rounding better, for nothing.
        moved = jnp.where(mine[:, None], after + parts.join(change), after)
        moved = jnp.where((rank < done)[:, None], found, moved)
        return _next(work, loop.start, found, moved, done, last)

    def proceed(work: _Work) -> Bool[Array, ""]:
        return (work.done < last) & (work.iterations < limit)

    zero = jnp.zeros((), jnp.int32)
    begin = _Work(guess.at[0].set(loop.start), zero, zero, zero + last, zero, zero)
    work = jax.lax.while_loop(proceed, step, begin)
    return work.states, work.iterations, work.done >= last


def _next(work: _Work, start: Array, found: Array, moved: Array, done: Array, last: int) -> _Work:
    """Take the corrections, and choose the next window."""
    age, gained = work.age + 1, done - work.begin
    reached = done >= work.end
    slow = (age > _PATIENCE) & ((done - work.done) * _SHORTER < work.end - work.begin)
    shorter = ~reached & (slow | ~jnp.all(jnp.isfinite(moved)))
    width = work.end - work.begin
    width = jnp.where(reached, width * jnp.where(age <= _PATIENCE, _LONGER, 1), width)
    width = jnp.where(shorter, jnp.maximum(jnp.maximum(width // _SHORTER, gained), 2), width)
    changed = shorter | reached
    end = jnp.where(changed, jnp.minimum(done + width, last), work.end)
    # The last state that is known stands in for those that are not.
    states = jnp.concatenate([start[None], jnp.where(shorter, work.states[1:], moved)])
    anchor = jnp.where(shorter, jnp.minimum(done + 1, last), jnp.where(reached, done, last))
    known = jnp.where(shorter & (done < last), found[jnp.minimum(done, last - 1)], states[anchor])
    states = jnp.where((jnp.arange(last + 1) >= anchor)[:, None], known, states)
    return _Work(
        states,
        done.astype(jnp.int32),
        jnp.where(changed, done, work.begin).astype(jnp.int32),
        end.astype(jnp.int32),
        jnp.where(changed, 0, age).astype(jnp.int32),
        work.iterations + 1,
    )


def backwards_at_once(
    rounds: Rounds, sweep: ReverseRounds, zero: Float[Array, " state"]
) -> tuple[Array, Array, Array, Array]:
    """Sweep the duals of all rounds at once: they are an affine recurrence, solved by `compose` and refined.

    Composed maps are less exact than a sweep where they grow large before they become small; the sweep is then made
    round by round.
    """
    if not is_long(rounds):
        return backwards(rounds, sweep, zero)
    parts, dtype = Parts.of(rounds), zero.dtype
    tolerance = ROUNDING * float(jnp.finfo(dtype).eps)
    pull_all = jax.vmap(sweep.pull)
    given, rows = sweep.given
    directions = jnp.asarray(parts.directions, dtype)
    nothing = jnp.zeros(given.shape[1], dtype)

    def push(rows: list[Array]) -> Array:
        return jax.vmap(lambda d: sweep.pull(d, (nothing, rows))[0])(directions)

    # From the last round to the first, as `compose` goes. Duals after the last round are zero.
    matrices = parts.matrices(jax.vmap(push)(rows))[::-1]
    sizes = jnp.abs(matrices)

    def refine(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        after, gap, _, count = carry
        change = parts.join(compose(matrices, parts.split(gap[::-1])))[::-1]
        return (*look(after + jnp.concatenate([change[1:], zero[None]])), count + 1)

    def look(after: Array) -> tuple[Array, Array, Array]:
        """(duals after each round, what is missing in those before it, whether that is rounding)."""
        before = pull_all(after, sweep.given)[0]
        known = jnp.concatenate([before[:1], after[:-1]])
        gap = before - known
        moved = parts.join(apply(sizes, parts.split(jnp.abs(after)[::-1])))[::-1]
        size = jnp.abs(before) + jnp.abs(known) + moved
        return after, gap, jnp.all(jnp.abs(gap) <= tolerance * size)

    start = (*look(jnp.zeros((rounds.repeats, rounds.num_state), dtype)), jnp.zeros((), jnp.int32))
    after, _, settled, _ = jax.lax.while_loop(
        lambda carry: ~carry[2] & (carry[3] < _REFINEMENTS), refine, start
    )
    state, local, fixed, moving = pull_all(after, sweep.given)
    found = (state[0], local, jnp.sum(fixed, axis=0), moving)

    def sequential(given: ReverseGiven, zero: Array) -> tuple[Array, Array, Array, Array]:
        return backwards(rounds, ReverseRounds(sweep.pull, given), zero)

    serial_run, captured = hoist(sequential, sweep.given, zero)
    serial = where_needed(serial_run, ~settled, captured, sweep.given, zero)
    return jax.tree.map(lambda a, b: jnp.where(settled, a, b), found, serial)
