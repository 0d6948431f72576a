"""What requests may ask of us, by vLLM's own classes of requests."""

from __future__ import annotations

import dataclasses
import inspect
import types
from typing import Any

import pytest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.in_server.requests import check_requests, set_default_max_tokens

BODIES: dict[type[Any], dict[str, Any]] = {
    ChatCompletionRequest: {"messages": [{"role": "user", "content": "hello"}]},
    CompletionRequest: {"prompt": "hello"},
    ResponsesRequest: {"input": "hello"},
}
YARN = Deployment(rope_type="yarn", scales=(1.0, 2.0), original_max_position_embeddings=256, max_model_len=512)

UNSCALED = Deployment(rope_type="default", original_max_position_embeddings=256, max_model_len=256)
BEAMING: tuple[Any, ...] = (ChatCompletionRequest, CompletionRequest)

each_kind = pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)


@pytest.fixture(autouse=True)
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in BODIES:
        monkeypatch.setattr(kind, "to_sampling_params", kind.to_sampling_params)
    for kind in BEAMING:
        monkeypatch.setattr(kind, "to_beam_search_params", kind.to_beam_search_params)
    check_requests(YARN)


def sampling(kind: type[Any], **body: Any) -> Any:
    return kind(**BODIES[kind], **body).to_sampling_params(32, {})


@each_kind
def test_a_known_key_reaches_the_engine_beside_those_of_others(kind: type[Any]) -> None:
    given = {"posenc_on_crossing": "recompute", "session_id": "a"}
    extra_args = sampling(kind, vllm_xargs=given, unknown=1).extra_args
    assert given.items() <= extra_args.items()


@each_kind
@pytest.mark.parametrize("key", ["posenc_on_crosing", "posenc_scale", "Posenc_on_crossing", "posenc"])
def test_a_misspelled_key_of_ours_is_refused(kind: type[Any], key: str) -> None:
    with pytest.raises(
        ValueError, match=f"posenc_on_crossing is the only key of vllm_xargs that starts with posenc, got '{key}'"
    ):
        sampling(kind, vllm_xargs={key: "pin"})


@each_kind
@pytest.mark.parametrize("key", ["posenc_on_crossing", "posenc_on_crosing"])
def test_a_key_of_ours_beside_vllm_xargs_is_refused_and_sent_there(kind: type[Any], key: str) -> None:
    with pytest.raises(ValueError, match=f'belongs in vllm_xargs, .* got \'{key}\' .*write "vllm_xargs": {{"posenc_on'):
        sampling(kind, **{key: "pin"})


@each_kind
@pytest.mark.parametrize("place", ["extra_body", "extra_args"])
def test_a_key_of_ours_in_a_wrong_place_is_refused_and_the_error_names_the_right_one(
    kind: type[Any], place: str
) -> None:
    with pytest.raises(ValueError, match=r"belongs in vllm_xargs, .* got 'posenc_on_crossing'"):
        sampling(kind, **{place: {"posenc_on_crossing": "pin"}})
    sampling(kind, **{place: {"theirs": 1}})


@each_kind
def test_what_vllm_would_stumble_over_in_vllm_xargs_is_refused(kind: type[Any]) -> None:
    with pytest.raises(ValueError, match="kv_transfer_params belongs beside vllm_xargs"):
        sampling(kind, vllm_xargs={"kv_transfer_params": "x"})


@pytest.mark.parametrize("kind", BEAMING)
@pytest.mark.parametrize("deployment", [YARN, UNSCALED], ids=["two-scales", "one-scale"])
def test_beams_may_be_pinned_alone_and_misspell_nothing(deployment: Deployment, kind: Any) -> None:
    check_requests(deployment)

    def beams(**body: Any) -> Any:
        return kind(**BODIES[kind], use_beam_search=True, max_tokens=32, **body).to_beam_search_params(32, {})

    assert beams().max_tokens == beams(vllm_xargs={"posenc_on_crossing": "pin"}).max_tokens == 32
    with pytest.raises(ValueError, match=r"posenc_on_crossing.* must be pin.*, got rerotate"):
        beams(vllm_xargs={"posenc_on_crossing": "rerotate"})
    with pytest.raises(ValueError, match="only key of vllm_xargs that starts with posenc"):
        beams(vllm_xargs={"posenc_admission_tokens": 2})
    if deployment is YARN:
        with pytest.raises(ValueError, match="cache_salt: must have '~posenc:' only at its end"):
            beams(cache_salt="a~posenc:yarn:2:b")


@pytest.mark.parametrize(("deployment", "given"), [(YARN, 256), (UNSCALED, 1000)], ids=["two-scales", "one-scale"])
def test_beams_of_a_chat_that_does_not_say_how_long_get_the_headroom(deployment: Deployment, given: int) -> None:
    check_requests(deployment)
    chat = ChatCompletionRequest(**BODIES[ChatCompletionRequest], use_beam_search=True)
    assert chat.to_beam_search_params(1000, {}).max_tokens == given


@pytest.mark.parametrize(("headroom_tokens", "given"), [(64, 64), (2000, 512)], ids=["headroom", "all-that-fits"])
def test_without_max_tokens_an_answer_gets_the_headroom_or_all_that_it_may_have(
    headroom_tokens: int, given: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    field = CompletionRequest.model_fields["max_tokens"]
    monkeypatch.setattr(field, "default", field.default)
    chat = types.SimpleNamespace(default_sampling_params={"temperature": 0.5})
    state = types.SimpleNamespace(openai_serving_chat=chat)
    set_default_max_tokens(state, dataclasses.replace(YARN, headroom_tokens=headroom_tokens))
    assert field.default == given
    assert chat.default_sampling_params == {"temperature": 0.5, "max_tokens": given}


@pytest.mark.parametrize("kind", [ChatCompletionRequest, ResponsesRequest])
@pytest.mark.parametrize(("deployment", "given"), [(YARN, 256), (UNSCALED, 1000)], ids=["two-scales", "one-scale"])
def test_a_request_that_asks_to_be_pinned_gets_the_headroom_as_max_tokens(
    deployment: Deployment, given: int, kind: Any
) -> None:
    check_requests(deployment)
    request = kind(**BODIES[kind], vllm_xargs={"posenc_on_crossing": "pin"})
    length, defaults = list(inspect.signature(kind.to_sampling_params).parameters)[1:]
    assert request.to_sampling_params(1000, {}).max_tokens == given
    assert request.to_sampling_params(**{length: 1000, defaults: {}}).max_tokens == given
    said = {ChatCompletionRequest: "max_completion_tokens", ResponsesRequest: "max_output_tokens"}[kind]
    request = kind(**BODIES[kind], vllm_xargs={"posenc_on_crossing": "pin"}, **{said: 300})
    assert request.to_sampling_params(300, {}).max_tokens == 300


@pytest.mark.parametrize(
    ("body", "is_alone"),
    [
        ({"echo": True, "max_tokens": 0}, True),
        ({"echo": True, "max_tokens": 1}, False),
        ({"max_tokens": 1}, False),
    ],
)
def test_a_request_for_its_prompt_alone_says_so_to_the_engine(body: dict[str, Any], is_alone: bool) -> None:
    params = sampling(CompletionRequest, **body)
    assert bool((params.extra_args or {}).get("posenc_prompt_alone")) is is_alone


def test_a_client_cannot_say_that_it_asks_for_its_prompt_alone() -> None:
    with pytest.raises(ValueError, match="only key of vllm_xargs that starts with posenc, got 'posenc_prompt_alone'"):
        sampling(CompletionRequest, vllm_xargs={"posenc_prompt_alone": True})
