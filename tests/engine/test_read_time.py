"""Queries past the trained length turn when they read far keys: what an engine answers then, and what stays stock's."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import statistics
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests import families
from tests.checkpoints import TRAINED, save_tiny
from tests.engine.beside_stock import assert_same_to_the_bit
from tests.engine.conftest import PromptMaker
from tests.engine.device import on_the_cpu
from tests.engine.drafters import speculative_config
from tests.engine.families_oracle import Rotations
from tests.engine.read_time_oracle import Method, ReadTimeOracle
from tests.engine.run_engine import Answer, EngineFailed, counted, run_engine
from tests.families import family, saving
from tests.references import read_time
from tests.tolerance import LOGPROB_FLOAT32, LOGPROB_RMS_STATES_BFLOAT16

pytestmark = on_the_cpu("its pages are of 32 tokens; a GPU takes those of 64, in tests/gpu/test_read_time.py")

ENGINE = {
    "dtype": "float32",
    "enforce_eager": True,
    "block_size": 32,
    "max_num_batched_tokens": 128,
    "max_num_seqs": 8,
    "kv_cache_memory_bytes": 2**28,
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A method as a deployment writes it, and by its distances, for a checkpoint trained on so many tokens."""

    section: dict[str, Any]
    distance: Any
    factor: Any
    page: int

    def method(self) -> Method:
        return Method(self.distance, self.factor, self.page)


def rerope(trained: int, window: int, page: int, leak: int | None = None, *, is_written: bool = True) -> Case:
    written: dict[str, Any] = {"window": window, "page": page} if is_written else {}
    if leak is not None:
        written["leak"] = float(leak)
    return Case(
        {"rope_type": "rerope", **written},
        read_time.rerope_distance(trained, window, page, None if leak is None else Fraction(leak)),
        read_time.logn_factor(trained, trained),
        page,
    )


METHODS = {
    "rerope with the defaults": rerope(TRAINED, 128, 32, is_written=False),
    "leaky rerope": rerope(TRAINED, 128, 64, 4),
    "leaky rerope, the oldest pages bounded": rerope(TRAINED, 128, 64, 2),
    "dual chunk": Case(
        {"rope_type": "dual_chunk", "chunk_size": 160, "local_size": 32},
        read_time.dual_chunk_distance(TRAINED, 160, 32),
        read_time.yarn_factor(TRAINED, TRAINED),
        128,
    ),
}


def plain(head_dim: int, theta: float, num_layers: int) -> Mapping[int, Tensor]:
    inv_freq = theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    return dict.fromkeys(range(num_layers), inv_freq)


def posenc(section: Mapping[str, Any]) -> dict[str, Any]:
    return ENGINE | {"additional_config": {"posenc": dict(section)}}


