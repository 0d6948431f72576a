"""The decoder: Llama's blocks, and calls to a position encoding wherever encodings differ."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

from posenc_runtime.decoder.attention import summed_in
from posenc_runtime.decoder.config import PosencConfig
from posenc_runtime.decoder.encoding import PositionEncoding, Prepared
from posenc_runtime.decoder.places import Places, places
from posenc_runtime.decoder.positions import encoding


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """What all layers need to know about one forward pass.

    Attributes:
        places: where the tokens stand.
        dtype: in which scores are computed.
        shared: the whole model's encoding with the tensors that it prepared, or None if each layer has its own.
        cache: keys and values of earlier tokens, to which each layer appends; None to keep none.
    """

    places: Places
    dtype: torch.dtype
    shared: tuple[PositionEncoding, Prepared] | None
    cache: DynamicCache | None


class PosencAttention(nn.Module):
    """Grouped-query attention. Weights: ``{q,k,v,o}_proj``, and ``position`` if each layer has its own encoding."""

    def __init__(self, config: PosencConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.head_dim: int = config.head_dim
        self.scale = self.head_dim**-0.5
        of_queries, of_keys = config.num_attention_heads * self.head_dim, config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, of_queries, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.hidden_size, of_keys, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.hidden_size, of_keys, bias=config.attention_bias)
        self.o_proj = nn.Linear(of_queries, config.hidden_size, bias=config.attention_bias)
        kind = encoding(config.position_encoding_type)
        if not kind.is_shared(config):
            self.position = kind(config)

    def forward(self, hidden: Tensor, step: Step) -> Tensor:
        """``[batch, num_tokens, hidden_size]`` to the same."""
        query, key, value = (
            projection(hidden).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        position, prepared = step.shared or (self.position, self.position.prepare(step.places, step.dtype))
        query, key = position.encode(query, key, step.places, prepared)
        if step.cache is not None:
            key, value = step.cache.update(key, value, self.layer)
        mixed = position.attend(query, key, value, step.places, prepared, self.scale)
        out: Tensor = self.o_proj(mixed.to(hidden.dtype).transpose(1, 2).flatten(2))
        return out


class PosencDecoderLayer(nn.Module):
    """Llama's block: attention, then an MLP. Each follows a norm and adds its result to its input."""

    def __init__(self, config: PosencConfig, layer: int) -> None:
        super().__init__()
        self.self_attn = PosencAttention(config, layer)
        self.mlp = LlamaMLP(config)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, hidden: Tensor, step: Step) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), step)
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


class PosencPreTrainedModel(PreTrainedModel):
    """Initializes the weights."""

    config_class = PosencConfig
    base_model_prefix = "model"
    _no_split_modules: ClassVar = ["PosencDecoderLayer"]
    _skip_keys_device_placement: ClassVar = ["past_key_values"]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, PositionEncoding):
            module.initialize()


class PosencModel(PosencPreTrainedModel):
    """From token ids to the last hidden states.

    Weights have Llama's names. An encoding that all layers share is at ``position``.
    """

    def __init__(self, config: PosencConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers = nn.ModuleList(PosencDecoderLayer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        kind = encoding(config.position_encoding_type)
        if kind.is_shared(config):
            self.position = kind(config)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: DynamicCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        **unused: Any,
    ) -> BaseModelOutputWithPast:
        """The last hidden states of the given tokens, which follow the tokens in the cache.

        Args:
            input_ids: ``[batch, num_tokens]``; leave it out when ``inputs_embeds`` is given.
            attention_mask: ``[batch, cached and new tokens]``, 0 for padding, on either side.
            position_ids: ``[batch, num_tokens]``; must equal the positions that the mask implies. They are computed
                from the mask if left out.
            past_key_values: keys and values of earlier tokens; those of the new tokens are appended.
            inputs_embeds: ``[batch, num_tokens, hidden_size]``, in place of ``input_ids``.
            use_cache: whether to keep keys and values. The default is the configuration's, but false in training.

        Raises:
            ValueError: when neither or both of ids and embeddings are given, positions differ from those that the mask
                implies, the cache is of a fixed size, or attention weights are asked for.
        """
        if (input_ids is None) == (inputs_embeds is None):
            given = "neither" if input_ids is None else "both"
            raise ValueError(f"exactly one of input_ids and inputs_embeds must be given, got {given}")
        if unused.get("output_attentions"):
            raise ValueError("output_attentions must be false, got true: the model does not keep attention weights")
        if past_key_values is not None and past_key_values.is_compileable:
            raise ValueError(
                f"past_key_values must be a DynamicCache, which grows with its sequences, got a "
                f"{type(past_key_values).__name__}"
            )
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)

        embeddings: Tensor = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        num_cached = past_key_values.get_seq_length() if past_key_values is not None else 0
        here = places(num_cached, embeddings.shape[1], attention_mask, embeddings.device)
        _refuse_other_positions(position_ids, here)

        hidden, shared, dtype = embeddings, None, summed_in(embeddings.dtype)
        if hasattr(self, "position"):
            hidden = self.position.embed(embeddings, here)
            shared = self.position, self.position.prepare(here, dtype)
        step = Step(here, dtype, shared, past_key_values)
        between = [hidden]
        for layer in self.layers:
            hidden = layer(hidden, step)
            between.append(hidden)
        hidden = self.norm(hidden)
        return BaseModelOutputWithPast(
            last_hidden_state=hidden,
            past_key_values=past_key_values,
            hidden_states=(*between[:-1], hidden) if output_hidden_states else None,
        )


def _refuse_other_positions(position_ids: Tensor | None, places: Places) -> None:
    """Refuse positions other than those that the attention mask implies.

    Raises:
        ValueError: when a token that is not padding has another position.
    """
    if position_ids is None:
        return
    if (places.held & (position_ids.to(places.positions.device) != places.positions)).any():
        raise ValueError(
            "position_ids must count the tokens of each sequence from 0 without padding: leave position_ids out, and "
            "mark padding in attention_mask"
        )


class PosencForCausalLM(PosencPreTrainedModel, GenerationMixin):
    """The decoder with a head over the vocabulary."""

    _tied_weights_keys: ClassVar = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: PosencConfig) -> None:
        super().__init__(config)
        self.model = PosencModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: DynamicCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        return_dict: bool | None = None,
        **others: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Logits at the given tokens, and the loss if labels are given.

        Args: those of ``PosencModel.forward``, and
            labels: ``[batch, num_tokens]``, -100 for a token without a label. The loss is the mean negative
                log-likelihood of each label, given the tokens before it.
            logits_to_keep: compute logits for this many last tokens only; 0 for all.
        """
        outputs = self.model(
            input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache, **others
        )
        logits = self.lm_head(outputs.last_hidden_state[:, -logits_to_keep:])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.vocab_size, **others)
        found = CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
        )
        return found.to_tuple() if return_dict is False else found
