"""Position encodings that add a distance bias of ``posenc_runtime.encodings.bias`` to scores. Keys do not change."""

from __future__ import annotations

import torch
from torch import Tensor

from posenc_runtime.decoder.attention import attention
from posenc_runtime.decoder.encoding import PositionEncoding, Prepared
from posenc_runtime.decoder.places import Places
from posenc_runtime.encodings.distance import DistanceBias, on_device


class DistanceBiasEncoding(PositionEncoding):
    """A bias that all layers share, computed once in a forward pass."""

    def bias(self) -> DistanceBias:
        """The bias as the dataclass of its family, which kernels get, too."""
        raise NotImplementedError

    def prepare(self, places: Places, dtype: torch.dtype) -> Prepared:
        """The bias, ``[batch or 1, num_heads, num_queries, num_keys]``."""
        form = on_device(self.bias().form(), places.distance.device)
        return (form.bias(places.distance.to(dtype)).transpose(0, 1),)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, places: Places, prepared: Prepared, scale: float
    ) -> Tensor:
        return attention(query, key, value, places.visible, scale, prepared[0])
