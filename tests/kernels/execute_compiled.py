"""Compile the kernels that KERNELS names for an H100, run them by the machine for PTX, and print their faults as JSON.

Each case runs twice: as orderly as can be, and with programs and warps in a random order, approximations as wrong as
they may be, and other garbage in what nobody wrote. Bounds, races and what is read unwritten are watched in both.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import torch

from posenc_runtime.kernels.attention import bias_decode, cope_decode, read_time_decode
from posenc_runtime.kernels.rotary import reference, rope_rows
from posenc_runtime.kernels.rotary.rerotate import rerotate
from tests.kernels import (
    interpret_bias,
    interpret_cope,
    interpret_key_norms,
    interpret_read_time,
    interpret_rotary_store,
)
from tests.kernels.attention_cases import Case as AttentionCase
from tests.kernels.compiled_cases import BIAS, COPE, COPE_WITHOUT_ROOM, READ_TIME, REROTATE, ROPE_ROWS, ROTARY_STORE
from tests.kernels.ptx.driver import launches_go_to
from tests.kernels.ptx.machine import Conditions, Machine
from tests.kernels.read_time_cases import Tensors
from tests.kernels.rerotate_cases import Case as RerotateCase

HOPPER = 90
# Where a block comes up twice in a launch, two programs write the same numbers: see ``record_key_norms``.
DELIBERATE = tuple(
    f"_running_maximum_kernel: {rule}" for rule in ("reads what another program wrote", "writes what another program")
)
DISORDERLY = Conditions(seed=7, program_order=2, poison=0x7F)


def main() -> None:
    # So few that each takes several chunks.
    bias_decode.PROGRAMS = read_time_decode.PROGRAMS = 3
    cope_decode.SCORE_PROGRAMS = cope_decode.VALUE_PROGRAMS = cope_decode.AGAIN_PROGRAMS = 3
    asked = os.environ["KERNELS"]
    print(json.dumps({name: faults(run) for name, run in runs().items() if name.split(" ")[0] == asked}))


def runs() -> dict[str, Callable[[Machine], list[str]]]:
    """What gives the faults of each case's output."""
    found: dict[str, Callable[[Machine], list[str]]] = {}
    for name, turned in REROTATE.items():
        found[f"rerotate {name}"] = lambda machine, case=turned: _rerotated(case, machine)  # type: ignore[misc]
    for name, stored in ROTARY_STORE.items():
        found[f"rotary_store {name}"] = lambda _, case=stored: interpret_rotary_store.faults(case)  # type: ignore[misc]
    for name, num_tokens in ROPE_ROWS.items():
        found[f"rope_rows {name}"] = lambda _, number=num_tokens: _rows(number)  # type: ignore[misc]
    for name, launches in interpret_key_norms.LAUNCHES.items():
        found[f"key_norms {name}"] = lambda _, of=launches: interpret_key_norms.faults(*of)  # type: ignore[misc]
    for name, biased in BIAS.items():
        found[f"bias {name}"] = lambda _, case=biased: _biased(case)  # type: ignore[misc]
    for name, contextual in COPE.items():
        found[f"cope {name}"] = lambda _, case=contextual: _contextual(case)  # type: ignore[misc]
    for name, read in READ_TIME.items():
        found[f"read_time {name}"] = lambda _, case=read: interpret_read_time.faults_of(Tensors(case))  # type: ignore[misc]
    for name in COPE_WITHOUT_ROOM:
        found[f"cope_without_room {name}"] = lambda _, case=COPE[name]: _without_room(case)  # type: ignore[misc]
    return found


def faults(run: Callable[[Machine], list[str]]) -> list[str]:
    found = []
    for conditions in (Conditions(), DISORDERLY):
        machine = Machine(conditions)
        with launches_go_to(machine.execute, HOPPER):
            found += run(machine)
        found += [fault for fault in machine.faults if not fault.startswith(DELIBERATE)]
    return found


def _rerotated(case: RerotateCase, machine: Machine) -> list[str]:
    before = case.memory()
    after = [of_layer.clone() for of_layer in before]
    machine.beside = after
    rerotate(case.caches(after), case.moves(), case.change(), case.layout())
    return case.faults(before, after)


def _rows(num_tokens: int) -> list[str]:
    generator = torch.Generator().manual_seed(0)
    positions = torch.randint(0, 4096, (num_tokens,), generator=generator)
    slots = torch.randint(-1, 40 * 16, (num_tokens + 3,), generator=generator)
    offsets = torch.randint(0, 3, (40,), generator=generator) * 512
    found, expected = torch.empty_like(positions), torch.empty_like(positions)
    reference.rope_rows(positions, slots, offsets, 16, expected)
    rope_rows.rope_rows(positions, slots, offsets, 16, found)
    return [] if torch.equal(found, expected) else ["rows are not those of the reference"]


def _biased(case: AttentionCase) -> list[str]:
    tensors = case.tensors()
    interpret_bias.attend(tensors)
    return tensors.faults()


def _contextual(case: AttentionCase) -> list[str]:
    tensors = case.tensors()
    interpret_cope.attend(tensors)
    return tensors.faults()


def _without_room(case: AttentionCase) -> list[str]:
    """What differs by a bit where scores are computed again."""
    tensors, again = case.tensors(), case.tensors()
    counts = interpret_cope.attend(tensors)
    room, cope_decode.SCORES = cope_decode.SCORES, 0
    counts_again = interpret_cope.attend(again)
    cope_decode.SCORES = room
    found = [] if torch.equal(tensors.out, again.out) else ["outputs depend on whether scores have room"]
    return found if counts == counts_again else [*found, f"{counts_again} keys were counted where {counts} are"]


if __name__ == "__main__":
    main()
