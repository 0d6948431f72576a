"""Output that is held back. In processes of their own: their streams are exchanged."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest


def ran(script: str, status: int = 0) -> tuple[str, str]:
    """What a program writes to stdout and to stderr."""
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, env=buffered
    )
    assert done.returncode == status, done.stderr
    return done.stdout, done.stderr


def test_output_is_kept_while_held_and_what_children_write_later_is_shown() -> None:
    out, err = ran("""
        import os, subprocess, sys, time
        from server.start_up.held_output import HeldOutput

        heard = []
        held = HeldOutput(heard.append)
        child = subprocess.Popen(["sh", "-c", "echo noise; echo 'a bar:  5%' >&2; read line; echo late >&2"],
                                 stdin=subprocess.PIPE)
        os.write(2, b"ours\\n")
        while len(heard) < 3:
            time.sleep(0.01)
        said = held.release()
        print("said", sorted(said.split("\\n")), sorted(heard))
        print("again", repr(held.release()), flush=True)
        child.communicate(b"go\\n")
        time.sleep(0.3)
    """)
    lines = ["a bar:  5%", "noise", "ours"]
    assert out == f"said {['', *lines]} {lines}\nagain ''\n"
    assert err == "late\n"


def test_output_before_and_after_goes_where_it_was_written_and_none_between_gets_out() -> None:
    """Nor does what Python, or the pipe, still has when output is released."""
    out, err = ran("""
        import os, sys
        from server.start_up.held_output import HeldOutput

        for turn in range(100):
            print("before", end=" ")
            with HeldOutput():
                print("between")
                os.write(1, b"between\\n")
                os.write(2, b"between\\n" * 500)
            print("after")
    """)
    assert (out, err) == ("before after\n" * 100, "")


@pytest.mark.parametrize(
    ("raised", "shown"),
    [
        ("SettingRefused('no')", False),
        ("IncompatibleVllm('no')", False),
        ("SystemExit(1)", False),
        ("KeyError(1)", True),
    ],
)
def test_what_was_held_is_shown_where_no_line_of_ours_explains_the_end(raised: str, shown: bool) -> None:
    _, err = ran(
        f"""
        import os
        from posenc_runtime.vllm_adapter.releases import IncompatibleVllm
        from posenc_runtime.vllm_adapter.settings.section import SettingRefused
        from server.start_up.held_output import HeldOutput

        with HeldOutput():
            os.write(1, b"their words\\n")
            raise {raised}
        """,
        status=1,
    )
    assert err.startswith("their words\nTraceback") == shown and ("their words" in err) == shown


def test_children_can_go_on_writing_where_their_output_cannot_be_shown() -> None:
    out, _ = ran("""
        import os, subprocess, sys
        from server.start_up.held_output import HeldOutput

        os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
        held = HeldOutput()
        child = subprocess.Popen(["sh", "-c", "read line; yes | head -c 1000000"], stdin=subprocess.PIPE)
        held.release()
        child.communicate(b"go\\n", timeout=30)
        print(child.returncode, flush=True)
        os._exit(0)
    """)
    assert out == "0\n"


def test_nothing_stays_open() -> None:
    out, _ = ran("""
        import os, time
        from server.start_up.held_output import HeldOutput

        def opened():
            return len(os.listdir("/proc/self/fd"))

        before = opened()
        for turn in range(5):
            with HeldOutput():
                pass
        until = time.monotonic() + 10
        while opened() != before and time.monotonic() < until:
            time.sleep(0.01)
        print(opened() - before)
    """)
    assert out == "0\n"
