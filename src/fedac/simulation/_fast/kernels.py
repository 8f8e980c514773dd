"""The compiled inner loops: local steps of streamed workers, and minibatch gradients.

Layout: a state of S sequences and V lanes over d coordinates is one flat array, element
``(j * S + s) * V + lane``. Lanes are runs that share every draw; a row of data is read once for
all of them. Everything about an algorithm arrives as tables (see `affine.py`); no kernel knows
one.

Sparse data are a tuple whose type chooses the code: ``(indptr, indices)`` for rows of ones,
``(indptr, indices, values)`` for others. Dense data go through `dense.py`.
"""

import numpy as np
from numba.extending import overload, register_jitable

from fedac import sampling
from fedac.simulation._fast import simd
from fedac.simulation._fast.compiling import compiled
from fedac.simulation._fast.losses import derivative, logarithm, split_loss
from fedac.simulation._fast.simd import (
    accumulate,
    load,
    multiply_add,
    splat,
    store,
    sum_tiles,
    tile,
)

# Workers whose changes are summed in the local precision before they go to the accumulator.
WORKERS_PER_SUM = 16
# How a worker's change is collected: over all coordinates; over those it touched; over those and
# straight to the accumulator, where a sum of some workers would be as sparse as one of them; or
# by row (see `shared.py`), where the state is zero before and after a worker.
SWEEP, TOUCHED, FAR, BY_ROW = range(4)

# Factors of at most 2 in one product: 2^512 is far from overflow.
FACTORS = 512

# How many steps ahead a row, and its coordinates in a large state, are asked for.
ROWS_AHEAD, STATE_AHEAD = 6, 3
# States larger than this (in bytes) do not stay in the caches next to the processor.
NEAR_CACHE = 2**18

register_jitable(sampling.mix)
worker_key = register_jitable(sampling.worker_key)
row_of = register_jitable(sampling.row_of)


def margin(wide, data, i, Y):
    """Return x_i . Y for all sequences and lanes."""
    raise NotImplementedError("compiled only")


@overload(margin)
def _margin(wide, data, i, Y):
    if len(data) == 2:

        def ones(wide, data, i, Y):
            indptr, indices = data
            W = np.uint64(len(wide))
            even = splat(wide, 0.0)
            odd = splat(wide, 0.0)
            start, stop = np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])
            # Two sums halve the chain of dependent additions.
            if (stop - start) & np.uint64(1):
                even = load(wide, Y, np.uint64(indices[start]) * W)
                start += np.uint64(1)
            for k in range(start, stop, np.uint64(2)):
                even = even + load(wide, Y, np.uint64(indices[k]) * W)
                odd = odd + load(wide, Y, np.uint64(indices[k + np.uint64(1)]) * W)
            return even + odd

        return ones

    def numbers(wide, data, i, Y):
        indptr, indices, values = data
        W = np.uint64(len(wide))
        total = splat(wide, 0.0)
        for k in range(np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])):
            y = load(wide, Y, np.uint64(indices[k]) * W)
            total = multiply_add(splat(total, values[k]), y, total)
        return total

    return numbers


def add_row(wide, data, i, Y, coefficient):
    """Add coefficient * x_i to Y."""
    raise NotImplementedError("compiled only")


@overload(add_row)
def _add_row(wide, data, i, Y, coefficient):
    if len(data) == 2:

        def ones(wide, data, i, Y, coefficient):
            indptr, indices = data
            for k in range(np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])):
                place = np.uint64(indices[k]) * np.uint64(len(wide))
                store(Y, place, load(wide, Y, place) + coefficient)

        return ones

    def numbers(wide, data, i, Y, coefficient):
        indptr, indices, values = data
        for k in range(np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])):
            place = np.uint64(indices[k]) * np.uint64(len(wide))
            y = load(wide, Y, place)
            store(Y, place, multiply_add(splat(y, values[k]), coefficient, y))

    return numbers


