# SPDX-License-Identifier: Apache-2.0
"""The compiled inner loops: local steps of streamed workers, and minibatch gradients.

Layout: a state of S sequences and V lanes over d coordinates is one flat array, element
``(j * S + s) * V + lane``. Lanes are runs that share every draw; a row of data is read once for
all of them. Vectors come in two widths, given by two templates: `lanes`, a number per lane, and
`sequences`, a number per sequence and lane, which is one coordinate of the state. Everything about
an algorithm arrives as tables (`coefficients.py`); `interface.py` has the other arguments.

Data is a tuple whose type chooses the code: ``(indptr, indices)`` for rows of ones, ``(indptr,
indices, values)`` for other sparse ones, ``(X,)`` for dense ones, several coordinates at a time.
Dense data with many lanes goes through `dense.py`. The type of the loss chooses between rows with
one margin and rows with a margin for each of C classes (`classes.py`).
"""

from functools import partial

import numpy as np
from numba import types

from fedac.federation import sampling
from fedac.objectives.losses import FACTORS
from fedac.simulation.engines.linear.kernels import simd
from fedac.simulation.engines.linear.kernels.classes import (
    add_combination,
    add_products,
    find_products,
    find_slopes,
    find_steps,
    gather,
    is_softmax,
    multiply,
    multiply_rows_by_rows,
    outputs,
    softmax_slopes,
    split_softmax,
    work_space,
)
from fedac.simulation.engines.linear.kernels.interface import (
    by_type,
    compiled,
    helper,
)
from fedac.simulation.engines.linear.kernels.losses import derivative, logarithm, split_loss
from fedac.simulation.engines.linear.kernels.rows import column, entries
from fedac.simulation.engines.linear.kernels.simd import (
    accumulate,
    load,
    load_each,
    multiply_add,
    splat,
    store,
    sum_tiles,
    tile,
    widened,
)

# This many workers' moves are summed in the local precision before they go to the accumulator.
WORKERS_PER_SUM = 16
# How a worker's move is collected: SWEEP goes over all coordinates, TOUCHED over the coordinates of
# its rows, FAR over these too but directly into the accumulator, which pays if even the sum of some
# workers is sparse. BY_ROW (see `workers.py`) keeps the state at zero before and after a worker.
SWEEP, TOUCHED, FAR, BY_ROW = range(4)

# Dense rows of classes that are multiplied together.
BLOCK = 16

# How many steps ahead a row, and its coordinates in a large state, are prefetched.
ROWS_AHEAD, STATE_AHEAD = 6, 3
# States larger than this (in bytes) do not fit the first caches of a core.
NEAR_CACHE = 2**18

helper(sampling.mix)
worker_key = helper(sampling.worker_key)
row_of = helper(sampling.row_of)
EPOCHS, GOLDEN = sampling.EPOCHS, sampling.GOLDEN


@by_type
def margin(template, data, i, Y):
    """Return x_i . Y for all sequences and lanes."""
    if len(data) == 1:

        def dense(template, data, i, Y):
            (X,) = data
            W, d = np.uint64(len(template)), np.uint64(X.shape[1])
            wide = widened(template)
            tiles, row = np.uint64(len(wide)) // W, i * d
            whole = d - d % tiles
            sums = splat(wide, 0.0)
            for j in range(np.uint64(0), whole, tiles):
                x = load_each(wide, template, X, row + j)
                sums = multiply_add(x, load(wide, Y, j * W), sums)
            total = sum_tiles(template, sums)
            for j in range(whole, d):
                x = splat(template, X[i, j])
                total = multiply_add(x, load(template, Y, j * W), total)
            return total

        return dense

    if len(data) == 2:

        def ones(template, data, i, Y):
            indptr, indices = data
            W = np.uint64(len(template))
            even = splat(template, 0.0)
            odd = splat(template, 0.0)
            start, stop = np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])
            # Two sums halve the chain of dependent additions.
            if (stop - start) & np.uint64(1):
                even = load(template, Y, np.uint64(indices[start]) * W)
                start += np.uint64(1)
            for k in range(start, stop, np.uint64(2)):
                even = even + load(template, Y, np.uint64(indices[k]) * W)
                odd = odd + load(template, Y, np.uint64(indices[k + np.uint64(1)]) * W)
            return even + odd

        return ones

    def numbers(template, data, i, Y):
        indptr, indices, values = data
        W = np.uint64(len(template))
        total = splat(template, 0.0)
        for k in range(np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])):
            y = load(template, Y, np.uint64(indices[k]) * W)
            total = multiply_add(splat(total, values[k]), y, total)
        return total

    return numbers


