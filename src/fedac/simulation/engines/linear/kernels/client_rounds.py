# SPDX-License-Identifier: Apache-2.0
"""Compiled loops of methods with their own `enter` and `leave`.

A client enters with combinations of the broadcast and its memory, takes its steps like any worker,
and leaves with combinations of its final state, the broadcast and its memory. The coefficients
arrive as tables, a number per lane (see `linear/client_rounds.py`).
"""

import numpy as np

from fedac.federation import compression
from fedac.simulation.engines.linear.kernels.interface import compiled, helper
from fedac.simulation.engines.linear.kernels.simd import load, multiply_add, splat, store
from fedac.simulation.engines.linear.kernels.steps import (
    WORKERS_PER_SUM,
    draw_rows,
    flush,
    member,
    one_of,
    rows_of,
    take_steps,
)

BFLOAT16, INT8 = (
    compression.WIRES.index(compression.BFLOAT16),
    compression.WIRES.index(compression.INT8),
)
stream = helper(compression.stream)
uniform = helper(compression.uniform)
scale_of = helper(compression.scale_of)
code_of = helper(compression.code_of)
nearest_bfloat16 = helper(compression.nearest_bfloat16)

# Coordinates of a combination that are computed at a time: their data stays in the caches.
BLOCK = 16


@helper
def add_terms(lanes, total, terms, k, offset, source, vectors, first, count):
    """Add the share of one source in combination k to `total`, for some coordinates.

    `source` has `vectors` numbers per coordinate and lane, of which the first is vector `offset` of
    the combination; `total` has one.
    """
    used, coefficients = terms
    V = np.uint64(len(lanes))
    for i in range(vectors):
        if used[k, offset + i]:
            term = k * np.uint64(used.shape[1]) + offset + i
            coefficient = load(lanes, coefficients, term * V)
            at = (first * vectors + i) * V
            for j in range(count):
                vector = load(lanes, source, at + j * vectors * V)
                store(total, j * V, multiply_add(coefficient, vector, load(lanes, total, j * V)))


@helper
def round_to_int8(vector, key, largest, V):
    """Replace a vector, a number per coordinate and lane, by its int8 approximation."""
    d = np.uint64(vector.size) // V
    for first in range(np.uint64(0), d, np.uint64(compression.BLOCK)):
        last = min(first + np.uint64(compression.BLOCK), d)
        largest[:] = 0.0
        for at in range(first * V, last * V):
            lane = at % V
            largest[lane] = max(largest[lane], abs(vector[at]))
        for j in range(first, last):
            u = uniform(key, j)
            for lane in range(V):
                scale = scale_of(largest[lane])
                code = code_of(np.float64(vector[j * V + lane]), scale, u)
                vector[j * V + lane] = code * scale


@helper
def factor_of(lanes, scale, moving, t):
    """Return how much of the move of vector t of a message counts."""
    return splat(lanes, scale if moving.size and moving[t] else 1.0)


@helper
def first_place(draws, strand, strands):
    """Return where the participants of a strand begin: works of a client are in one strand."""
    place = strand * draws.taking_part // strands
    if draws.members.size:
        while 0 < place < draws.taking_part and draws.members[place] == draws.members[place - 1]:
            place += 1
    return place


@helper
def send(
    lanes, moved, wire, echoes, places, points, key_parts, d, weight, scale, moving, sums, mine
):  # fmt: skip
    """Round a client's message, add it to `sums`, and let the memory follow what was sent.

    `moved` holds one vector after the other, a number per coordinate and lane. Return the squared
    length of the points among them, as they count.
    """
    seed, m, r = key_parts
    V, P = np.uint64(len(lanes)), np.uint64(echoes.size)
    T = np.uint64(moved.size) // (d * V)
    largest = np.empty(V, np.float64)
    squared = splat(lanes, 0.0)
    for t in range(T):
        factor = factor_of(lanes, scale, moving, t)
        vector = moved[t * d * V : (t + np.uint64(1)) * d * V]
        meant = vector.copy()
        if wire == INT8:
            round_to_int8(vector, stream(seed, m, r, places[t]), largest, V)
        if wire == BFLOAT16:
            for at in range(vector.size):
                vector[at] = nearest_bfloat16(np.float64(vector[at]))
        for j in range(d):
            at = (j * T + t) * V
            sent = factor * load(lanes, vector, j * V)
            store(sums, at, multiply_add(weight, sent, load(lanes, sums, at)))
            if points.size and points[t]:
                squared = multiply_add(sent, sent, squared)
        for p in range(P):
            if echoes[p] == np.int64(t):
                for j in range(d):
                    error = load(lanes, vector, j * V) - load(lanes, meant, j * V)
                    at = (j * P + p) * V
                    store(mine, at, load(lanes, mine, at) + error)
    return squared


