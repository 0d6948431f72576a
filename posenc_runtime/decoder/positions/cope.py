"""CoPE (Golovneva et al. 2024, arXiv:2405.18719, section 3): each query decides which tokens its positions count."""

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
    """Positions that are sums of gates and are looked up in a learned table.

    Settings:
        cope_npos_max: entries of the table; the largest position is one less.
        cope_qe_scale: factor of the position's logit. "one" is 1, as in the listing of the paper's appendix.
            "head_dim" is ``head_dim ** -0.5``, which also scales the content's logit; it is the default of the authors'
            repository (facebookresearch/RAM, projects/cope). Use the one that the checkpoint was trained with.
        cope_shared: whether all layers share one table, or each has its own.

    Weights:
        pos_emb: ``[head_dim, cope_npos_max]``, shared by the heads. Training starts from 0.
    """

    defaults: ClassVar = {"cope_npos_max": 64, "cope_qe_scale": "one", "cope_shared": False}
    refused: ClassVar = {
        "cope_sep_key": "gates from a separate key projection are not implemented, only gates from the cached keys",
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

    Scores are ``s_ij = scale q_i.k_j`` and gates ``g_ij = sigmoid(s_ij)``. The position of key j for query i is
    ``p_ij = sum of g_it over j <= t <= i``, at most ``npos - 1``; the gates of the key and of the query's own token
    count. The logit is ``s_ij + z_i(p_ij)``, where z_i interpolates linearly between the entries of
    ``qe_scale q_i.pos_emb``. A key that is not visible, such as padding, adds nothing to the sum.

    Args:
        query: ``[batch, num_heads, num_queries, head_dim]``.
        key, value: ``[batch, num_kv_heads, num_keys, head_dim]``.
        visible: bool ``[batch or 1, num_queries, num_keys]``.
        pos_emb: ``[head_dim, npos]``.

    Returns:
        In query's shape, in at least float32.
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