@by_type
def add_row(template, data, i, Y, coefficient):
    """Add coefficient * x_i to Y."""
    if len(data) == 1:

        def dense(template, data, i, Y, coefficient):
            (X,) = data
            W, d = np.uint64(len(template)), np.uint64(X.shape[1])
            wide = widened(template)
            tiles, row = np.uint64(len(wide)) // W, i * d
            whole = d - d % tiles
            multiple = tile(wide, coefficient)
            for j in range(np.uint64(0), whole, tiles):
                x = load_each(wide, template, X, row + j)
                store(Y, j * W, multiply_add(x, multiple, load(wide, Y, j * W)))
            for j in range(whole, d):
                x = splat(template, X[i, j])
                store(Y, j * W, multiply_add(x, coefficient, load(template, Y, j * W)))

        return dense

    if len(data) == 2:

        def ones(template, data, i, Y, coefficient):
            indptr, indices = data
            for k in range(np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])):
                place = np.uint64(indices[k]) * np.uint64(len(template))
                store(Y, place, load(template, Y, place) + coefficient)

        return ones

    def numbers(template, data, i, Y, coefficient):
        indptr, indices, values = data
        for k in range(np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])):
            place = np.uint64(indices[k]) * np.uint64(len(template))
            y = load(template, Y, place)
            store(Y, place, multiply_add(splat(y, values[k]), coefficient, y))

    return numbers


@helper
def member(draws, place):
    """Return the id of the client at a place among the participants."""
    return draws.members[place] if draws.members.size else place


@helper
def rows_of(draws, m):
    """Return the first row that client m draws from, and the number of its rows."""
    if draws.bounds.size:
        first = draws.bounds[m]
        return np.uint64(first), np.uint64(draws.bounds[m + 1] - first)
    return np.uint64(0), np.uint64(draws.n)


@helper
def one_of(values, place, usual):
    """Return a participant's number where they differ, else the usual one."""
    return np.uint64(values[place] if values.size else usual)


@helper
def list_epoch(drawn, at, first, size, key):
    """List rows in the order of `sampling.epoch_order`, by their random keys.

    Keys are spread evenly, so each of `size` buckets has few of them.
    """
    shift = np.uint64(63)
    while np.uint64(1) << (np.uint64(64) - shift) < size:
        shift -= np.uint64(1)
    ends = np.zeros((np.uint64(1) << (np.uint64(64) - shift)) + np.uint64(1), np.uint64)
    keys, ordered = np.empty(size, np.uint64), np.empty(size, np.uint64)
    for i in range(size):
        keys[i] = sampling.mix(key + i * GOLDEN)
        ends[(keys[i] >> shift) + np.uint64(1)] += np.uint64(1)
    for bucket in range(1, ends.size):
        ends[bucket] += ends[bucket - 1]
    for i in range(size):
        place = ends[keys[i] >> shift]
        ends[keys[i] >> shift] += np.uint64(1)
        ordered[place], drawn[at + place] = keys[i], first + i
    for i in range(np.uint64(1), size):  # by insertion, which stays within a bucket
        mine, row, place = ordered[i], drawn[at + i], i
        while place > 0 and ordered[place - np.uint64(1)] > mine:
            ordered[place] = ordered[place - np.uint64(1)]
            drawn[at + place] = drawn[at + place - np.uint64(1)]
            place -= np.uint64(1)
        ordered[place], drawn[at + place] = mine, row


@helper
def draw_rows(drawn, draws, m, gap, first_step, number):
    """List the rows that client m draws in a round; return how many.

    It takes `gap` steps from `first_step` on, with the random numbers of round `number`. The last
    row is repeated, for prefetching. If the client takes all its rows at every step, they are
    listed once.
    """
    first, size = rows_of(draws, m)
    if draws.batch == 0:
        count = size
        for k in range(count):
            drawn[k] = first + k
    elif draws.epochs:
        key = worker_key(draws.seed ^ EPOCHS, np.uint64(m))
        epochs = np.uint64(draws.epochs)
        count = epochs * size
        for epoch in range(epochs):
            counter = number * epochs + epoch
            list_epoch(drawn, epoch * size, first, size, sampling.mix(key + counter * GOLDEN))
    else:
        key = worker_key(draws.seed, np.uint64(m))
        batch = np.uint64(draws.batch)
        count, start = gap * batch, first_step * batch
        for k in range(count):
            drawn[k] = first + row_of(key, start + k, size)
    for k in range(count, count + np.uint64(ROWS_AHEAD)):
        drawn[k] = drawn[count - np.uint64(1)]
    return count


