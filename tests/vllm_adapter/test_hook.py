"""Whoever has not asked for us is left alone; whoever has gets all that follows."""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import NixlConnector as StockNixlConnector
from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
from vllm.usage.usage_lib import UsageContext

from posenc_runtime import vllm_adapter
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter import keyed_connectors
from posenc_runtime.vllm_adapter.checkpoint.checkpoint import read_again
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.contract.names import KEYED_CONNECTORS, WORKER_EXTENSION
from posenc_runtime.vllm_adapter.engine_configuration import in_vllms_words
from posenc_runtime.vllm_adapter.in_server.stopping import DEFAULT_SECONDS
from posenc_runtime.vllm_adapter.refusals import shared_caches
from posenc_runtime.vllm_adapter.releases import IncompatibleVllm
from posenc_runtime.vllm_adapter.settings.section import SettingRefused
from tests import families
from tests.checkpoints import save_tiny
from tests.engine import device

YARN = {"rope_type": "yarn", "scales": [1, 2, 4]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("tiny")))


def configured(model: str, section: Any = YARN, **arguments: Any) -> Any:
    vllm_adapter.register()
    additional = {"posenc": section} | arguments.pop("additional_config", {})
    engine_args = EngineArgs(model=model, dtype="float32", block_size=32, additional_config=additional, **arguments)
    return engine_args.create_engine_config()


def test_scheduler_connector_and_lengths_follow_from_the_section(model: str) -> None:
    config = configured(model, max_num_seqs=7)
    assert config.scheduler_config.scheduler_cls.endswith("PosencScheduler")
    assert config.kv_transfer_config.kv_connector == "PosencConnector"
    assert config.model_config.max_model_len == 1024
    assert config.parallel_config.worker_extension_cls.endswith("PosencWorkerExtension")
    assert config.scheduler_config.max_num_seqs == 7
    deployment = Deployment.from_mapping(config.additional_config["posenc"])
    assert (deployment.original_max_position_embeddings, deployment.max_model_len) == (256, 1024)


def test_arguments_stay_as_they_were_given_and_can_be_used_again(model: str) -> None:
    vllm_adapter.register()
    engine_args = EngineArgs(model=model, dtype="float32", block_size=32, additional_config={"posenc": YARN})
    for _ in range(2):
        assert engine_args.create_engine_config().model_config.max_model_len == 1024
    assert engine_args.additional_config == {"posenc": YARN} and engine_args.max_model_len is None


def test_the_arguments_of_a_served_length_and_of_a_batch_win(model: str) -> None:
    config = configured(model, max_model_len=600, additional_config={"mine": 1})
    assert config.model_config.max_model_len == 600
    assert config.additional_config["posenc"]["max_model_len"] == 600 and config.additional_config["mine"] == 1


def test_a_complete_deployment_is_a_section_too(model: str) -> None:
    whole = configured(model).additional_config["posenc"]
    assert configured(model, whole).additional_config["posenc"] == whole


def test_a_method_s_parameters_stand_beside_the_scales(model: str) -> None:
    config = configured(model, YARN | {"beta_fast": 16.0})
    assert config.additional_config["posenc"]["parameters"] == {"beta_fast": 16.0}


def test_auto_takes_the_method_from_the_checkpoint_and_the_length_from_the_memory(model: str) -> None:
    config = configured(model, {"rope_type": "auto"})
    section = config.additional_config["posenc"]
    assert (section["rope_type"], section["scales"], section["max_model_len"]) == ("yarn", [1, 2, 4], 1024)
    assert config.model_config.original_max_model_len == -1


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(families.make("llava", tmp_path_factory.mktemp("seeing") / "model"))


@pytest.mark.parametrize("longest", [None, 300])
def test_the_text_of_a_multimodal_model_is_told_the_served_length(seeing: str, longest: int | None) -> None:
    named = {} if longest is None else {"max_model_len": longest}
    model_config = configured(seeing, {"rope_type": "auto"}, **named).model_config
    assert model_config.max_model_len == model_config.hf_text_config.max_position_embeddings == (longest or 512)
    assert read_again(model_config).max_position_embeddings == 128


