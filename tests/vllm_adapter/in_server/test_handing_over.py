"""The scale of a prefilled prompt is signed where it leaves a server, and checked where it reaches another one."""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from vllm import CompletionOutput, RequestOutput, SamplingParams
from vllm.config import KVTransferConfig

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.contract.names import ADMISSION_TOKENS, CONNECTOR, ON_CROSSING, PREFILLED_SCALE
from posenc_runtime.vllm_adapter.in_server.handing_over import hand_over, handing_over
from posenc_runtime.vllm_adapter.settings.section import SettingRefused
from posenc_runtime.vllm_adapter.settings.transfer_key import VARIABLE, transfer_key
from tests.vllm_adapter.in_server.test_one_scale import YARN

REROPE = Deployment(rope_type="rerope", original_max_position_embeddings=256, max_model_len=4096)
KEY = b"0123456789abcdef0123456789abcdef"
TO_PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}


class Engine:
    """Answers with one token, and what a connector says; notes what it is told."""

    def __init__(self, said: Mapping[str, Any] | None = None) -> None:
        self.said, self.told, self._wrapped = said, [SamplingParams()], None
        tiers = {"connectors": [{"kv_connector": "NixlConnector"}]}
        transfer = KVTransferConfig(kv_connector=CONNECTOR, kv_role="kv_both", kv_connector_extra_config=tiers)
        self.vllm_config = types.SimpleNamespace(kv_transfer_config=transfer)

    async def generate(self, prompt: Any, params: Any, request_id: str, **_: Any) -> AsyncIterator[RequestOutput]:
        self.told.append(params)
        for finished in (False, True):
            answer = CompletionOutput(0, "", [1], None, None)
            output = RequestOutput(request_id, None, prompt["prompt_token_ids"], None, [answer], finished=finished)
            output.kv_transfer_params = dict(self.said) if finished and self.said else None
            yield output

    def handing_over(self, key: bytes) -> Any:
        if self._wrapped is None:
            self._wrapped = handing_over(self.generate, YARN, key, 30)
        return self._wrapped

    @property
    def extra_args(self) -> dict[str, Any]:
        return self.told[-1].extra_args or {}


def ask(
    engine: Engine,
    params: Mapping[str, Any] | None,
    *,
    key: bytes = KEY,
    num_tokens: int = 100,
    adapter: str | None = None,
    pictures: Mapping[str, list[str]] | None = None,
    more: Mapping[str, Any] | None = None,
    max_tokens: int | None = None,
    n: int = 1,
    **extra: Any,
) -> dict[str, Any] | None:
    """What a server with this engine answers at ``kv_transfer_params``."""
    prompt = {"prompt_token_ids": list(range(num_tokens)), "mm_hashes": pictures or {}} | (more or {})
    gives = isinstance(params, Mapping) and params.get("do_remote_decode")
    max_tokens = max_tokens or (1 if gives else 40)
    told = SamplingParams(max_tokens=max_tokens, n=n, extra_args={"kv_transfer_params": params, **extra})
    lora = None if adapter is None else types.SimpleNamespace(lora_name=adapter)

    async def answered() -> Any:
        generate = engine.handing_over(key)
        return [output async for output in generate(prompt, told, "request", lora_request=lora)][-1].kv_transfer_params

    found: dict[str, Any] | None = asyncio.run(answered())
    assert told.extra_args == {"kv_transfer_params": params, **extra}  # a caller's own are not changed
    return found


def prefilled(**asked: Any) -> dict[str, Any]:
    """What a server that has prefilled a prompt at scale 2 answers."""
    place = {"remote_engine_id": "other", "remote_request_id": "r", "remote_block_ids": ([3, 4, 5, 6],)}
    place |= {"remote_host": "other", "remote_port": 5601, "tp_size": 1}
    said = {"do_remote_prefill": True, "posenc": {"scale": 2.0, "crossings": []}, **place}
    answered = ask(Engine(said), TO_PREFILL, **asked)
    assert answered is not None and answered["posenc"]["crossings"] == []
    return answered


def test_the_engine_is_told_the_scale_that_another_server_has_signed() -> None:
    engine = Engine()
    ask(engine, prefilled())
    assert engine.extra_args[PREFILLED_SCALE] == 2.0


@pytest.mark.parametrize(
    "decoded",
    [
        {"key": KEY[::-1]},
        {"num_tokens": 101},
        {"adapter": "tuned"},
        {"pictures": {"image": ["a"]}},
    ],
    ids=lambda value: next(iter(value)),
)
def test_keys_of_another_request_do_not_reach_the_engine(decoded: dict[str, Any]) -> None:
    engine = Engine()
    with pytest.raises(ValueError, match="signature must be that of this prompt"):
        ask(engine, prefilled(), **decoded)
    assert len(engine.told) == 1


