"""The tiles of AMX, which a process may use when it has asked Linux for them.

vLLM's attention in bfloat16 uses tiles, and does not ask. In most models a product of oneDNN has asked before. Where
products are small none has, and a short first prompt ended the worker with an illegal instruction.
"""

from __future__ import annotations

import torch


def ask_for_tiles() -> None:
    """Ask Linux for the tiles, for this process and all of its threads. Without AMX it does nothing."""
    torch.cpu._init_amx()
