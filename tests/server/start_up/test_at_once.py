"""What the command line says at once: without torch, vLLM or transformers, which take seconds to import."""

from __future__ import annotations

import json
import os
import pathlib
import socket
import subprocess
import sys

import pytest

from posenc_runtime.vllm_adapter.checkpoint.sizing import cpu_memory
from tests.benchmarks.servers import free_port
from tests.local_hub import local_hub, silent_hub

pytestmark = pytest.mark.slow  # each case is a process

ROOT = pathlib.Path(__file__).parents[3]
# The command, and after it, on a line of its own, which of the modules that take long it has imported.
COMMAND = """
import atexit, json, sys
slow = {"torch", "vllm", "transformers"}
atexit.register(lambda: print(json.dumps(sorted(slow & sys.modules.keys())), file=sys.stderr))
from server.cli import app
app()
"""


def posenc(*arguments: str, **environment: str) -> tuple[int, str, str, list[str]]:
    """Exit status, stdout and stderr of a command in a fresh process, and what it has imported of the slow modules."""
    result = subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
        env=os.environ | {"COLUMNS": "200"} | environment,
    )  # fmt: skip
    err, _, imported = result.stderr.rstrip("\n").rpartition("\n")
    return result.returncode, result.stdout, err, json.loads(imported)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--help"], "check"),
        (["--version"], "posenc "),
        (["configs"], "qwen3-yarn"),
        (["configs", "demo"], "demo.yaml"),
        (["chat", "--help"], "--url"),
        (["demo", "--help"], "demo model"),
        (["top", "--help"], "--once"),
    ],
    ids=["help", "version", "configs", "one", "chat", "demo", "top"],
)
def test_what_needs_no_model_is_said_at_once(arguments: list[str], said: str) -> None:
    status, out, err, imported = posenc(*arguments)
    assert (status, err, imported) == (0, "", []) and said in out


@pytest.mark.parametrize("command", ["serve", "check", "flags"])
@pytest.mark.parametrize(
    ("changed", "refused"),
    [
        ("scaling.bogus=1", "scaling.bogus: is not a known setting, got 1"),
        ("scaling.beta_fast=0.5", "scaling.beta_fast must be at least beta_slow 1.0, got 0.5"),
        ("scaling.scales=[2, 4]", "scaling.scales must start at 1, got [2.0, 4.0]"),
        ("scaling.scales=[1, 4, 2]", "scaling.scales must ascend, got [1.0, 4.0, 2.0]"),
        (
            "scaling.allow_beyond_trained=true",
            "scaling.allow_beyond_trained is only for scales [1], got [1.0, 2.0, 4.0, 8.0]: a scaled deployment covers "
            "max_model_len by its largest scale",
        ),
        (
            "scaling.rope_type=yarm",
            "scaling.rope_type must be one of auto, base, clipped, default, dual_chunk, dynamic, linear, llama3, "
            "longrope, mrrope, ntk, proportional, rerope, yarn, got 'yarm'; did you mean yarn?",
        ),
        ("engine.api_key=x", "engine.api_key: is not an argument of vLLM, got 'x'; did you mean server.api_key?"),
        ("server.apikey=x", "server.apikey: is not an argument of vLLM, got 'x'; did you mean api_key?"),
        ("attention.window_tolerance=2", "attention.window_tolerance: must be less than 1, got 2"),
    ],
)
def test_a_setting_is_refused_at_once(command: str, changed: str, refused: str) -> None:
    assert posenc(command, "demo", "--set", changed) == (2, "", f"refused {refused}", [])


def test_a_port_that_is_taken_is_refused_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        status, out, err, imported = posenc("serve", "demo", "--port", port)
    assert (status, out, imported) == (1, "", [])
    assert err.startswith(f"refused server.host, server.port: must be a free address, got 127.0.0.1 and {port}: Addr")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["flags", "demo"], 0, " --additional-config "),
        (["size", "demo"], 0, "KV cache: "),
        (["check", "demo", "--set", "engine.kv_cache_memory_bytes=1000"], 2, "must have room for one request of"),
        (["serve", "demo", "--port", "0", "--set", "engine.kv_cache_memory_bytes=1000"], 2, "must have room for one"),
        (["check", "demo", "--set", "scaling.rope_type=llama3"], 2, "but this one's is default"),
    ],
    ids=["flags", "size", "cache", "cache-serve", "method"],
)
def test_what_follows_from_the_models_configuration_is_said_without_vllm(
    arguments: list[str], status: int, said: str
) -> None:
    found, out, err, imported = posenc(*arguments)
    assert (found, "vllm" in imported) == (status, False) and said in (err if status else out)


