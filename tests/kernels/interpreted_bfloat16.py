"""What Triton's interpreter gets wrong about bfloat16, put right: it cuts off, and multiplies bits, not numbers."""

from __future__ import annotations

from typing import Any

import numpy
import triton.language as tl
from triton.runtime import interpreter


def mend() -> None:
    """From here on the interpreter rounds to nearest and multiplies as a GPU does."""
    convert, dot = interpreter._convert_float, interpreter.InterpreterBuilder.create_dot

    def convert_float(values: Any, source: Any, target: Any, rounding_mode: Any) -> Any:
        if (source, target) == (tl.float32, tl.bfloat16):
            bits = values.view(numpy.uint32)
            rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
            return numpy.where(numpy.isnan(values), 0x7FC0, rounded).astype(numpy.uint16)
        if (source, target) == (tl.bfloat16, tl.float32):
            return values.astype(numpy.uint32) << 16
        return convert(values, source, target, rounding_mode)

    def create_dot(self: Any, a: Any, b: Any, *others: Any) -> Any:
        return dot(
            self, *(self.cast_impl(x, tl.float32) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b)), *others
        )

    interpreter._convert_float = convert_float
    interpreter.InterpreterBuilder.create_dot = create_dot
