"""A layer's contextual position encoding, as data (CoPE; Golovneva et al. 2024, arXiv:2405.18719)."""

from __future__ import annotations

import dataclasses

from torch import Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Cope:
    """The table of positions, and the factor of a query's product with it.

    Attributes:
        pos_emb: ``[head_dim, npos]``, an embedding for each position, shared by the heads of the layer.
        qe_scale: multiplies ``q.pos_emb``. It is 1 in the listing of the paper's appendix. In the authors' repository
            (facebookresearch/RAM, projects/cope) it is ``head_dim ** -0.5``, unless that runs with ``--cope-nodiv``.
            Use the one that the checkpoint was trained with.

    Raises:
        ValueError: when the table has fewer than two positions. A query's own key stands between 0 and 1, so both are
            needed.
    """

    pos_emb: Tensor
    qe_scale: float

    def __post_init__(self) -> None:
        if self.pos_emb.ndim != 2 or self.pos_emb.shape[1] < 2:
            raise ValueError(
                f"pos_emb must be [head_dim, npos] with npos of at least 2, got {list(self.pos_emb.shape)}"
            )