@pytest.mark.slow
def test_the_free_memory_of_a_cpu_is_looked_at_without_vllm() -> None:
    """A share of 1 is never free."""
    asked = ("engine.kv_cache_memory_bytes=null", "engine.gpu_memory_utilization=1.0")
    sets = [word for each in asked for word in ("--set", each)]
    status, out, err, imported = posenc("serve", "demo", "--port", "0", *sets, VLLM_CPU_KVCACHE_SPACE="")
    if not cpu_memory.is_cpu():
        pytest.skip("vLLM computes on a GPU here")
    assert (status, out, "vllm" in imported) == (2, "", False)
    assert err.startswith("refused engine.gpu_memory_utilization: on a CPU, this share of the machine's memory must be")


@pytest.mark.parametrize("command", ["chat", "top"])
def test_a_server_that_is_not_there_is_told_at_once(command: str) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    said = f"failed no server answers at {address}: start one with `posenc serve`, or name another with --url"
    assert posenc(command, "--url", address) == (1, "", said, [])


def test_scales_are_refused_at_once_where_the_checkpoint_is_to_name_the_method() -> None:
    assert posenc("check", "some/model", "--set", "scaling.scales=[4]") == (
        2, "", "refused scaling.scales must start at 1, got [4.0]", [],
    )  # fmt: skip


def test_a_file_that_is_not_there_is_refused_at_once() -> None:
    assert posenc("serve", "nope.yaml") == (
        2, "", "refused nope.yaml: must be a file that can be read: No such file or directory", [],
    )  # fmt: skip


@pytest.mark.parametrize("command", ["serve", "check", "flags"])
def test_a_folder_without_a_configuration_is_refused_at_once(command: str, tmp_path: pathlib.Path) -> None:
    nowhere, empty, torn = tmp_path / "nowhere", tmp_path / "empty", tmp_path / "torn"
    empty.mkdir()
    torn.mkdir()
    (torn / "config.json").write_text("{")
    assert posenc(command, str(nowhere)) == (
        2, "", f"refused model: must be a folder or a name on a hub, got '{nowhere}': there is no such folder", [],
    )  # fmt: skip
    for folder, reason in ((empty, "there is no config.json in this folder"), (torn, "config.json is not JSON: ")):
        status, out, err, imported = posenc(command, str(folder))
        assert (status, out, imported) == (2, "", [])
        assert err.startswith(f"refused model: the configuration of '{folder}' cannot be read: {reason}")


@pytest.mark.parametrize("command", ["serve", "check", "flags"])
def test_a_hub_that_is_silent_is_told_without_importing_vllm(command: str, tmp_path: pathlib.Path) -> None:
    with silent_hub() as address:
        said = posenc(command, "some/model", HF_ENDPOINT=address, HF_HOME=str(tmp_path), HF_HUB_ETAG_TIMEOUT="1")
    assert said == (
        2,
        "",
        f"refused model: the configuration of 'some/model' cannot be read: the hub {address} is out of reach: no "
        "answer within 1 s; check the network, proxies and HF_ENDPOINT, set HF_HUB_ETAG_TIMEOUT to more seconds, or "
        "set engine.hf_config_path to a folder that has the configuration",
        [],
    )


def test_what_a_hub_refuses_is_told_as_what_it_is_without_importing_vllm(tmp_path: pathlib.Path) -> None:
    with local_hub() as hub:
        status, out, err, imported = posenc("serve", "some/model", HF_ENDPOINT=hub.endpoint, HF_HOME=str(tmp_path))
    assert (status, out, imported) == (2, "", [])
    assert "cannot be read: 404 Client Error." in err and "; check the name, HF_TOKEN or engine.hf_token, and" in err
