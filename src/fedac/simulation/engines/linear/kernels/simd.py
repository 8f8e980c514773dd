# SPDX-License-Identifier: Apache-2.0
"""A small vector type for Numba: a fixed number of lanes in the processor's SIMD registers.

Numba does not vectorize across the lanes of our states by itself, so we give it a type whose
LLVM value is ``<lanes x float>`` and the few operations a kernel needs. Kernels get the number of
lanes and the precision by a `Template`: Numba compiles a kernel for each kind of template.

>>> from numba import njit
>>> @njit
... def double(template, x):
...     v = load(template, x, 0)
...     store(x, 0, v + v)
>>> x = np.arange(4.0)
>>> double(Template(np.float64, 4), x)
>>> x
array([0., 2., 4., 6.])
"""

from __future__ import annotations

import math
import operator
from functools import partial, reduce
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import (
    NativeValue,
    intrinsic,
    lower_builtin,
    models,
    register_model,
    type_callable,
    unbox,
)
from numba.np.numpy_support import from_dtype

from fedac.simulation.engines.linear.kernels.interface import by_type

# Bytes of a wide vector: enough independent sums to keep the processor's adders busy.
WIDE = 256
# A tile of a matrix product: 16 registers of 64 bytes, and as many are left for its factors.
ROWS, LINE = 8, 128


class Vector(types.Type):
    """The Numba type of `lanes` numbers of one precision side by side."""

    def __init__(self, element, lanes):
        self.element = element
        self.lanes = lanes
        super().__init__(name=f"Vector({element}, {lanes})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, vector):
        element = manager.lookup(vector.element).get_value_type()
        super().__init__(manager, vector, ir.VectorType(element, vector.lanes))


class TemplateType(types.Type):
    """The Numba type of a `Template`; it has no value at run time."""

    def __init__(self, vector):
        self.vector = vector
        super().__init__(name=f"Template({vector})")


register_model(TemplateType)(models.OpaqueModel)


@unbox(TemplateType)
def _unbox_template(kind, value, c):
    return NativeValue(c.context.get_dummy_value())


class Template:
    """Gives a kernel the precision and the number of lanes of its vectors, by its type alone."""

    def __init__(self, dtype: npt.DTypeLike, lanes: int) -> None:
        self.lanes = lanes
        # Numba looks here for the type of an unknown value.
        self._numba_type_ = TemplateType(Vector(from_dtype(np.dtype(dtype)), lanes))

    def __len__(self) -> int:
        return self.lanes


@type_callable(len)
def _type_len(context):
    return lambda x: types.intp if isinstance(x, Vector | TemplateType) else None


@lower_builtin(len, Vector)
@lower_builtin(len, TemplateType)
def _number_of_lanes(context, builder, signature, arguments):
    return context.get_constant(types.intp, _vector_of(signature.args[0]).lanes)


def _vector_of(kind):
    return kind.vector if isinstance(kind, TemplateType) else kind


def vector_width(lanes: int) -> int:
    """Return the smallest power of two that holds the lanes."""
    return 1 << (lanes - 1).bit_length()


def aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return zeros that start on a cache line, so that no vector crosses two."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    raw = np.zeros(size + 64, dtype=np.uint8)
    skip = -raw.__array_interface__["data"][0] % 64
    return raw[skip : skip + size].view(dtype).reshape(shape)


def _pointer(context, builder, array_type, array, index, to):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), to.as_pointer())


def _pick(builder, vector, lanes):
    """Return a vector made of the given lanes of another."""
    mask = ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes)
    return builder.shuffle_vector(vector, vector, mask)


