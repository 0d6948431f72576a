"""Run every case through the Triton kernel in the interpreter, and print what is wrong with each, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping

from posenc_runtime.kernels.rotary import launches, rerotate
from tests.kernels import interpreted_calls, interpreted_float8, own_scale_cases
from tests.kernels.rerotate_cases import CASES, Case


def report(cases: Mapping[str, Case | own_scale_cases.Case]) -> None:
    interpreted_calls.mend()
    interpreted_float8.mend()
    launches.HEADS = 3  # so that programs begin and end within layers
    print(json.dumps({name: faults(case) for name, case in cases.items()}))


def faults(case: Case | own_scale_cases.Case) -> list[str]:
    before = case.memory()
    after = [of_layer.clone() for of_layer in before]
    rerotate.rerotate(case.caches(after), case.moves(), case.change(), case.layout())
    return case.faults(before, after)


if __name__ == "__main__":
    report(CASES)