@by_type
def prefetch_row(data, y, i):
    """Prefetch the beginning of a row."""

    def sparse(data, y, i):
        simd.prefetch(data[1], np.uint64(data[0][i]))
        simd.prefetch(y, i)

    def dense(data, y, i):
        simd.prefetch(data[0], i * np.uint64(data[0].shape[1]))
        simd.prefetch(y, i)

    return dense if len(data) == 1 else sparse


@helper
def prefetch_coordinates(template, loss, data, i, array):
    """Prefetch the coordinates of a row in a large state."""
    start, stop = entries(data, i)
    for k in range(start, stop):
        for c in range(outputs(loss)):
            place = column(data, k) * outputs(loss) + c
            simd.prefetch(array, place * np.uint64(len(template)))


@helper
def collect_row(template, loss, data, i, start, Y, weight, total):
    """Collect the weighted change of one row's coordinates and reset them.

    A coordinate that occurs again has been reset and adds nothing, so no list of touched
    coordinates is needed.
    """
    first, stop = entries(data, i)
    for k in range(first, stop):
        for c in range(outputs(loss)):
            place = (column(data, k) * outputs(loss) + c) * np.uint64(len(template))
            origin = load(template, start, place)
            accumulate(total, place, (load(template, Y, place) - origin) * weight)
            store(Y, place, origin)


@helper
def clear_row(template, loss, data, i, Y):
    """Set the coordinates of one row to zero."""
    start, stop = entries(data, i)
    for k in range(start, stop):
        for c in range(outputs(loss)):
            place = (column(data, k) * outputs(loss) + c) * np.uint64(len(template))
            store(Y, place, splat(template, 0.0))


