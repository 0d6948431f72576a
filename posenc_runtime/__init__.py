"""Position encodings that know about the KV cache: mathematics, kernels, decisions, and the vLLM adapter.

The public names, for those who run vLLM themselves::

    from posenc_runtime import Deployment, engine_arguments
    from vllm import LLM

    deployment = Deployment(
        rope_type="yarn", scales=(1, 2, 4), original_max_position_embeddings=32768, max_model_len=131072
    )
    llm = LLM("Qwen/Qwen3-8B", **engine_arguments(deployment))

They are imported when they are first used: importing this package alone imports neither torch nor vLLM. Decision 59.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posenc_runtime.kv.deployment import Deployment
    from posenc_runtime.vllm_adapter.contract.attention_choice import AttentionChoice
    from posenc_runtime.vllm_adapter.settings.arguments.engine_args import engine_arguments
    from posenc_runtime.vllm_adapter.settings.arguments.flags import ArgumentRefused

    __version__: str

__all__ = ["ArgumentRefused", "AttentionChoice", "Deployment", "__version__", "engine_arguments"]

_MODULES = {
    "ArgumentRefused": "posenc_runtime.vllm_adapter.settings.arguments.flags",
    "AttentionChoice": "posenc_runtime.vllm_adapter.contract.attention_choice",
    "Deployment": "posenc_runtime.kv.deployment",
    "engine_arguments": "posenc_runtime.vllm_adapter.settings.arguments.engine_args",
}


if not TYPE_CHECKING:  # A type checker would take every name for one that is found here.

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used.

        Raises:
            AttributeError: when there is none of this name.
            PackageNotFoundError: of ``__version__``, when posenc is imported without being installed.
        """
        if name == "__version__":
            from importlib import metadata

            found = metadata.version("posenc")
        elif name in _MODULES:
            found = getattr(import_module(_MODULES[name]), name)
        else:
            raise AttributeError(
                f"module {__name__!r} has no attribute {name!r}; the public names are {', '.join(__all__)}"
            )
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
