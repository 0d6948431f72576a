"""vLLM's rotary embedding with a stacked table: the block that a token is written to chooses its rows. Decision 1.

The class of vLLM is subclassed and swapped in by ``CustomOp.register_oot``. Only the row index differs from stock:
the parent's own table serves scale 1 and the parent's own kernel rotates, so an unscaled request is bit-identical
to stock vLLM. Where attention rotates, queries and keys pass as they are, and there is no table. Decision 2.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from posenc_runtime.encodings.spec import RotarySpec
from posenc_runtime.encodings.table import fill_cos_sin
from posenc_runtime.kernels import ops
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.active import deployment_of
from posenc_runtime.vllm_adapter.attention.choice import choice_of
from posenc_runtime.vllm_adapter.attention.fused_rotary.asked import is_fused
from posenc_runtime.vllm_adapter.worker.worker_state import STATE, Rotary

_SUPPORTED = ("RotaryEmbedding", "Llama3RotaryEmbedding")
_FORWARDS = ("forward_native", "forward_cuda", "forward_cpu", "forward_oot", "forward_hip", "forward_xpu")


@functools.cache
def register() -> None:
    """Swap our class in for every rotary class of vLLM: a scaling one where supported, a refusing one elsewhere."""
    from vllm.utils.torch_utils import direct_register_custom_op

    from posenc_runtime.vllm_adapter.rotary import embedding_cache as rope_cache
    from posenc_runtime.vllm_adapter.rotary import long_embedding as long_rotary

    direct_register_custom_op(
        op_name="posenc_rope_rows",
        op_func=_rope_rows,
        mutates_args=["rows"],
        fake_impl=_rope_rows_fake,
        dispatch_key="CompositeExplicitAutograd",  # wherever the tensors are
    )
    for rotary_class in rotary_classes():
        substitute = substitute_of(rotary_class)
        name = rotary_class.name
        rotary_class.register_oot(substitute, name=rotary_class.__name__)
        substitute.name = name  # so that custom_ops=["+rotary_embedding"] goes on addressing it
    long_rotary.substitute()
    rope_cache.substitute()


def substitute_of(rotary_class: Any) -> Any:
    """The class of ours that models get in the place of one of vLLM's."""
    return _scaling(rotary_class) if rotary_class.__name__ in _SUPPORTED else _refusing(rotary_class)


def stacked_table(made: Rotary, unscaled: Tensor) -> Tensor:
    """The tables of all scales, one below the other. Decision 4.

    Args:
        unscaled: ``[at least the first scale's length, rotary_dim]``, the checkpoint's own table.

    Returns:
        ``[deployment.scale_set.num_rows, rotary_dim]``, in the data type of ``unscaled``.
    """
    scale_set = made.deployment.scale_set
    table = unscaled.new_empty(scale_set.num_rows, unscaled.shape[1])
    for index, part in enumerate(torch.split(table, list(scale_set.lengths))):
        if index == 0:
            part.copy_(unscaled.narrow(0, 0, scale_set.lengths[0]))
        else:
            fill_cos_sin(part, made.frequencies(index))
    return table


def _scaling(rotary_class: Any) -> Any:
    def _compute_cos_sin_cache(self: Any) -> Tensor:
        deployment = current_deployment()
        if deployment is None or not deployment.rotates:
            stock: Tensor = rotary_class._compute_cos_sin_cache(self)
            return stock
        self.posenc_scaled = True
        inv_freq = rotary_class._compute_inv_freq(self, self.base)
        made = noted(deployment, self, inv_freq, is_neox_style=self.is_neox_style)
        self.posenc_fused = made.is_fused
        if made.is_fused:  # no row, so that whoever reads the table anyway fails
            return torch.empty(0, self.rotary_dim)
        make_room_for_rows(self)
        unscaled = _unscaled_table(self, rotary_class, deployment.scale_set.lengths[0])
        return stacked_table(made, unscaled)

    members: dict[str, Any] = {
        "posenc_scaled": False,
        "posenc_fused": False,
        "_compute_cos_sin_cache": _compute_cos_sin_cache,
    }
    members |= {name: by_scale(getattr(rotary_class, name)) for name in _FORWARDS if hasattr(rotary_class, name)}
    return type("Posenc" + rotary_class.__name__, (rotary_class,), members)


