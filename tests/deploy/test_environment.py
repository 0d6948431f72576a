"""`make setup` in a folder with a space, where uv, Python and pip note what they are asked, or fail when told to."""

from __future__ import annotations

import fcntl
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# FAILS and ALSO are patterns of the shell: what they match fails. REAL is the Python that tries indexes.
PROGRAM = """#!/bin/sh
said="$(basename "$0") $*"
echo "$said" >>asked
case "$said" in $FAILS | $ALSO) exit 1 ;; esac
case "$said" in
*version_info*) echo "3.11 $(command -v python3)" ;;
"python3 -m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
*sysconfig*) echo .venv ;;
*indexes.py*) if [ -n "$REAL" ]; then exec "$REAL" "$@"; else echo "only_pip='$ONLY_PIP'"; fi ;;
*--only-binary*) cp "$0" .venv/bin/uv ;;
*" -e ."*) [ -z "$INTERRUPT" ] || kill -TERM 0; cp "$0" .venv/bin/posenc ;;
esac
"""
SETTINGS = {"FAILS": "", "ALSO": "", "REAL": "", "ONLY_PIP": "", "INTERRUPT": "", "POSENC_DEVICE": "cpu"}
NO_UV = {"FAILS": "uv --version"}
# The indexes that are set can be reached.
REACHED = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "file:///nowhere", "REAL": sys.executable}


