"""What a start shows: of its progress, of its end, and of what went wrong."""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import textwrap
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from rich.console import Console

from posenc_runtime.kv.deployment import Deployment
from server.causes import cause
from server.greeting import greeting
from server.progress import Progress
from server.routes import Served

YARN = Deployment(rope_type="yarn", scales=(1, 2, 4), original_max_position_embeddings=256, max_model_len=1024)


def greeted(**arguments: Any) -> list[str]:
    """The lines of a server whose cache has room for 900 tokens."""
    args = argparse.Namespace(
        **{"host": "127.0.0.1", "port": 8000, "uds": None, "ssl_certfile": None, "api_key": None} | arguments
    )
    served = Served(deployment=YARN, max_model_len=900, registry=CollectorRegistry())
    return list(greeting(args, "tiny", served))


def test_a_server_says_where_it_is_what_its_scales_reach_and_what_to_paste() -> None:
    ready, scales, where, paste = greeted()
    assert ready == "ready: http://127.0.0.1:8000"
    assert scales == "scales of requests, by their tokens: 1 up to 256, 2 up to 512, 4 up to 900"
    assert "http://127.0.0.1:8000/posenc/scales" in where and "http://127.0.0.1:8000/metrics" in where
    assert paste.startswith("try: curl -s http://127.0.0.1:8000/v1/chat/completions") and '"model": "tiny"' in paste
    assert "Authorization" not in paste


@pytest.mark.parametrize(
    ("arguments", "begins"),
    [
        ({"host": "0.0.0.0"}, "ready: http://localhost:8000"),
        ({"host": None}, "ready: http://localhost:8000"),
        ({"host": "::1"}, "ready: http://[::1]:8000"),
        ({"ssl_certfile": "server.pem"}, "ready: https://127.0.0.1:8000"),
        ({"uds": "/run/posenc.sock"}, "ready: /run/posenc.sock"),
    ],
    ids=["everywhere", "by default", "ipv6", "tls", "a socket's file"],
)
def test_the_address_is_one_that_clients_of_this_machine_can_ask(arguments: dict[str, Any], begins: str) -> None:
    assert greeted(**arguments)[0] == begins


def test_a_key_is_asked_for_and_not_shown() -> None:
    paste = greeted(api_key=["very-secret"])[-1]
    assert "Authorization: Bearer YOUR_KEY" in paste and "very-secret" not in paste


SAID = {
    "too-long": (
        "(EngineCore pid=1) ERROR [core.py:1510] ValueError: To serve at least one request with the model's max seq "
        "len (4096), (0.5 GiB KV cache is needed, which is larger than the available KV cache memory (0.25 GiB). Based "
        "on the available memory, the estimated maximum model length is 2048. Try increasing",
        "max_model_len: the cache must have room for one request of that many tokens, got 4096, which take 0.5 GiB, "
        "and 0.25 GiB: set max_model_len to 2048, or give the cache more",
    ),
    "no-estimate": (
        "To serve at least one request with the model's max seq len (4096), (0.5 GiB KV cache is needed, which is "
        "larger than the available KV cache memory (0.0 GiB). Try increasing",
        "max_model_len: the cache must have room for one request of that many tokens, got 4096, which take 0.5 GiB, "
        "and 0.0 GiB: lower max_model_len",
    ),
    "no-cache": (
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
        "engine.gpu_memory_utilization: there must be memory left for the cache beside the weights, got none",
    ),
    "others-on-the-device": (
        "ValueError: Free memory on device cuda:0 (10.5/79.1 GiB) on startup is less than desired GPU memory "
        "utilization (0.9, 71.2 GiB). Decrease GPU memory utilization",
        "engine.gpu_memory_utilization: that part of the device's memory must be free, got 0.9, which is 71.2 GiB, and "
        "10.5 of 79.1 GiB are free: end what else runs on cuda:0, or lower it",
    ),
    "out-of-memory": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\nmore",
        "the device has too little memory for the model: CUDA out of memory. Tried to allocate 2.00 GiB.",
    ),
}


@pytest.mark.parametrize(("said", "told"), SAID.values(), ids=SAID.keys())
def test_too_little_memory_is_one_paragraph_with_what_to_do(said: str, told: str) -> None:
    found = cause(f"Traceback ...\n{said}\nRuntimeError: Engine core initialization failed.")
    assert found is not None and found.startswith(told) and "\n" not in found


def test_another_cause_is_left_to_what_was_said() -> None:
    assert cause("KeyError: 'rope'") is None


def test_progress_says_at_what_a_bar_of_vllm_is() -> None:
    out = io.StringIO()
    progress = Progress(Console(file=out))
    with progress:
        progress.heard("INFO nothing to see: 5 tokens")
        progress.heard("Loading safetensors checkpoint shards:  40% Completed | 2/5 [00:01<00:02,  1.4it/s]")
        assert progress._line() == "starting the engine, 0 s: loading safetensors checkpoint shards, 40 %"
        progress.heard("Capturing CUDA graphs (decode, FULL):  71%|#######   | 5/7")
        assert progress._line().endswith(": capturing cuda graphs, 71 %")


def test_what_is_refused_is_refused_before_anything_is_said_to_start() -> None:
    """However long the settings take to be checked, and with nothing of what is written meanwhile."""
    script = """
        import sys, time
        from posenc_runtime.vllm_adapter.settings.section import SettingRefused
        from server import progress, starting

        progress._LINE_SECONDS = 0.01

        def checked(*given, **named):
            print("their words", file=sys.stderr)
            time.sleep(0.5)
            raise SettingRefused("this: is refused")

        starting._checked = checked
        try:
            starting.serve(None, None, verbose=False)
        except SettingRefused as error:
            print(error)
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True, timeout=60
    )
    assert (ran.stdout, ran.stderr) == ("this: is refused\n", "")
