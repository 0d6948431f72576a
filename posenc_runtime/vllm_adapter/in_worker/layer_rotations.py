"""Finds out what rotates each layer's keys, by asking the model that vLLM built. Decision 66.

No configuration says it: some layers rotate under a condition, others rotate the end of a head, have a rotary embedding
of their own, or have none. So a few equal tokens pass through the model, each with a row of the stacked table that we
choose. Attention is replaced by code that notes the keys and answers zeros, so tokens differ only in their rotation.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.mamba.abstract import MambaBase

from posenc_runtime.vllm_adapter.contract.errors import Unsupported, changed_keys
from posenc_runtime.vllm_adapter.in_worker.worker_state import STATE, Rotary

if TYPE_CHECKING:
    from vllm.config import VllmConfig

# Keys are equal that differ by less than this share, here of their largest element: each was rounded a few times.
ROUNDING = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
# Where all tokens stand in the first pass and in the second. Not at 0, where layers that draft leave embeddings out. No
# token gets these rows of a table.
_POSITIONS = 3, 7


@dataclasses.dataclass(frozen=True)
class Turned:
    """The part of a layer's cached keys that a scaled rotary embedding rotates.

    Attributes:
        rotary: the embedding.
        offset: the first rotated element of a cached head.
        is_neox_style: whether a pair is one element of each half of the rotated part (True) or two neighbours (False).
    """

    rotary: Rotary
    offset: int
    is_neox_style: bool


def layer_rotations(
    model: nn.Module,
    vllm_config: VllmConfig,
    layers: Mapping[str, Any],
    rotaries: Sequence[Rotary],
    *,
    has_other_rotations: bool,
) -> dict[str, Turned | None]:
    """What rotates the keys of each layer: one of ``rotaries``, or none of them.

    Args:
        layers: the attention layers that cache keys, by name.
        has_other_rotations: whether layers with a window may have a rotary embedding that is not scaled.

    Raises:
        Unsupported: when a layer rotates keys in another way than by the rows that we choose; the message names it.
    """
    _refuse_rotated_states(vllm_config.compilation_config.static_forward_context, rotaries)
    rows = _rows(rotaries[0])
    first, second = _POSITIONS
    with _without_row(first, rotaries), _at_rows(rows, model):
        noted = noted_keys(model, vllm_config, layers, [first] * len(rows))
    with _at_rows(rows, model):
        later = noted_keys(model, vllm_config, layers, [second] * len(rows))
    for name, keys in later.items():
        if not keys.isfinite().all():
            raise Unsupported(
                f"the model must compute finite numbers, but keys of {name} are not: its weights are damaged, or too "
                "large for its data type. Download the checkpoint again, or set dtype to bfloat16 or float32"
            )
    found: dict[str, Turned | None] = {}
    for name, layer in layers.items():
        keys = noted[name]
        if not keys.isfinite().all():
            raise Unsupported(
                f"scaling needs a model that rotates by its rotary embedding alone, but {name} reads the embedding's "
                "table without calling the embedding: serve this model without scaling"
            )
        if not keys.any():
            raise Unsupported(
                f"scaling asks the model how it rotates, but all keys of {name} are zeros: load weights that give "
                "other keys"
            )
        found[name] = _turned(name, keys, getattr(layer, "kv_lora_rank", 0), rows, rotaries)
        if not _are_equal(keys, later[name]):
            sees_all = getattr(layer, "sliding_window", None) is None
            if found[name] is not None or sees_all or not has_other_rotations:
                raise Unsupported(
                    f"scaling needs a model that rotates by the rotary embedding that is scaled, but keys of {name} "
                    "also depend on positions in another way: serve this model without scaling"
                )
    return found


def _refuse_rotated_states(every_layer: Mapping[str, Any], rotaries: Iterable[Rotary]) -> None:
    scaled = {rotary.module for rotary in rotaries if rotary.deployment.rerotates}
    for name, layer in every_layer.items():
        if isinstance(layer, MambaBase) and isinstance(layer, nn.Module) and not scaled.isdisjoint(layer.modules()):
            raise Unsupported(
                f"re-rotation turns cached keys, but {name} rotates what enters its recurrent state: set on_crossing "
                "to recompute or pin, and prefix_reuse to exact"
            )


def _rows(rotary: Rotary) -> list[int]:
    """Rows of the stacked table for the tokens: one at scale 1, then some of each scale."""
    of_scales = zip(rotary.row_offsets, rotary.deployment.scale_set.lengths, strict=True)
    return [1, *itertools.chain.from_iterable((first + 2, first + length - 1) for first, length in of_scales)]


@contextlib.contextmanager
def _without_row(number: int, rotaries: Iterable[Rotary]) -> Iterator[None]:
    """Replace a row of the stacked tables by NaN: code that reads them by this position then shows."""
    tables = [_table(rotary) for rotary in rotaries]
    kept = [table[number].clone() for table in tables]
    for table in tables:
        table[number] = torch.nan
    try:
        yield
    finally:
        for table, row in zip(tables, kept, strict=True):
            table[number] = row


@contextlib.contextmanager
def _at_rows(rows: Sequence[int], model: nn.Module) -> Iterator[None]:
    """Let tokens be rotated by rows of the stacked tables, whatever their positions are."""
    STATE.asked_rows = torch.tensor(rows, dtype=torch.int64, device=next(model.parameters()).device)
    try:
        yield
    finally:
        STATE.asked_rows = None


def noted_keys(
    model: nn.Module, vllm_config: VllmConfig, layers: Mapping[str, Any], at: Sequence[int], described: Any = None
) -> dict[str, Tensor]:
    """The keys that each layer would cache of equal tokens, ``[num_tokens, num_kv_heads, head_dim]``, on the CPU.

    Of MLA's latents, the rotated part alone. Of layers that read keys of another layer, and have none, the
    queries ``[num_tokens, num_heads, head_dim]``.

    Args:
        at: the tokens' positions.
        described: vLLM's ``ModelConfig`` of the model; the engine's when left out.

    Raises:
        Unsupported: when no token reaches one of the layers.
    """
    from vllm.forward_context import set_forward_context

    device, num_tokens = next(model.parameters()).device, len(at)
    positions = torch.tensor(at, dtype=torch.int64, device=device)
    described = described or vllm_config.model_config
    if described.uses_mrope:
        positions = positions.expand(described.mrope_num_dims, num_tokens).contiguous()
    _give_no_adapter(model, vllm_config, num_tokens)
    with (
        _noting_keys(layers, vllm_config.compilation_config.static_forward_context) as noted,
        torch.inference_mode(),
        set_forward_context(None, vllm_config, num_tokens=num_tokens, skip_compiled=True),
    ):
        model(positions=positions, **_inputs(model, vllm_config, num_tokens, device))
    if unseen := sorted(layers.keys() - noted.keys()):
        raise Unsupported(f"scaling asks the model how it rotates, but no token reached {unseen[0]}")
    return noted


def _give_no_adapter(model: nn.Module, vllm_config: VllmConfig, num_tokens: int) -> None:
    """Say that tokens have no LoRA adapter. Until vLLM's runner says so, layers read memory that nobody has written."""
    lora = vllm_config.lora_config
    if lora is None:
        return
    from vllm.lora.layers import LoRAMapping

    without = LoRAMapping(index_mapping=(0,) * num_tokens, prompt_mapping=(0,), is_prefill=True)
    found = (getattr(module, "punica_wrapper", None) for module in model.modules())
    for wrapper in {id(each): each for each in found if each is not None}.values():
        wrapper.update_metadata(
            without, [None] * lora.max_loras, lora.max_loras, vllm_config.model_config.get_vocab_size()
        )


