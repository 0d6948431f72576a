"""CoPE (Golovneva et al. 2024, arXiv:2405.18719, section 3): positions count what a query chooses to count."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import initialization

from posenc_runtime.decoder.attention import exact, mixed, scores, weights
from posenc_runtime.decoder.encoding import PositionEncoding, Prepared
from posenc_runtime.decoder.places import Places
from posenc_runtime.decoder.rules import require_one_of, require_whole


class CopeEncoding(PositionEncoding):
    """Positions that are sums of gates, looked up in a learned table: one for each layer, or one for all.

    Settings:
        cope_npos_max: entries of the table; positions are at most one less.
        cope_qe_scale: "one", as in the listing of the paper's appendix, or "head_dim", by which the position's logit is
            multiplied with ``head_dim ** -0.5`` as the content's is: the default of the authors' repository
            (facebookresearch/RAM, projects/cope). A checkpoint of one is wrong under the other.
        cope_shared: whether all layers share one table.

    Weights:
        pos_emb: ``[head_dim, cope_npos_max]``, shared by the heads. Training starts from 0.
    """

    defaults: ClassVar = {"cope_npos_max": 64, "cope_qe_scale": "one", "cope_shared": False}
    refused: ClassVar = {
        "cope_sep_key": "gates from a key projection of their own would need a third cached tensor a layer",
        "cope_val_gates": "gates from values are not implemented, only gates from keys",
    }

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.pos_emb = nn.Parameter(torch.empty(config.head_dim, config.cope_npos_max))
        self.qe_scale: float = 1.0 if config.cope_qe_scale == "one" else config.head_dim**-0.5

    @classmethod
    def check(cls, config: Any) -> None:
        require_whole("cope_npos_max", config.cope_npos_max, 2)
        require_one_of("cope_qe_scale", config.cope_qe_scale, ("one", "head_dim"))
        require_one_of("cope_shared", config.cope_shared, (False, True))

    @classmethod
    def is_shared(cls, config: Any) -> bool:
        return bool(config.cope_shared)

    def initialize(self) -> None:
        initialization.zeros_(self.pos_emb)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, places: Places, prepared: Prepared, scale: float
    ) -> Tensor:
        return cope_attention(query, key, value, places.visible, self.pos_emb, self.qe_scale, scale)


def cope_attention(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor, pos_emb: Tensor, qe_scale: float, scale: float
) -> Tensor:
    """Attention with contextual positions.

    With scores ``s_ij = scale q_i.k_j`` and gates ``g_ij = sigmoid(s_ij)``, key j stands ``p_ij = sum of g_it over
    j <= t <= i`` positions back, its own gate and the query's included, at most ``npos - 1``. Its logit is
    ``s_ij + z_i(p_ij)``, where z_i interpolates linearly between the entries of ``qe_scale q_i.pos_emb``. Keys that are
    not visible, those of padding for example, have no gate.

    Args:
        query: ``[batch, num_heads, num_queries, head_dim]``.
        key, value: ``[batch, num_kv_heads, num_keys, head_dim]``.
        visible: bool ``[batch or 1, num_queries, num_keys]``.
        pos_emb: ``[head_dim, npos]``.

    Returns:
        As query, in at least float32.
    """
    content = scores(query, key, scale)
    gates = content.sigmoid().masked_fill(~visible[:, None], 0)
    back = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=pos_emb.shape[1] - 1)
    by_position = qe_scale * (exact(query) @ pos_emb.to(content.dtype))  # [batch, num_heads, num_queries, npos]
    below, above = back.detach().floor(), back.detach().ceil()
    share = back - below
    position = by_position.gather(-1, below.long()) * (1 - share) + by_position.gather(-1, above.long()) * share
    return mixed(weights(content + position, visible), value)


ENCODING = CopeEncoding
