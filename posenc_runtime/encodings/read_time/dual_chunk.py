"""Dual chunk attention (An et al. 2024, arXiv:2402.17463, section 3.2), as Qwen2.5-1M's checkpoints configure it.

The paper rotates key j to ``j mod s``, where s is the length of a chunk, and each query to three positions: for its own
chunk ``i mod s``; for the chunk before ``min(s + i mod s, n)``; and n for all older chunks. Here n is the chunk size of
the checkpoint, and s is that less its local size.

The distances do not change if a chunk's keys and the query's position for this chunk both move by the chunk's first
position j0. Then keys are at their own positions, as in any cache. The query's positions become i for its own chunk,
``min(i, j0 + n)`` for the one before, and ``j0 + n`` for older ones. So a chunk is a page, and a page is near from
``i - j0 <= n`` on, if the local size is below s: then ``i - j0 > n`` for all older chunks, too.

The temperature is Qwen's (arXiv:2501.15383, section 3.3): YaRN's, over ``original_max_position_embeddings``. Their code
takes it from the length of the request; here it comes from the query's position, so that prefixes do not depend on what
follows. Their sparse attention, which only skips keys, has no part in positions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from posenc_runtime.encodings.far_pages import FarPages, Temperature, default_page


@dataclasses.dataclass(frozen=True, kw_only=True)
class DualChunk:
    """Chunks of ``chunk_size - local_size`` tokens, of which older ones are all ``chunk_size`` away.

    Attributes:
        chunk_size: tokens, the largest distance. None takes three quarters of the trained length, as the paper does, or
            less, so that ``default_page`` holds.
        local_size: tokens, up to which all keys are at their trained distances wherever chunks begin. None takes an
            eighth of the trained length, or more, so that ``default_page`` holds.
        original_max_position_embeddings: tokens past which the logits grow. None takes the trained length; 0 is no
            temperature, as in checkpoints' configurations.
        temperature: see ``FarPages``.

    Raises:
        ValueError: when a value is out of range.
    """

    name: ClassVar[str] = "dual_chunk"
    chunk_size: int | None = None
    local_size: int | None = None
    original_max_position_embeddings: int | None = None
    temperature: Temperature = "yarn"

    def __post_init__(self) -> None:
        for name, least in (("chunk_size", 2), ("local_size", 1), ("original_max_position_embeddings", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if self.original_max_position_embeddings == 1:
            raise ValueError("original_max_position_embeddings must be 0 or at least 2, got 1")
        if self.chunk_size is not None and self.local_size is not None:
            _check(self.chunk_size, self.local_size)

    @classmethod
    def of_checkpoint(cls, dual_chunk_attention_config: Mapping[str, Any]) -> DualChunk:
        """Read ``dual_chunk_attention_config`` of a checkpoint, with the defaults of vLLM's former backend.

        The keys of sparse attention are ignored: without it all keys are read.

        Raises:
            ValueError: when the configuration has other keys, which may change positions, or a value is out of range.
        """
        known = {"chunk_size": 8192, "local_size": 1024, "original_max_position_embeddings": 0}
        strange = sorted(
            key for key in dual_chunk_attention_config if key not in known and not key.startswith("sparse_attention_")
        )
        if strange:
            raise ValueError(
                f"dual_chunk_attention_config must have no keys but {', '.join(known)} and those of sparse attention, "
                f"got {', '.join(strange)}"
            )
        return cls(**{key: dual_chunk_attention_config.get(key, default) for key, default in known.items()})

    def pages(self, trained_length: int, block_size: int | None = None) -> FarPages:
        """See ``ReadTimeMethod.pages``. A page is a chunk, of ``chunk_size - local_size`` keys.

        Raises:
            ValueError: when a chunk is no multiple of the block, when ``local_size`` is not less than a chunk, or when
                ``chunk_size`` is above the trained length.
        """
        size, local = self._sizes(trained_length, block_size)
        _check(size, local)
        if size > trained_length:
            raise ValueError(
                f"chunk_size must be at most the trained length of {trained_length} tokens, because it is the distance "
                f"of all older chunks, got {size}: take {trained_length} or less"
            )
        if block_size is not None and (size - local) % block_size:
            blocks = max((size - local) // block_size, local // block_size + 1)
            fits = local + blocks * block_size <= trained_length
            advice = f"take a chunk_size of {local + blocks * block_size}, or another" if fits else "take a smaller"
            raise ValueError(
                f"chunk_size less local_size must be a multiple of the KV cache's block of {block_size} tokens, got "
                f"{size} and {local}: {advice} block_size"
            )
        before = self.original_max_position_embeddings
        return FarPages(
            trained_length=trained_length,
            page=size - local,
            edge=local + 1,
            distance=size,
            temperature="none" if before == 0 else self.temperature,
            tempered_from=before or trained_length,
        )

    def _sizes(self, trained_length: int, block_size: int | None) -> tuple[int, int]:
        """``chunk_size`` and ``local_size``, whichever are given, for whole blocks.

        Raises:
            ValueError: when none are given and the trained length has no room for the default ones.
        """
        if self.chunk_size is not None and self.local_size is not None:
            return self.chunk_size, self.local_size
        local = self.local_size or trained_length // 8
        page = default_page((self.chunk_size or trained_length * 3 // 4) - local, block_size)
        if not local or page <= 0:
            raise ValueError(
                f"chunk_size and local_size must be given where the trained length is {trained_length} tokens and a "
                f"block of the KV cache has {block_size or 1}: give both, or use smaller blocks (engine.block_size)"
            )
        if self.chunk_size is not None:
            return self.chunk_size, self.chunk_size - page
        return local + page, local


def _check(size: int, local: int) -> None:
    if local >= size - local:
        raise ValueError(
            f"local_size must be less than a chunk, which is chunk_size {size} less local_size, got {local}: take "
            f"{(size - 1) // 2} or less"
        )


METHOD = DualChunk
