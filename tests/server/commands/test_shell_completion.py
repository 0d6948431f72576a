"""What a shell completes, asked as shells ask: in a fresh process, by environment variables."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

from server.deployment import shipped

pytestmark = pytest.mark.slow  # each case is a process, or several

PROGRAM = """
import atexit, json, sys
slow = {"torch", "vllm", "transformers", "rich"}
atexit.register(lambda: print(json.dumps(sorted(slow & sys.modules.keys())), file=sys.stderr))
from server.cli import app
app(prog_name="posenc")
"""


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    for name in ("mine.yaml", "yours.yml", "notes.txt", ".hidden.yaml", "models/tiny/config.json", "models/deep.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def answered(folder: pathlib.Path, **environment: str) -> str:
    """What a shell gets; nothing on stderr, and nothing imported that takes seconds."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=folder, capture_output=True, text=True, check=True, timeout=60,
        env=os.environ | {"PYTHONPATH": str(pathlib.Path(__file__).parents[3])} | environment,
    )  # fmt: skip
    assert json.loads(done.stderr) == []
    return done.stdout


def completed(words: str, folder: pathlib.Path) -> list[str]:
    """What bash offers in place of the last word, which is empty after a space."""
    number = str(len(words.split(" ")) - 1)
    return answered(folder, _POSENC_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=number).split()


@pytest.mark.parametrize("command", ["serve", "check", "flags"])
def test_a_target_is_a_configuration_a_file_or_a_folder(command: str, folder: pathlib.Path) -> None:
    assert completed(f"posenc {command} ", folder) == [*shipped.names(), "mine.yaml", "models/", "yours.yml"]
    assert completed(f"posenc {command} m", folder) == ["mistral-linear", "mine.yaml", "models/"]
    assert completed(f"posenc {command} qwen", folder) == ["qwen3-vl-yarn", "qwen3-yarn", "qwen35-yarn"]
    assert completed(f"posenc {command} phi", folder) == ["phi4-longrope"]


def test_of_a_folder_that_is_the_only_one_its_files_are_offered_too(folder: pathlib.Path) -> None:
    inside = ["models/", "models/deep.yaml", "models/tiny/"]
    assert completed("posenc serve mo", folder) == inside
    assert completed("posenc serve models/", folder) == inside[1:]
    assert completed("posenc serve models/t", folder) == ["models/tiny/"]
    assert completed(f"posenc serve {folder}/mine", folder) == [f"{folder}/mine.yaml"]
    assert completed("posenc serve nowhere/", folder) == []


def test_a_hidden_file_is_offered_where_a_dot_was_typed(folder: pathlib.Path) -> None:
    assert completed("posenc serve .h", folder) == [".hidden.yaml"]


def test_a_file_is_no_configuration_and_a_name_is_no_file(folder: pathlib.Path) -> None:
    assert completed("posenc serve --config m", folder) == ["mine.yaml", "models/"]
    assert completed("posenc configs m", folder) == ["mistral-linear"]


def test_settings_are_offered_by_their_paths_and_vllms_where_their_section_was_begun(folder: pathlib.Path) -> None:
    offered = completed("posenc check demo --set ", folder)
    assert {"model=", "scaling.headroom_tokens=", "attention.backend=", "engine.", "server."} <= {*offered}
    assert len(offered) < 100
    assert completed("posenc check demo --set scaling.be", folder) == ["scaling.beta_fast=", "scaling.beta_slow="]
    assert completed("posenc check demo --set engine.max_num_se", folder) == ["engine.max_num_seqs="]
    assert "server.api_key=" in completed("posenc check demo --set ser", folder)
    assert completed("posenc check demo --set engine.max_model_l", folder) == []
    assert completed("posenc check demo --set scaling.scales=", folder) == []


def test_zsh_asks_otherwise_and_is_answered_alike(folder: pathlib.Path) -> None:
    said = answered(folder, _POSENC_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="posenc serve phi")
    assert said == "_arguments '*: :((\"phi4-longrope\"))'\n"


@pytest.mark.parametrize(("shell", "said"), [("bash", "complete -o default -F"), ("zsh", "#compdef posenc")])
def test_a_shell_is_told_how_to_ask(shell: str, said: str, folder: pathlib.Path) -> None:
    script = answered(folder, _POSENC_COMPLETE=f"source_{shell}")
    assert said in script and f"_POSENC_COMPLETE=complete_{shell}" in script