@intrinsic
def load(typing, template, array, index):
    """Read a vector that starts at flat element `index` of `array`."""
    vector = template.vector

    def generate(context, builder, signature, arguments):
        to = context.get_value_type(vector)
        place = _pointer(context, builder, signature.args[1], arguments[1], arguments[2], to)
        # Element alignment is enough: unaligned moves cost nothing where data is aligned.
        return builder.load(place, align=vector.element.bitwidth // 8)

    return vector(template, array, index), generate


@intrinsic
def store(typing, array, index, value):
    """Write a vector at flat element `index` of `array`."""

    def generate(context, builder, signature, arguments):
        to = context.get_value_type(signature.args[2])
        place = _pointer(context, builder, signature.args[0], arguments[0], arguments[1], to)
        builder.store(arguments[2], place, align=value.element.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, index, value), generate


@intrinsic
def load_lines(typing, whole, template, array, index, stride):
    """Read vectors that start `stride` apart, and lay them side by side."""
    result, line = whole.vector, template.vector

    def generate(context, builder, signature, arguments):
        to, at = context.get_value_type(line), arguments[3]
        parts = []
        for _ in range(result.lanes // line.lanes):
            place = _pointer(context, builder, signature.args[2], arguments[2], at, to)
            parts.append(builder.load(place, align=line.element.bitwidth // 8))
            at = builder.add(at, arguments[4])
        while len(parts) > 1:
            both = list(range(2 * parts[0].type.count))
            mask = ir.Constant(ir.VectorType(ir.IntType(32), len(both)), both)
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [builder.shuffle_vector(a, b, mask) for a, b in pairs]
        return parts[0]

    return result(whole, template, array, index, stride), generate


@intrinsic
def store_lines(typing, template, array, index, stride, value):
    """Write what `load_lines` reads."""
    line = template.vector

    def generate(context, builder, signature, arguments):
        to, at = context.get_value_type(line), arguments[2]
        for first in range(0, value.lanes, line.lanes):
            part = _pick(builder, arguments[4], list(range(first, first + line.lanes)))
            place = _pointer(context, builder, signature.args[1], arguments[1], at, to)
            builder.store(part, place, align=line.element.bitwidth // 8)
            at = builder.add(at, arguments[3])
        return context.get_dummy_value()

    return types.void(template, array, index, stride, value), generate


@intrinsic
def accumulate(typing, array, index, value):
    """Add a vector to `array`, of the same or of double precision, from flat `index` on."""

    def generate(context, builder, signature, arguments):
        element = context.get_value_type(array.dtype)
        vector = ir.VectorType(element, value.lanes)
        size = array.dtype.bitwidth // 8
        place = _pointer(context, builder, signature.args[0], arguments[0], arguments[1], vector)
        same = value.element == array.dtype
        addend = arguments[2] if same else builder.fpext(arguments[2], vector)
        builder.store(builder.fadd(builder.load(place, align=size), addend), place, align=size)
        return context.get_dummy_value()

    return types.void(array, index, value), generate


@intrinsic
def prefetch(typing, array, index):
    """Prefetch flat element `index` of `array` into the processor's cache."""

    def generate(context, builder, signature, arguments):
        byte = ir.IntType(8)
        place = _pointer(context, builder, signature.args[0], arguments[0], arguments[1], byte)
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        # For reading, to be kept in all caches, as data.
        builder.call(function, [place, *(ir.Constant(number, x) for x in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, index), generate


def _repeat(context, builder, value, given, vector):
    """Return a vector with a number of type `given` in every lane."""
    to = context.get_value_type(vector)
    element = context.cast(builder, value, given, vector.element)
    zero = ir.Constant(ir.IntType(32), 0)
    single = builder.insert_element(ir.Constant(to, ir.Undefined), element, zero)
    return _pick(builder, single, [0] * vector.lanes)


@intrinsic
def splat(typing, model, x):
    """Repeat one number in every lane of a vector of the type of `model`, a vector or template."""
    vector = _vector_of(model)

    def generate(context, builder, signature, arguments):
        return _repeat(context, builder, arguments[1], signature.args[1], vector)

    return vector(model, x), generate


@intrinsic
def extract(typing, vector, lane):
    """Return the number in one lane."""

    def generate(context, builder, signature, arguments):
        return builder.extract_element(*arguments)

    return vector.element(vector, lane), generate


@intrinsic
def insert(typing, vector, lane, x):
    """Return the vector with one lane replaced."""

    def generate(context, builder, signature, arguments):
        element = context.cast(builder, arguments[2], signature.args[2], vector.element)
        return builder.insert_element(arguments[0], element, arguments[1])

    return vector(vector, lane, x), generate


@intrinsic
def tile(typing, template, vector):
    """Repeat a vector until it fills the width of the template."""
    result = template.vector

    def generate(context, builder, signature, arguments):
        lanes = [lane % vector.lanes for lane in range(result.lanes)]
        return _pick(builder, arguments[1], lanes)

    return result(template, vector), generate


def _resized(lanes_of):
    """Make a function that returns a template like the given one, with another number of lanes."""

    @intrinsic
    def resized(typing, template):
        vector = template.vector
        result = TemplateType(Vector(vector.element, lanes_of(vector)))

        def generate(context, builder, signature, arguments):
            return context.get_dummy_value()

        return result(template), generate

    return resized


def _filling(size):
    """Return a function: the lanes of as many copies of a vector as fit into `size` bytes."""
    return lambda v: v.lanes * max(1, size * 8 // (v.element.bitwidth * v.lanes))


widened = _resized(_filling(WIDE))
# The parts of a tile of a matrix: `ROWS` lines of some registers, or of a single vector.
lines = _resized(_filling(LINE))
stacked = _resized(lambda v: ROWS * v.lanes)
column_of = _resized(lambda v: ROWS)


@intrinsic
def load_each(typing, wide, template, array, index):
    """Read a number for each tile of a wide vector, and repeat it over the tile."""
    result, width = wide.vector, template.vector.lanes

    def generate(context, builder, signature, arguments):
        numbers = ir.VectorType(context.get_value_type(array.dtype), result.lanes // width)
        place = _pointer(context, builder, array, arguments[2], arguments[3], numbers)
        loaded = builder.load(place, align=array.dtype.bitwidth // 8)
        spread = _pick(builder, loaded, [lane // width for lane in range(result.lanes)])
        same = result.element == array.dtype
        return spread if same else builder.fpext(spread, context.get_value_type(result))

    return result(wide, template, array, index), generate


@intrinsic
def sum_tiles(typing, template, vector):
    """Add up the consecutive parts of a vector, each as wide as the template."""
    result = template.vector

    def generate(context, builder, signature, arguments):
        parts = [
            _pick(builder, arguments[1], list(range(first, first + result.lanes)))
            for first in range(0, vector.lanes, result.lanes)
        ]
        return reduce(builder.fadd, parts)

    return result(template, vector), generate


@intrinsic
def call(typing, address, z, y):
    """Call the C function ``double f(double, double)`` at an address."""

    def generate(context, builder, signature, arguments):
        double = ir.DoubleType()
        kind = ir.FunctionType(double, [double, double])
        function = builder.inttoptr(arguments[0], kind.as_pointer())
        numbers = [
            context.cast(builder, value, given, types.float64)
            for value, given in zip(arguments[1:], signature.args[1:], strict=True)
        ]
        return builder.call(function, numbers)

    return types.float64(address, z, y), generate


def _elementwise(arguments, build):
    """Make an intrinsic of vectors of one type, from ``build(builder, *values)``."""

    def generate(context, builder, signature, values):
        return build(builder, *values)

    definitions = {
        1: lambda typing, a: (a(a), generate),
        2: lambda typing, a, b: (a(a, b), generate),
        3: lambda typing, a, b, c: (a(a, b, c), generate),
    }
    return intrinsic(definitions[arguments])


def _call_llvm(name, builder, *values):
    """Call LLVM's elementwise function `name`."""
    kind = values[0].type
    function = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(kind, [kind] * len(values)),
        f"llvm.{name}.v{kind.count}{kind.element.intrinsic_name}",
    )
    return builder.call(function, values)


def _lower_operator(function, build):
    """Give vectors an operator; a number next to a vector is repeated in every lane.

    Lowered directly: a function for each pair of types, as `overload` makes, takes Numba several
    times longer to compile, and kernels have dozens.
    """

    @type_callable(function)
    def type_operator(context):
        def result(a, b):
            if isinstance(a, Vector) and (b == a or isinstance(b, types.Number)):
                return a
            if isinstance(a, types.Number) and isinstance(b, Vector):
                return b
            return None

        return result

    @lower_builtin(function, Vector, Vector)
    @lower_builtin(function, Vector, types.Number)
    @lower_builtin(function, types.Number, Vector)
    def generate(context, builder, signature, arguments):
        vector = signature.return_type
        values = (
            value if given == vector else _repeat(context, builder, value, given, vector)
            for given, value in zip(signature.args, arguments, strict=True)
        )
        return build(builder, *values)


_lower_operator(operator.add, ir.IRBuilder.fadd)
_lower_operator(operator.sub, ir.IRBuilder.fsub)
_lower_operator(operator.mul, ir.IRBuilder.fmul)
_lower_operator(operator.truediv, ir.IRBuilder.fdiv)


def _lower_sign(function, build):
    """Define a unary function on vectors."""

    @type_callable(function)
    def type_function(context):
        return lambda a: a if isinstance(a, Vector) else None

    @lower_builtin(function, Vector)
    def generate(context, builder, signature, arguments):
        return build(builder, *arguments)


_lower_sign(abs, partial(_call_llvm, "fabs"))
_lower_sign(operator.neg, ir.IRBuilder.fneg)


_floor = _elementwise(1, partial(_call_llvm, "floor"))
minimum = _elementwise(2, partial(_call_llvm, "minnum"))
maximum = _elementwise(2, partial(_call_llvm, "maxnum"))
multiply_add = _elementwise(3, partial(_call_llvm, "fma"))


@intrinsic
def _power_of_two(typing, n):
    """Return 2^n for whole n, by writing n into the exponent bits.

    Adding 1.5 * 2^mantissa leaves the whole number in the lowest bits: unlike a conversion to
    integers, that is one instruction in every precision.
    """
    bits = n.element.bitwidth
    mantissa, bias = (23, 127) if bits == 32 else (52, 1023)

    def generate(context, builder, signature, arguments):
        integers = ir.VectorType(ir.IntType(bits), n.lanes)
        kind = arguments[0].type
        shift = ir.Constant(kind, [1.5 * 2.0**mantissa + bias] * n.lanes)
        whole = builder.bitcast(builder.fadd(arguments[0], shift), integers)
        shifted = builder.shl(whole, ir.Constant(integers, [mantissa] * n.lanes))
        return builder.bitcast(shifted, kind)

    return n(n), generate


@intrinsic
def _series(typing, r):
    """Sum r^k/k! by Horner's rule, up to the highest order that matters in this precision."""
    order = 6 if r.element.bitwidth == 32 else 13

    def generate(context, builder, signature, arguments):
        kind = arguments[0].type
        terms = [ir.Constant(kind, [1 / math.factorial(k)] * r.lanes) for k in range(order + 1)]
        total = terms[order]
        for term in reversed(terms[:order]):
            total = _call_llvm("fma", builder, total, arguments[0], term)
        return total

    return r(r), generate


_LOG2_E = 1 / math.log(2)
# ln 2 in two parts, the first short enough that its product with a whole number is exact.
_LN2_HIGH = 0.693145751953125
_LN2_LOW = 1.42860682030941723212e-6


@by_type
def exp(x):
    """Return e^x in every lane, to the last digits of the vector's precision.

    x is taken into the range where the result is a normal number; x = n ln 2 + r with
    |r| <= ln 2 / 2, and e^r is its Taylor series.
    """
    largest = 87.0 if x.element.bitwidth == 32 else 708.0

    def compiled(x):
        x = maximum(minimum(x, splat(x, largest)), splat(x, -largest))
        n = _floor(x * _LOG2_E + 0.5)
        r = multiply_add(n, splat(x, -_LN2_HIGH), x)
        r = multiply_add(n, splat(x, -_LN2_LOW), r)
        return _series(r) * _power_of_two(n)

    return compiled