def _inputs(model: Any, vllm_config: VllmConfig, num_tokens: int, device: torch.device) -> dict[str, Any]:
    """The same token several times; of a later pipeline stage, the same states of an earlier one.

    All that vLLM's runner gives a model is among them, because some models have no defaults.
    """
    from vllm.distributed import get_pp_group

    token = vllm_config.model_config.get_vocab_size() // 2
    input_ids = torch.full((num_tokens,), token, dtype=torch.int32, device=device)
    inputs: dict[str, Any] = {"input_ids": input_ids, "intermediate_tensors": None, "inputs_embeds": None}
    parameters = inspect.signature(model.forward).parameters
    if "hidden_states" in parameters:  # a drafter, which reads what the model thought of the token before
        width = vllm_config.speculative_config.draft_model_config.get_hidden_size()
        states = torch.linspace(-1, 1, width, device=device).to(vllm_config.model_config.dtype)
        return {"input_ids": input_ids, "hidden_states": states.expand(num_tokens, width).contiguous()}
    if not get_pp_group().is_first_rank:
        states = model.make_empty_intermediate_tensors(num_tokens, vllm_config.model_config.dtype, device)
        for tensor in states.tensors.values():
            tensor.copy_(
                torch.linspace(-1, 1, tensor[0].numel(), device=device).view(tensor[0].shape).expand_as(tensor)
            )
        inputs |= {"input_ids": None, "intermediate_tensors": states}
    return inputs


