"""Posenc inside vLLM: the only package that imports vllm. vLLM loads it in every process by its entry point."""

from __future__ import annotations


def register() -> None:
    """Entry point of the group ``vllm.general_plugins``; may be called any number of times in a process.

    Raises:
        IncompatibleVllm: when this vLLM is not the one we were written for.
    """
    from posenc_runtime.vllm_adapter import attention, channel, compat, models, rotary

    compat.verify()
    rotary.register()
    channel.register()
    attention.register()
    models.register()
