"""Run every case of keys with scales of their own in the interpreter, and print what is wrong with each, as JSON."""

from __future__ import annotations

from tests.kernels.interpret_rerotate import report
from tests.kernels.own_scale_cases import CASES

if __name__ == "__main__":
    report(CASES)