def assert_as(oracle: ReadTimeOracle, batch: list[tuple[list[int], int]], answers: list[Answer]) -> None:
    for (prompt, _), answer in zip(batch, answers, strict=True):
        greedy, logprobs = oracle.score(prompt, answer.token_ids)
        assert answer.token_ids == greedy
        assert max(abs(ours - theirs) for ours, theirs in zip(answer.logprobs, logprobs, strict=True)) < LOGPROB_FLOAT32


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.promise("read_time") if "defaults" in name else ()) for name in METHODS],
)
def test_a_mixed_batch_answers_as_the_oracle_at_each_methods_distances(
    name: str, tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    """Short and long ones, prefills in chunks across the trained length, and an answer that grows past it."""
    method = METHODS[name]
    oracle = ReadTimeOracle(
        AutoModelForCausalLM.from_pretrained(tiny, attn_implementation="eager"), method.method(), plain(32, 1e4, 2)
    )
    batch = [(prompts(length), 24) for length in (5, 100, 245, 300, 700, 1000)]
    shared = prompts(500)  # whose blocks later requests find in the prefix cache
    again = [(shared + prompts(30), 8), (shared[:256] + prompts(50), 8)]
    first, _, second = run_engine(tiny, posenc(method.section), [batch, [(shared, 1)], again], folder=tmp_path)
    assert_as(oracle, batch, first)
    assert_as(oracle, again, second)
    assert [answer.num_cached_tokens for answer in second] == [480, 256]


def test_a_checkpoint_with_chunks_of_its_own_is_served_by_them(prompts: PromptMaker, tmp_path: pathlib.Path) -> None:
    chunks = {"chunk_size": 160, "local_size": 32, "original_max_position_embeddings": 200}
    model = save_tiny(
        tmp_path / "model",
        "qwen2",
        hidden_size=128,
        max_position_embeddings=1024,
        dual_chunk_attention_config=chunks,
    )
    method = Method(read_time.dual_chunk_distance(160, 160, 32), read_time.yarn_factor(160, 200), 128)
    oracle = ReadTimeOracle(
        AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager"), method, plain(32, 1e4, 2)
    )
    batch = [(prompts(length), 16) for length in (20, 150, 300, 700)]
    (answers,) = run_engine(model, posenc({"rope_type": "auto"}), [batch], folder=tmp_path)
    assert_as(oracle, batch, answers)


def test_longrope_keeps_its_long_factors_and_its_attention_factor(prompts: PromptMaker, tmp_path: pathlib.Path) -> None:
    """Tuned on four times its first length. Stock vLLM makes the attention factor from the served length."""
    factors = [1.0 + 0.5 * pair for pair in range(16)]
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": TRAINED // 4}
    heads = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32}
    said = {**heads, "original_max_position_embeddings": TRAINED // 4, "sliding_window": None}
    model, of_oracle = (
        save_tiny(
            tmp_path / name, "phi3", rope_parameters=rope | {"short_factor": short, "long_factor": factors}, **said
        )
        for name, short in (("model", [1.0] * 16), ("oracle", factors))
    )
    inv_freq = plain(32, 1e4, 1)[0] / torch.tensor(factors, dtype=torch.float64)
    oracle = ReadTimeOracle(
        AutoModelForCausalLM.from_pretrained(of_oracle, attn_implementation="eager"),
        rerope(TRAINED, 128, 32).method(),
        dict.fromkeys(range(2), inv_freq),
    )
    short, long = [(prompts(length), 16) for length in (20, 100, 230)], [(prompts(length), 16) for length in (400, 900)]
    theirs = run_engine(model, ENGINE | {"max_model_len": TRAINED}, [short], plugins="", folder=tmp_path)
    answers = run_engine(model, posenc({"rope_type": "rerope"}), [short, long], folder=tmp_path)
    assert_same_to_the_bit(answers[0], theirs[0])
    assert_as(oracle, short + long, answers[0] + answers[1])


@pytest.mark.parametrize(
    ("rope_type", "dtype", "is_eager"),
    [
        ("rerope", "float32", True),
        ("rerope", "bfloat16", True),
        ("rerope", "float32", False),
        ("rerope", "bfloat16", False),
        ("dual_chunk", "bfloat16", True),
    ],
    ids=["float32", "bfloat16", "compiled", "bfloat16, compiled", "dual chunk, bfloat16"],
)
def test_requests_within_the_trained_length_are_stock_vllms_to_the_bit(
    rope_type: str, dtype: str, is_eager: bool, tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    short = [(prompts(length), 24) for length in (1, 7, 63, 64, 65, 150, 232)]
    batch = [*short, (prompts(600), 24)]
    longest = 4 * TRAINED
    both = {"dtype": dtype, "max_model_len": longest, "enforce_eager": is_eager}
    stock = ENGINE | both | {"hf_overrides": {"max_position_embeddings": longest}}
    theirs = run_engine(tiny, stock, [short, batch], plugins="", folder=tmp_path)
    answers = run_engine(tiny, posenc({"rope_type": rope_type}) | both, [short, batch], folder=tmp_path)
    assert_same_to_the_bit(answers[0], theirs[0])
    assert_same_to_the_bit(answers[1][:-1], theirs[1][:-1])
    assert answers[1][-1].logprobs != theirs[1][-1].logprobs


def test_the_keys_of_a_prefix_do_not_depend_on_what_follows(
    tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    """Both prompts are prefilled in one step. The shorter one ends past the trained length."""
    long = prompts(1000)
    caches = []
    for name, prompt in (("shorter", long[:384]), ("long", long)):
        folder = tmp_path / name
        folder.mkdir()
        arguments = posenc({"rope_type": "rerope"}) | {"max_num_batched_tokens": 1024}
        run_engine(tiny, arguments, [[(prompt, 1)]], module="tests.engine.cached_keys", folder=folder)
        caches.append(torch.load(folder / "caches.pt"))
    shorter, whole = caches
    assert len(shorter) == 2
    for layer, cache in shorter.items():
        ours, theirs = (each[1 : 1 + 384 // 32] for each in (cache, whole[layer]))
        assert torch.equal(ours, theirs)


# Rotations of their own (YaRN, linear, llama3), soft caps, sinks, windows, short convolutions or layers without a
# rotation beside full ones, layers that read another's keys, temperatures of the model's own, parts of heads, pairs of
# neighbours, positions on several axes.
_FAMILIES = (
    *("qwen3_yarn", "gemma2", "gpt_oss", "gemma3", "gemma3n", "gemma4", "laguna", "lfm2", "llama_linear", "olmo3"),
    *("cohere2", "granite", "ministral3", "step3_5", "smollm3", "gpt_neox", "glm4v", "qwen2_5_vl", "qwen3_vl"),
    "gemma3_sees",
)


def of_family(name: str, case: Case) -> ReadTimeOracle:
    rotations, made = Rotations(name), families.FAMILIES[name]
    inv_freq, _ = rotations.frequencies(1)
    return ReadTimeOracle(
        saving.build(made, **made.in_transformers),
        case.method(),
        dict.fromkeys(rotations.layers, inv_freq),
        is_neox_style=not rotations.by_neighbours,
    )


@pytest.mark.parametrize("name", _FAMILIES)
def test_a_family_answers_as_the_oracle(name: str, prompts: PromptMaker, tmp_path: pathlib.Path) -> None:
    method = rerope(family.TRAINED, 64, 32)
    oracle, model = of_family(name, method), families.make(name, tmp_path / "model")
    batch = [(prompts(length), 16) for length in (20, 120, 200, 400)]
    arguments = posenc(method.section) | families.FAMILIES[name].engine
    if (picture := families.FAMILIES[name].picture) and picture.has_axes:
        arguments |= {"language_model_only": True}
    (answers,) = run_engine(model, arguments, [batch], folder=tmp_path)
    assert_as(oracle, batch, answers)


def test_drafts_for_a_model_whose_positions_have_axes_change_no_answer(
    prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    method = rerope(family.TRAINED, 64, 32)
    oracle, model = of_family("qwen3_vl", method), families.make("qwen3_vl", tmp_path / "model")
    phrase = prompts(12)
    batch = [(phrase * 2, 16), (phrase * 10, 40), (phrase * 30, 24), (prompts(400), 16)]
    arguments = posenc(method.section) | families.FAMILIES["qwen3_vl"].engine | {"disable_log_stats": False}
    arguments |= {"language_model_only": True, "speculative_config": speculative_config("ngram", model, tmp_path)}
    (answers,) = run_engine(model, arguments, [batch], folder=tmp_path)
    assert_as(oracle, batch, answers)
    assert counted(tmp_path, "vllm:spec_decode_num_accepted_tokens") > 0


def test_a_model_that_rotates_the_end_of_heads_is_refused_by_a_layers_name(
    prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    arguments = posenc(rerope(family.TRAINED, 64, 32).section) | families.FAMILIES["minicpm3"].engine
    model = families.make("minicpm3", tmp_path / "model")
    rule = r"needs keys that are rotated from their first element on, .* those of model\.layers\.0\.\S+ are not: choose"
    with pytest.raises(EngineFailed, match=rule):
        run_engine(model, arguments, [[(prompts(5), 1)]], folder=tmp_path)


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_next"])
def test_a_family_whose_blocks_hold_a_state_answers_nearly_as_the_oracle(
    name: str, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    """vLLM makes blocks of 96 tokens, for a state of Gated DeltaNet, once it has loaded the model."""
    trained = 2 * family.TRAINED
    method = rerope(trained, 96, 96)
    oracle, model = of_family(name, method), families.make(name, tmp_path / "model")
    config = model / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": trained}))
    batch = [(prompts(length), 16) for length in (20, 250, 400, 600)]
    both = families.FAMILIES[name].engine | {"dtype": "bfloat16"}
    (answers,) = run_engine(model, posenc(method.section) | both, [batch], folder=tmp_path)
    apart: list[float] = []
    for (prompt, _), answer in zip(batch, answers, strict=True):
        _, logprobs = oracle.score(prompt, answer.token_ids)
        apart += [ours - theirs for ours, theirs in zip(answer.logprobs, logprobs, strict=True)]
    assert math.sqrt(statistics.fmean(each**2 for each in apart)) < LOGPROB_RMS_STATES_BFLOAT16
    with pytest.raises(
        EngineFailed, match=r"scaling\.page must be a multiple of the KV cache's block of 96 .*, got 32"
    ):
        run_engine(model, posenc(method.section | {"page": 32}) | both, [batch], folder=tmp_path)
