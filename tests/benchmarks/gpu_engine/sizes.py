"""How large everything is: as it is measured on a GPU, and as it is rehearsed on a processor."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

from tests.benchmarks.two_engines import Case, cases

SCALES = (1.0, 2.0)
_BYTES_PER_VALUE = {"bfloat16": 2, "float32": 4}


@dataclasses.dataclass(frozen=True)
class Sizes:
    """
    Attributes:
        model: a Llama's configuration.
        trained: tokens at which a request crosses; prefixes that are reused are nearly as long.
        budget: cached tokens that are re-rotated before a step; None for as many as the engine measures.
        before: tokens that a request says before it crosses, and
        after: after it.
        window: of those before, and as many of those after: what the others notice is looked at meanwhile. So few that
            one slow step is more than a hundredth of the steps.
        others: requests that decode meanwhile, each of so many tokens at first:
        others_tokens: of the prompt.
        repetitions: of a crossing and of a reuse, besides one that warms up.
        pairs: of throughput, besides one that warms up.
        sample_seconds: that a side of a pair takes at least.
        batches, decode_tokens, prefill_tokens: of throughput.
        throughput_trained: tokens; its requests are all shorter, but for ``long_cases``.
        step_tokens: at most in one step.
        engine: further arguments of every engine.
        crossing_engine: and of those whose requests cross.
    """

    model: dict[str, Any]
    dtype: str
    trained: int
    budget: int | None
    before: int
    after: int
    window: int
    others: int
    others_tokens: int
    repetitions: int
    pairs: int
    sample_seconds: float
    batches: tuple[int, ...]
    decode_tokens: int
    prefill_tokens: int
    throughput_trained: int
    step_tokens: int
    engine: dict[str, Any]
    crossing_engine: dict[str, Any]

    @property
    def longest(self) -> int:
        """Tokens of the longest request that the crossing's engine takes."""
        return int(SCALES[-1] * self.trained)

    @property
    def asked(self) -> int:
        """Tokens behind a reused prefix."""
        return 5 * self.block_size // 2

    @property
    def reused(self) -> int:
        """Tokens of a reused prefix: whole blocks, and room for the request that leaves it behind."""
        return self.trained - 2 * self.block_size

    @property
    def others_new(self) -> int:
        """Tokens that the others say at most: more than there is time for."""
        return min(self.longest - self.others_tokens, 8192)

    @property
    def block_size(self) -> int:
        size: int = self.engine["block_size"]
        return size

    @property
    def cases(self) -> list[Case]:
        """Of throughput."""
        return cases(list(self.batches), decode_tokens=self.decode_tokens, prefill_tokens=self.prefill_tokens)

    @property
    def throughput_longest(self) -> int:
        """Tokens of the longest request that the engines of throughput take."""
        return int(SCALES[-1] * self.throughput_trained)

    @property
    def long_cases(self) -> list[Case]:
        """Of throughput: one request that begins with as many tokens as leave room for its answer."""
        prompt = self.throughput_longest - self.decode_tokens
        return [Case("decode", 1, prompt, self.decode_tokens), Case("prefill", 1, prompt, 1)]

    @property
    def crossing_arguments(self) -> dict[str, Any]:
        """Engine arguments with room for a long request twice, for the others, and for what stays cached."""
        tokens = 3 * self.longest + self.others * (self.others_tokens + self.others_new)
        return self._arguments(self.others + 1, tokens) | self.crossing_engine

    @property
    def throughput_arguments(self) -> dict[str, Any]:
        """Engine arguments with room for the largest case."""
        blocks = max(case.kv_blocks for case in self.cases)  # of two_engines' own size, which is ours
        # At least one longest request, beside a block that vLLM keeps empty: it does not start with less.
        longest = self.throughput_longest + self.block_size
        return self._arguments(max(self.batches), max(5 * blocks * self.block_size // 4, longest))

    def _arguments(self, requests: int, tokens: int) -> dict[str, Any]:
        config = self.model
        a_token = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
        return self.engine | {
            "dtype": self.dtype,
            "load_format": "dummy",
            "max_num_seqs": requests,
            "max_num_batched_tokens": self.step_tokens,
            "kv_cache_memory_bytes": tokens * a_token * _BYTES_PER_VALUE[self.dtype],
            "seed": 0,
        }

    def save_model(self, folder: pathlib.Path) -> pathlib.Path:
        """Save the configuration and a tokenizer with a word for each token: vLLM makes weights up (``dummy``)."""
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import LlamaConfig, PreTrainedTokenizerFast

        LlamaConfig(
            **self.model, max_position_embeddings=self.trained, architectures=["LlamaForCausalLM"]
        ).save_pretrained(folder)
        words = Tokenizer(models.WordLevel({f"w{token}": token for token in range(self.model["vocab_size"])}, "w0"))
        words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(folder)
        return folder


_LLAMA: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "tie_word_embeddings": False}
# Llama-3-8B's. Two engines of it are alive at once.
FULL = Sizes(
    model=_LLAMA
    | {
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    },
    dtype="bfloat16",
    trained=32768,
    # All of it at once: 4.3 GB of keys and values, which this GPU copies in milliseconds.
    budget=None,
    before=24,
    after=200,
    window=20,
    others=8,
    others_tokens=1024,
    repetitions=5,
    pairs=7,
    sample_seconds=1.0,
    batches=(1, 32, 128),
    decode_tokens=256,
    prefill_tokens=1024,
    throughput_trained=8192,
    step_tokens=8192,
    engine={"block_size": 32, "gpu_memory_utilization": 0.4},
    # Decoding of all of them at once, and the 80 tokens behind a reused prefix: by default graphs end at twice the
    # number of requests.
    crossing_engine={"cudagraph_capture_sizes": [1, 2, 4, 8, 9, *range(16, 97, 8)]},
)
# Two engines, of 16 GB of weights each, leave 80 GB no room for the caches of 128 requests.
_OF_BOTH_BYTES = 120 * 2**30


def full(memory_bytes: int) -> Sizes:
    """What a GPU of so much memory measures; all of it where there is no GPU, and sizes are only listed."""
    if 0 < memory_bytes < _OF_BOTH_BYTES:
        return dataclasses.replace(FULL, batches=(1, 32))
    return FULL


TINY = Sizes(
    model=_LLAMA
    | {
        "vocab_size": 4096,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    dtype="float32",
    trained=2048,
    budget=None,
    before=24,
    after=100,
    window=20,
    others=2,
    others_tokens=16,
    repetitions=1,
    pairs=1,
    sample_seconds=0.05,
    batches=(1, 2),
    decode_tokens=8,
    prefill_tokens=64,
    throughput_trained=512,
    step_tokens=512,
    engine={"block_size": 32, "enforce_eager": True},
    crossing_engine={},
)
