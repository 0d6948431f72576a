"""Flags of ``vllm serve`` are settings; vLLM's own parser is the oracle."""

from __future__ import annotations

import shlex

import pytest

from posenc_runtime.vllm_adapter.settings.arguments.flags import ArgumentRefused
from posenc_runtime.vllm_adapter.settings.arguments.parser import parser
from server.deployment.load import load_model
from server.deployment.settings import Settings
from server.deployment.vllm_flags import FlagRefused, split
from server.start_up.planning import serve_namespace

OURS = {"--set": True, "--port": True, "--verbose": False, "--help": False}
YARN = {"scaling": {"rope_type": "yarn", "original_max_position_embeddings": 256, "scales": [1, 2]}}
# What a deployment adds to vLLM's arguments, whatever the flags are.
ADDED = {"additional_config", "worker_extension_cls", "shutdown_timeout", "uvicorn_log_level", "host", "port"}


def settings_by(line: str) -> Settings:
    rest, overrides = split(shlex.split(line), OURS)
    assert rest == []
    return load_model("some/model", YARN, overrides, {})


@pytest.mark.parametrize(
    "line",
    [
        "--max-num-seqs 4 --enable-auto-tool-choice --tool-call-parser hermes",
        "--max_num_seqs=4 --no-enable-prefix-caching --enforce-eager",
        "--max-model-len 300 --max-num-batched-tokens 1K",
        "--max-model-len 1k --kv-cache-memory-bytes 1.5g",
        "--served-model-name 123 --dtype float32",
        "-tp 2 -q fp8 -O2 --load-format dummy",
        "-O 3 --generation-config vllm",
        """--override-generation-config '{"temperature": 0.5}' --seed 7""",
        "--override-generation-config.temperature 0.5 --override-generation-config.top_k=3",
        "--compilation-config.custom_ops+ none --compilation-config.custom_ops+ +rms_norm",
        "--api-key one two --allow-credentials",
        "--middleware starlette.middleware.gzip.GZipMiddleware --middleware "
        "starlette.middleware.httpsredirect.HTTPSRedirectMiddleware --root-path /v",
        "--reasoning-parser qwen3 --structured-outputs-config.backend xgrammar",
        "--hf-token --revision 1e3",
        "--gpu-memory-utilization .5 --swa-bounded-replay",
        "--chat-template '{{ messages }}' --tokens-only",
    ],
)
def test_a_flag_does_what_it_does_in_vllm(line: str) -> None:
    vllms, _ = parser()
    expected = vars(vllms.parse_args(["--model", "some/model", *shlex.split(line)]))
    found = vars(serve_namespace(settings_by(line)))
    plain = vars(parser()[0].parse_args(["--model", "some/model"]))
    differs = {name for name in expected if found[name] != expected[name]} - ADDED
    assert not differs, {name: (found[name], expected[name]) for name in differs}
    assert expected != plain, "the line changes nothing"


def test_the_longest_length_that_fits_is_asked_for_as_vllm_spells_it() -> None:
    assert settings_by("--max-model-len auto").max_model_len is None
    assert settings_by("--max-model-len -1").max_model_len is None


def test_every_flag_of_vllm_is_found_by_each_of_its_spellings() -> None:
    parser_actions = parser()[1]
    for actions in parser_actions.values():
        for name, action in actions.items():
            for option in set(action.option_strings) - OURS.keys():
                _, overrides = split([option] if action.nargs == 0 else [option, "1"], OURS)
                (override,) = overrides
                of_both = {f"{each}.{name}" for each in parser_actions if name in parser_actions[each]}
                paths = {name} if name in ("max_model_len", "served_model_name") else of_both
                assert override.partition("=")[0] in paths, option


def test_options_of_ours_win_and_other_words_stay() -> None:
    words = ["demo", "--max-num-seqs", "4", "--set", "--enforce-eager", "--port=1", "--verbose", "--", "--seed"]
    rest, overrides = split(words, OURS)
    assert rest == ["demo", "--set", "--enforce-eager", "--port=1", "--verbose", "--", "--seed"]
    assert overrides == ["engine.max_num_seqs=4"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "--max-model-length 4",
            "--max-model-length: is neither an option of posenc nor a flag of vLLM; did you mean ",
        ),
        ("--verbos", "--verbos: is neither an option of posenc nor a flag of vLLM; did you mean --verbose?"),
        ("--max-num-seqs", "--max-num-seqs: needs a value"),
        ("--max-num-seqs --enforce-eager", "--max-num-seqs: needs a value"),
        ("--api-key --enforce-eager", "--api-key: needs a value"),
        ("--enforce-eager=yes", "--enforce-eager: takes no value, got 'yes'"),
        ("--served-model-name a b", "--served-model-name: posenc serves a model under one name, got a, b"),
        ("--max-num-seqs [", "--max-num-seqs: must be a YAML value, got '['"),
        ("--seed 1 --seed.x 2", "--seed.x: seed has the value 1 already, which has no keys"),
    ],
)
def test_what_is_no_flag_is_refused_with_what_was_meant(line: str, said: str) -> None:
    with pytest.raises(FlagRefused) as refused:
        split(shlex.split(line), OURS)
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "--worker-extension-cls mine",
            "engine.worker_extension_cls: must be left out, got 'mine': posenc sets it from scaling",
        ),
        ("--api-server-count 2", "server.api_server_count: must be left out, got 2: posenc serve runs one API server"),
        ("--headless", "server.headless: must be left out, got True: posenc serve runs one API server"),
        ("--max-num-seqs x", "engine.max_num_seqs: invalid int value: 'x'"),
    ],
)
def test_a_flag_that_posenc_sets_is_refused_with_the_reason(line: str, said: str) -> None:
    with pytest.raises(ArgumentRefused) as refused:
        serve_namespace(settings_by(line))
    assert str(refused.value).startswith(said)