class Checkout:
    """A checkout without an environment, and the programs that PATH has."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.root, self._programs = folder / "a checkout", folder / "programs"
        self.venv = self.root / ".venv"
        shutil.copytree(ROOT / "deploy", self.root / "deploy", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("Makefile", "pyproject.toml"):
            shutil.copy(ROOT / name, self.root)
        self._programs.mkdir()
        for name in ("python3", "uv", "nvidia-smi"):
            (self._programs / name).write_text(PROGRAM)
            (self._programs / name).chmod(0o755)

    def start(self, *arguments: str, **settings: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["make", "--no-print-directory", *(arguments or ("setup",))],
            cwd=self.root,
            env={"PATH": f"{self._programs}:/usr/bin:/bin", **SETTINGS, **settings},
            text=True,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def make(self, *arguments: str, **settings: str) -> tuple[int, str, str]:
        """Status, output and errors."""
        with self.start(*arguments, **settings) as running:
            output, errors = running.communicate(timeout=60)
            return running.returncode, output, errors

    def asked(self, *kinds: str) -> list[str]:
        """What the programs were asked since this was called last: what has one of the kinds in it."""
        file = self.root / "asked"
        lines = file.read_text().replace(f"{self.venv}/", "").splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return [line for line in lines if any(kind in line for kind in kinds or [""])]


@pytest.fixture
def checkout(tmp_path: pathlib.Path) -> Checkout:
    return Checkout(tmp_path)


def test_uv_installs_and_a_second_run_does_nothing(checkout: Checkout) -> None:
    status, output, errors = checkout.make()
    assert (status, errors) == (0, "")
    assert f"\n{checkout.venv} is ready (cpu), made in " in output
    assert checkout.asked("venv", "install") == [
        f"python3 -m venv {checkout.root}/.venv",
        "uv pip install --python bin/python --quiet --no-deps torch==2.13.0+cpu",
        "uv pip install --python bin/python --quiet --no-deps torchvision==0.28.0+cpu",
        "uv pip install --python bin/python --override deploy/companions.txt torch==2.13.0+cpu -e .[cpu,dev]",
    ]
    assert checkout.make() == (0, f"{checkout.venv} is ready (cpu)\n", "")
    assert checkout.make("environment") == (0, "", "")
    assert checkout.asked("install", "venv", "import vllm") == []


@pytest.mark.parametrize("file", ["pyproject.toml", "deploy/constraints-cpu.txt"])
def test_what_has_changed_is_installed_over_what_is_there(checkout: Checkout, file: str) -> None:
    checkout.make()
    checkout.asked()
    with (checkout.root / file).open("a") as changed:
        changed.write("# changed\n")
    assert checkout.make()[0] == 0
    asked = checkout.asked("venv", "-e .")
    assert len(asked) == 1 and asked[0].startswith("uv pip install ")


@pytest.mark.parametrize("lost", ["python", "posenc"])
def test_an_environment_that_lost_a_program_is_completed(checkout: Checkout, lost: str) -> None:
    checkout.make()
    (checkout.venv / "bin" / lost).unlink()
    assert checkout.make()[0] == 0
    assert (checkout.venv / "bin" / lost).exists()


def test_what_was_interrupted_is_made_anew(checkout: Checkout) -> None:
    status, output, errors = checkout.make(INTERRUPT="yes")
    assert (
        status in (2, -signal.SIGTERM) and "interrupted: run make setup again; what was downloaded is kept\n" in errors
    )
    assert "with pip" not in output
    checkout.asked()
    assert checkout.make()[0] == 0
    assert len(checkout.asked("-m venv", "-e .")) == 2


def test_another_device_needs_another_environment(checkout: Checkout) -> None:
    checkout.make()
    checkout.asked()
    assert f"{checkout.venv} is ready (cuda)" in checkout.make(POSENC_DEVICE="")[1]
    assert checkout.asked("-m venv", "install") == [
        f"python3 -m venv {checkout.root}/.venv",
        "uv pip install --python bin/python --no-deps torchvision==0.28.0,!=0.28.0+cpu",
        "uv pip install --python bin/python --override deploy/companions.txt torch==2.13.0,!=2.13.0+cpu -e .[cuda,dev]",
    ]


def test_without_a_gpu_the_device_is_the_cpu_and_an_unknown_one_is_refused(checkout: Checkout) -> None:
    assert "is ready (cpu)" in checkout.make(POSENC_DEVICE="", FAILS="nvidia-smi*", ALSO="*ctypes*")[1]
    assert "POSENC_DEVICE must be cpu or cuda, got 'gpu'" in checkout.make(POSENC_DEVICE="gpu")[2]


def test_one_set_up_waits_for_another(checkout: Checkout) -> None:
    with (checkout.root / ".venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = checkout.start()
        assert waiting.stdout is not None
        assert "another make setup is running" in waiting.stdout.readline()
    with waiting:
        assert "is ready (cpu)" in waiting.communicate(timeout=60)[0]


def test_a_folder_that_somebody_else_made_is_left_alone(checkout: Checkout) -> None:
    thesis = checkout.root / "my folder" / "thesis.tex"
    thesis.parent.mkdir()
    thesis.touch()
    status, _, errors = checkout.make(POSENC_VENV="my folder")
    assert status == 2 and "my folder must be empty or made by make setup, but it has other files" in errors
    assert thesis.exists()


@pytest.mark.parametrize("named", [(), ("PYTHON=/opt/python3.9",)])
def test_where_python_is_too_old_it_is_said_what_to_do(checkout: Checkout, named: tuple[str]) -> None:
    for name in ("python3.11", "python3.12", "python3.13"):
        shutil.copy(checkout.root.parent / "programs" / "python3", checkout.root.parent / "programs" / name)
    status, _, errors = checkout.make("setup", *named, FAILS="*version_info*")
    assert status == 2 and errors.startswith("set-up failed: Python 3.11, 3.12 or 3.13 is needed")
    assert "make setup PYTHON=/path/to/python3.13" in errors


@pytest.mark.parametrize("name", ["UV_DEFAULT_INDEX", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"])
def test_an_index_out_of_reach_is_the_first_thing_said(checkout: Checkout, name: str) -> None:
    checkout.make()
    made = (checkout.venv / "posenc-setup").read_text()
    (checkout.root / "pyproject.toml").write_text("")
    checkout.asked()
    status, output, errors = checkout.make(**REACHED | {name: "http://me:secret@127.0.0.1:9/simple"})
    assert (status, output, checkout.asked("install")) == (2, "", [])
    assert errors.startswith(
        "set-up failed: the package index http://127.0.0.1:9/simple cannot be reached (Connection refused). "
        "Set PIP_INDEX_URL or UV_DEFAULT_INDEX to another, or PIP_FIND_LINKS to a folder of wheels and PIP_NO_INDEX=1."
    )
    assert (checkout.venv / "posenc-setup").read_text() == made


def test_where_only_pytorchs_index_has_torch_it_is_needed(checkout: Checkout) -> None:
    status, _, errors = checkout.make(FAILS="*install*torch==*", HTTPS_PROXY="http://127.0.0.1:9", **REACHED)
    assert status == 2 and errors.startswith(
        "set-up failed: the package index https://download.pytorch.org/whl/cpu cannot be reached through the proxy "
        "127.0.0.1 (Connection refused). Set PIP_EXTRA_INDEX_URL to another that has torch==2.13.0+cpu, "
    )


def test_without_a_torchvision_for_the_cpu_the_other_one_is_mended(checkout: Checkout) -> None:
    status, output, _ = checkout.make(FAILS="*torchvision==0.28.0+cpu", HTTPS_PROXY="http://127.0.0.1:9", **REACHED)
    assert status == 0 and "torchvision==0.28.0 for CUDA, with uv: no other is within reach" in output
    assert (checkout.venv / "torchvision_schemas.pth").read_text() == "import torchvision_schemas\n"
    assert (checkout.venv / "torchvision_schemas.py").exists()


def test_what_no_index_of_the_user_has_comes_from_pytorchs(checkout: Checkout) -> None:
    assert checkout.make(FAILS="*--quiet*+cpu*")[0] == 0
    assert [line.split()[-3:] for line in checkout.asked("--extra-index-url")] == [
        ["torch==2.13.0+cpu", "--extra-index-url", "https://download.pytorch.org/whl/cpu"],
        ["torchvision==0.28.0+cpu", "--extra-index-url", "https://download.pytorch.org/whl/cpu"],
    ]
    assert not (checkout.venv / "torchvision_schemas.pth").exists()


@pytest.mark.parametrize(
    ("settings", "said", "installer"),
    [
        (NO_UV, "with uv", "uv"),
        (NO_UV | {"ALSO": "*--only-binary*"}, "pip installs, because uv could not be installed", "python -m"),
        ({"FAILS": "uv*-e*"}, "pip goes on, because uv failed", "python -m"),
        ({"ONLY_PIP": "no-binary"}, "pip installs, because uv has no equal of its settings no-binary", "python -m"),
    ],
)
def test_what_installs_and_why_is_said(checkout: Checkout, settings: dict[str, str], said: str, installer: str) -> None:
    status, output, _ = checkout.make(**settings)
    assert status == 0 and said in output
    last = checkout.asked(" -e .")[-1]
    assert last.startswith(f"{installer} pip install ")


def test_a_trial_import_that_fails_is_a_failure(checkout: Checkout) -> None:
    assert "what is installed cannot be imported" in checkout.make(FAILS="python -I -c *")[2]
    assert checkout.make()[0] == 0


def test_what_a_server_imports_next_is_not_tried_before_and_a_set_up_tries_it(checkout: Checkout) -> None:
    status, output, _ = checkout.make("serve")
    assert status == 0 and "trial import" not in output and checkout.asked("import torch") == []
    assert checkout.make("serve")[:2] == (0, "")
    assert "what is installed cannot be imported" in checkout.make(FAILS="python -I -c *")[2]
    assert checkout.make("environment")[1].startswith("trial import ")
    assert checkout.asked("-m venv", " install ") == []
    assert checkout.make("environment") == (0, "", "")