def noted(deployment: Deployment, module: Any, inv_freq: Tensor, *, is_neox_style: bool) -> Rotary:
    """Note that a rotary embedding is built for a deployment, with the checkpoint's ``base``.

    Args:
        inv_freq: rad / token, what vLLM turns pairs by at scale 1.

    Raises:
        ValueError: when the deployment's scale 1 turns pairs otherwise than the checkpoint, one of its scales turns
            none, or another engine of this process serves with scales.
    """
    from vllm.config.vllm import get_current_vllm_config_or_none

    from posenc_runtime.vllm_adapter.checkpoints.checkpoint import read_again, refuse_another

    vllm_config = get_current_vllm_config_or_none()
    engine = "" if vllm_config is None else vllm_config.instance_id
    _refuse_beside_another(engine)
    if vllm_config is not None and vllm_config.model_config is not None:
        trained = deployment.original_max_position_embeddings
        refuse_another(read_again(vllm_config.model_config), deployment.rope_type, deployment.parameters, trained)
    choice, fused = choice_of(vllm_config), is_fused(vllm_config)
    if vllm_config is not None:
        # Compiled graphs are found again by a hash of this, and auto may have meant something else then.
        vllm_config.additional_config["posenc_fused"] = fused
    own = RotarySpec(
        rotary_dim=module.rotary_dim,
        rope_theta=float(module.base),
        original_max_position_embeddings=deployment.original_max_position_embeddings,
    )
    made = Rotary(
        deployment=deployment,
        head_dim=module.head_size,
        own=own,
        inv_freq=None if fused else inv_freq,
        is_neox_style=is_neox_style,
        is_fused=fused,
        factor_on_keys=not fused or (choice is not None and choice.fused_keys == "stock"),
        module=module,
        engine=engine,
    )
    deployment.check_rotations(own)
    _refuse_unlike(made, inv_freq)
    STATE.note(made)
    return made


def make_room_for_rows(module: torch.nn.Module) -> None:
    """Give a rotary embedding a row for each token that a step may have. Captured CUDA graphs hold its address."""
    from vllm.config.vllm import get_current_vllm_config

    room = get_current_vllm_config().scheduler_config.max_num_batched_tokens
    module.register_buffer("posenc_rows", torch.zeros(room, dtype=torch.int64), persistent=False)


def _refuse_beside_another(engine: str) -> None:
    """What a worker knows of its blocks, vLLM's operations find in the process: it can be that of one engine.

    Raises:
        ValueError: when vLLM's connector is that of another engine, which was not shut down.
    """
    from vllm.distributed.kv_transfer import has_kv_transfer_group

    if has_kv_transfer_group() and any(rotary.engine != engine for rotary in STATE.rotaries):
        raise ValueError(
            "a process can have one engine with scales at a time, and an earlier one was not shut down: call its "
            "engine_core.shutdown(), or start each in a process of its own"
        )


def _refuse_unlike(made: Rotary, inv_freq: Tensor) -> None:
    """Parameters of a method may be given beside the checkpoint's, which says only here how it rotates.

    Raises:
        ValueError: when scale 1 is not the checkpoint's own rotation, whose frequencies are given.
    """
    # A model is built with its own device as the default one, and vLLM may make its frequencies on another.
    ours, own = made.deployment.frequencies(made.own, 0).inv_freq.cpu(), inv_freq.double().cpu()
    if not torch.allclose(ours, own, rtol=1e-5, atol=0):
        raise ValueError(
            f"scale 1 must be the checkpoint's own rotation, got another one by {made.deployment.rope_type} with "
            f"{dict(made.deployment.parameters)}: leave out what the checkpoint's configuration says"
        )


def _unscaled_table(module: Any, rotary_class: Any, num_rows: int) -> Tensor:
    served = module.max_position_embeddings
    module.max_position_embeddings = num_rows
    try:
        table: Tensor = rotary_class._compute_cos_sin_cache(module)
    finally:
        module.max_position_embeddings = served
    return table


