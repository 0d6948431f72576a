"""How large everything is that is measured, and how many bytes it has to move: counted, each once, as read or written.

What is small beside a row of a head is not counted: block tables, the scales of blocks, partial results.
"""

from __future__ import annotations

import dataclasses

import torch

from posenc_runtime.encodings.spec import RotarySpec

_INDEX_BYTES = 16  # a token's position and slot, int64


@dataclasses.dataclass(frozen=True)
class Model:
    """A model's attention; Llama-3-8B's if nothing else is said."""

    num_layers: int = 32
    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    block_size: int = 16
    dtype: torch.dtype = torch.bfloat16
    rope_theta: float = 500_000.0
    trained_tokens: int = 8192

    @property
    def scale(self) -> float:
        """Of a layer's scores."""
        return self.head_dim**-0.5

    @property
    def widths(self) -> list[int]:
        """Elements of a token's queries, keys and values, as they lie in one projection."""
        return [heads * self.head_dim for heads in (self.num_heads, self.num_kv_heads, self.num_kv_heads)]

    @property
    def query_bytes(self) -> int:
        """A token's queries in one layer."""
        return self.widths[0] * self.dtype.itemsize

    @property
    def key_bytes(self) -> int:
        """A token's keys, or its values, in one layer."""
        return self.widths[1] * self.dtype.itemsize

    def rotary_spec(self) -> RotarySpec:
        return RotarySpec(
            rotary_dim=self.head_dim,
            rope_theta=self.rope_theta,
            original_max_position_embeddings=self.trained_tokens,
        )

    def as_multi_head(self) -> Model:
        """The same with keys and values for every query head."""
        return dataclasses.replace(self, num_kv_heads=self.num_heads)

    def blocks_of(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def rotary_store_bytes(self, num_tokens: int) -> int:
        """Queries read and written, keys and values read and cached, in one layer."""
        return num_tokens * (2 * self.query_bytes + 4 * self.key_bytes + _INDEX_BYTES)

    def rotation_then_store_bytes(self, num_tokens: int) -> int:
        """The same in two launches: keys are written and read once more, and a row of a table is read."""
        row = self.head_dim * self.dtype.itemsize
        return self.rotary_store_bytes(num_tokens) + num_tokens * (2 * self.key_bytes + row)

    def rerotated_bytes(self, num_tokens: int, num_pairs: int | None = None) -> int:
        """Keys of all layers read and written in place.

        Args:
            num_pairs: of a head, if not all of its pairs turn.
        """
        pairs = self.head_dim // 2
        key_bytes = self.key_bytes * (pairs if num_pairs is None else num_pairs) // pairs
        return 2 * self.num_layers * num_tokens * key_bytes

    def copied_bytes(self, num_tokens: int) -> int:
        """Keys and values of all layers, read in one block and written in another."""
        return 4 * self.num_layers * num_tokens * self.key_bytes

    def decoded_bytes(self, context: int, batch: int) -> int:
        """Keys and values of all tokens read, a query of each request read and its output written, in one layer."""
        return batch * (2 * context * self.key_bytes + 2 * self.query_bytes)

    def score_bytes(self, context: int, batch: int) -> int:
        """What CoPE keeps between its two launches: a float32 score of each query head and key, written and read."""
        return 2 * 4 * self.num_heads * batch * context

    def cache_bytes(self, num_tokens: int) -> int:
        """Keys and values in one layer."""
        return 2 * num_tokens * self.key_bytes


@dataclasses.dataclass(frozen=True)
class Sizes:
    """
    Attributes:
        copy_bytes: of the copy that is the yardstick, read and as many written.
        flush_bytes: read between two samples, so that nothing of the first is still cached.
        sample_bytes: of caches that a sample of attention goes through, layer after layer, at least.
        lone_layers: that a sample of a lone request's attention goes through, at least.
        prompt, lone: tokens of a step that prefills, and of one that decodes.
        rerotated: tokens of requests that cross.
        dense, dense_batch: context and requests that decode with a dense bias.
        windowed: contexts that decode with a window, and at least so many times as fast as without.
        windowed_batches: requests of each.
        cope_context, cope_batches: context of CoPE while decoding, and requests.
        prefill: tokens of a prompt for attention.
        npos: positions of CoPE.
        far_trained: trained length of a model that reads positions when it attends, tokens.
        far_past: tokens past it, at which a lone request decodes.
        logits: tokens whose logits are compared with exact ones.
        positions: where they begin.
    """

    model: Model
    copy_bytes: int
    flush_bytes: int
    sample_bytes: int
    lone_layers: int
    prompt: int
    lone: int
    rerotated: tuple[int, int]
    dense: int
    dense_batch: int
    windowed: tuple[tuple[int, float], ...]
    windowed_batches: tuple[int, ...]
    cope_context: int
    cope_batches: tuple[int, ...]
    prefill: int
    npos: int
    far_trained: int
    far_past: tuple[int, ...]
    logits: int
    positions: tuple[int, int, int] = (4_000, 131_000, 1_048_000)


FULL = Sizes(
    Model(),
    copy_bytes=2**31,
    flush_bytes=2**29,
    sample_bytes=2**30,
    lone_layers=8,
    prompt=8192,
    lone=256,
    rerotated=(32_768, 131_072),
    dense=8192,
    dense_batch=8,
    windowed=((8192, 2.5), (32_768, 8.0), (131_072, 20.0)),
    windowed_batches=(1, 8),
    cope_context=32_768,
    cope_batches=(1, 8),
    prefill=8192,
    npos=64,
    far_trained=32_768,
    far_past=(32_768, 131_072),
    logits=1024,
)

# Small enough for a rehearsal on a processor, and with blocks that are not full, and some shuffling.
TINY = Sizes(
    Model(num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, block_size=4, trained_tokens=64),
    copy_bytes=2**16,
    flush_bytes=2**12,
    sample_bytes=2**13,
    lone_layers=3,
    prompt=24,
    lone=3,
    rerotated=(16, 32),
    dense=21,
    dense_batch=2,
    windowed=((33, 2.5), (64, 8.0)),
    windowed_batches=(1, 2),
    cope_context=33,
    cope_batches=(1, 2),
    prefill=22,
    npos=8,
    far_trained=64,
    far_past=(16, 40),
    logits=32,
)
