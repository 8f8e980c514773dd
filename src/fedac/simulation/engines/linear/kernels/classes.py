# SPDX-License-Identifier: Apache-2.0
"""Rows with a margin for each of C classes, as softmax regression has them.

A state has C numbers per column of the data where other models have one: coordinate ``j * C + c``
belongs to column j and class c. So a row's C margins are read, and its C steps added, along the
same columns. The classes of a column lie next to each other: a wide vector holds several of them.
"""

from functools import partial

import numpy as np
from numba.np.numpy_support import as_dtype

from fedac.simulation.engines.linear.kernels import simd
from fedac.simulation.engines.linear.kernels.interface import by_type, helper
from fedac.simulation.engines.linear.kernels.losses import Softmax
from fedac.simulation.engines.linear.kernels.rows import column, entries, entry
from fedac.simulation.engines.linear.kernels.simd import (
    column_of,
    lines,
    load,
    load_each,
    load_lines,
    multiply_add,
    splat,
    stacked,
    store,
    store_lines,
    sum_tiles,
    tile,
    widened,
)


def is_softmax(loss):
    """Return whether a Numba type is the loss of softmax regression."""
    return loss.instance_class is Softmax


@partial(by_type, inline=True)
def outputs(loss):
    """Return how many margins a row has: a constant of the compiled code where it is one."""
    if is_softmax(loss):
        return lambda loss: np.uint64(loss.classes)
    return lambda loss: np.uint64(1)


@by_type
def work_space(template, loss):
    """Return space for a vector per class; an empty tuple where a row has one margin."""
    if not is_softmax(loss):
        return lambda template, loss: ()
    dtype = as_dtype(template.vector.element)
    return lambda template, loss: np.empty(loss.classes * len(template), dtype)


@helper
def partial_products(template, data, i, Y, stride, offset):
    """Return x_i . Y for the classes that a vector from `offset` on holds."""
    total = splat(template, 0.0)
    start, stop = entries(data, i)
    for k in range(start, stop):
        y = load(template, Y, column(data, k) * stride + offset)
        total = multiply_add(splat(total, entry(data, i, k)), y, total)
    return total


@helper
def find_products(template, data, i, Y, C, Z, at):
    """Set Z, from `at` on, to x_i . Y for all classes, sequences and lanes."""
    wide, W = widened(template), np.uint64(len(template))
    stride, at_once = C * W, np.uint64(len(wide))
    end = stride - stride % at_once
    for c in range(np.uint64(0), end, at_once):
        store(Z, at + c, partial_products(wide, data, i, Y, stride, c))
    for c in range(end, stride, W):
        store(Z, at + c, partial_products(template, data, i, Y, stride, c))


@helper
def add_products(template, data, i, Y, C, steps):
    """Add x_i times each class's vector of `steps` to Y."""
    wide, W = widened(template), np.uint64(len(template))
    stride, at_once = C * W, np.uint64(len(wide))
    end = stride - stride % at_once
    start, stop = entries(data, i)
    for k in range(start, stop):
        first, x = column(data, k) * stride, entry(data, i, k)
        for c in range(np.uint64(0), end, at_once):
            y = load(wide, Y, first + c)
            store(Y, first + c, multiply_add(splat(wide, x), load(wide, steps, c), y))
        for c in range(end, stride, W):
            y = load(template, Y, first + c)
            store(Y, first + c, multiply_add(splat(template, x), load(template, steps, c), y))


@helper
def add_combination(template, multiples, count, vectors, C, Z, at):
    """Add to Z, from `at` on, the first `count` lines of `vectors`, each times its number."""
    wide, W = widened(template), np.uint64(len(template))
    stride, at_once = C * W, np.uint64(len(wide))
    end = stride - stride % at_once
    for c in range(np.uint64(0), end, at_once):
        total = load(wide, Z, at + c)
        for i in range(count):
            x = splat(wide, multiples[i])
            total = multiply_add(x, load(wide, vectors, i * stride + c), total)
        store(Z, at + c, total)
    for c in range(end, stride, W):
        rest = load(template, Z, at + c)
        for i in range(count):
            x = splat(template, multiples[i])
            rest = multiply_add(x, load(template, vectors, i * stride + c), rest)
        store(Z, at + c, rest)


