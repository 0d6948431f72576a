"""What a start shows: of its progress, of its end, and of what went wrong."""

from __future__ import annotations

import argparse
import errno
import io
import logging
import pathlib
import subprocess
import sys
import textwrap
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from rich.console import Console

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.settings.front_end import AccessSettings
from server.app.greeting import greeting
from server.app.routes import Served
from server.printing.progress import Progress
from server.start_up.causes import cause, first_error
from server.start_up.starting import show_ours

YARN = Deployment(rope_type="yarn", scales=(1, 2, 4), original_max_position_embeddings=256, max_model_len=1024)


def greeted(*, asks_for_key: bool = False, metrics: str = "key", **arguments: Any) -> list[str]:
    """The lines of a server whose cache has room for 900 tokens."""
    args = argparse.Namespace(
        **{"host": "127.0.0.1", "port": 8000, "uds": None, "ssl_certfile": None, "api_key": None} | arguments
    )
    served = Served(deployment=YARN, max_model_len=900, registry=CollectorRegistry())
    return list(greeting(args, "tiny", served, AccessSettings(metrics=metrics), asks_for_key=asks_for_key))


def test_a_server_says_where_it_is_what_its_scales_reach_and_what_to_paste() -> None:
    ready, scales, where, paste = greeted()
    assert ready == "ready: http://127.0.0.1:8000"
    assert scales == "scale by request length: 1 up to 256 tokens, 2 up to 512, 4 up to 900"
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


def test_a_server_that_others_reach_says_that_it_asks_for_no_key() -> None:
    warning = "this server asks for no key: everybody who reaches it may send requests; access.keys_file names keys"
    assert warning in greeted(host="0.0.0.0") and warning in greeted(host=None)
    assert warning not in greeted(host="0.0.0.0", asks_for_key=True) + greeted(host="127.0.0.1")


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        (
            "open",
            "page: http://127.0.0.1:8000/, scales now: http://127.0.0.1:8000/posenc/scales, metrics: http://127.0.0.1:8000/metrics",
        ),
        (
            "10.0.0.1:9000",
            "page: http://127.0.0.1:8000/, scales now: http://127.0.0.1:8000/posenc/scales, metrics: http://10.0.0.1:9000/metrics",
        ),
        ("off", "page: http://127.0.0.1:8000/, scales now: http://127.0.0.1:8000/posenc/scales"),
    ],
)
def test_a_server_says_where_its_metrics_are(metrics: str, told: str) -> None:
    assert told in greeted(metrics=metrics)


def test_a_key_is_asked_for_and_not_shown() -> None:
    paste = greeted(asks_for_key=True, api_key=["very-secret"])[-1]
    assert "Authorization: Bearer YOUR_KEY" in paste and "very-secret" not in paste


SAID = {
    "too-long": (
        "(EngineCore pid=1) ERROR [core.py:1510] ValueError: To serve at least one request with the model's max seq "
        "len (4096), (0.5 GiB KV cache is needed, which is larger than the available KV cache memory (0.25 GiB). Based "
        "on the available memory, the estimated maximum model length is 2048. Try increasing",
        "max_model_len: the KV cache must have room for one request of this length, got 4096 tokens, which need 0.5 "
        "GiB, but the cache has 0.25 GiB: set max_model_len to 2048, or give the KV cache more memory",
    ),
    "no-estimate": (
        "To serve at least one request with the model's max seq len (4096), (0.5 GiB KV cache is needed, which is "
        "larger than the available KV cache memory (0.0 GiB). Try increasing",
        "max_model_len: the KV cache must have room for one request of this length, got 4096 tokens, which need 0.5 "
        "GiB, but the cache has 0.0 GiB: lower max_model_len",
    ),
    "no-cache": (
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
        "engine.gpu_memory_utilization: the weights must leave memory for the KV cache, got none left: give",
    ),
    "others-on-the-device": (
        "ValueError: Free memory on device cuda:0 (10.5/79.1 GiB) on startup is less than desired GPU memory "
        "utilization (0.9, 71.2 GiB). Decrease GPU memory utilization",
        "engine.gpu_memory_utilization: this share of the device's memory must be free, got 0.9, which is 71.2 GiB, "
        "but only 10.5 of 79.1 GiB are free: stop other programs that use cuda:0, or lower the setting",
    ),
    "others-on-the-machine": (
        "(VllmWorker-0 pid=1) ERROR [x.py:953] ValueError: Available memory on node 0 (11.58/22.84 GiB) on startup is "
        "less than desired CPU memory utilization (0.92, 21.01 GiB). On the CPU backend, the flag",
        "engine.gpu_memory_utilization: on a CPU, this share of the machine's memory must be free, got 0.92, which is "
        "21.01 GiB, but only 11.58 of 22.84 GiB are free: lower the setting, give the KV cache a size instead",
    ),
    "damaged": (
        "(Worker pid=1) ERROR [x.py:953] safetensors._safetensors_rust.SafetensorError: Error while deserializing "
        "header: header too small\n",
        "model: a file of the weights is damaged: Error while deserializing header: header too small. Delete it",
    ),
    "no-weights": (
        "RuntimeError: Cannot find any model weights with `/models/a`",
        "model: must have files of weights, got /models/a, which has none that engine.load_format reads: download",
    ),
    "weights-missing": (
        "ValueError: Following weights were not initialized from checkpoint: {'model.norm.weight'}",
        "model: the checkpoint lacks weights that its configuration asks for, 'model.norm.weight': download it again",
    ),
    "another-shape": (
        "File linear.py, line 1760, in weight_loader_v2\n    loaded_weight = loaded_weight.narrow(\n"
        "RuntimeError: start (0) + length (128) exceeds dimension size (120).",
        "model: a tensor of the weights has another shape than config.json says (start (0) + length (128) exceeds "
        "dimension size (120)): download the checkpoint again, or take the config.json that belongs to it",
    ),
    "another-shape-of-a-parameter": (
        "File weight_utils.py, line 1485, in default_weight_loader\n"
        "AssertionError: Attempted to load weight (torch.Size([120])) into parameter (torch.Size([128]))\r\n",
        "model: a tensor of the weights has another shape than config.json says (Attempted to load weight "
        "(torch.Size([120])) into parameter (torch.Size([128]))): download",
    ),
    "disk-full": (
        "OSError: [Errno 28] No space left on device: '/root/.cache/vllm/x'",
        "a disk is full: there was no space for /root/.cache/vllm/x. Free some, or set HF_HOME,",
    ),
    "disk-full-without-a-name": (
        "OSError: [Errno 28] No space left on device",
        "a disk is full: there was no space for",
    ),
    "out-of-memory": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\nmore",
        "the device has too little memory for the model: CUDA out of memory. Tried to allocate 2.00 GiB.",
    ),
}


