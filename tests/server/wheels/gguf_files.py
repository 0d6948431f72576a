"""GGUF files, written and read byte by byte with numpy alone: as much of the format as a Llama in Q4_1 needs.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import pathlib
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

F32, Q4_1, Q8_0 = 0, 3, 8  # types of tensors
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 4, 5, 6, 7, 8, 9, 10  # types of values
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", UINT32: "I", INT32: "i", FLOAT32: "f", BOOL: "?", UINT64: "Q", 11: "q"}
_BLOCK = 32  # numbers in a block of Q4_1 and Q8_0
_ALIGNMENT = 32

Array = np.ndarray[Any, Any]


def blocks_of(weights: Array, kind: int) -> bytes:
    """The bytes of a tensor, quantised as its type says."""
    if kind == F32:
        return weights.astype("<f4").tobytes()
    blocks = weights.reshape(-1, _BLOCK).astype(np.float32)
    if kind == Q8_0:
        step = (np.abs(blocks).max(1, keepdims=True) / 127).astype("<f2")
        codes = np.rint(blocks / step.astype(np.float32)).astype(np.int8)
        return b"".join(step[i].tobytes() + codes[i].tobytes() for i in range(len(blocks)))
    least = blocks.min(1, keepdims=True).astype("<f2")
    step = ((blocks.max(1, keepdims=True) - least) / 15).astype("<f2")
    codes = np.clip(np.rint((blocks - least) / step.astype(np.float32)), 0, 15).astype(np.uint8)
    packed = codes[:, :16] | codes[:, 16:] << 4
    return b"".join(step[i].tobytes() + least[i].tobytes() + packed[i].tobytes() for i in range(len(blocks)))


def numbers_of(data: bytes, kind: int, shape: tuple[int, ...]) -> Array:
    """The numbers of a tensor in float32: a block of Q8_0 is a step d and codes q, which stand for d q; one of Q4_1 a
    step d, a least number m, and codes, which stand for d q + m."""
    if kind == F32:
        return np.frombuffer(data, "<f4").reshape(shape)
    if kind == Q8_0:
        raw = np.frombuffer(data, np.dtype([("d", "<f2"), ("q", "i1", _BLOCK)]))
        return (raw["d"].astype(np.float32)[:, None] * raw["q"]).reshape(shape)
    assert kind == Q4_1
    raw = np.frombuffer(data, np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", _BLOCK // 2)]))
    codes = np.concatenate([raw["q"] & 15, raw["q"] >> 4], axis=1)
    return (raw["d"].astype(np.float32)[:, None] * codes + raw["m"].astype(np.float32)[:, None]).reshape(shape)


def size_of(kind: int, count: int) -> int:
    """Bytes of so many numbers."""
    return {F32: 4 * count, Q8_0: count // _BLOCK * 34, Q4_1: count // _BLOCK * 20}[kind]


def write(path: pathlib.Path, fields: Mapping[str, tuple[int, Any]], tensors: Mapping[str, tuple[Array, int]]) -> None:
    """Write a GGUF file.

    Args:
        fields: type and value of each. An array has the type of its elements, and a list as its value.
        tensors: the numbers of each, and the type that they are stored as.
    """
    parts = [struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(fields))]
    for name, (kind, value) in fields.items():
        parts.append(_string(name))
        if isinstance(value, list):
            parts.append(struct.pack("<IIQ", ARRAY, kind, len(value)))
            parts.extend(_value(kind, each) for each in value)
        else:
            parts.append(struct.pack("<I", kind) + _value(kind, value))
    data: list[bytes] = []
    at = 0
    for name, (weights, kind) in tensors.items():
        stored = blocks_of(weights, kind)
        dimensions = weights.shape[::-1]
        parts.append(_string(name) + struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions))
        parts.append(struct.pack("<IQ", kind, at))
        data.append(stored + bytes(-len(stored) % _ALIGNMENT))
        at += len(data[-1])
    head = b"".join(parts)
    path.write_bytes(head + bytes(-len(head) % _ALIGNMENT) + b"".join(data))


def read(path: pathlib.Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """The fields of a GGUF file, and its tensors in float32."""
    data = path.read_bytes()
    magic, version, num_tensors, num_fields = struct.unpack_from("<4sIQQ", data)
    assert (magic, version) == (b"GGUF", 3)
    reader = _Reader(data, 24)
    fields = {reader.string(): reader.value(*reader.unpack("I")) for _ in range(num_fields)}
    described = []
    for _ in range(num_tensors):
        name, (count,) = reader.string(), reader.unpack("I")
        shape = reader.unpack("Q" * count)[::-1]
        described.append((name, shape, *reader.unpack("IQ")))
    start = reader.at + -reader.at % _ALIGNMENT

    def numbers() -> Iterator[tuple[str, Array]]:
        for name, shape, kind, offset in described:
            begin = start + offset
            yield name, numbers_of(data[begin : begin + size_of(kind, math.prod(shape))], kind, shape)

    return fields, dict(numbers())


def as_llama_cpp_orders(weights: Array, num_heads: int) -> Array:
    """Rows of a query or key projection in llama.cpp's order: pairs of a rotation lie beside each other.

    transformers has the first elements of all pairs of a head before the second ones.
    """
    rows, width = weights.shape
    return weights.reshape(num_heads, 2, rows // num_heads // 2, width).swapaxes(1, 2).reshape(rows, width)


def as_transformers_orders(weights: Array, num_heads: int) -> Array:
    """The other way round."""
    rows, width = weights.shape
    return weights.reshape(num_heads, rows // num_heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width)


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _value(kind: int, value: Any) -> bytes:
    return _string(value) if kind == STRING else struct.pack(f"<{_SCALARS[kind]}", value)


class _Reader:
    def __init__(self, data: bytes, at: int) -> None:
        self._data, self.at = data, at

    def unpack(self, form: str) -> tuple[Any, ...]:
        found = struct.unpack_from(f"<{form}", self._data, self.at)
        self.at += struct.calcsize(f"<{form}")
        return found

    def string(self) -> str:
        (length,) = self.unpack("Q")
        self.at += length
        return self._data[self.at - length : self.at].decode()

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            inner, count = self.unpack("IQ")
            return [self.value(inner) for _ in range(count)]
        return self.unpack(_SCALARS[kind])[0]