@helper
def multiply_tile(whole, template, A, i, height, B, c, width, count, out):
    """Add to a tile of `out`, from line i and column c on, its part of A' B."""
    at = i * width + c
    total = load_lines(whole, template, out, at, width)
    for k in range(count):
        b = tile(whole, load(template, B, k * width + c))
        total = multiply_add(load_each(whole, template, A, k * height + i), b, total)
    store_lines(template, out, at, width, total)


@helper
def multiply_columns(template, A, height, lines_used, B, c, width, count, out):
    """Add A' B to one vector of columns of `out`."""
    several, at_once = stacked(template), np.uint64(simd.ROWS)
    end = lines_used - lines_used % at_once
    for i in range(np.uint64(0), end, at_once):
        multiply_tile(several, template, A, i, height, B, c, width, count, out)
    for i in range(end, lines_used):
        multiply_tile(template, template, A, i, height, B, c, width, count, out)


@helper
def multiply(template, A, height, lines_used, B, width, count, out):
    """Add A' B to the first lines of `out`.

    A and B have `count` lines of `height` and `width` numbers. For small matrices this is several
    times as fast as a library's product.
    """
    wide, narrow = lines(template), np.uint64(len(template))
    at_once = np.uint64(len(wide))
    end = width - width % at_once
    for c in range(np.uint64(0), end, at_once):
        multiply_columns(wide, A, height, lines_used, B, c, width, count, out)
    for c in range(end, width, narrow):
        multiply_columns(template, A, height, lines_used, B, c, width, count, out)


@helper
def gather(X, drawn, first, count, x, transposed, height):
    """Copy drawn rows to the lines of `x`, and to the columns of `transposed`."""
    d = np.uint64(X.shape[1])
    for k in range(count):
        i = drawn[first + k]
        for j in range(d):
            x[k * d + j] = transposed[j * height + k] = X[i, j]


@helper
def multiply_rows_by_rows(template, transposed, height, count, d, gram):
    """Set `gram` to the products of gathered rows with each other."""
    gram[:] = 0.0
    multiply(column_of(template), transposed, height, count, transposed, height, d, gram)


@helper
def softmax_slopes(lanes, Z, at, C, y):
    """Replace a row's margins, from `at` on, by the derivatives p_c - [c = y] of its loss."""
    V = np.uint64(len(lanes))
    end, own = at + C * V, at + np.uint64(y) * V
    largest = load(lanes, Z, at)
    for c in range(at + V, end, V):
        largest = simd.maximum(largest, load(lanes, Z, c))
    total = splat(lanes, 0.0)
    for c in range(at, end, V):
        e = simd.exp(load(lanes, Z, c) - largest)
        total = total + e
        store(Z, c, e)
    scale = 1.0 / total
    for c in range(at, end, V):
        store(Z, c, load(lanes, Z, c) * scale)
    store(Z, own, load(lanes, Z, own) - 1.0)


@helper
def split_softmax(lanes, Z, at, C, y):
    """Return a value and a factor in [1, C]; the loss is the value plus the factor's logarithm."""
    V = np.uint64(len(lanes))
    largest = load(lanes, Z, at)
    for c in range(at + V, at + C * V, V):
        largest = simd.maximum(largest, load(lanes, Z, c))
    total = splat(lanes, 0.0)
    for c in range(at, at + C * V, V):
        total = total + simd.exp(load(lanes, Z, c) - largest)
    return largest - load(lanes, Z, at + np.uint64(y) * V), total


@helper
def find_slopes(lanes, sequences, q, e, step, C, products, at, offsets, i, y, slopes, to):
    """Set `slopes`, from `to` on, to the derivatives of a row's loss at its query points.

    `products`, from `at` on, holds the products of the row with the sequences.
    """
    V, W = np.uint64(len(lanes)), np.uint64(len(sequences))
    coefficients = load(sequences, q, step * W)
    for c in range(C):
        z = sum_tiles(lanes, coefficients * load(sequences, products, at + c * W))
        if offsets.size:
            z = multiply_add(load(lanes, e, step * V), splat(z, offsets[i * C + c]), z)
        store(slopes, to + c * V, z)
    softmax_slopes(lanes, slopes, to, C, y)


@helper
def find_steps(lanes, sequences, length, C, slopes, to, steps, at):
    """Set `steps`, from `at` on, to what a row's derivatives add to the sequences."""
    V, W = np.uint64(len(lanes)), np.uint64(len(sequences))
    for c in range(C):
        store(steps, at + c * W, length * tile(sequences, load(lanes, slopes, to + c * V)))
