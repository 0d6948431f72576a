"""What has no room in memory, and addresses that are taken, are refused before an engine starts."""

from __future__ import annotations

import pathlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from posenc_runtime.vllm_adapter.checkpoint.sizing import cpu_memory
from posenc_runtime.vllm_adapter.contract.errors import CannotListen
from posenc_runtime.vllm_adapter.settings.section import SettingRefused
from server.deployment.load import load
from server.deployment.settings import Settings
from server.start_up import address, room
from server.start_up.planning import plan_settings
from tests.server.command import SCALING, run

GIB = 2**30
# The tiny model: 2 layers, of 2 KV heads of 32 each, in float32, so many bytes a token.
LENGTH = 512


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another program listens at."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


def settings_with(engine: dict[str, Any], model: pathlib.Path | str = "some/model", **others: Any) -> Settings:
    return Settings.model_validate({"model": str(model), "scaling": SCALING, "engine": engine} | others)


def bytes_of_a_token(model: pathlib.Path) -> int:
    import json

    said = json.loads((model / "config.json").read_text())
    return int(said["num_hidden_layers"] * 2 * said["num_key_value_heads"] * said["head_dim"] * 4)


@pytest.mark.parametrize(
    ("short_of", "block_size", "is_refused"),
    [(1, 16, True), (0, 16, False), (1, 128, True), (-1, 16, False)],
    ids=["a-byte-too-few", "just-enough", "larger-blocks", "more"],
)
def test_a_cache_that_cannot_hold_one_request_is_refused(
    short_of: int, block_size: int, is_refused: bool, model: pathlib.Path
) -> None:
    needed = LENGTH * bytes_of_a_token(model)
    engine = {"kv_cache_memory_bytes": needed - short_of, "block_size": block_size, "dtype": "float32"}
    settings = settings_with(engine, model, max_model_len=LENGTH)
    plan = plan_settings(settings)
    if not is_refused:
        room.refuse_small_cache(settings, plan)
        return
    with pytest.raises(SettingRefused) as refused:
        room.refuse_small_cache(settings, plan)
    token = bytes_of_a_token(model)
    longest = LENGTH - 2 * block_size  # one block short, and one that vLLM keeps
    assert str(refused.value).startswith(
        f"engine.kv_cache_memory_bytes: must have room for one request of max_model_len {LENGTH} tokens, which takes "
        f"{needed} bytes ("
    )
    assert f"got {needed - 1} (" in str(refused.value)
    assert str(refused.value).endswith(
        f": set it to {needed + block_size * token} or more, or max_model_len to {longest} or less"
    )


@pytest.mark.parametrize(
    "more",
    [
        {"num_gpu_blocks_override": 100},
        {"pipeline_parallel_size": 2},
        {"kv_cache_dtype": "nvfp4"},
        {"kv_cache_memory_bytes": None},
        {"kv_cache_memory_bytes": "1K"},
    ],
    ids=lambda more: "-".join(map(str, more)),
)
def test_what_the_engine_alone_can_count_is_left_to_it(more: dict[str, Any], model: pathlib.Path) -> None:
    engine = {"kv_cache_memory_bytes": 1024, "dtype": "float32"}
    plan = plan_settings(settings_with(engine, model))
    room.refuse_small_cache(settings_with(engine | more, model), plan)


def test_requests_that_are_fitted_into_the_cache_are_not_refused(model: pathlib.Path) -> None:
    settings = settings_with({"kv_cache_memory_bytes": 1024, "dtype": "float32"}, model)
    settings.scaling = type(settings.scaling).model_validate({"rope_type": "auto"})
    room.refuse_small_cache(settings, plan_settings(settings))


