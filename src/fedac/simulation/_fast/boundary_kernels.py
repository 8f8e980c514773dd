"""The compiled loops of clients that enter and leave a round in their own way (see `boundary.py`).

A client enters with combinations of what was broadcast and what it remembers, takes its steps as
every worker does, and leaves with combinations of where it got, what was broadcast and what it
remembers. The coefficients arrive as tables, a number per lane.
"""

import numpy as np
from numba.extending import register_jitable

from fedac.simulation._fast.compiling import compiled
from fedac.simulation._fast.kernels import (
    WORKERS_PER_SUM,
    draw_rows,
    flush,
    member,
    rows_of,
    take_steps,
)
from fedac.simulation._fast.simd import load, multiply_add, splat, store


@register_jitable
def add_terms(lanes, total, terms, slot, source, first):
    """Add the terms of a slot: vectors of a source, counted from `first` on, times coefficients."""
    bounds, inputs, coefficients = terms
    V = np.uint64(len(lanes))
    for k in range(bounds[slot], bounds[slot + np.uint64(1)]):
        vector = load(lanes, source, (first + inputs[k]) * V)
        total = multiply_add(load(lanes, coefficients, k * V), vector, total)
    return total


@compiled
def run_clients(
    lanes, sequences, sent, rows, this_round, boundary, kept, scratch, total, first_strand,
    last_strand,
):  # fmt: skip
    """Run the clients of some strands for one round, and sum up their messages.

    What is summed is how far a message is from `boundary.reference`. `kept` is changed in place;
    every client belongs to one strand.
    """
    _, y, _, _ = rows
    draws, _, _, _, shared, _ = this_round
    begin, enter, leave, constant, broadcast, reference, center = boundary
    memory, started = kept
    _, steps = shared
    Y, sums, drawn, _ = scratch
    n, d, V = np.uint64(len(y)), np.uint64(center.size), np.uint64(len(lanes))
    S, T = np.uint64(len(sequences)) // V, np.uint64(len(sent)) // V
    P = np.uint64(constant.size) // V - T
    zero = splat(lanes, 0.0)
    outputs = np.empty(constant.size, Y.dtype)
    for strand in range(first_strand, last_strand):
        strand_total = total[strand]
        waiting = 0
        for place in range(
            strand * draws.taking_part // len(total), (strand + 1) * draws.taking_part // len(total)
        ):
            m = member(draws, place)
            drawn_rows = draw_rows(drawn, draws, m, n)
            mine = memory[m]
            if not started[m]:
                started[m] = True
                for j in range(d):
                    for p in range(P):
                        first = add_terms(lanes, zero, begin, p, broadcast, j * T)
                        store(mine, (j * P + p) * V, first)
            for j in range(d):
                for s in range(S):
                    slot = s * np.uint64(2)
                    local = add_terms(lanes, zero, enter, slot, broadcast, j * T)
                    local = add_terms(lanes, local, enter, slot + np.uint64(1), mine, j * P)
                    store(Y, (j * S + s) * V, local)
            one = splat(sequences, 1.0)
            take_steps(
                lanes, sequences, rows, this_round, scratch, one, drawn_rows, steps[0]
            )  # fmt: skip
            weight = splat(lanes, rows_of(draws, m, n)[1] if draws.weighted else 1)
            for j in range(d):
                # All combinations are taken before any memory is overwritten.
                for k in range(T + P):
                    slot = k * np.uint64(3)
                    left = load(lanes, constant, k * V) * splat(lanes, center[j])
                    left = add_terms(lanes, left, leave, slot, Y, j * S)
                    left = add_terms(lanes, left, leave, slot + np.uint64(1), broadcast, j * T)
                    left = add_terms(lanes, left, leave, slot + np.uint64(2), mine, j * P)
                    store(outputs, k * V, left)
                for t in range(T):
                    at = (j * T + t) * V
                    moved = load(lanes, outputs, t * V) - load(lanes, reference, at)
                    store(sums, at, multiply_add(weight, moved, load(lanes, sums, at)))
                for p in range(P):
                    store(mine, (j * P + p) * V, load(lanes, outputs, (T + p) * V))
            waiting += 1
            if waiting == WORKERS_PER_SUM:
                flush(sent, sums, strand_total)
                waiting = 0
        if waiting:
            flush(sent, sums, strand_total)
