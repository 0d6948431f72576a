"""Memory of the tensors that somebody holds while something is computed."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class HeldMemory(TorchDispatchMode):
    """Counts the bytes of the tensors that operations make, until nobody has them any more.

    Attributes:
        held: bytes now.
        most: bytes at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.held = self.most = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = operation(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor):
            given = (value for value in args if isinstance(value, torch.Tensor))
            memory = made.untyped_storage()
            if all(value.untyped_storage().data_ptr() != memory.data_ptr() for value in given):
                self.held += memory.nbytes()
                self.most = max(self.most, self.held)
                weakref.finalize(made, self._let_go, memory.nbytes())
        return made

    def _let_go(self, num_bytes: int) -> None:
        self.held -= num_bytes