@contextlib.contextmanager
def _noting_keys(layers: Mapping[str, Any], every_layer: Mapping[str, Any]) -> Iterator[dict[str, Tensor]]:
    """Let layers note their keys in place of attending; layers with recurrent states answer zeros.

    Args:
        every_layer: these layers, and all others that cache something.
    """
    noted: dict[str, Tensor] = {}
    recurrent = [layer for layer in every_layer.values() if isinstance(layer, MambaBase)]
    for name, layer in layers.items():
        layer.forward = _noting(name, layer, noted)
    for layer in recurrent:
        layer.forward = _answering_zeros(layer)
    try:
        yield noted
    finally:
        for layer in (*layers.values(), *recurrent):
            del layer.forward


def _answering_zeros(layer: Any) -> Any:
    """Without a cache, some recurrent layers leave their output as it was allocated."""
    stock = layer.forward
    signature = inspect.signature(stock)

    def forward(*args: Any, **named: Any) -> Any:
        output = signature.bind(*args, **named).arguments.get("output")
        if output is None:
            return torch.zeros_like(stock(*args, **named))
        return output.zero_()

    return forward


def _noting(name: str, layer: Any, noted: dict[str, Tensor]) -> Any:
    is_latent = hasattr(layer, "kv_lora_rank")
    reads_anothers = getattr(layer, "kv_sharing_target_layer_name", None) is not None

    def forward(
        query: Tensor, key: Tensor | None, value: Tensor | None, output_shape: Any = None, *_: Any, **__: Any
    ) -> Tensor:
        if reads_anothers:
            noted[name] = query.reshape(len(query), layer.num_heads, -1).cpu()
        elif is_latent:  # MLA gets a query, a latent, and the rotated part of the key
            assert value is not None
            noted[name] = value.reshape(len(value), 1, -1).cpu()
        else:
            assert key is not None
            noted[name] = key.reshape(len(key), layer.num_kv_heads, -1).cpu()
        return query.new_zeros(output_shape or (len(query), layer.num_heads * layer.head_size_v))

    return forward


def _turned(name: str, keys: Tensor, first: int, rows: Sequence[int], rotaries: Sequence[Rotary]) -> Turned | None:
    """The part of the keys that one of the embeddings rotates; None where none does.

    Args:
        first: where the keys begin in a cached head.

    Raises:
        Unsupported: when keys depend on the rows, but not as a rotation of their beginning or their end.
    """
    if _are_equal(keys, keys[:1].expand_as(keys)):
        return None
    for rotary in rotaries:
        width = rotary.own.rotary_dim
        for offset, is_neox_style in itertools.product(sorted({0, keys.shape[-1] - width}), (True, False)):
            if offset >= 0 and _are_equal(keys, _rotated(keys, rotary, rows, offset, is_neox_style)):
                return Turned(rotary, first + offset, is_neox_style)
    if not rotaries[0].deployment.rerotates:
        return Turned(rotaries[0], first, rotaries[0].is_neox_style)  # that keys depend on the rows is enough
    raise Unsupported(changed_keys(name))


def _rotated(keys: Tensor, rotary: Rotary, rows: Sequence[int], offset: int, is_neox_style: bool) -> Tensor:
    """What the keys of all tokens would be, by those of the first token, if this part of them were rotated."""
    cos, sin = _table(rotary)[list(rows)].double().cpu()[:, None].chunk(2, dim=-1)
    part = slice(offset, offset + rotary.own.rotary_dim)
    pairs = keys[:1, :, part].double()
    x, y = pairs.chunk(2, dim=-1) if is_neox_style else (pairs[..., ::2], pairs[..., 1::2])
    length = cos[:1] ** 2 + sin[:1] ** 2
    x, y = (x * cos[:1] + y * sin[:1]) / length, (y * cos[:1] - x * sin[:1]) / length
    turned = x * cos - y * sin, y * cos + x * sin
    rotated = keys[:1].expand_as(keys).double().clone()
    rotated[..., part] = torch.cat(turned, -1) if is_neox_style else torch.stack(turned, -1).flatten(-2)
    return rotated


def _are_equal(keys: Tensor, others: Tensor) -> bool:
    """Whether keys differ by no more than their data type's rounding."""
    difference = (keys.double() - others.double()).abs().amax()
    return bool(difference <= ROUNDING[keys.dtype] * keys.double().abs().amax())


def _table(rotary: Rotary) -> Tensor:
    module = rotary.module
    name = "long_short_cos_sin_cache" if hasattr(module, "long_short_cos_sin_cache") else "cos_sin_cache"
    table: Tensor = getattr(module, name)
    return table
