"""The configuration of Baichuan, which neither transformers nor vLLM has, and rules for its checkpoints."""

from __future__ import annotations

from typing import Any, ClassVar

from transformers import PreTrainedConfig

from posenc_runtime.vllm_adapter.contract.errors import Unsupported

# The published code has one class for each size, and no key tells the sizes apart. When vLLM still had Baichuan, it
# told them apart by these values.
_ALIBI_BY_HIDDEN_SIZE = {4096: False, 5120: True}
_NORM_HEAD_BY_VOCABULARY = {64000: False, 125696: True}


class BaichuanConfig(PreTrainedConfig):
    """The keys of the checkpoints' own ``configuration_baichuan.py``, and two more: ``alibi`` and ``norm_head``.

    The class is registered with ``AutoConfig``, and transformers prefers a registered class to remote code. So the
    configuration in a checkpoint's ``auto_map`` never runs, with or without ``trust_remote_code``. The checkpoint's
    tokenizer is remote code, too: it needs ``trust_remote_code``, or another tokenizer in ``engine.tokenizer``.

    Attributes:
        max_position_embeddings: the trained length. The 13B call it ``model_max_length``, which is read as this.
        alibi: ALiBi (True) or rotary embeddings (False). The default follows from the hidden size: ALiBi for the 13B.
        norm_head: whether rows of the output embedding are normalised (Baichuan 2). The default follows from the size
            of the vocabulary.
    """

    model_type = "baichuan"
    keys_to_ignore_at_inference: ClassVar = ["past_key_values"]

    vocab_size: int = 64000
    hidden_size: int = 5120
    intermediate_size: int = 13696
    num_hidden_layers: int = 40
    num_attention_heads: int = 40
    hidden_act: str = "silu"
    max_position_embeddings: int | None = None
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-6
    use_cache: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    tie_word_embeddings: bool = False
    alibi: bool | None = None
    norm_head: bool | None = None

    def __post_init__(self, **given: Any) -> None:
        trained = given.pop("model_max_length", 4096)
        if self.max_position_embeddings is None:
            self.max_position_embeddings = trained
        if self.alibi is None:
            self.alibi = _ALIBI_BY_HIDDEN_SIZE.get(self.hidden_size)
        if self.norm_head is None:
            self.norm_head = _NORM_HEAD_BY_VOCABULARY.get(self.vocab_size)
        if self.alibi is False:
            default = {"rope_type": "default", "rope_theta": 10000.0}
            self.rope_parameters = given.pop("rope_parameters", None) or default
        super().__post_init__(**given)


def refuse(config: Any) -> None:
    """Check a checkpoint's configuration.

    Raises:
        Unsupported: naming the key, its value and what to write.
    """
    for key, by, known in (
        ("alibi", "hidden_size", _ALIBI_BY_HIDDEN_SIZE),
        ("norm_head", "vocab_size", _NORM_HEAD_BY_VOCABULARY),
    ):
        if getattr(config, key) is None:
            sizes = " or ".join(map(str, known))
            raise Unsupported(
                f"{key} must be in a Baichuan checkpoint's config.json where {by} is not {sizes}, got {by} "
                f"{getattr(config, by)} without it: add {key}, true or false as the model was trained"
            )
    if config.hidden_size % config.num_attention_heads:
        raise Unsupported(
            f"hidden_size must be a multiple of num_attention_heads {config.num_attention_heads}, got "
            f"{config.hidden_size}"
        )
    if config.norm_head and config.tie_word_embeddings:
        raise Unsupported(
            "tie_word_embeddings must be false where norm_head is true, got true: norm_head normalises the rows of "
            "the head, but not those of the embedding"
        )