def test_the_text_of_a_multimodal_model_is_told_no_other_length(seeing: str) -> None:
    overrides = {"text_config": {"max_position_embeddings": 400}}
    with pytest.raises(
        SettingRefused, match=r"^hf_overrides: must leave out max_position_embeddings of the text, got 4"
    ):
        configured(seeing, {"rope_type": "auto"}, hf_overrides=overrides)


def test_the_async_arguments_of_a_server_are_looked_at_as_well(model: str) -> None:
    vllm_adapter.register()
    arguments = AsyncEngineArgs(model=model, dtype="float32", block_size=32, additional_config={"posenc": YARN})
    assert arguments.create_engine_config().model_config.max_model_len == 1024


@pytest.mark.parametrize(
    ("section", "arguments", "rule"),
    [
        (
            {"rope_tpye": "yarn"},
            {},
            r"^additional_config\.posenc\.rope_tpye: is not a known .*mean rope_type\?$",
        ),
        ({"rope_type": "yarm"}, {}, r"^additional_config\.posenc\.rope_type must be one of auto, base, clipped, "),
        ([], {}, r"^additional_config\.posenc: must be a mapping of settings, got \[\]$"),
        (YARN | {"max_model_len": "long"}, {}, r"^additional_config\.posenc\.max_model_len: must be a whole number"),
        (YARN, {"max_model_len": 2000}, r"scales must cover max_model_len 2000"),
        (YARN, {"worker_extension_cls": "their.Extension"}, "^worker_extension_cls must be left out where"),
        (
            YARN,
            {"hf_overrides": {"rope_theta": 5.0}},
            r"^hf_overrides\.rope_theta: must be left out, got 5\.0: the section scaling",
        ),
        (
            YARN,
            {"additional_config": {"posenc_attention": {"backend": "x"}}},
            r"^additional_config\.posenc_attention\.",
        ),
    ],
)
def test_a_section_that_cannot_be_right_is_refused_in_the_names_of_vllms_arguments(
    section: Any, arguments: dict[str, Any], rule: str, model: str
) -> None:
    with pytest.raises(SettingRefused, match=rule):
        configured(model, section, **arguments)


def test_a_scheduler_that_cannot_cross_is_refused(model: str) -> None:
    with pytest.raises(Unsupported, match="scheduler_cls must be"):
        configured(model, scheduler_cls="vllm.v1.core.sched.scheduler.Scheduler")


@pytest.mark.parametrize("name", ["LMCacheMPConnector", "NixlConnector"])
@pytest.mark.parametrize("kind", [dict, lambda said: KVTransferConfig(**said)], ids=["mapping", "of vLLM"])
def test_where_queries_turn_a_connector_to_other_engines_is_keyed(
    name: str, kind: Any, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_caches, "_PACKAGES", {})
    # LMCache's connector needs its package; vLLM looks at the class alone.
    monkeypatch.setitem(KVConnectorFactory._registry, "LMCacheMPConnector", lambda: StockNixlConnector)
    keyed_connectors._lmcache.cache_clear()
    said = kind({"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": {"a": 1}})
    transfer = configured(model, {"rope_type": "rerope"}, kv_transfer_config=said).kv_transfer_config
    assert (transfer.kv_connector, transfer.kv_connector_module_path) == (name, KEYED_CONNECTORS)
    assert transfer.kv_role == "kv_both" and transfer.kv_connector_extra_config == {"a": 1}
    assert getattr(said, "kv_connector_module_path", None) is None
    keyed_connectors._lmcache.cache_clear()


def test_with_scales_offloading_to_memory_is_a_tier_beside_our_connector(model: str) -> None:
    vllm_config = configured(model, kv_offloading_size=1)
    transfer = vllm_config.kv_transfer_config
    assert (transfer.kv_connector, transfer.kv_role) == ("PosencConnector", "kv_both")
    assert transfer.kv_connector_module_path == "posenc_runtime.vllm_adapter.connector_with_tiers"
    [tier] = transfer.kv_connector_extra_config["connectors"]
    assert (tier["kv_connector"], tier["kv_connector_extra_config"]) == (
        "OffloadingConnector",
        {"cpu_bytes_to_use": 2**30},
    )


