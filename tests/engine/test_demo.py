"""``posenc demo``, from its start to its end."""

from __future__ import annotations

import contextlib
import pathlib
import sys
import time

import psutil


def test_the_demonstration_crosses_counts_it_and_leaves_no_process(tmp_path: pathlib.Path) -> None:
    said = demonstrated(tmp_path)
    assert "crossed from scale 1 to 2 at 512 tokens (rerotate)" in said
    [counted] = [line for line in said if line.startswith("posenc_crossings_total")]
    assert 'from="1"' in counted and counted.endswith(" 1")


def test_with_queries_that_turn_it_says_how_far_away_they_see_keys(tmp_path: pathlib.Path) -> None:
    said = demonstrated(tmp_path, "--rope-type", "dual_chunk")
    assert (
        "Its queries past 512 tokens see at least the last 66 as trained, and all others at most 384 tokens away."
    ) in " ".join(said)


def demonstrated(tmp_path: pathlib.Path, *options: str) -> list[str]:
    """The lines that a demonstration prints."""
    command = [sys.executable, "-m", "server", "demo", *options]
    started: set[psutil.Process] = set()
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        demo = psutil.Popen(command, stdout=out, stderr=err)
        while demo.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                started.update(demo.children(recursive=True))
            time.sleep(0.2)
    assert (demo.returncode, (tmp_path / "err").read_text()) == (0, "")
    said = (tmp_path / "out").read_text().splitlines()
    assert [line for line in said if "48213" in line] == [" 48213", " 48213"]
    assert len(started) > 2 and not [each for each in started if _runs(each)]
    return said


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
