"""From a deployment to vLLM's own arguments."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import pytest

from posenc_runtime.kv.deployment import UNROTATED, Deployment
from posenc_runtime.vllm_adapter import releases
from posenc_runtime.vllm_adapter.contract.attention_choice import AttentionChoice
from posenc_runtime.vllm_adapter.settings.arguments import engine_args
from posenc_runtime.vllm_adapter.settings.arguments.engine_args import command_line, engine_arguments, serve_arguments
from posenc_runtime.vllm_adapter.settings.arguments.flags import ArgumentRefused
from posenc_runtime.vllm_adapter.settings.plan import plan_of
from tests.checkpoints import save_tiny

MIDDLEWARE = ["starlette.middleware.gzip.GZipMiddleware", "starlette.middleware.httpsredirect.HTTPSRedirectMiddleware"]
YARN = Deployment(rope_type="yarn", scales=(1.0, 2.0, 8.0), original_max_position_embeddings=256, max_model_len=2048)


def parsed(engine: dict[str, Any] | None = None, http: dict[str, Any] | None = None) -> Any:
    complete = engine_arguments(YARN, engine)
    return serve_arguments(
        model="some/model", served_model_name="served", rope_type="yarn", engine=complete, http=http or {}
    )


def test_what_scaling_needs_is_added_to_what_the_caller_gives() -> None:
    args = parsed({"max_num_seqs": 7, "enforce_eager": True, "hf_overrides": {"attention_bias": False}}, {"port": 8123})
    assert (args.model, args.served_model_name, args.max_num_seqs, args.port) == ("some/model", ["served"], 7, 8123)
    assert args.enforce_eager is True
    assert args.hf_overrides == {"attention_bias": False, "max_position_embeddings": 2048}
    assert Deployment.from_mapping(args.additional_config["posenc"]) == YARN
    assert args.kv_transfer_config.kv_connector == "PosencConnector"
    assert args.scheduler_cls.endswith("PosencScheduler") and args.async_scheduling is None


def test_a_deployment_that_pins_keeps_the_scheduler_of_stock_vllm() -> None:
    arguments = engine_arguments(dataclasses.replace(YARN, on_crossing="pin"))
    assert "scheduler_cls" not in arguments and "async_scheduling" not in arguments


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_deployment_that_turns_queries_keeps_scheduler_and_connector_of_stock(policy: str) -> None:
    rerope = Deployment(rope_type="rerope", original_max_position_embeddings=256, max_model_len=2048)
    staged = engine_arguments(rerope, {"pipeline_parallel_size": 2, "async_scheduling": True})
    assert staged["async_scheduling"] is True
    assert engine_arguments(rerope, {"scheduling_policy": policy}).keys() == {
        "scheduling_policy",
        "max_model_len",
        "hf_overrides",
        "additional_config",
        "worker_extension_cls",
    }


def test_the_plugin_takes_the_section_of_a_deployment_that_turns_queries(tmp_path: pathlib.Path) -> None:
    rerope = Deployment(
        rope_type="rerope", parameters={"leak": 8}, original_max_position_embeddings=256, max_model_len=2048
    )
    arguments = engine_arguments(rerope)
    assert plan_of(arguments | {"model": str(save_tiny(tmp_path / "model"))}).deployment == rerope
    assert Deployment.from_mapping(arguments["additional_config"]["posenc"]) == rerope


@pytest.mark.parametrize("rope_type", ["rerope", "yarn"])
def test_a_user_keeps_a_connector_to_other_engines(rope_type: str) -> None:
    rerope = Deployment(rope_type="rerope", original_max_position_embeddings=256, max_model_len=2048)
    deployment = rerope if rope_type == "rerope" else YARN
    given = {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}
    complete = engine_arguments(deployment, {"kv_transfer_config": given})
    assert complete["kv_transfer_config"] == given
    args = serve_arguments(
        model="some/model", served_model_name="served", rope_type=rope_type, engine=complete, http={}
    )
    assert (args.kv_transfer_config.kv_connector, args.kv_transfer_config.kv_role) == ("NixlConnector", "kv_producer")


def test_requests_with_priorities_are_scheduled_by_ours_also_where_they_are_pinned() -> None:
    pinned, by_priority = dataclasses.replace(YARN, on_crossing="pin"), {"scheduling_policy": "priority"}
    assert engine_arguments(pinned, by_priority)["scheduler_cls"].endswith("PosencScheduler")
    staged = engine_arguments(pinned, by_priority | {"pipeline_parallel_size": 2, "async_scheduling": True})
    assert staged["async_scheduling"] is True


def test_a_model_that_does_not_rotate_keeps_its_positions_where_fewer_are_served() -> None:
    def overridden(max_model_len: int) -> dict[str, Any]:
        learned = Deployment(
            rope_type=UNROTATED,
            original_max_position_embeddings=512,
            max_model_len=max_model_len,
            on_crossing="pin",
            allow_beyond_trained=True,
        )
        overrides: dict[str, Any] = engine_arguments(learned)["hf_overrides"]
        return overrides

    assert overridden(64) == {}
    assert overridden(1024) == {"max_position_embeddings": 1024}


def test_overrides_that_nobody_can_read_are_refused() -> None:
    with pytest.raises(ArgumentRefused, match=r"^engine\.hf_overrides: must be a mapping, got <function"):
        engine_arguments(YARN, {"hf_overrides": lambda config: config})


def test_crossings_are_scheduled_ahead_unless_caller_or_pipeline_stages_forbid_it() -> None:
    assert parsed({"async_scheduling": True}).async_scheduling is True
    assert parsed({"async_scheduling": False}).async_scheduling is False
    assert parsed({"pipeline_parallel_size": 2}).async_scheduling is False


@pytest.mark.parametrize(("given", "taken"), [("hf_abc", "hf_abc"), (True, True), (False, None)])
def test_a_flag_that_takes_a_value_or_none_is_given_either(given: str | bool, taken: str | bool | None) -> None:
    assert parsed({"hf_token": given}).hf_token == taken


def test_false_switches_a_flag_off() -> None:
    assert parsed({"enable_prefix_caching": False}).enable_prefix_caching is False


@pytest.mark.parametrize(
    "flag", ["disable_log_stats", "aggregate_engine_logging", "data_parallel_multi_port_external_lb"]
)
def test_false_leaves_a_flag_out_that_has_no_opposite(flag: str) -> None:
    assert getattr(parsed({flag: False}), flag) is False


def test_true_gives_a_flag_that_has_no_opposite() -> None:
    assert parsed({"disable_log_stats": True}).disable_log_stats is True


@pytest.mark.parametrize(
    ("engine", "rule"),
    [
        ({"max_num_seq": 7}, "engine.max_num_seq: is not an argument of vLLM, got 7; did you mean max_num_seqs?"),
        ({"max_num_seqs": "many"}, "engine.max_num_seqs: "),
        ({"dtype": "float99"}, "engine.dtype: "),
        ({"api_key": "x"}, "engine.api_key: is not an argument of vLLM, got 'x'; did you mean server.api_key?"),
        (
            {"max_model_len": 5},
            "engine.max_model_len: must be left out, got 5: posenc sets it from max_model_len at the top level",
        ),
        (
            {"scheduler_cls": "their.Scheduler"},
            "engine.scheduler_cls: must be left out, got 'their.Scheduler': posenc sets it from scaling.on_crossing",
        ),
        (
            {"async_scheduling": True, "pipeline_parallel_size": 2},
            "engine.async_scheduling: must be false where engine.pipeline_parallel_size is above 1",
        ),
        (
            {"worker_extension_cls": "mine"},
            "engine.worker_extension_cls: must be left out, got 'mine': posenc sets it from scaling",
        ),
        (
            {"hf_overrides": {"rope_theta": 5.0}},
            "engine.hf_overrides.rope_theta: must be left out, got 5.0: the section scaling",
        ),
        (
            {"additional_config": {"posenc": {}}},
            "engine.additional_config.posenc: must be left out, got {}: posenc sets it from the section scaling",
        ),
        ({"additional_config": ["x"]}, "engine.additional_config: must be a mapping, got ['x']"),
        ({"enable_prefix_caching": 0}, "engine.enable_prefix_caching: must be true or false, got 0"),
        ({"async_scheduling": "off"}, "engine.async_scheduling: must be true or false, got 'off'"),
        ({"revision": 1234}, "engine.revision: must be a string, got 1234: quote it"),
        ({"reasoning_parser": "foo"}, "engine.reasoning_parser: must be one of "),
        (
            {"structured_outputs_config": {"reasoning_parser": "foo"}},
            "engine.structured_outputs_config.reasoning_parser: must be one of ",
        ),
        ({"port": 5}, "engine.port: is not an argument of vLLM"),
        ({"api_server_count": 2}, "engine.api_server_count: must be left out, got 2: posenc serve runs one API server"),
        (
            {"data_parallel_multi_port_external_lb": True},
            "engine.data_parallel_multi_port_external_lb: must be left out, got True",
        ),
    ],
)
def test_a_bad_engine_argument_is_refused_by_its_path(engine: dict[str, Any], rule: str) -> None:
    with pytest.raises(ArgumentRefused) as caught:
        parsed(engine)
    assert str(caught.value).startswith(rule)


@pytest.mark.parametrize(
    ("key", "rule"),
    [
        (83, "must be a string, got 83: quote it"),
        (["a", 83], "must be a string, got 83: quote it"),
        (None, "must be a string that is not empty, got None: leave it out for no key"),
        ("", "must be a string that is not empty, got ''"),
        ([], r"must be a string that is not empty, got \[\]"),
        (["a", ""], r"must be a string that is not empty, got \['a', ''\]"),
        (["a", "-b"], "must have no string that begins with a dash beside others, got '-b'"),
    ],
)
def test_a_key_that_would_be_another_one_or_none_is_refused(key: object, rule: str) -> None:
    with pytest.raises(ArgumentRefused, match=rf"^server\.api_key: {rule}"):
        parsed(http={"api_key": key})


@pytest.mark.parametrize("key", ["-random_base64", "0123", "a=b"])
def test_a_key_is_the_one_that_was_given(key: str) -> None:
    assert parsed(http={"api_key": key}).api_key == [key]


def test_values_of_every_kind_reach_vllm_as_they_were_given() -> None:
    lora = {"name": "a", "path": "/b", "base_model_name": "c"}
    args = parsed(
        {
            "enable_lora": True,
            "optimization_level": 2,
            "kv_cache_dtype_skip_layers": [0, 1],
            "hf_token": True,
            "seed": -1,
        },
        {"lora_modules": [lora], "middleware": MIDDLEWARE, "allowed_origins": ["*"]},
    )
    assert int(args.optimization_level) == 2 and args.kv_cache_dtype_skip_layers == ["0", "1"]
    assert (args.hf_token, args.seed) == (True, -1)
    assert [module.base_model_name for module in args.lora_modules] == ["c"]
    assert (args.middleware, args.allowed_origins) == (MIDDLEWARE, ["*"])


def test_a_bad_front_end_argument_is_refused_by_its_path() -> None:
    with pytest.raises(ArgumentRefused, match=r"server\.apikey: is not an argument of vLLM, .*did you mean api_key\?"):
        parsed(http={"apikey": "x"})
    with pytest.raises(ArgumentRefused, match=r"server\.max_num_seq: .*did you mean engine\.max_num_seqs\?"):
        parsed(http={"max_num_seq": 3})
    with pytest.raises(ArgumentRefused, match=r"server\.uvicorn_log_level: "):
        parsed(http={"uvicorn_log_level": "loud"})
    with pytest.raises(ArgumentRefused, match=r"server\.chat_template: .*/nope\.jinja"):
        parsed(http={"chat_template": "/nope.jinja"})
    with pytest.raises(ArgumentRefused, match=r"server\.headless: must be left out, got True"):
        parsed(http={"headless": True})


def test_the_flags_for_plain_vllm_mean_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    engine = {"max_num_seqs": 7, "enforce_eager": True, "enable_prefix_caching": False}
    monkeypatch.setattr(releases, "has_command", lambda: True)
    complete = engine_arguments(YARN, engine)
    words = command_line(model="some/model", served_model_name=None, rope_type="yarn", engine=complete, http={})
    assert words[:3] == ["vllm", "serve", "some/model"]
    args = releases.cli_args().make_arg_parser(FlexibleArgumentParser()).parse_args(words[3:])
    for name, value in engine_arguments(YARN, engine).items():
        if name != "kv_transfer_config":  # parsed into an object of vLLM
            assert getattr(args, name) == value


@pytest.mark.parametrize(
    ("choice", "attention_backend"),
    [
        (AttentionChoice(needs="cope"), "CUSTOM"),
        (AttentionChoice(backend="bias"), "CUSTOM"),
        (AttentionChoice(), None),
        (AttentionChoice(backend="stock", needs="bias"), None),
    ],
)
def test_on_cuda_our_attention_is_asked_for_where_layers_need_it(
    choice: AttentionChoice, attention_backend: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_args, "_is_cuda", lambda: False)
    assert "attention_backend" not in engine_arguments(YARN, attention=choice)
    monkeypatch.setattr(engine_args, "_is_cuda", lambda: True)
    assert engine_arguments(YARN, attention=choice).get("attention_backend") == attention_backend


def test_attention_that_rotates_is_refused_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    rotating = AttentionChoice(fused_rotary="on")
    monkeypatch.setattr(engine_args, "_is_cuda", lambda: False)
    with pytest.raises(ArgumentRefused, match=r"attention\.fused_rotary: must be auto or off on this device, got 'on'"):
        engine_arguments(YARN, attention=rotating)
    monkeypatch.setattr(engine_args, "_is_cuda", lambda: True)
    assert "attention_backend" not in engine_arguments(YARN, attention=rotating)


def test_on_cuda_another_attention_is_refused_where_layers_need_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_args, "_is_cuda", lambda: True)
    engine = {"attention_backend": "FLASH_ATTN"}
    with pytest.raises(ArgumentRefused, match=r"attention_backend: must be left out, got 'FLASH_ATTN': with"):
        engine_arguments(YARN, engine, AttentionChoice(needs="bias"))
    assert engine_arguments(YARN, engine, AttentionChoice())["attention_backend"] == "FLASH_ATTN"
