"""A Llama of some thousand weights as a GGUF file, with the fields and the types of tensors that SmolLM2's file has."""

from __future__ import annotations

import pathlib

import numpy as np

from tests.server.wheels.gguf_files import (
    BOOL,
    F32,
    FLOAT32,
    INT32,
    Q4_1,
    Q8_0,
    STRING,
    UINT32,
    Array,
    as_llama_cpp_orders,
    write,
)

LAYERS, WIDTH, HEADS, KV_HEADS, INNER = 2, 128, 4, 2, 96
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# Bytes as GPT-2 spells them, of which "Ġ" is a space; then merges.
LETTERS = ["Ġ", "Ċ", *map(chr, range(33, 127))]
MERGES = ["Ġ Ġ", "h i"]
TOKENS = [*CONTROL, *LETTERS, *(merge.replace(" ", "") for merge in MERGES)]
HEAD = WIDTH // HEADS


def save(path: pathlib.Path) -> dict[str, Array]:
    """Write the file. Returns the weights before they were quantised, by their names in transformers."""
    random = np.random.default_rng(7)
    rows = -(-len(TOKENS) // 32) * 32
    sizes = {
        "embed": (rows, WIDTH),
        "q": (HEADS * HEAD, WIDTH),
        "k": (KV_HEADS * HEAD, WIDTH),
        "v": (KV_HEADS * HEAD, WIDTH),
    }
    sizes |= {"o": (WIDTH, HEADS * HEAD), "gate": (INNER, WIDTH), "up": (INNER, WIDTH), "down": (WIDTH, INNER)}

    def weights(name: str) -> Array:
        return random.normal(0.01, 0.02, sizes[name]).astype(np.float32)

    embedding, last = weights("embed"), random.normal(1, 0.1, WIDTH).astype(np.float32)
    named = {"model.embed_tokens.weight": embedding, "model.norm.weight": last}
    tensors: dict[str, tuple[Array, int]] = {"token_embd.weight": (embedding, Q8_0), "output_norm.weight": (last, F32)}
    for layer in range(LAYERS):
        for theirs, ours, size in (
            ("attn_q", "self_attn.q_proj", "q"),
            ("attn_k", "self_attn.k_proj", "k"),
            ("attn_v", "self_attn.v_proj", "v"),
            ("attn_output", "self_attn.o_proj", "o"),
            ("ffn_gate", "mlp.gate_proj", "gate"),
            ("ffn_up", "mlp.up_proj", "up"),
            ("ffn_down", "mlp.down_proj", "down"),
        ):
            matrix = named[f"model.layers.{layer}.{ours}.weight"] = weights(size)
            heads = {"q": HEADS, "k": KV_HEADS}.get(size)
            stored = as_llama_cpp_orders(matrix, heads) if heads else matrix
            tensors[f"blk.{layer}.{theirs}.weight"] = (stored, Q4_1)
        for theirs, ours in (("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm")):
            norm = named[f"model.layers.{layer}.{ours}.weight"] = random.normal(1, 0.1, WIDTH).astype(np.float32)
            tensors[f"blk.{layer}.{theirs}.weight"] = (norm, F32)
    tokens = [*TOKENS, *(f"<unused{i}>" for i in range(rows - len(TOKENS)))]
    write(
        path,
        {
            "general.architecture": (STRING, "llama"),
            "general.name": (STRING, "Tiny"),
            "llama.block_count": (UINT32, LAYERS),
            "llama.context_length": (UINT32, 8192),
            "llama.embedding_length": (UINT32, WIDTH),
            "llama.feed_forward_length": (UINT32, INNER),
            "llama.attention.head_count": (UINT32, HEADS),
            "llama.attention.head_count_kv": (UINT32, KV_HEADS),
            "llama.attention.layer_norm_rms_epsilon": (FLOAT32, 1e-5),
            "llama.rope.freq_base": (FLOAT32, 100_000.0),
            "llama.rope.dimension_count": (UINT32, HEAD),
            "llama.vocab_size": (UINT32, rows),
            "general.file_type": (UINT32, 3),
            "general.quantization_version": (UINT32, 2),
            "tokenizer.ggml.model": (STRING, "gpt2"),
            "tokenizer.ggml.pre": (STRING, "smollm"),
            "tokenizer.ggml.add_space_prefix": (BOOL, False),
            "tokenizer.ggml.add_bos_token": (BOOL, False),
            "tokenizer.ggml.tokens": (STRING, tokens),
            "tokenizer.ggml.token_type": (INT32, [3] * len(CONTROL) + [1] * (rows - len(CONTROL))),
            "tokenizer.ggml.merges": (STRING, MERGES),
            "tokenizer.ggml.bos_token_id": (UINT32, 1),
            "tokenizer.ggml.eos_token_id": (UINT32, 2),
            "tokenizer.ggml.unknown_token_id": (UINT32, 0),
            "tokenizer.ggml.padding_token_id": (UINT32, 2),
            "tokenizer.chat_template": (STRING, TEMPLATE),
        },
        tensors,
    )
    return named
