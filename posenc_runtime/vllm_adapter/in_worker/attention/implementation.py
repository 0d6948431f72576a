"""The callable that vLLM calls to build a layer's attention; it decides which implementation the layer gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vllm.config import get_current_vllm_config
from vllm.v1.attention.backend import AttentionType

from posenc_runtime.decoder.encoding import PositionEncoding
from posenc_runtime.encodings.distance import BiasForm
from posenc_runtime.kernels.attention.cope import Cope
from posenc_runtime.vllm_adapter.contract.active import turning_deployment_of
from posenc_runtime.vllm_adapter.contract.attention_choice import AttentionChoice, Kind, choice_of
from posenc_runtime.vllm_adapter.in_worker.attention.layers import Asked, refuse, select


class Implementation:
    """Takes the place of the implementation class that vLLM expects.

    Args:
        stock: vLLM's own implementation, for layers that need none of ours.
        own: our implementations; each takes vLLM's ten arguments, and the keywords ``asked`` and ``choice``.
        stock_has_alibi_sqrt: whether the stock one takes ALiBi's square root, by the keyword ``use_alibi_sqrt``.
        turning: takes the stock one's arguments and its place in layers that see a whole request, where the deployment
            turns queries.
    """

    # vLLM reads these attributes of an implementation's class. Our kernels need a whole request in one process.
    supports_pcp = False
    supports_dcp = False

    def __init__(
        self,
        stock: Callable[..., Any],
        own: Mapping[Kind, Callable[..., Any]],
        *,
        stock_has_alibi_sqrt: bool,
        turning: Callable[..., Any] | None = None,
    ) -> None:
        self._stock, self._own, self._stock_has_alibi_sqrt = stock, own, stock_has_alibi_sqrt
        self._turning = turning

    def __call__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        *others: Any,
        encoding: str | None = None,
        use_alibi_sqrt: bool = False,
        distance_bias: Callable[[], BiasForm] | None = None,
        cope: Callable[[], Cope] | None = None,
        attend: Callable[[], PositionEncoding] | None = None,
        **named: Any,
    ) -> Any:
        """Build the attention of one layer. ``Asked`` describes the keywords.

        Raises:
            Unsupported: when the deployment chose a backend that cannot do what the layer asks for.
        """
        vllm_config = get_current_vllm_config()
        choice = choice_of(vllm_config) or AttentionChoice(backend="stock")
        asked = Asked(
            encoding=encoding,
            alibi_slopes=alibi_slopes,
            use_alibi_sqrt=use_alibi_sqrt,
            distance_bias=distance_bias,
            cope=cope,
            attend=attend,
        )
        kind = select(choice, asked, stock_has_alibi_sqrt=self._stock_has_alibi_sqrt)
        arguments = (
            *(num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window, kv_cache_dtype),
            *(logits_soft_cap, attn_type, kv_sharing_target_layer_name, *others),
        )
        if kind == "stock":
            if self._stock_has_alibi_sqrt:
                named["use_alibi_sqrt"] = use_alibi_sqrt
            sees_all = attn_type == AttentionType.DECODER and sliding_window is None
            if self._turning and sees_all and turning_deployment_of(vllm_config):
                return self._turning(*arguments, **named)
            return self._stock(*arguments, **named)
        dtype = str(vllm_config.model_config.dtype).removeprefix("torch.")
        refuse(
            asked,
            sliding_window=sliding_window,
            logits_soft_cap=logits_soft_cap,
            kv_sharing_target_layer_name=kv_sharing_target_layer_name,
            attn_type=attn_type if attn_type != AttentionType.DECODER else None,
            kv_cache_dtype=kv_cache_dtype if kv_cache_dtype not in ("auto", dtype) else None,
            others=others,
            **named,
        )
        return self._own[kind](*arguments, asked=asked, choice=choice)