@register_jitable
def draw_rows(rows, seed, m, t, gap, n):
    """List the rows that worker m draws in steps t to t + gap, and some rows to look ahead to."""
    key = worker_key(np.uint64(seed), np.uint64(m))
    for k in range(np.uint64(gap)):
        rows[k] = row_of(key, np.uint64(t) + k, n)
    for k in range(gap, gap + ROWS_AHEAD):
        rows[k] = rows[gap - 1]


@register_jitable
def prefetch_row(data, y, i):
    """Ask for a row before it is needed."""
    simd.prefetch(data[1], np.uint64(data[0][i]))
    simd.prefetch(y, i)


@register_jitable
def prefetch_coordinates(wide, data, i, array):
    """Ask for the coordinates of a row in a state too large for the near caches."""
    indptr, indices = data[0], data[1]
    for k in range(np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])):
        simd.prefetch(array, np.uint64(indices[k]) * np.uint64(len(wide)))


@register_jitable
def collect_row(wide, data, i, start, Y, total):
    """Collect the change of one row's coordinates and put them back.

    A coordinate met a second time is back already and adds nothing: no list of touched
    coordinates is needed.
    """
    indptr, indices = data[0], data[1]
    for k in range(np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])):
        place = np.uint64(indices[k]) * np.uint64(len(wide))
        origin = load(wide, start, place)
        accumulate(total, place, load(wide, Y, place) - origin)
        store(Y, place, origin)


@register_jitable
def clear_row(wide, data, i, Y):
    """Set the coordinates of one row to zero."""
    indptr, indices = data[0], data[1]
    for k in range(np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])):
        store(Y, np.uint64(indices[k]) * np.uint64(len(wide)), splat(wide, 0.0))


