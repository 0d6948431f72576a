"""How getting a model from a wheel fails."""

from __future__ import annotations

from posenc_runtime.vllm_adapter.errors import Failed


class NotPrepared(Failed):
    """The wheel's model could not be downloaded, converted or saved."""
