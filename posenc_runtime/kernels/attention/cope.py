"""A layer's contextual position encoding, as data (CoPE; Golovneva et al. 2024, arXiv:2405.18719)."""

from __future__ import annotations

import dataclasses

from torch import Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Cope:
    """The table that positions are looked up in, and what multiplies a query's product with it.

    Attributes:
        pos_emb: ``[head_dim, npos]``, an embedding for each position back, shared by the heads of the layer.
        qe_scale: multiplies ``q.pos_emb``. 1 in the listing of the paper's appendix; ``head_dim ** -0.5`` in the
            authors' repository (facebookresearch/RAM, projects/cope) unless it runs with ``--cope-nodiv``. Checkpoints
            of one are wrong under the other.

    Raises:
        ValueError: when the table has fewer than two positions: no key stands less than 0 positions back, and the own
            key stands between 0 and 1.
    """

    pos_emb: Tensor
    qe_scale: float

    def __post_init__(self) -> None:
        if self.pos_emb.ndim != 2 or self.pos_emb.shape[1] < 2:
            raise ValueError(
                f"pos_emb must be [head_dim, npos] with npos of at least 2, got {list(self.pos_emb.shape)}"
            )