def test_with_scales_a_server_that_hands_keys_over_needs_the_key_for_signatures(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_caches, "_PACKAGES", {})  # whether it is installed or not
    said = {"kv_connector": "NixlConnector", "kv_role": "kv_consumer"}
    section = YARN | {"on_crossing": "rerotate", "rerotate_budget_tokens": 64}
    vllm_adapter.register()
    engine_args = EngineArgs(model=model, additional_config={"posenc": section}, kv_transfer_config=said)
    monkeypatch.delenv("POSENC_TRANSFER_KEY", raising=False)
    with pytest.raises(SettingRefused, match=r"^POSENC_TRANSFER_KEY must have at least 32 characters"):
        engine_args.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    monkeypatch.setenv("POSENC_TRANSFER_KEY", "0123456789abcdef" * 2)
    vllm_config = engine_args.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    [tier] = vllm_config.kv_transfer_config.kv_connector_extra_config["connectors"]
    assert (tier["kv_connector"], tier["kv_role"]) == ("NixlConnector", "kv_consumer")


def test_where_queries_turn_offloading_to_memory_stays_vllms(model: str) -> None:
    transfer = configured(model, {"rope_type": "rerope"}, kv_offloading_size=1).kv_transfer_config
    assert (transfer.kv_connector, transfer.kv_connector_module_path) == ("OffloadingConnector", None)


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"kv_offloading_size": 4, "kv_offloading_backend": "lmcache"}, "^kv_offloading_backend must be native where"),
        (
            {"kv_transfer_config": {"kv_connector": "Nope", "kv_role": "kv_both"}},
            r"needs kv_transfer_config\.kv_connector to be PosencConnector, got Nope",
        ),
        (
            {"kv_transfer_config": {"kv_connector": "PosencConnector"}},
            r"kv_role must be kv_both where its kv_connector is .*, got None",
        ),
        (
            {"speculative_config": {"method": "suffix", "num_speculative_tokens": 2}},
            r"speculative_config\.method must be one of ngram, .*, got suffix: its package arctic-inference",
        ),
        ({"decode_context_parallel_size": 2}, "does not serve decode_context_parallel_size above 1"),
        ({"prefill_context_parallel_size": 2}, "does not serve prefill_context_parallel_size above 1"),
        ({"ubatch_size": 2}, "does not serve enable_dbo, or ubatch_size above 1"),
        ({"enable_elastic_ep": True}, "does not serve enable_elastic_ep"),
    ],
    ids=lambda each: "-".join(each) if isinstance(each, dict) else "",
)
def test_what_vllm_would_refuse_for_another_reason_is_refused_for_ours(
    arguments: dict[str, Any], rule: str, model: str
) -> None:
    with pytest.raises(Unsupported, match=rule):
        configured(model, **arguments)


def test_attention_alone_is_refused_with_what_is_missing(model: str) -> None:
    vllm_adapter.register()
    arguments = EngineArgs(model=model, additional_config={"posenc_attention": {}})
    with pytest.raises(SettingRefused, match=r"must be given with additional_config\.posenc"):
        arguments.create_engine_config()


