"""Where a warp keeps registers, and what stands for them in PTX: names, numbers, and what the launch says."""

from __future__ import annotations

import re
import struct

SIZES = {"pred": 1} | {
    f"{kind}{bits}": bits // 8 for kind in ("b", "u", "s", "f", "bf") for bits in (8, 16, 32, 64)
}  # bytes of a PTX type
SPECIAL = ("%tid.x", "%ctaid.x", "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z", "%laneid")
SHARED_BASE = 1024  # of a program's shared memory; the machine has the same number
NOWHERE = -1

_LANES = 32
_INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|\d+)U?")
_FLOAT = re.compile(r"0[fF]([0-9a-fA-F]{8})")
_MANY = re.compile(r"(.*)<(\d+)>")


class Registers:
    """The file of a warp: each register is an array over the lanes. Names may be those of a block of inline assembly.

    Attributes:
        size: bytes that the file has so far.
        constants: where numbers lie, by value and bytes.
        special: where what the launch says lies, in the order of ``SPECIAL``; ``NOWHERE`` where nothing asks for it.
    """

    def __init__(self) -> None:
        self.size = 0
        self.constants: dict[tuple[int, int], int] = {}
        self.special = [NOWHERE] * len(SPECIAL)
        self._scopes: list[dict[str, tuple[int, int]]] = [{}]

    def room(self, size: int) -> int:
        """A new register of so many bytes a lane."""
        begin = -(-self.size // 64) * 64
        self.size = begin + _LANES * size
        return begin

    def begin_scope(self) -> None:
        self._scopes.append({})

    def end_scope(self) -> None:
        self._scopes.pop()

    def declare(self, ptx_type: str, names: str) -> None:
        """What ``.reg`` says: names, or a stem and how many of it."""
        size = SIZES[ptx_type]
        for name in names.split(","):
            if many := _MANY.fullmatch(name.strip()):
                for number in range(int(many[2])):
                    self._scopes[-1][f"{many[1]}{number}"] = self.room(size), size
            else:
                self._scopes[-1][name.strip()] = self.room(size), size

    def size_of(self, operand: str) -> int | None:
        """Bytes of a named register; None for what is none."""
        return next((scope[operand][1] for scope in reversed(self._scopes) if operand in scope), None)

    def constant(self, value: int, size: int) -> int:
        value &= (1 << 8 * size) - 1
        if (value, size) not in self.constants:
            self.constants[value, size] = self.room(size)
        return self.constants[value, size]

    def place(self, operand: str, size: int) -> int:
        """Where an operand lies.

        Args:
            size: bytes that a number has; registers have their own.

        Raises:
            KeyError: when nothing of this name was declared.
        """
        if operand == "_":
            return NOWHERE
        if operand in SPECIAL:
            number = SPECIAL.index(operand)
            if self.special[number] == NOWHERE:
                self.special[number] = self.room(4)
            return self.special[number]
        if operand == "global_smem":
            return self.constant(SHARED_BASE, size)
        if _INTEGER.fullmatch(operand):
            return self.constant(int(operand.rstrip("U"), 0), size)
        if float32 := _FLOAT.fullmatch(operand):
            return self.constant(int(float32[1], 16), 4)
        for scope in reversed(self._scopes):
            if operand in scope:
                return scope[operand][0]
        raise KeyError(operand)


def bits_of(value: float) -> int:
    """Of a float32."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return int(bits)