@pytest.mark.parametrize(("said", "told"), SAID.values(), ids=SAID.keys())
def test_a_known_cause_is_one_paragraph_with_what_to_do(said: str, told: str) -> None:
    found = cause(f"Traceback ...\n{said}\nRuntimeError: Engine core initialization failed.")
    assert found is not None and found.startswith(told) and "\n" not in found


def test_another_cause_is_left_to_what_was_said() -> None:
    assert cause("KeyError: 'rope'") is None


def test_a_signal_that_ended_a_worker_is_told_where_no_process_said_why() -> None:
    ended = "(EngineCore pid=1) ERROR [x.py:315] Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting\n"
    after = "(EngineCore pid=1) ERROR [core.py:1512] RuntimeError: cancelled\n"
    assert cause(f"{ended}{after}") is None  # so that all that was written is kept
    found = first_error(f"{ended}{after}")
    assert found is not None and found.startswith("a worker was ended by signal 9: the kernel sends 9 if memory runs")
    assert first_error(f"KeyError: 'rope'\n{ended}{after}") == "KeyError: 'rope'"


def test_the_first_error_of_an_engine_is_told_in_one_line() -> None:
    logged = "(VllmWorker-0 pid=7) ERROR 11-26 01:51:10 [multiproc_executor.py:953] "
    said = (
        f"{logged}Traceback (most recent call last):\n{logged}    raise ValueError(text)\n"
        f"{logged}builtins.ValueError: their rule: broken\n"
        "Exception: WorkerProc initialization failed due to an exception in a background process.\n"
    )
    assert first_error(said) == "ValueError: their rule: broken"
    ours = "posenc_runtime.vllm_adapter.contract.errors.Unsupported: our rule, and what to do\r\n"
    assert first_error(f"{logged}{ours}") == "our rule, and what to do"
    assert first_error("RuntimeError: Engine core initialization failed. See above\n") is None
    assert (
        first_error(f"{logged}vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See\n")
        is None
    )


def test_progress_says_at_what_a_bar_of_vllm_is() -> None:
    out = io.StringIO()
    progress = Progress(Console(file=out))
    with progress:
        progress.heard("INFO nothing to see: 5 tokens")
        progress.heard("Loading safetensors checkpoint shards:  40% Completed | 2/5 [00:01<00:02,  1.4it/s]")
        assert progress._line() == "starting the engine, 0 s: loading safetensors checkpoint shards, 40 %"
        progress.heard("Capturing CUDA graphs (decode, FULL):  71%|#######   | 5/7")
        assert progress._line().endswith(": capturing cuda graphs, 71 %")


def test_progress_of_something_else_says_what_is_watched() -> None:
    progress = Progress(Console(file=io.StringIO()), "downloading", lambda: ": 43 MB")
    with progress:
        assert progress._line() == "downloading, 0 s: 43 MB"