def test_a_section_on_a_version_that_we_do_not_know_is_refused(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> None:
        raise IncompatibleVllm("posenc needs another vLLM")

    from posenc_runtime.vllm_adapter import engine_configuration

    monkeypatch.setattr(engine_configuration, "activate", unknown)
    with pytest.raises(IncompatibleVllm, match="needs another vLLM"):
        configured(model)


def test_words_of_a_file_become_names_of_arguments() -> None:
    said = "engine.hf_overrides: see scaling.on_crossing and attention.backend"
    assert in_vllms_words(said) == (
        "hf_overrides: see additional_config.posenc.on_crossing and additional_config.posenc_attention.backend"
    )


def test_keys_that_cannot_be_read_are_refused_before_the_engine_starts(model: str) -> None:
    access = {"posenc_access": {"keys_file": "/nowhere/keys"}}
    with pytest.raises(SettingRefused, match=r"additional_config\.posenc_access\.keys_file: /nowhere/keys: must be"):
        configured(model, additional_config=access)


def test_access_is_not_promised_under_a_front_end_that_does_not_check_it(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "1")
    configured(model)
    with pytest.raises(SettingRefused, match="Rust checks neither keys nor routes"):
        configured(model, additional_config={"posenc_access": {"metrics": "off"}})
    monkeypatch.setenv("POSENC_API_KEYS", "alice: secret")
    with pytest.raises(SettingRefused, match="and POSENC_API_KEYS unset, where VLLM_USE_RUST_FRONTEND is set"):
        configured(model)


@pytest.mark.slow
def test_without_a_section_nothing_of_ours_is_imported_registered_or_said(model: str) -> None:
    """In a process of its own: this one has registered everything."""
    script = f"""
        import json, sys
        from vllm.engine.arg_utils import EngineArgs
        from vllm.model_executor.custom_op import op_registry_oot
        import vllm.plugins
        offered = vllm.plugins.load_endpoint_plugins
        EngineArgs(model={model!r}, dtype="float32").create_engine_config()
        ours = sorted(name for name in sys.modules if name.startswith(("posenc_runtime.", "server")))
        print(json.dumps([ours, sorted(op_registry_oot), vllm.plugins.load_endpoint_plugins is offered]))
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True, timeout=200
    )
    assert json.loads(ran.stdout.splitlines()[-1]) == [
        [f"posenc_runtime.vllm_adapter{name}" for name in ("", ".contract", ".contract.names", ".hook")], [], True
    ]  # fmt: skip
    assert "posenc" not in ran.stderr.lower()


def test_a_vllm_of_another_make_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm.engine.arg_utils", None)  # as if there were no such module
    vllm_adapter.register()


def test_no_entry_point_of_ours_is_in_the_group_that_vllm_warns_of() -> None:
    project = (pathlib.Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert '"vllm.endpoint_plugins"' not in project and '"posenc.endpoint_plugins"' in project


def served(model: str, rank: int = 0, **arguments: Any) -> Any:
    """The configuration of an API server's engine; the process that starts several of them has the rank -1."""
    vllm_adapter.register()
    given = {"model": model, "dtype": "float32", "block_size": 32, "additional_config": {"posenc": YARN}}
    engine_args = AsyncEngineArgs(**given | arguments)
    engine_args._api_process_count, engine_args._api_process_rank = 2, rank
    return engine_args.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)


def test_a_server_waits_for_its_requests_by_default_and_another_engine_does_not(model: str) -> None:
    assert served(model).shutdown_timeout == DEFAULT_SECONDS
    assert served(model, shutdown_timeout=7).shutdown_timeout == 7
    assert configured(model).shutdown_timeout == 0


def test_a_completed_command_that_asks_not_to_wait_is_obeyed(model: str) -> None:
    extension = {"worker_extension_cls": WORKER_EXTENSION}
    assert served(model, shutdown_timeout=0, **extension).shutdown_timeout == 0


@pytest.fixture
def handlers() -> Iterator[Callable[[], list[Any]]]:
    """What gives the handlers of the signals that stop a server; they are put back afterwards."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield lambda: [signal.getsignal(number) for number in numbers]
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def test_the_process_that_starts_several_servers_waits_longer_than_they_do(
    model: str, handlers: Callable[[], list[Any]]
) -> None:
    assert served(model, rank=-1).shutdown_timeout == served(model, rank=1).shutdown_timeout + 10


def test_the_process_that_starts_several_servers_heeds_a_second_signal(
    model: str, handlers: Callable[[], list[Any]]
) -> None:
    before = handlers()
    served(model, rank=1)
    assert handlers() == before
    served(model, rank=-1)
    assert not set(handlers()) & set(before)


def test_damaged_weights_are_refused_before_a_server_s_engine_starts(tmp_path: pathlib.Path) -> None:
    damaged = save_tiny(tmp_path / "model")
    (damaged / "model.safetensors").write_bytes(b"")
    with pytest.raises(SettingRefused, match=r"^model: .*model\.safetensors has no header of safetensors, and 0 bytes"):
        served(str(damaged))


@pytest.mark.skipif(device.ON_CUDA, reason="on the CPU only: attention on GPUs has kernels for other heads")
def test_heads_that_the_cpus_attention_has_no_kernel_for_are_refused(tmp_path: pathlib.Path) -> None:
    small = save_tiny(tmp_path / "model", head_dim=16)
    rule = (
        r"^the heads of the model must have one of the sizes .* got 16 with dtype float32 .*: there are 32, 48, 64, 80,"
    )
    with pytest.raises(Unsupported, match=rule):
        configured(str(small))
