"""A process that ends quickly looks for no garbage when it ends."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import atexit, gc
from posenc_runtime.vllm_adapter.processes.ending import exit_quickly
atexit.register(lambda: print(len(gc.get_objects())))  # those that a search at the end would look at
for _ in range({calls}):
    exit_quickly()
"""


def test_no_object_is_left_to_look_at() -> None:
    assert objects_at_the_end(calls=1) < 100 < objects_at_the_end(calls=0)
    assert objects_at_the_end(calls=2) < 100


def objects_at_the_end(calls: int) -> int:
    ran = subprocess.run([sys.executable, "-c", CODE.format(calls=calls)], capture_output=True, text=True, check=True)
    return int(ran.stdout)