def by_scale(parent: Callable[..., Any]) -> Callable[..., Any]:
    """A method of vLLM that rotates, with each token's row in the stacked table; nothing where attention rotates."""

    def forward(
        self: Any, positions: Tensor, query: Tensor, key: Tensor | None = None, *others: Any, **named: Any
    ) -> Any:
        if self.posenc_fused:
            return query, key
        if self.posenc_scaled:
            num_tokens = positions.numel()
            torch.ops.vllm.posenc_rope_rows(positions, self.posenc_rows)
            positions = self.posenc_rows[:num_tokens]
        return parent(self, positions, query, key, *others, **named)

    return forward


def _refusing(rotary_class: Any) -> Any:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if current_deployment() is not None:
            raise ValueError(
                f"posenc scales checkpoints whose rotary class is one of {', '.join(_SUPPORTED)}, got "
                f"{rotary_class.__name__}: serve this checkpoint without additional_config.posenc"
            )
        rotary_class.__init__(self, *args, **kwargs)

    return type("Posenc" + rotary_class.__name__, (rotary_class,), {"__init__": __init__})


def current_deployment() -> Deployment | None:
    from vllm.config.vllm import get_current_vllm_config_or_none

    from posenc_runtime.vllm_adapter.refusals.engine import refuse_unsupported

    vllm_config = get_current_vllm_config_or_none()
    deployment = deployment_of(vllm_config)
    if vllm_config is not None and deployment is not None:
        refuse_unsupported(vllm_config)
    return deployment


def rotary_classes() -> Iterator[Any]:
    """Every class that a model of vLLM can be given as its rotary embedding."""
    from vllm.model_executor.layers import rotary_embedding
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbeddingBase

    found = {}
    for module_info in pkgutil.iter_modules(rotary_embedding.__path__):
        module = importlib.import_module(f"{rotary_embedding.__name__}.{module_info.name}")
        for _, member in inspect.getmembers(module, inspect.isclass):
            if issubclass(member, RotaryEmbeddingBase) and member is not RotaryEmbeddingBase:
                found[member.__name__] = member
    yield from found.values()


def _rope_rows(positions: Tensor, rows: Tensor) -> None:
    """Opaque to torch.compile: finds the slot mapping of this forward, at run or at graph-capture time.

    All layers of a forward have the same positions and slots, and their rows are looked up once. A CUDA graph is
    captured in a forward of its own, so the look-up is in it. Decision 3.

    Args:
        rows: int64 ``[at least num_tokens]``, written at the beginning.
    """
    from vllm.forward_context import get_forward_context, is_forward_context_available

    positions = positions.flatten()
    out = rows[: positions.shape[0]]
    if STATE.block_row_offset is None or not is_forward_context_available():
        out.copy_(positions)  # the profile run, before there is a KV cache
        return
    context = get_forward_context()
    if not context.slot_mapping:
        out.copy_(positions)  # a dummy run, which caches nothing
        return
    layer = next((name for name in context.slot_mapping if name in STATE.block_size), None)
    if layer is None:
        raise RuntimeError(
            "a token's scale is that of the block that its key is written to, but no layer with slots in this forward "
            f"is known to cache keys: got slots of {sorted(context.slot_mapping)}, known are {sorted(STATE.block_size)}"
        )
    looked_up = positions.data_ptr(), positions.shape[0], _is_capturing(positions)
    known = context.additional_kwargs.setdefault("posenc_rows", {})
    # The positions are kept beside what they led to, so that no other tensor can come to lie at their address.
    if known.get(rows.data_ptr(), (None,))[0] != looked_up:
        ops.rope_rows(positions, context.slot_mapping[layer], STATE.block_row_offset, STATE.block_size[layer], out)
        known[rows.data_ptr()] = looked_up, positions


def _is_capturing(positions: Tensor) -> bool:
    """What ran before a capture began is not in its graph."""
    return positions.is_cuda and torch.cuda.is_current_stream_capturing()


def _rope_rows_fake(positions: Tensor, rows: Tensor) -> None:
    pass