def started(checked: str, run: str) -> tuple[str, str]:
    """What a start writes to stdout and stderr, in a process of its own whose plan and engine are these."""
    script = f"""
import logging, os, sys, time, types
from server.start_up.held_output import HeldOutput

with HeldOutput():  # importing vLLM is loud
    from posenc_runtime.kv.deployment import Deployment
    from posenc_runtime.vllm_adapter import serving
    from posenc_runtime.vllm_adapter.settings.section import SettingRefused
    from server.printing import progress
    from server.start_up import starting
    from posenc_runtime.vllm_adapter.settings.plan import Plan
    from server.deployment.settings import Settings

progress._LINE_SECONDS = 0.2
progress.time = types.SimpleNamespace(monotonic=lambda: 0.0)  # however busy the machine is
settings = Settings(model="tiny", engine={{"kv_cache_memory_bytes": 2**20}})
deployment = Deployment(rope_type="default", original_max_position_embeddings=256, max_model_len=256)
plan = Plan(
    deployment=deployment, attention=None, front_end=None, checkpoint=None, auto_reason=None, max_model_len=256
)
server = serving.Configured(None, plan, None)

def checked(*given, **named):
    os.write(2, b"their words\\n")
    time.sleep(0.5)
{textwrap.indent(textwrap.dedent(checked), "    ")}

def run(*given):
    os.write(1, b"more of their words\\n")
{textwrap.indent(textwrap.dedent(run), "    ")}

starting.plan_without_vllm, starting.configure, serving.run = lambda settings: plan, checked, run
try:
    starting.serve(settings, settings.model, verbose=False)
except ValueError as error:
    print(error)
except RuntimeError as error:
    print("failed:", error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    return done.stdout, done.stderr


@pytest.mark.slow
def test_what_is_refused_is_refused_before_anything_is_said_to_start() -> None:
    """However long the settings take to be checked, and with nothing of what is written meanwhile."""
    assert started('raise SettingRefused("this: is refused")', "") == ("this: is refused\n", "")


@pytest.mark.slow
def test_a_start_shows_what_is_served_then_progress_then_output_after_it_is_ready() -> None:
    out, err = started(
        "return server",
        """
        time.sleep(0.5)
        logging.getLogger("vllm.posenc").info("ready: here")
        os.write(1, b"a warning while it serves\\n")
        logging.getLogger("vllm.posenc").info("a request")
        time.sleep(0.5)
        """,
    )
    headline, starting, *others = out.splitlines()
    assert headline == "tiny: trained on 256 tokens, serves 256; default at scales 1"
    assert starting.startswith("starting the engine, 0 s")
    assert others[-4:] == ["ready: here", "a warning while it serves", "a request", "stopped"] and err == ""


def test_a_line_that_cannot_be_written_fails_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("vllm.posenc")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", True)

    def show(line: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    show_ours(show)
    logging.getLogger("vllm.posenc.requests").info("a request")


def test_a_server_that_is_told_to_stop_ends_with_0_though_its_disk_is_full() -> None:
    code = """
        from rich.console import Console
        from server.start_up.starting import _leave
        with open("/dev/full", "w") as full:
            _leave(Console(file=full), "stopped", 0)
        """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(code)], timeout=60).returncode == 0


@pytest.mark.slow
def test_an_engine_that_ends_while_it_serves_is_told_in_one_line() -> None:
    out, err = started(
        "return server",
        """
        import subprocess
        prefix = "(EngineCore pid=7) ERROR 11-26 02:00:21 [core.py:1512]"
        lines = [f"{prefix} it is over", f"{prefix} Traceback (most recent call last):", f"{prefix} ValueError: why"]
        wait = "import sys; sys.stdin.read(); print(sys.argv[1])"
        engine = subprocess.Popen([sys.executable, "-c", wait, "\\n".join(lines)], stdin=subprocess.PIPE)
        logging.getLogger("vllm.posenc").info("ready: here")
        engine.communicate()
        raise serving.EngineDied("the engine ended")
        """,
    )
    assert err == "" and out.splitlines()[-2] == "ready: here"
    last = out.splitlines()[-1]
    assert last.startswith("failed: the engine ended while it served: ValueError: why (all that it wrote is in ")
    log = pathlib.Path(last.rpartition(" ")[2].removesuffix(")"))
    assert log.read_text().count("\n") == 3
    log.unlink()


NO_ROOM = r"ValueError: No available memory for the cache blocks. Try\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "told", "is_kept"),
    [
        (NO_ROOM, "failed: engine.gpu_memory_utilization: the weights must leave memory for the KV cache", False),
        (r"KeyError: 'rope'\n", "failed: the engine did not start: KeyError: 'rope' (all that it wrote is in", True),
        (r"Killed\n", "failed: the engine did not start: none of its processes said why; if memory ran out", True),
    ],
)
def test_a_start_that_fails_says_why_in_one_line_and_where_the_rest_is(said: str, told: str, is_kept: bool) -> None:
    out, err = started(
        "return server",
        f"""
        os.write(2, b"{said}")
        raise serving.EngineDidNotStart("the engine did not start")
        """,
    )
    last = out.splitlines()[-1]
    assert last.startswith(told) and err == ""
    assert last.endswith(".log)") == is_kept
    if is_kept:
        log = pathlib.Path(last.rpartition(" ")[2].removesuffix(")"))
        assert "more of their words" in log.read_text()
        log.unlink()
