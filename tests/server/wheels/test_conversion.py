"""A GGUF file becomes a checkpoint: the same numbers, rounded once, and the tokenizer of its model."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, GenerationConfig

from server.wheels import conversion
from tests.server.wheels import tiny_llama
from tests.server.wheels.gguf_files import Array, as_transformers_orders, read

# Each value is rounded to a code, at most half a step away, and a step is 1/15 of a block's range, which these weights
# keep below 0.16. Then it is rounded to bfloat16.
NEAR = 0.16 / 15 / 2 + 0.001

OURS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTSIDE = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


def renamed(name: str) -> str:
    """A tensor's name in transformers."""
    if name in OUTSIDE:
        return OUTSIDE[name]
    _, layer, theirs, kind = name.split(".")
    return f"model.layers.{layer}.{OURS[theirs]}.{kind}"


def expected(file: pathlib.Path) -> dict[str, Array]:
    """What a checkpoint of the file must have, in float32, by the names of transformers."""
    fields, tensors = read(file)
    heads = {"q": fields["llama.attention.head_count"], "k": fields["llama.attention.head_count_kv"]}
    found = {}
    for name, numbers in tensors.items():
        reordered = [count for letter, count in heads.items() if f".attn_{letter}." in name]
        found[renamed(name)] = as_transformers_orders(numbers, *reordered) if reordered else numbers
    return found


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, pathlib.Path, dict[str, Array]]:
    """A GGUF file, the checkpoint that it was converted to, and the weights before both."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "checkpoint").mkdir()
    weights = tiny_llama.save(folder / "tiny.gguf")
    # In a process, as it is run: what transformers leaves in memory would otherwise be this one's.
    command = (sys.executable, "-m", conversion.__name__, str(folder / "tiny.gguf"), str(folder / "checkpoint"))
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=250)
    assert run.returncode == 0, run.stdout
    return folder / "tiny.gguf", folder / "checkpoint", weights


Tiny = tuple[pathlib.Path, pathlib.Path, dict[str, "Array"]]


@pytest.mark.slow
def test_every_weight_is_the_files_number_rounded_to_bfloat16(tiny: Tiny) -> None:
    file, checkpoint, _ = tiny
    saved, numbers = load_file(checkpoint / "model.safetensors"), expected(file)
    assert saved.keys() == numbers.keys()
    for name, tensor in saved.items():
        assert torch.equal(tensor, torch.from_numpy(numbers[name].copy()).bfloat16()), name


@pytest.mark.slow
def test_every_weight_is_near_the_one_before_quantisation_and_in_its_place(tiny: Tiny) -> None:
    _, checkpoint, weights = tiny
    saved = load_file(checkpoint / "model.safetensors")
    for name, before in weights.items():
        assert np.abs(saved[name].float().numpy() - before).max() < NEAR, name


@pytest.mark.slow
def test_the_configuration_is_that_of_the_file_and_says_nothing_of_quantisation(tiny: Tiny) -> None:
    config = json.loads((tiny[1] / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"] and config["dtype"] == "bfloat16"
    assert config["max_position_embeddings"] == 8192
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 100_000.0}
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 32)
    assert config["tie_word_embeddings"] is True and "quantization_config" not in config


@pytest.mark.slow
def test_an_answer_ends_at_the_token_that_the_file_names(tiny: Tiny) -> None:
    assert GenerationConfig.from_pretrained(tiny[1]).eos_token_id == 2


@pytest.mark.slow
def test_the_tokenizer_splits_digits_first_as_smollm_does_and_keeps_control_tokens(tiny: Tiny) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny[1])
    assert tokenizer.tokenize("hi  48 <|im_end|>") == ["hi", "ĠĠ", "4", "8", "Ġ", "<|im_end|>"]
    assert tokenizer.decode(tokenizer("hi  48")["input_ids"]) == "hi  48"
    assert tokenizer("")["input_ids"] == []  # no token is put before a prompt


@pytest.mark.slow
def test_the_chat_template_of_the_file_is_used(tiny: Tiny) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny[1])
    message = {"role": "user", "content": "hi"}
    assert tokenizer.apply_chat_template([message], tokenize=False) == "<|im_start|>hi<|im_end|>"