@compiled
def run_workers(
    like,
    wide,
    data,
    y,
    offsets,
    loss,
    first_strand,
    last_strand,
    M,
    seed,
    t,
    gap,
    q,
    r,
    e,
    fold_after,
    folds,
    start,
    base,
    Y,
    sums,
    total,
    collect,
    rows,
    margins,
    steps,
):
    """Run the workers of some strands for one round and sum up how far they moved.

    Every worker starts from `start`, takes `gap` steps and leaves ``Y - base`` in the total of
    its strand, or how much it added of every row in the steps of its strand. Strands are fixed
    groups of workers, each summed in order, so that no result depends on how many threads share
    the strands.
    """
    by_row = collect == BY_ROW
    strands = len(steps) if by_row else len(total)
    V, W = np.uint64(len(like)), np.uint64(len(wide))
    n = np.uint64(len(y))
    large = start.nbytes > NEAR_CACHE
    if not by_row:
        for place in range(np.uint64(0), np.uint64(start.size), W):
            store(Y, place, load(wide, start, place))
    for strand in range(first_strand, last_strand):
        strand_total = total[min(strand, len(total) - 1)]
        waiting = 0
        for m in range(strand * M // strands, (strand + 1) * M // strands):
            draw_rows(rows, seed, m, t, gap, n)
            next_fold = 0
            for k in range(np.uint64(gap)):
                # The sampler knows the coming rows: have them fetched while we work on this one.
                i = rows[k]
                prefetch_row(data, y, rows[k + np.uint64(ROWS_AHEAD)])
                if large:
                    prefetch_coordinates(wide, data, rows[k + np.uint64(STATE_AHEAD)], Y)
                x_y = margin(wide, data, i, Y)
                if by_row:
                    x_y = x_y + load(wide, margins, i * W)
                z = sum_tiles(like, load(wide, q, k * W) * x_y)
                if offsets.size:
                    z = multiply_add(load(like, e, k * V), splat(z, offsets[i]), z)
                g = derivative(loss, z, y[i])
                if fold_after[k]:
                    fold(like, wide, folds[next_fold], Y)
                    next_fold += 1
                step = load(wide, r, k * W) * tile(wide, g)
                add_row(wide, data, i, Y, step)
                if by_row:
                    accumulate(steps[strand], i * W, step)
            if by_row:
                for k in range(np.uint64(gap)):
                    clear_row(wide, data, rows[k], Y)
                continue
            waiting += 1
            if collect == SWEEP:
                sweep_up(wide, start, base, Y, sums)
            elif collect == TOUCHED:
                for k in range(np.uint64(gap)):
                    collect_row(wide, data, rows[k], start, Y, sums)
            else:
                waiting = 0
                for k in range(np.uint64(gap)):
                    ahead = rows[k + np.uint64(ROWS_AHEAD)]
                    prefetch_coordinates(wide, data, ahead, start)
                    prefetch_coordinates(wide, data, ahead, strand_total)
                    collect_row(wide, data, rows[k], start, Y, strand_total)
            if waiting == WORKERS_PER_SUM:
                flush(wide, sums, strand_total)
                waiting = 0
        if waiting:
            flush(wide, sums, strand_total)


@compiled
def find_margins(wide, data, start, margins, strands, first_strand, last_strand):
    """Multiply the rows of some strands by the start."""
    n, W = len(margins), np.uint64(len(wide))
    for i in range(np.uint64(first_strand * n // strands), np.uint64(last_strand * n // strands)):
        store(margins, i * W, margin(wide, data, i, start))


@compiled
def add_rows(wide, data, steps, total, first_strand, last_strand):
    """Add up the rows of some strands, as much of each as all workers together have added."""
    n, W = steps.shape[1], np.uint64(len(wide))
    strands = len(total)
    for strand in range(first_strand, last_strand):
        strand_total = total[strand]
        for i in range(np.uint64(strand * n // strands), np.uint64((strand + 1) * n // strands)):
            step = load(wide, steps[0], i * W)
            for other in range(1, len(steps)):
                step = step + load(wide, steps[other], i * W)
            add_row(wide, data, i, strand_total, step)


@register_jitable
def sweep_up(wide, start, base, Y, sums):
    """Add how far a worker moved to the sums, over all coordinates, and put it back."""
    W = np.uint64(len(wide))
    for place in range(np.uint64(0), np.uint64(start.size), W):
        moved = load(wide, Y, place) - load(wide, base, place)
        store(sums, place, load(wide, sums, place) + moved)
        store(Y, place, load(wide, start, place))


@register_jitable
def flush(wide, sums, total):
    """Move sums of the local precision to the accumulator."""
    for place in range(np.uint64(0), np.uint64(sums.size), np.uint64(len(wide))):
        accumulate(total, place, load(wide, sums, place))
        store(sums, place, splat(wide, 0.0))


@register_jitable
def fold(like, wide, columns, Y):
    """Multiply the sequences of every coordinate by a matrix per lane, given by its columns."""
    V, W = len(like), len(wide)
    for first in range(0, Y.size, W):
        new = splat(wide, 0.0)
        for s in range(0, W, V):
            column = load(wide, columns, s // V * W)
            new = multiply_add(column, tile(wide, load(like, Y, first + s)), new)
        store(Y, first, new)


@compiled
def derivatives(like, loss, Z, y, weights):
    """Replace every row of margins Z by weight * loss'."""
    V = np.uint64(len(like))
    for i in range(np.uint64(len(y))):
        store(Z, i * V, derivative(loss, load(like, Z, i * V), y[i]) * weights[i])


@compiled
def gram_steps(like, wide, P, gram, y, offsets, loss, q, r, e, C):
    """Take a block of steps of some workers, knowing only products of their rows.

    P holds each row times the state before the block, `gram` the rows times each other. C
    receives what each step adds to the state, in multiples of its row.
    """
    V, W = np.uint64(len(like)), np.uint64(len(wide))
    steps = np.uint64(P.shape[1])
    for m in range(len(P)):
        P_m, C_m, gram_m = P[m], C[m], gram[m]
        for k in range(steps):
            x_y = load(wide, P_m, k * W)
            for i in range(k):
                x_y = multiply_add(splat(x_y, gram_m[k, i]), load(wide, C_m, i * W), x_y)
            z = sum_tiles(like, load(wide, q, k * W) * x_y)
            if offsets.size:
                z = multiply_add(load(like, e, k * V), splat(z, offsets[m, k]), z)
            g = derivative(loss, z, y[m, k])
            store(C_m, k * W, load(wide, r, k * W) * tile(wide, g))


@compiled
def scatter(wide, rows, C, steps):
    """Add what each step adds to the state to the sum of its row."""
    W = np.uint64(len(wide))
    for m in range(len(C)):
        for k in range(np.uint64(C.shape[1])):
            accumulate(steps, np.uint64(rows[m, k]) * W, load(wide, C[m], k * W))


@compiled
def finish_round(total, state, to_base, closing, constant, center, M, first, last):
    """Turn the summed changes of a round into the state after it, for some coordinates.

    state <- closing (to_base state + changes / M) + constant center', for every lane.
    """
    S, lanes = state.shape[1], state.shape[2]
    size = total.shape[1] // len(state)
    # Strand by strand over all numbers: a loop the compiler turns into vectors.
    moved = total[0]
    for strand in range(1, len(total)):
        other = total[strand]
        for place in range(np.uint64(first * size), np.uint64(last * size)):
            moved[place] += other[place]
    sequences = np.empty(S)
    for j in range(first, last):
        for lane in range(lanes):
            for s in range(S):
                here = moved[j * size + s * (size // S) + lane] / M
                for i in range(S):
                    here += to_base[s, i, lane] * state[j, i, lane]
                sequences[s] = here
            for s in range(S):
                after = constant[s, lane] * center[j]
                for i in range(S):
                    after += closing[s, i, lane] * sequences[i]
                state[j, s, lane] = after


@compiled
def sum_losses(like, data, y, loss, P, total, first_strand, last_strand):
    """Sum the loss over strands of rows, at the points P of all lanes.

    The logistic loss log(1 + exp(m)) is max(m, 0) + log(1 + exp(-|m|)); logarithms of factors
    in [1, 2] are taken of the product of many.
    """
    strands = len(total)
    n = len(y)
    one = splat(like, 1.0)
    for strand in range(first_strand, last_strand):
        sums = splat(like, 0.0)
        factors = one
        waiting = 0
        for i in range(np.uint64(strand * n // strands), np.uint64((strand + 1) * n // strands)):
            z = margin(like, data, i, P)
            value, factor = split_loss(loss, z, y[i])
            sums = sums + value
            factors = factors * factor
            waiting += 1
            if waiting == FACTORS:
                sums = sums + logarithm(factors)
                factors = one
                waiting = 0
        store(total[strand], 0, sums + logarithm(factors))


@compiled
def fold_all(like, wide, folds, Y):
    """Do to Y all that the folds of a round do to a worker that never moves."""
    for k in range(len(folds)):
        fold(like, wide, folds[k], Y)


@compiled
def count_rows(counts, first_worker, last_worker, seed, t, gap):
    """Count how often some workers draw each row in steps t to t + gap."""
    n = np.uint64(len(counts))
    for m in range(first_worker, last_worker):
        key = worker_key(np.uint64(seed), np.uint64(m))
        for k in range(gap):
            counts[row_of(key, np.uint64(t + k), n)] += 1


@compiled
def list_rows(rows, M, n, seed, t, gap):
    """List the rows that M workers draw in steps t to t + gap."""
    for m in range(M):
        key = worker_key(np.uint64(seed), np.uint64(m))
        for k in range(gap):
            rows[m * gap + k] = row_of(key, np.uint64(t + k), np.uint64(n))


@compiled
def sum_gradients(like, data, y, loss, rows, weights, first_strand, last_strand, P, total):
    """Sum weight * loss' x over strands of rows, at the points P of all lanes."""
    strands = len(total)
    for strand in range(first_strand, last_strand):
        G = total[strand]
        for place in range(strand * len(rows) // strands, (strand + 1) * len(rows) // strands):
            i = rows[place]
            prefetch_row(data, y, rows[min(place + ROWS_AHEAD, len(rows) - 1)])
            z = margin(like, data, i, P)
            s = derivative(loss, z, y[i]) * weights[place]
            add_row(like, data, i, G, s)
