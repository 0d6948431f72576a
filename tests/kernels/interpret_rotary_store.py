"""Run every case through the Triton kernel in the interpreter, and print what is wrong with each, as JSON."""

from __future__ import annotations

import json

from posenc_runtime.kernels.rotary import rotary_store
from tests.kernels import interpreted_bfloat16, interpreted_calls, interpreted_float8
from tests.kernels.rotary_store_cases import CASES, IN_ONE_PROGRAM, Case


def main() -> None:
    interpreted_bfloat16.mend()
    interpreted_float8.mend()
    interpreted_calls.mend()
    found = {name: faults(case) for name, case in CASES.items()}
    rotary_store._PROGRAMS = 1  # so that a program goes on to a token's further tiles
    print(json.dumps(found | {f"{name} in one program": faults(CASES[name]) for name in IN_ONE_PROGRAM}))


def faults(case: Case) -> list[str]:
    tensors = case.tensors()
    rotary_store.rotary_store(tensors.step())
    return tensors.faults()


if __name__ == "__main__":
    main()