@pytest.mark.parametrize("alike", [{"adapter": "tuned"}, {"pictures": {"image": ["a"], "audio": ["b"]}}], ids=str)
def test_adapters_and_pictures_go_with_the_prompt(alike: dict[str, Any]) -> None:
    engine = Engine()
    ask(engine, prefilled(**alike), **alike)
    assert engine.extra_args[PREFILLED_SCALE] == 2.0


def test_a_request_that_cannot_begin_at_that_scale_is_refused_before_the_engine() -> None:
    engine = Engine()
    with pytest.raises(ValueError, match="on_crossing must not be pin"):
        ask(engine, prefilled(), **{ON_CROSSING: "pin"})
    assert len(engine.told) == 1


@pytest.mark.parametrize(
    ("asked", "rule"),
    [
        (
            {"params": {**TO_PREFILL, "do_remote_prefill": True}},
            "must have one of do_remote_prefill and do_remote_decode",
        ),
        ({"params": TO_PREFILL, "max_tokens": 2}, "^max_tokens must be 1 where .*, got 2"),
        ({"params": TO_PREFILL, "n": 2}, "made of several requests, such as n above 1"),
        ({"params": TO_PREFILL, "more": {"prompt_embeds": object()}}, "must be left out for prompts of embeddings"),
        ({"params": ["a"]}, "^kv_transfer_params must be an object, got list"),
        ({"params": None, PREFILLED_SCALE: 2.0}, f"^extra_args.{PREFILLED_SCALE} must be left out"),
    ],
    ids=["both ways", "an answer", "several answers", "embeddings", "a list", "a scale of its own"],
)
def test_what_would_pair_keys_with_another_prompt_is_refused(asked: dict[str, Any], rule: str) -> None:
    engine = Engine()
    with pytest.raises(ValueError, match=rule):
        ask(engine, asked.pop("params"), **asked)
    assert len(engine.told) == 1


def test_keys_are_taken_once() -> None:
    """The other server may give the blocks to another request once they have been fetched."""
    engine, params = Engine(), prefilled()
    ask(engine, params)
    with pytest.raises(ValueError, match="must be used once, but this server has taken these keys before"):
        ask(engine, params)
    assert len(engine.told) == 2


def test_beams_take_no_keys_of_another_server() -> None:
    with pytest.raises(ValueError, match="must be left out where an answer is made of several requests"):
        ask(Engine(), prefilled(), **{ADMISSION_TOKENS: 200})


def test_requests_that_are_not_handed_over_pass_unchanged() -> None:
    engine = Engine({"posenc": {"scale": 1.0}})
    assert ask(engine, None) == {"posenc": {"scale": 1.0}}
    assert ask(engine, {"do_remote_decode": True}) == {"posenc": {"scale": 1.0}}  # nothing was handed over
    assert PREFILLED_SCALE not in engine.extra_args


def test_only_an_engine_that_hands_scaled_keys_over_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    alone = Engine()
    alone.vllm_config.kv_transfer_config = KVTransferConfig(kv_connector=CONNECTOR, kv_role="kv_both")
    for engine, deployment in ((alone, YARN), (Engine(), REROPE)):
        hand_over(engine, deployment)
        assert "generate" not in vars(engine)
    with pytest.raises(SettingRefused, match=f"^{VARIABLE} must have at least 32 characters"):
        hand_over(Engine(), YARN)
    monkeypatch.setenv(VARIABLE, KEY.decode())
    engine = Engine()
    hand_over(engine, YARN)
    assert "generate" in vars(engine)
    # vLLM would tell the engine what a refused request brought.
    assert asyncio.run(engine.notify_kv_transfer_request_rejected("request", {"do_remote_prefill": True})) is None  # type: ignore[attr-defined]


@pytest.mark.parametrize(("said", "got"), [(None, "none"), ("  ", "none"), ("short", "5"), ("x" * 31, "31")])
def test_a_short_key_is_refused_and_not_shown(said: str | None, got: str) -> None:
    environment = {} if said is None else {VARIABLE: said}
    with pytest.raises(SettingRefused, match=rf"got {got}: .* `openssl rand -hex 32` prints") as refused:
        transfer_key(environment)
    assert said is None or not said.strip() or said not in str(refused.value)
    assert transfer_key({VARIABLE: f" {KEY.decode()}\n"}) == KEY