def take_blocks(lanes, sequences, rows, this_round, scratch, weight, gap, drawn_rows, sums):
    """Take the steps on dense rows of classes in blocks.

    In a block a worker moves only along its rows. So their products with Y at its start and with
    each other are enough, and matrix products read Y once for all of them.
    """
    (X,), y, offsets, loss = rows
    draws, (q, r, e, fold_after, folds) = this_round.draws, this_round.tables
    Y, _, drawn, slopes = scratch
    C, W, d = outputs(loss), np.uint64(len(sequences)), np.uint64(X.shape[1])
    none, width = np.uint64(0), C * W
    batch, most = np.uint64(draws.batch), max(np.uint64(BLOCK), np.uint64(draws.batch))
    # After so many rows batches start again: the last one before may be smaller.
    again = drawn_rows // np.uint64(draws.epochs) if draws.epochs else drawn_rows
    x, transposed = np.empty(most * d, Y.dtype), np.zeros(d * most, Y.dtype)
    Z = np.empty(most * width, Y.dtype)
    gram = np.empty((BLOCK, BLOCK), Y.dtype)
    next_fold, k, first = 0, none, none
    while k < gap:
        end, left = k + np.uint64(1), again - first % again
        in_last = min(batch, left)
        count = in_last
        while (
            end < min(gap, k + most // batch)
            and count < left
            and not fold_after[end - np.uint64(1)]
        ):
            end += np.uint64(1)
            in_last = min(batch, left - count)
            count += in_last
        scale, last_scale = splat(sequences, 1.0 / batch), splat(sequences, 1.0 / in_last)
        gather(X, drawn, first, count, x, transposed, most)
        Z[:] = 0.0
        multiply(sequences, transposed, most, count, Y, width, d, Z)
        if count > in_last:
            multiply_rows_by_rows(sequences, transposed, most, count, d, gram)
        for j in range(count):
            i, at, earlier = drawn[first + j], j * width, j // batch * batch
            step = k + j // batch
            if earlier:
                add_combination(sequences, gram[j], earlier, Z, C, Z, at)
            find_slopes(lanes, sequences, q, e, step, C, Z, at, offsets, i, y[i], slopes, none)
            length = load(sequences, r, step * W)
            length = length * (last_scale if step + np.uint64(1) == end else scale)
            find_steps(lanes, sequences, length, C, slopes, none, Z, at)
        before = none
        if fold_after[end - np.uint64(1)]:  # the rows of the last step are added after it
            before = count - in_last
            multiply(sequences, x, d, d, Z, width, before, Y)
            fold(lanes, sequences, folds[next_fold], Y)
            next_fold += 1
        multiply(sequences, x[before * d :], d, d, Z[before * width :], width, count - before, Y)
        first += count
        k = end


@partial(by_type, inline=True)
def take_steps(lanes, sequences, rows, this_round, scratch, weight, gap, drawn_rows, sums):
    """Take a worker through the `gap` steps of a round, on the rows that it has drawn.

    If moves are collected by row, `sums` receives how much of every row it added.
    """
    # Constants of the compiled code: where steps take single rows, `slopes` is never used.
    several, softmax = not isinstance(scratch[3], types.BaseTuple), is_softmax(rows[3])
    if softmax and len(rows[0]) == 1:
        return take_blocks

    def code(lanes, sequences, rows, this_round, scratch, weight, gap, drawn_rows, sums):
        data, y, offsets, loss = rows
        draws, tables, _, _, margins, _, collect, _, _ = this_round
        q, r, e, fold_after, folds = tables
        Y, _, drawn, slopes = scratch
        by_row = collect == BY_ROW
        large = len(data) > 1 and Y.nbytes > NEAR_CACHE
        C, V, W = outputs(loss), np.uint64(len(lanes)), np.uint64(len(sequences))
        work = work_space(sequences, loss)
        rows_a_step, first = np.uint64(1), np.uint64(0)
        if several:
            rows_a_step = np.uint64(draws.batch) if draws.batch else drawn_rows
        # After so many rows of an epoch batches start again: the last one before may be smaller.
        again = np.uint64(0)
        if several and draws.epochs and draws.batch:
            again = drawn_rows // np.uint64(draws.epochs)
        scale = splat(sequences, 1.0 / rows_a_step)
        g = splat(lanes, 0.0)
        next_fold = 0
        for k in range(gap):
            if again:
                rows_a_step = min(np.uint64(draws.batch), again - first % again)
                scale = splat(sequences, 1.0 / rows_a_step)
            # All derivatives are taken at the same point, before any row is added.
            for j in range(rows_a_step):
                # The sampler knows the coming rows: fetch them while we work on this one.
                i = drawn[first + j]
                prefetch_row(data, y, drawn[first + j + np.uint64(ROWS_AHEAD)])
                if large:
                    ahead = drawn[first + j + np.uint64(STATE_AHEAD)]
                    prefetch_coordinates(sequences, loss, data, ahead, Y)
                if softmax:
                    find_products(sequences, data, i, Y, C, work, np.uint64(0))
                    if by_row:
                        for c in range(np.uint64(0), C * W, W):
                            accumulate(work, c, load(sequences, margins, i * C * W + c))
                    find_slopes(
                        lanes, sequences, q, e, k, C, work, np.uint64(0), offsets, i, y[i],
                        slopes, j * C * V,
                    )  # fmt: skip
                else:
                    x_y = margin(sequences, data, i, Y)
                    if by_row:
                        x_y = x_y + load(sequences, margins, i * W)
                    z = sum_tiles(lanes, load(sequences, q, k * W) * x_y)
                    if offsets.size:
                        z = multiply_add(load(lanes, e, k * V), splat(z, offsets[i]), z)
                    g = derivative(loss, z, y[i])
                    if several:
                        store(slopes, j * V, g)
            if fold_after[k]:
                fold(lanes, sequences, folds[next_fold], Y)
                next_fold += 1
            length = load(sequences, r, k * W) * scale
            for j in range(rows_a_step):
                i = drawn[first + j]
                if softmax:
                    find_steps(lanes, sequences, length, C, slopes, j * C * V, work, np.uint64(0))
                    add_products(sequences, data, i, Y, C, work)
                    if by_row:
                        for c in range(np.uint64(0), C * W, W):
                            accumulate(sums, i * C * W + c, load(sequences, work, c) * weight)
                else:
                    if several:
                        g = load(lanes, slopes, j * V)
                    step = length * tile(sequences, g)
                    add_row(sequences, data, i, Y, step)
                    if by_row:
                        accumulate(sums, i * W, step * weight)
            if draws.batch:  # otherwise all steps are on the same rows
                first += rows_a_step

    return code


@compiled
def run_workers(lanes, sequences, rows, this_round, scratch, total, first_strand, last_strand):
    """Run the workers of some strands for one round and sum up their moves.

    Every worker starts from its start, takes `gap` steps and adds its weight times ``Y - base`` to
    the total of its strand or, collected by row, its multiples of rows to the steps of its strand.
    """
    data, loss = rows.data, rows.loss
    draws, _, start, base, _, row_steps, collect, versions, scales = this_round
    Y, sums, drawn, _ = scratch
    by_row = collect == BY_ROW
    strands = len(row_steps) if by_row else len(total)
    numbers, firsts, gap = draws.numbers, draws.firsts, np.uint64(draws.gap)
    W, size, last = np.uint64(len(sequences)), np.uint64(Y.size), draws.taking_part - 1
    # Where the next worker's start is.
    coming = one_of(versions, min(first_strand * draws.taking_part // strands, last), 0) * size
    if not by_row:
        for at in range(np.uint64(0), size, W):
            store(Y, at, load(sequences, start, coming + at))
    for strand in range(first_strand, last_strand):
        strand_total = total[min(strand, len(total) - 1)]
        strand_steps = row_steps[strand] if by_row else row_steps[0]
        waiting = 0
        for place in range(
            strand * draws.taking_part // strands, (strand + 1) * draws.taking_part // strands
        ):
            m = member(draws, place)
            first_step, number = one_of(firsts, place, draws.t), one_of(numbers, place, draws.r)
            drawn_rows = draw_rows(drawn, draws, m, gap, first_step, number)
            weight = splat(sequences, rows_of(draws, m)[1] if draws.weighted else 1)
            received, coming = coming, one_of(versions, min(place + 1, last), 0) * size
            if scales.size:
                weight = weight * splat(sequences, scales[place])
            take_steps(
                lanes, sequences, rows, this_round, scratch, weight, gap, drawn_rows, strand_steps
            )
            if by_row:
                for k in range(drawn_rows):
                    clear_row(sequences, loss, data, drawn[k], Y)
                continue
            waiting += 1
            if collect == SWEEP:
                sweep_up(sequences, start, base, received, coming, Y, weight, sums)
            elif collect == TOUCHED:
                for k in range(drawn_rows):
                    collect_row(sequences, loss, data, drawn[k], start, Y, weight, sums)
            else:
                waiting = 0
                for k in range(drawn_rows):
                    ahead = drawn[k + np.uint64(ROWS_AHEAD)]
                    prefetch_coordinates(sequences, loss, data, ahead, start)
                    prefetch_coordinates(sequences, loss, data, ahead, strand_total)
                    collect_row(sequences, loss, data, drawn[k], start, Y, weight, strand_total)
            if waiting == WORKERS_PER_SUM:
                flush(sequences, sums, strand_total)
                waiting = 0
        if waiting:
            flush(sequences, sums, strand_total)


@partial(by_type, inline=True)
def multiply_row(template, loss, data, i, Y, margins):
    """Set row i of `margins` to x_i . Y."""
    if is_softmax(loss):

        def classes(template, loss, data, i, Y, margins):
            C = outputs(loss)
            find_products(template, data, i, Y, C, margins, i * C * np.uint64(len(template)))

        return classes

    def code(template, loss, data, i, Y, margins):
        store(margins, i * np.uint64(len(template)), margin(template, data, i, Y))

    return code


@compiled
def find_margins(sequences, loss, data, start, margins, strands, first_strand, last_strand):
    """Multiply the rows of some strands by the start."""
    n = len(margins)
    for i in range(np.uint64(first_strand * n // strands), np.uint64(last_strand * n // strands)):
        multiply_row(sequences, loss, data, i, start, margins)


@helper
def sum_of_strands(sequences, steps, at):
    """Return the sum of what all strands have at one place."""
    step = load(sequences, steps[0], at)
    for other in range(1, len(steps)):
        step = step + load(sequences, steps[other], at)
    return step


@partial(by_type, inline=True)
def add_multiple(sequences, loss, data, i, steps, total, work):
    """Add row i times the sum of all workers' multiples of it to the total."""
    if is_softmax(loss):

        def classes(sequences, loss, data, i, steps, total, work):
            C, W = outputs(loss), np.uint64(len(sequences))
            for c in range(np.uint64(0), C * W, W):
                store(work, c, sum_of_strands(sequences, steps, i * C * W + c))
            add_products(sequences, data, i, total, C, work)

        return classes

    def code(sequences, loss, data, i, steps, total, work):
        step = sum_of_strands(sequences, steps, i * np.uint64(len(sequences)))
        add_row(sequences, data, i, total, step)

    return code


@compiled
def add_rows(sequences, loss, data, steps, total, first_strand, last_strand):
    """Add up the rows of some strands, each times the sum of all workers' multiples of it."""
    n, strands, work = steps.shape[1], len(total), work_space(sequences, loss)
    for strand in range(first_strand, last_strand):
        strand_total = total[strand]
        for i in range(np.uint64(strand * n // strands), np.uint64((strand + 1) * n // strands)):
            add_multiple(sequences, loss, data, i, steps, strand_total, work)


@helper
def sweep_up(sequences, start, base, received, coming, Y, weight, sums):
    """Add a worker's weighted move to the sums, over all coordinates, and set Y for the next one.

    In `start` and `base`, its own numbers begin at `received`, and the next one's at `coming`.
    """
    W = np.uint64(len(sequences))
    for place in range(np.uint64(0), np.uint64(Y.size), W):
        moved = load(sequences, Y, place) - load(sequences, base, received + place)
        store(sums, place, multiply_add(weight, moved, load(sequences, sums, place)))
        store(Y, place, load(sequences, start, coming + place))


@helper
def flush(sequences, sums, total):
    """Move sums of the local precision to the accumulator."""
    for place in range(np.uint64(0), np.uint64(sums.size), np.uint64(len(sequences))):
        accumulate(total, place, load(sequences, sums, place))
        store(sums, place, splat(sequences, 0.0))


@helper
def fold(lanes, sequences, columns, Y):
    """Multiply the sequences of every coordinate by a matrix per lane, given by its columns."""
    V, W = len(lanes), len(sequences)
    for first in range(0, Y.size, W):
        new = splat(sequences, 0.0)
        for s in range(0, W, V):
            column = load(sequences, columns, s // V * W)
            new = multiply_add(column, tile(sequences, load(lanes, Y, first + s)), new)
        store(Y, first, new)


@partial(by_type, inline=True)
def weigh_slopes(lanes, loss, Z, i, y, weight):
    """Replace row i of margins Z by weight * loss'."""
    if is_softmax(loss):

        def classes(lanes, loss, Z, i, y, weight):
            C, V = outputs(loss), np.uint64(len(lanes))
            softmax_slopes(lanes, Z, i * C * V, C, y)
            for c in range(i * C * V, (i + np.uint64(1)) * C * V, V):
                store(Z, c, load(lanes, Z, c) * weight)

        return classes

    def code(lanes, loss, Z, i, y, weight):
        at = i * np.uint64(len(lanes))
        store(Z, at, derivative(loss, load(lanes, Z, at), y) * weight)

    return code


@compiled
def derivatives(lanes, loss, Z, y, weights):
    """Replace every row of margins Z by weight * loss'."""
    for i in range(np.uint64(len(y))):
        weigh_slopes(lanes, loss, Z, i, y[i], weights[i])


@compiled
def gram_steps(lanes, sequences, loss, tables, first_step, rows_a_step, block, C):
    """Take a block of steps of some workers, knowing only products of their rows.

    C receives what each step adds to the state, in multiples of its rows.
    """
    P, gram, y, offsets = block
    q, r, e, _, _ = tables
    V, W = np.uint64(len(lanes)), np.uint64(len(sequences))
    first, batch = np.uint64(first_step), np.uint64(rows_a_step)
    scale = splat(sequences, 1.0 / batch)
    for m in range(len(P)):
        P_m, C_m, gram_m = P[m], C[m], gram[m]
        for k in range(np.uint64(P.shape[1])):
            step = k // batch
            x_y = load(sequences, P_m, k * W)
            for i in range(step * batch):
                x_y = multiply_add(splat(x_y, gram_m[k, i]), load(sequences, C_m, i * W), x_y)
            z = sum_tiles(lanes, load(sequences, q, (first + step) * W) * x_y)
            if offsets.size:
                z = multiply_add(load(lanes, e, (first + step) * V), splat(z, offsets[m, k]), z)
            g = derivative(loss, z, y[m, k])
            length = load(sequences, r, (first + step) * W) * scale
            store(C_m, k * W, length * tile(sequences, g))


@compiled
def gram_steps_of_classes(lanes, sequences, loss, tables, first_step, rows_a_step, block, C):
    """Do the same as `gram_steps` for rows with a margin for each class; P is overwritten."""
    P, gram, y, offsets = block
    q, r, e, _, _ = tables
    classes, W, none = outputs(loss), np.uint64(len(sequences)), np.uint64(0)
    first, batch = np.uint64(first_step), np.uint64(rows_a_step)
    scale = splat(sequences, 1.0 / batch)
    slopes = work_space(lanes, loss)
    for m in range(len(P)):
        P_m, C_m, gram_m, offsets_m = P[m], C[m], gram[m], offsets[m]
        for k in range(np.uint64(P.shape[1])):
            step, at = first + k // batch, k * classes * W
            earlier = k // batch * batch
            if earlier:
                add_combination(sequences, gram_m[k], earlier, C_m, classes, P_m, at)
            find_slopes(
                lanes, sequences, q, e, step, classes, P_m, at, offsets_m, k, y[m, k], slopes, none
            )
            length = load(sequences, r, step * W) * scale
            find_steps(lanes, sequences, length, classes, slopes, none, C_m, at)


@compiled
def scatter(sequences, drawn, C, steps):
    """Add each step's contribution to the sum of its row."""
    W, length = np.uint64(len(sequences)), np.uint64(C.shape[2])
    for m in range(len(C)):
        for k in range(np.uint64(C.shape[1])):
            for c in range(np.uint64(0), length, W):
                step = load(sequences, C[m], k * length + c)
                accumulate(steps, np.uint64(drawn[m, k]) * length + c, step)


@compiled
def finish_round(total, state, closing, center, weight, first, last):
    """Turn the summed changes of a round into the state after it, for some coordinates.

    state <- to_state (to_base state + changes / weight) + constant center', for every lane.
    """
    to_base, to_state, constant = closing
    S, lanes = state.shape[1], state.shape[2]
    size = total.shape[1] // len(state)
    # Strand by strand over all numbers: a loop the compiler turns into vectors.
    moved = total[0]
    for strand in range(1, len(total)):
        other = total[strand]
        for place in range(np.uint64(first * size), np.uint64(last * size)):
            moved[place] += other[place]
    averaged = np.empty(S)
    for j in range(first, last):
        for lane in range(lanes):
            for s in range(S):
                here = moved[j * size + s * (size // S) + lane] / weight
                for i in range(S):
                    here += to_base[s, i, lane] * state[j, i, lane]
                averaged[s] = here
            for s in range(S):
                after = constant[s, lane] * center[j]
                for i in range(S):
                    after += to_state[s, i, lane] * averaged[i]
                state[j, s, lane] = after


@partial(by_type, inline=True)
def split_row(lanes, loss, data, i, y, P, work):
    """Return a value and a factor; the loss of a row is the value plus the factor's logarithm."""
    if is_softmax(loss) and len(data) == 1:

        def dense(lanes, loss, data, i, y, P, work):  # P has the margins already
            C = outputs(loss)
            return split_softmax(lanes, P, i * C * np.uint64(len(lanes)), C, y)

        return dense

    if is_softmax(loss):

        def sparse(lanes, loss, data, i, y, P, work):
            find_products(lanes, data, i, P, outputs(loss), work, np.uint64(0))
            return split_softmax(lanes, work, np.uint64(0), outputs(loss), y)

        return sparse

    return lambda lanes, loss, data, i, y, P, work: split_loss(loss, margin(lanes, data, i, P), y)


@compiled
def sum_losses(lanes, rows, P, total, first_strand, last_strand):
    """Sum the loss over strands of rows, at the points P of all lanes.

    Logarithms of factors in [1, 2] are taken of the product of many (see `objectives/losses.py`).
    """
    data, y, _, loss = rows
    strands = len(total)
    n = len(y)
    one = splat(lanes, 1.0)
    work = work_space(lanes, loss)
    most = FACTORS // int(outputs(loss))  # the factors of C classes are at most C <= 2^C
    for strand in range(first_strand, last_strand):
        sums = splat(lanes, 0.0)
        factors = one
        waiting = 0
        for i in range(np.uint64(strand * n // strands), np.uint64((strand + 1) * n // strands)):
            value, factor = split_row(lanes, loss, data, i, y[i], P, work)
            sums = sums + value
            factors = factors * factor
            waiting += 1
            if waiting >= most:
                sums = sums + logarithm(factors)
                factors = one
                waiting = 0
        store(total[strand], 0, sums + logarithm(factors))


@compiled
def fold_all(lanes, sequences, folds, Y):
    """Apply to Y all folds of a round, as to a worker that never moves."""
    for k in range(len(folds)):
        fold(lanes, sequences, folds[k], Y)


@compiled
def count_rows(counts, draws, first_place, last_place):
    """Count how often some clients draw each row in a round."""
    start, draws_each = np.uint64(draws.t * draws.batch), np.uint64(draws.gap * draws.batch)
    for place in range(first_place, last_place):
        m = member(draws, place)
        first, size = rows_of(draws, m)
        key = worker_key(draws.seed, np.uint64(m))
        for k in range(draws_each):
            counts[first + row_of(key, start + k, size)] += 1


@compiled
def list_rows(drawn, draws):
    """List the rows that all clients of a round draw."""
    start, draws_each = np.uint64(draws.t * draws.batch), np.uint64(draws.gap * draws.batch)
    count = np.uint64(0)
    for place in range(draws.taking_part):
        m = member(draws, place)
        first, size = rows_of(draws, m)
        if draws.batch == 0:
            for k in range(size):
                drawn[count + k] = first + k
            count += size
        else:  # written out: `draw_rows` would be three times as slow for single draws
            key = worker_key(draws.seed, np.uint64(m))
            for k in range(draws_each):
                drawn[count + k] = first + row_of(key, start + k, size)
            count += draws_each


@partial(by_type, inline=True)
def add_gradient(lanes, loss, data, i, y, weight, P, G, work):
    """Add weight * loss' x_i to G."""
    if is_softmax(loss):

        def classes(lanes, loss, data, i, y, weight, P, G, work):
            find_products(lanes, data, i, P, outputs(loss), work, np.uint64(0))
            weigh_slopes(lanes, loss, work, np.uint64(0), y, weight)
            add_products(lanes, data, i, G, outputs(loss), work)

        return classes

    def code(lanes, loss, data, i, y, weight, P, G, work):
        s = derivative(loss, margin(lanes, data, i, P), y) * weight
        add_row(lanes, data, i, G, s)

    return code


@compiled
def sum_gradients_of_classes(lanes, rows, drawn, weights, P, total, first_strand, last_strand):
    """Do the same as `sum_gradients` for dense rows of classes, by matrix products."""
    (X,), y, _, loss = rows
    C, V, d = outputs(loss), np.uint64(len(lanes)), np.uint64(X.shape[1])
    strands, most, width = len(total), np.uint64(BLOCK), C * V
    x, transposed = np.empty(most * d, P.dtype), np.empty(d * most, P.dtype)
    Z = np.empty(most * width, P.dtype)
    for strand in range(first_strand, last_strand):
        end = np.uint64((strand + 1) * len(drawn) // strands)
        for first in range(np.uint64(strand * len(drawn) // strands), end, most):
            count = min(most, end - first)
            gather(X, drawn, first, count, x, transposed, most)
            Z[:] = 0.0
            multiply(lanes, transposed, most, count, P, width, d, Z)
            for k in range(count):
                weigh_slopes(lanes, loss, Z, k, y[drawn[first + k]], weights[first + k])
            multiply(lanes, x, d, d, Z, width, count, total[strand])


@compiled
def sum_gradients(lanes, rows, drawn, weights, P, total, first_strand, last_strand):
    """Sum weight * loss' x over strands of drawn rows, at the points P of all lanes."""
    data, y, _, loss = rows
    strands, work = len(total), work_space(lanes, loss)
    for strand in range(first_strand, last_strand):
        G = total[strand]
        for place in range(strand * len(drawn) // strands, (strand + 1) * len(drawn) // strands):
            i = drawn[place]
            prefetch_row(data, y, drawn[min(place + ROWS_AHEAD, len(drawn) - 1)])
            add_gradient(lanes, loss, data, i, y[i], weights[place], P, G, work)