@pytest.mark.parametrize("command", ["check", "serve"])
def test_commands_refuse_a_small_cache_before_vllms_parser_is_made(
    command: str, model: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from server.start_up import planning

    monkeypatch.setattr(planning, "serve_namespace", lambda *_, **__: pytest.fail("vLLM's parser was made"))
    settings = {"model": str(model), "scaling": SCALING, "engine": {"kv_cache_memory_bytes": 1024}}
    status, _, err = run(tmp_path, settings | {"server": {"port": 0}}, command)
    assert status == 2 and err.startswith("refused engine.kv_cache_memory_bytes: must have room for one request of")


@pytest.mark.parametrize(
    ("nodes", "engine", "said"),
    [
        (
            [(16 * GIB, 10 * GIB)],
            {"gpu_memory_utilization": 0.92},
            "engine.gpu_memory_utilization: on a CPU, this share of the machine's memory must be free, got 0.92, which "
            "is 14.7 GiB, but only 10.0 GiB of 16.0 GiB are free: set it to 0.6 or less, or give the KV cache a size "
            "instead (engine.kv_cache_memory_bytes)",
        ),
        (
            [(16 * GIB, GIB // 2)],
            {"gpu_memory_utilization": 0.5},
            "engine.gpu_memory_utilization: on a CPU, this share of the machine's memory must be free, got 0.5, which "
            "is 8.0 GiB, but only 512.0 MiB of 16.0 GiB are free: stop other programs on this machine, or give the KV "
            "cache a size instead (engine.kv_cache_memory_bytes)",
        ),
        ([(16 * GIB, 10 * GIB)], {"gpu_memory_utilization": 0.625}, None),
        ([(16 * GIB, GIB), (16 * GIB, 15 * GIB)], {"gpu_memory_utilization": 0.92}, None),
        ([(16 * GIB, GIB)], {"gpu_memory_utilization": 0.92, "kv_cache_memory_bytes": 2**28}, None),
        ([(16 * GIB, GIB)], {"gpu_memory_utilization": 2.0}, None),
        ([(16 * GIB, GIB)], {}, None),
        (
            [(16 * GIB, 10 * GIB)],
            {"num_gpu_blocks_override": 9},
            "engine.gpu_memory_utilization: on a CPU, this share of the machine's memory must be free, got 0.92, which "
            "is 14.7 GiB, but only 10.0 GiB of 16.0 GiB are free: set it to 0.6 or less, or give the KV cache a size "
            "instead (engine.kv_cache_memory_bytes)",
        ),
        ([], {"gpu_memory_utilization": 0.92}, None),
    ],
    ids=[
        "too-little",
        "hardly-any",
        "just-enough",
        "another-node",
        "cache-of-a-size",
        "no-share",
        "none",
        "blocks",
        "unknown",
    ],
)
def test_on_a_cpu_the_share_of_memory_that_vllm_takes_must_be_free(
    nodes: list[tuple[int, int]], engine: dict[str, Any], said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    monkeypatch.setattr(cpu_memory, "is_cpu", lambda: True)
    monkeypatch.setattr(cpu_memory, "of_nodes", lambda: nodes)
    if said is None:
        room.refuse_full_memory(settings_with(engine))
        return
    with pytest.raises(SettingRefused) as refused:
        room.refuse_full_memory(settings_with(engine))
    assert str(refused.value) == said


def test_the_memory_of_a_gpus_machine_is_not_looked_at(model: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_memory, "is_cpu", lambda: False)
    monkeypatch.setattr(cpu_memory, "of_nodes", lambda: [(16 * GIB, GIB)])
    room.refuse_full_memory(settings_with({"gpu_memory_utilization": 0.92}))
    settings = settings_with({}, model)
    assert room.take_free_memory(settings, plan_settings(settings), str(model)) is None


# Beside the tiny model's weights, and 2.5 GiB for programs.
LEFT = 600 * 2**20


@pytest.mark.parametrize(
    ("nodes", "engine", "taken"),
    [
        (1, {}, LEFT // 2),
        (2, {}, LEFT // 2),
        (1, {"tensor_parallel_size": 2}, None),
        (1, {"kv_cache_memory_bytes": 2**28}, 2**28),
        (1, {"gpu_memory_utilization": 0.1}, None),
        (1, {"num_gpu_blocks_override": 9}, None),
    ],
    ids=["one-node", "two-nodes", "two-workers", "cache-of-a-size", "share", "blocks"],
)
def test_a_cpu_gives_the_cache_half_of_the_memory_that_is_left(
    nodes: int, engine: dict[str, Any], taken: int | None, model: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = (model / "model.safetensors").stat().st_size
    free = 5 * GIB // 2 + weights + LEFT
    _have_free(monkeypatch, *[free] * nodes)
    settings = settings_with({"dtype": "float32"} | engine, model, max_model_len=LENGTH)
    if engine.get("tensor_parallel_size"):  # two workers on one node, each with its programs: nothing is left
        with pytest.raises(SettingRefused, match=r"^model: weights of .* must fit into the memory that is free, got "):
            room.take_free_memory(settings, plan_settings(settings), str(model))
        return
    said = room.take_free_memory(settings, plan_settings(settings), str(model))
    assert settings.engine.get("kv_cache_memory_bytes") == taken
    if engine:
        assert said is None
        return
    tokens = LEFT // 2 // bytes_of_a_token(model) // 16 * 16
    assert said == (
        f"KV cache: 300.0 MiB of the {free / GIB:.1f} GiB of memory that are free, for {tokens:,} tokens; --set "
        "engine.kv_cache_memory_bytes=BYTES takes another size"
    )


def test_a_cpu_gives_the_cache_more_than_half_if_the_longest_request_takes_more(
    model: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = (LENGTH + 16) * bytes_of_a_token(model)
    free = 5 * GIB // 2 + (model / "model.safetensors").stat().st_size + needed
    settings = settings_with({"dtype": "float32"}, model, max_model_len=LENGTH)
    plan = plan_settings(settings)
    _have_free(monkeypatch, free)
    assert room.take_free_memory(settings, plan, str(model))
    assert settings.engine["kv_cache_memory_bytes"] == needed
    room.refuse_small_cache(settings, plan)

    _have_free(monkeypatch, free - 1)
    del settings.engine["kv_cache_memory_bytes"]
    with pytest.raises(SettingRefused) as refused:
        room.take_free_memory(settings, plan, str(model))
    assert str(refused.value).startswith(
        f"max_model_len: the KV cache must have room for one request of this length, got {LENGTH}"
    )
    assert f": set max_model_len to {LENGTH - 16} or less" in str(refused.value)


def _have_free(monkeypatch: pytest.MonkeyPatch, *free: int) -> None:
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    monkeypatch.setattr(cpu_memory, "is_cpu", lambda: True)
    monkeypatch.setattr(cpu_memory, "of_nodes", lambda: [(64 * GIB, each) for each in free])


def test_whether_the_cpu_computes_is_found_as_vllm_finds_it() -> None:
    from vllm.platforms import current_platform

    assert cpu_memory.is_cpu() == current_platform.is_cpu()


def test_a_port_that_is_taken_is_refused_with_one_that_is_free(taken: int) -> None:
    with pytest.raises(CannotListen) as refused:
        address.refuse_taken(settings_with({}, server={"port": taken}))
    rule, _, advice = str(refused.value).partition("; ")
    assert rule == (
        f"server.host, server.port: must be a free address, got 127.0.0.1 and {taken}: Address already in use"
    )
    free = int(advice.split()[0])
    assert free > taken and advice == f"{free} is free: --port {free} or --set server.port={free}"
    with socket.socket() as there:
        there.bind(("127.0.0.1", free))


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(CannotListen, match=r"got 192\.0\.2\.1 and 8000: Cannot assign requested address$"):
        address.refuse_taken(settings_with({}, server={"host": "192.0.2.1"}))


@pytest.mark.parametrize("server", [{"port": 0}, {"uds": "/run/posenc.sock"}], ids=["any-port", "socket"])
def test_without_a_port_of_its_own_nothing_is_refused(server: dict[str, Any], taken: int) -> None:
    address.refuse_taken(settings_with({}, server={"port": taken} | server))


def test_the_demo_has_room_for_its_longest_request() -> None:
    from server.deployment import shipped

    settings = load(shipped.path_of("demo"))
    room.refuse_small_cache(settings, plan_settings(settings))
