"""Why keys of some models cannot be turned. Sources tell it before an engine starts, or the model when it is loaded."""

from __future__ import annotations


def changed_keys(where: str) -> str:
    """The refusal of a model or a layer that changes keys between their rotation and the cache.

    Args:
        where: the name of the architecture or of the layer.
    """
    return (
        "re-rotation needs layers that rotate the beginning or the end of each head, and change keys no more before "
        f"they are cached, but {where} changes them in another way: set on_crossing to recompute or pin, and "
        "prefix_reuse to exact"
    )
