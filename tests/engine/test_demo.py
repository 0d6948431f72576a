"""``posenc demo``, from its start to its end."""

from __future__ import annotations

import subprocess
import sys

import psutil


def test_the_demonstration_crosses_counts_it_and_leaves_no_process() -> None:
    before = {process.pid for process in psutil.process_iter()}
    command = [sys.executable, "-m", "server", "demo"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        out, err = process.communicate(timeout=600)
    assert (process.returncode, err) == (0, "")
    said = out.splitlines()
    assert [line for line in said if "48213" in line] == [" 48213", " 48213"]
    assert "crossed from scale 1 to 2 at 512 tokens (rerotate)" in said
    [counted] = [line for line in said if line.startswith("posenc_crossings_total")]
    assert 'from="1"' in counted and counted.endswith(" 1")
    started = [each for each in psutil.process_iter(["cmdline"]) if each.pid not in before]
    assert not [each for each in started if "server.port" in " ".join(each.info["cmdline"] or ())]
