"""The model and the two engines whose speed is compared, such as ours and stock vLLM with static YaRN."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

from posenc_runtime.kv.deployment import Deployment, OnCrossing
from posenc_runtime.vllm_adapter.settings.arguments.engine_args import engine_arguments

TRAINED = 512  # tokens
SCALES = (1.0, 2.0, 4.0, 8.0)
ROPE_THETA = 10000.0
BLOCK_SIZE = 32
MAX_MODEL_LEN = int(SCALES[-1] * TRAINED)
MODEL: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": TRAINED,
    "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
}
# With so little to compute nearly all that is measured is what an engine does around its model.
TINY = MODEL | {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2}
TINY |= {"num_key_value_heads": 1, "head_dim": 32}
_BYTES_PER_VALUE = 4  # float32


@dataclasses.dataclass(frozen=True)
class Case:
    """One kind of work, given to both engines.

    Attributes:
        kind: ``decode`` counts generated tokens, ``prefill`` prompt tokens.
        batch: requests at once.
    """

    kind: str
    batch: int
    prompt_tokens: int
    new_tokens: int

    @property
    def name(self) -> str:
        return f"{self.kind}, batch {self.batch}"

    @property
    def kv_blocks(self) -> int:
        """Blocks that all its requests hold at their ends."""
        return self.batch * -(-(self.prompt_tokens + self.new_tokens) // BLOCK_SIZE)


def cases(batches: list[int], *, decode_tokens: int, prefill_tokens: int) -> list[Case]:
    """Decode and prefill at every batch size.

    Decoding starts from prompts of 8 tokens, so that nearly all of its time is decoding; a prefill ends with its
    first token.
    """
    return [
        *(Case("decode", batch, 8, decode_tokens) for batch in batches),
        *(Case("prefill", batch, prefill_tokens, 1) for batch in batches),
    ]


def setup(all_cases: list[Case], shared: dict[str, Any], worker_cores: list[int], model: dict[str, Any] = MODEL) -> str:
    """What is measured, in words."""
    decode, prefill = (next(case for case in all_cases if case.kind == kind) for kind in ("decode", "prefill"))
    cores = "one core computes" if len(worker_cores) == 1 else f"{len(worker_cores)} cores compute"
    return (
        f"Decode: prompts of {decode.prompt_tokens} tokens, {decode.new_tokens} generated. Prefill: prompts of "
        f"{prefill.prompt_tokens} tokens, none of them cached. A Llama of {model['num_hidden_layers']} layers, hidden "
        f"size {model['hidden_size']}, random weights in {shared['dtype']}, trained length {TRAINED}; both sides "
        f"{'eager' if shared['enforce_eager'] else 'compiled'}; {cores}, for both the same."
    )


def save_model(folder: pathlib.Path, model: dict[str, Any] = MODEL) -> pathlib.Path:
    """Save a Llama of random weights.

    ``MODEL`` has 29 million of them: on one core a step takes 10 ms or more, as steps of real models do.
    """
    # Only now: transformers takes seconds to import.
    from transformers.utils import logging

    from tests.checkpoints import save_tiny

    # its bar would break ours
    logging.disable_progress_bar()
    return save_tiny(folder, "llama", **model)


def shared_arguments(all_cases: list[Case], *, compiled: bool, model: dict[str, Any] = MODEL) -> dict[str, Any]:
    """Engine arguments that both sides get, with room for the largest case."""
    bytes_per_block = (
        2 * model["num_hidden_layers"] * model["num_key_value_heads"] * model["head_dim"] * _BYTES_PER_VALUE
    ) * BLOCK_SIZE
    # At least one longest request: vLLM does not start with less.
    blocks = max(MAX_MODEL_LEN // BLOCK_SIZE, *(case.kv_blocks for case in all_cases))
    return {
        "dtype": "float32",
        "enforce_eager": not compiled,
        "block_size": BLOCK_SIZE,
        "max_num_seqs": max(case.batch for case in all_cases),
        "max_num_batched_tokens": 2048,
        # A quarter more, so that no case ends in preemptions.
        "kv_cache_memory_bytes": blocks * bytes_per_block * 5 // 4,
        "seed": 0,
    }


@dataclasses.dataclass(frozen=True)
class Side:
    """One of the two engines.

    Attributes:
        is_ours: it is started with our plugin.
        names_scales: its answers say at which scale a request ran.
    """

    name: str
    arguments: dict[str, Any]
    is_ours: bool
    names_scales: bool

    @property
    def plugins(self) -> str:
        """By name: unnamed, vLLM would load whatever else is installed, which the other side does not get."""
        return "posenc" if self.is_ours else ""


def sides(peer: str, shared: dict[str, Any]) -> tuple[Side, Side]:
    """What is measured, and what against.

    Args:
        peer: ``stock``; ``pin``, ours without crossings; ``unscaled``, stock vLLM as it is, against ours with positions
            at read time; or ``itself``, stock vLLM on both sides, which shows how far from 1 the measurement is by
            itself.
    """
    ours = Side("ours", our_arguments(shared), is_ours=True, names_scales=True)
    stock = Side("stock", stock_arguments(shared), is_ours=False, names_scales=False)
    pinned = Side("ours, pin", our_arguments(shared, on_crossing="pin"), is_ours=True, names_scales=True)
    read_time = Side("ours, rerope", read_time_arguments(shared), is_ours=True, names_scales=False)
    longer = {"max_model_len": MAX_MODEL_LEN, "hf_overrides": {"max_position_embeddings": MAX_MODEL_LEN}}
    unscaled = Side("stock, unscaled", shared | longer, is_ours=False, names_scales=False)
    return {
        "stock": (ours, stock),
        "pin": (ours, pinned),
        "unscaled": (read_time, unscaled),
        "itself": (stock, stock),
    }[peer]


def our_arguments(shared: dict[str, Any], on_crossing: OnCrossing = "rerotate") -> dict[str, Any]:
    """Ours: per-request YaRN."""
    deployment = Deployment(
        rope_type="yarn",
        scales=SCALES,
        original_max_position_embeddings=TRAINED,
        max_model_len=MAX_MODEL_LEN,
        on_crossing=on_crossing,
    )
    return engine_arguments(deployment, shared)


def read_time_arguments(shared: dict[str, Any]) -> dict[str, Any]:
    """Ours, as one flag on vLLM: positions at read time, which requests within the trained length do not need."""
    return shared | {"max_model_len": MAX_MODEL_LEN, "additional_config": {"posenc": {"rope_type": "rerope"}}}


def stock_arguments(shared: dict[str, Any]) -> dict[str, Any]:
    """Stock vLLM: every request at the largest scale, as vLLM's documentation configures YaRN."""
    return shared | {
        "max_model_len": MAX_MODEL_LEN,
        "hf_overrides": {
            "max_position_embeddings": MAX_MODEL_LEN,
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": SCALES[-1],
                "original_max_position_embeddings": TRAINED,
                "rope_theta": ROPE_THETA,
            },
        },
    }