@compiled
def run_clients(
    lanes, sequences, sent, rows, this_round, coefficients, memories, scratch, total,
    first_strand, last_strand,
):  # fmt: skip
    """Run the clients of some strands for one round, and sum up their messages.

    Each starts from the broadcast that it has received, whose reference is subtracted from its
    message. `memories` is changed in place; every client belongs to one strand, where its works
    follow each other.
    """
    draws, row_steps = this_round.draws, this_round.row_steps
    begin, enter, leave, constant, broadcast, reference, center = coefficients[:7]
    wire, echoes, places, points, versions, scales, moving = coefficients[7:]
    kinds, lengths, numbers, firsts = draws[-4:]
    memory, started = memories
    Y, sums, drawn, _ = scratch
    d, V, none = np.uint64(center.size), np.uint64(len(lanes)), np.uint64(0)
    S, T = np.uint64(len(sequences)) // V, np.uint64(len(sent)) // V
    P = np.uint64(echoes.size)
    zero = splat(lanes, 0.0)
    block, outputs = np.uint64(BLOCK), T + P
    combined = np.empty((outputs + np.uint64(1)) * block * V, Y.dtype)
    message_moved = np.empty(T * d * V if wire else none, Y.dtype)
    for strand in range(first_strand, last_strand):
        strand_total = total[strand]
        waiting = 0
        for place in range(
            first_place(draws, strand, len(total)), first_place(draws, strand + 1, len(total))
        ):
            m = member(draws, place)
            kind, number = one_of(kinds, place, 0), one_of(numbers, place, draws.r)
            gap, first_step = one_of(lengths, kind, draws.gap), one_of(firsts, place, draws.t)
            drawn_rows = draw_rows(drawn, draws, m, gap, first_step, number)
            received = one_of(versions, place, 0) * d
            scale = scales[place] if scales.size else 1.0
            mine = memory[m]
            is_new, started[m] = not started[m], True
            for first in range(none, d, block):
                count = min(block, d - first)
                for p in range(P if is_new else none):
                    for j in range(count):
                        store(combined, j * V, zero)
                    at = received + first
                    add_terms(lanes, combined, begin, p, none, broadcast, T, at, count)
                    for j in range(count):
                        store(mine, ((first + j) * P + p) * V, load(lanes, combined, j * V))
                for s in range(S):
                    for j in range(count):
                        store(combined, j * V, zero)
                    k = kind * S + s
                    at = received + first
                    add_terms(lanes, combined, enter, k, none, broadcast, T, at, count)
                    add_terms(lanes, combined, enter, k, T, mine, P, first, count)
                    for j in range(count):
                        store(Y, ((first + j) * S + s) * V, load(lanes, combined, j * V))
            one = splat(sequences, 1.0)
            take_steps(
                lanes, sequences, rows, this_round, scratch, one, gap, drawn_rows, row_steps[0]
            )
            weight = splat(lanes, rows_of(draws, m)[1] if draws.weighted else 1)
            squared = zero
            for first in range(none, d, block):
                count = min(block, d - first)
                # All combinations are taken before any memory is overwritten.
                for vector in range(outputs):
                    output, k = combined[vector * block * V :], kind * outputs + vector
                    multiple = load(lanes, constant, k * V)
                    for j in range(count):
                        store(output, j * V, multiple * splat(lanes, center[first + j]))
                    add_terms(lanes, output, leave, k, none, Y, S, first, count)
                    add_terms(lanes, output, leave, k, S, broadcast, T, received + first, count)
                    add_terms(lanes, output, leave, k, S + T, mine, P, first, count)
                for t in range(T):
                    factor = factor_of(lanes, scale, moving, t)
                    for j in range(count):
                        at = ((first + j) * T + t) * V
                        message = load(lanes, combined, (t * block + j) * V)
                        moved = message - load(lanes, reference, received * T * V + at)
                        if wire:
                            store(message_moved, (t * d + first + j) * V, moved)
                        else:
                            moved = factor * moved
                            store(sums, at, multiply_add(weight, moved, load(lanes, sums, at)))
                            if points.size and points[t]:
                                squared = multiply_add(moved, moved, squared)
                for p in range(P):
                    for j in range(count):
                        kept_now = load(lanes, combined, ((T + p) * block + j) * V)
                        store(mine, ((first + j) * P + p) * V, kept_now)
            if wire:
                keys = (draws.seed, np.uint64(m), number)
                squared = send(
                    lanes, message_moved, wire, echoes, places, points, keys, d, weight, scale,
                    moving, sums, mine,
                )  # fmt: skip
            if points.size:  # behind the sums of the messages
                at = d * T * V
                store(sums, at, multiply_add(weight, squared, load(lanes, sums, at)))
            waiting += 1
            if waiting == WORKERS_PER_SUM:
                flush(sent, sums, strand_total)
                waiting = 0
        if waiting:
            flush(sent, sums, strand_total)
