"""A server that cannot start says in one line why, and how to mend it."""

from __future__ import annotations

import contextlib
import json
import pathlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from tests.checkpoints import save_tiny
from tests.engine import device
from tests.engine.faults import BY_HAND, Outcome, record

WEIGHTS, LAYER = "model.safetensors", "model.layers.1.mlp.down_proj.weight"


def overwrite_the_header(model: pathlib.Path) -> None:
    whole = (model / WEIGHTS).read_bytes()
    (model / WEIGHTS).write_bytes(whole[:8] + b"?" * 32 + whole[40:])


def cut(model: pathlib.Path) -> None:
    whole = (model / WEIGHTS).read_bytes()
    (model / WEIGHTS).write_bytes(whole[: len(whole) // 2])


def delete_the_weights(model: pathlib.Path) -> None:
    (model / WEIGHTS).unlink()


def delete_the_tokenizer(model: pathlib.Path) -> None:
    for file in model.glob("token*"):
        file.unlink()


def change_weights(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[pathlib.Path], None]:
    def changed(model: pathlib.Path) -> None:
        weights = load_file(model / WEIGHTS)
        change(weights)
        save_file(weights, model / WEIGHTS, {"format": "pt"})

    return changed


def leave_one_out(weights: dict[str, torch.Tensor]) -> None:
    del weights["model.layers.1.input_layernorm.weight"]


def leave_a_matrix_out(weights: dict[str, torch.Tensor]) -> None:
    del weights["model.layers.1.self_attn.k_proj.weight"]  # vLLM says nothing, and serves it


def make_one_smaller(weights: dict[str, torch.Tensor]) -> None:
    weights[LAYER] = weights[LAYER][:, :-8].contiguous()


def make_one_nan(weights: dict[str, torch.Tensor]) -> None:
    weights["model.layers.0.mlp.down_proj.weight"][:] = torch.nan


def delete_the_folder(model: pathlib.Path) -> None:
    model.rename(model.with_name("elsewhere"))


def make_heads_of_16(model: pathlib.Path) -> None:
    save_tiny(model, head_dim=16)


FAULTS = [
    pytest.param("model path gone", delete_the_folder, 2, "refused model: must be a folder or a name on", id="path"),
    pytest.param(
        "corrupt header of safetensors", overwrite_the_header, 2,
        "has a header that is not one of safetensors: download this file again", id="header",
    ),
    pytest.param(
        "safetensors cut in the middle", cut, 2, "as its header says, got", id="cut",
    ),
    pytest.param("no weights", delete_the_weights, 2, "has no weights: there is no file *.safetensors", id="weights"),
    pytest.param(
        "no tokenizer", delete_the_tokenizer, 2, "refused engine.tokenizer: must be", id="tokenizer", marks=BY_HAND,
    ),
    pytest.param(
        "heads of 16 in float32 on the CPU", make_heads_of_16, 2, "have one of the sizes that", id="heads",
        marks=(BY_HAND, device.on_the_cpu("attention on GPUs has other kernels")),
    ),
    pytest.param(
        "a tensor of a norm missing", change_weights(leave_one_out), 1, "failed model: the checkpoint lacks weights",
        id="tensor", marks=BY_HAND,
    ),
    pytest.param(
        "a matrix missing", change_weights(leave_a_matrix_out), 1,
        "but it lacks model.layers.1.self_attn.qkv_proj.weight (rows ", id="matrix",
    ),
    pytest.param(
        "a tensor of another shape", change_weights(make_one_smaller), 1, "another shape than config.json says",
        id="shape", marks=BY_HAND,
    ),
    pytest.param(
        "weights that are NaN", change_weights(make_one_nan), 1, "must compute finite numbers", id="nan",
        marks=BY_HAND,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "do", "status", "said"), FAULTS)
def test_a_server_that_cannot_start_says_why_in_one_line(
    fault: str, do: Callable[[pathlib.Path], None], status: int, said: str, tmp_path: pathlib.Path
) -> None:
    model = save_tiny(tmp_path / "model")
    do(model)
    out = started(tmp_path, model, fault)
    assert (out.returncode, out.stderr.count("\n")) == (status, 1), out.stderr
    assert said in out.stderr


@BY_HAND
def test_a_port_that_is_taken_is_named(tmp_path: pathlib.Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        out = started(tmp_path, save_tiny(tmp_path / "model"), "port taken", server={"port": port})
    assert out.returncode == 1 and out.stderr.count("\n") == 1
    assert f"refused server.host, server.port: must be a free address, got 127.0.0.1 and {port}" in out.stderr


def started(folder: pathlib.Path, model: pathlib.Path, fault: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    """What ``posenc serve`` says until it has ended; its outcome is recorded."""
    file = folder / "deployment.yaml"
    engine = device.ENGINE | {"dtype": "float32", "block_size": 32, "kv_cache_memory_bytes": 2**28}
    scaling = {"rope_type": "yarn", "scales": [1, 2, 4]}
    file.write_text(yaml.safe_dump({"model": str(model), "scaling": scaling, "engine": engine} | settings))
    posenc = str(pathlib.Path(sys.executable).with_name("posenc"))
    began = time.monotonic()
    out = subprocess.run(
        [posenc, "serve", "--config", str(file)], capture_output=True, text=True, timeout=600, check=False
    )
    seconds = round(time.monotonic() - began, 1)
    told = out.stderr.strip().replace(str(folder), "").replace("|", "/")
    record(Outcome(fault, f"no server; it says: {told}", out.returncode, seconds, len(list(left(str(file))))))
    return out


def left(word: str) -> Iterator[psutil.Process]:
    """Processes whose command line or whose parent's has a word."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if word in json.dumps(process.cmdline()):
                yield process
