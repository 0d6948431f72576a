"""What PTX says, as instructions of the machine: a handler's name, where its operands lie, and numbers.

A statement of a kind that nobody here knows is refused: what is not carried out would be taken for right.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

from tests.kernels.ptx.assembly import Brace, Declaration, Label, Statement, operands_of, parameters, parts
from tests.kernels.ptx.registers import NOWHERE, SIZES, Registers

BRANCH, RETURN, BARRIER = range(3)  # without a handler; the machine has the same numbers
_ADDRESS = re.compile(r"\[\s*([%$\w]+)\s*(?:\+\s*(-?\w+))?\s*\]")
_NOTHING = ("bar.warp", "fence", "wgmma.fence", "wgmma.commit", "wgmma.wait", "membar")  # lanes run in lockstep
_SHUFFLES = ("bfly", "idx", "up", "down")
_PRODUCTS = ("tf32", "bf16", "f16")


@dataclasses.dataclass
class Instruction:
    """An instruction of the machine.

    Attributes:
        handler: None for what is not about registers; the first of ``numbers`` then says what it is.
        guard: where a predicate lies.
        target: a branch's, an index into the program.
    """

    handler: str | None
    places: list[int]
    numbers: list[int]
    source: str
    guard: int = NOWHERE
    is_negated: bool = False
    target: int = 0


class Translation:
    """A kernel.

    Attributes:
        program: its instructions.
        parameters: where each of its parameters lies, and bytes.
    """

    def __init__(self, ptx: str) -> None:
        self.registers = Registers()
        self.program: list[Instruction] = []
        self._named = {name: (self.registers.room(SIZES[kind]), SIZES[kind]) for name, kind in parameters(ptx)}
        self.parameters = list(self._named.values())
        labels: dict[str, int] = {}
        self._branches: list[tuple[Instruction, str]] = []
        depth = 0
        for part in parts(ptx):
            match part:
                case Label(name):
                    labels[name] = len(self.program)
                case Declaration(ptx_type, names):
                    self.registers.declare(ptx_type, names)
                case Brace(opens=True):
                    depth += 1
                    self.registers.begin_scope()
                case Brace() if depth:
                    depth -= 1
                    self.registers.end_scope()
                case Statement():
                    self._translate(part)
        self.program.append(Instruction(None, [], [RETURN], "the end"))
        for instruction, name in self._branches:
            instruction.target = labels[name]

    def _translate(self, said: Statement) -> None:
        begin = len(self.program)
        translate = next((way for prefix, way in _WAYS.items() if said.opcode.startswith(prefix)), Translation._other)
        translate(self, said)
        for instruction in self.program[begin:]:
            instruction.source = said.source
            if said.guard is not None:
                instruction.guard, instruction.is_negated = self._place(said.guard, 1), said.is_negated

    def _emit(self, handler: str | None, places: list[int], *numbers: int) -> Instruction:
        self.program.append(Instruction(handler, places, list(numbers), ""))
        return self.program[-1]

    def _place(self, operand: str, size: int = 4) -> int:
        return self.registers.place(operand, size)

    def _places(self, operand: str, size: int = 4) -> list[int]:
        return [self._place(each, size) for each in _vector(operand)]

    def _address(self, operand: str, size: int) -> tuple[int, int]:
        """A register and an offset."""
        found = _ADDRESS.fullmatch(operand)
        assert found is not None, operand
        return self._place(found[1], size), int(found[2] or "0", 0)

    def _nothing(self, said: Statement) -> None:
        self._emit("nop", [])

    def _branch(self, said: Statement) -> None:
        self._branches.append((self._emit(None, [], BRANCH), said.operands[0]))

    def _return(self, said: Statement) -> None:
        self._emit(None, [], RETURN)

    def _barrier(self, said: Statement) -> None:
        assert said.operands == ("0",), said
        self._emit(None, [], BARRIER)

    def _parameter(self, said: Statement) -> None:
        into, name = said.operands
        place, size = self._named[name[1:-1].strip()]
        wide = self.registers.size_of(into)
        kind = said.opcode.split(".")[-1]
        handler = (
            f"mov.b{8 * size}"
            if wide == size
            else f"cvt.{'s' if kind[0] == 's' else 'u'}64.{kind[0].replace('b', 'u')}32"
        )
        self._emit(handler, [self._place(into), place])

    def _memory(self, said: Statement) -> None:
        verb, kind = said.opcode.split(".")[0], said.opcode.split(".")[-1]
        where = "shared" if ".shared" in said.opcode else "global"
        values, address = said.operands if verb == "ld" else said.operands[::-1]
        size = SIZES[kind]
        wide = next((found for each in _vector(values) if (found := self.registers.size_of(each))), max(size, 2))
        place, offset = self._address(address, 4 if where == "shared" else 8)
        places = self._places(values, wide)
        self._emit(f"{verb}.{where}", [*places, place], size, len(places), offset, -wide if kind[0] == "s" else wide)

    def _copy(self, said: Statement) -> None:
        if "commit" in said.opcode:
            self._emit("cp.async.commit_group", [])
        elif "wait" in said.opcode:
            self._emit("cp.async.wait_group", [], int(said.operands[0]))
        else:
            to, shared_offset = self._address(said.operands[0], 4)
            source, offset = self._address(said.operands[1], 8)
            size = int(said.operands[2], 0)
            given = self._place(said.operands[3]) if len(said.operands) > 3 else self.registers.constant(size, 4)
            self._emit("cp.async", [to, source, given], size, shared_offset, offset)

    def _atomic(self, said: Statement) -> None:
        kind = said.opcode.split(".")[-1]
        assert ".add." in said.opcode, said
        old, address, value = said.operands
        place, offset = self._address(address, 8)
        size = SIZES[kind]
        self._emit(f"atom.add.{kind}", [self._place(old, size), place, self._place(value, size)], offset)

    def _shuffle(self, said: Statement) -> None:
        self._emit("shfl", [self._place(each) for each in said.operands], _SHUFFLES.index(said.opcode.split(".")[2]))

    def _reduction_of_lanes(self, said: Statement) -> None:
        _, _, operation, kind = said.opcode.split(".")
        assert kind == "s32", said
        self._emit(f"redux.{operation}", [self._place(each) for each in said.operands[:2]])

    def _matrix(self, said: Statement) -> None:
        values, address = said.operands if said.opcode.startswith("ld") else said.operands[::-1]
        place, offset = self._address(address, 4)
        places = self._places(values)
        self._emit(said.opcode.split(".")[0], [*places, place], len(places), int(".trans" in said.opcode), offset)

    def _product(self, said: Statement) -> None:
        kind = next(kind for kind in _PRODUCTS if f".{kind}." in said.opcode)
        self._emit(f"mma.{kind}", [place for each in said.operands for place in self._places(each)])

    def _product_of_a_warp_group(self, said: Statement) -> None:
        """``wgmma``: sums, the first factor in registers or in shared memory, the second, whether sums are added to."""
        shape = re.search(r"m64n(\d+)k", said.opcode)
        assert shape is not None, said
        sums, first, second, adds, _, _, *transposed = said.operands
        is_in_memory = not first.startswith("{")
        first_is_turned, second_is_turned = [0] * (2 - len(transposed)) + [int(each) for each in transposed]
        kind = next(number for number, kind in enumerate(_PRODUCTS) if said.opcode.endswith(f".{kind}"))
        places = [*self._places(sums), *self._places(first, 8), self._place(second, 8), self._place(adds, 1)]
        self._emit("wgmma", places, int(shape[1]), kind, is_in_memory | second_is_turned << 1 | first_is_turned << 2)

    def _move(self, said: Statement) -> None:
        into, given = said.operands
        size = SIZES[said.opcode.split(".")[-1]]
        bits = 8 * size
        if given.startswith("{"):
            self._emit(f"pack.b{bits}", [self._place(into), *self._places(given, size // 2)])
        elif into.startswith("{"):
            places = [self.registers.room(8) if place == NOWHERE else place for place in self._places(into)]
            self._emit(f"unpack.b{bits}", [*places, self._place(given, size)])
        else:
            self._emit(f"mov.{'pred' if size == 1 else f'b{bits}'}", [self._place(into), self._place(given, size)])

    def _select(self, said: Statement) -> None:
        size = SIZES[said.opcode.split(".")[-1]]
        *values, predicate = said.operands
        self._emit(f"selp.b{8 * size}", [*(self._place(each, size) for each in values), self._place(predicate, 1)])

    def _convert(self, said: Statement) -> None:
        """Registers may be wider than the types that are named."""
        into, given, *others = said.operands
        size = SIZES.get(said.opcode.split(".")[-1], 4)
        wide = self.registers.size_of(given) or size
        place = self._place(given, size)
        if wide > size:
            place, whole = self.registers.room(size), place
            self._emit(f"cvt.u{8 * size}.u{8 * wide}", [place, whole])
        self._emit(said.opcode, [self._place(into), place, *(self._place(each, size) for each in others)])

    def _other(self, said: Statement) -> None:
        name, *modifiers = said.opcode.split(".")
        size = SIZES.get(modifiers[-1], 4)
        sizes = [size] * len(said.operands)
        if name in ("shl", "shr"):
            sizes[2] = 4
        elif name == "bfe":
            sizes[2:] = [4, 4]
        elif modifiers[0] == "wide":
            sizes[3:] = [2 * size] * (len(sizes) - 3)
        self._emit(said.opcode, [self._place(each, size) for each, size in zip(said.operands, sizes, strict=True)])


def _vector(operand: str) -> tuple[str, ...]:
    return operands_of(operand[1:-1]) if operand.startswith("{") else (operand,)


_WAYS: dict[str, Callable[[Translation, Statement], None]] = {
    **dict.fromkeys(_NOTHING, Translation._nothing),
    "bra": Translation._branch,
    "ret": Translation._return,
    "bar.sync": Translation._barrier,
    "ld.param": Translation._parameter,
    "ldmatrix": Translation._matrix,
    "stmatrix": Translation._matrix,
    "ld.": Translation._memory,
    "st.": Translation._memory,
    "cp.async": Translation._copy,
    "atom.": Translation._atomic,
    "shfl": Translation._shuffle,
    "redux": Translation._reduction_of_lanes,
    "mma": Translation._product,
    "wgmma.mma": Translation._product_of_a_warp_group,
    "mov": Translation._move,
    "selp": Translation._select,
    "cvt": Translation._convert,
}
