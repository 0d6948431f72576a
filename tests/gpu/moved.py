"""Tensors on the GPU, laid out in memory as they are on the CPU."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from torch import Tensor

T = TypeVar("T")
DEVICE = "cuda"


def on_gpu(view: Tensor) -> Tensor:
    """A copy with the same strides, and whatever else lies in the memory that it is a view of."""
    base = view if view._base is None else view._base
    return base.to(DEVICE).as_strided(view.shape, view.stride(), view.storage_offset())


def fields_on_gpu(value: T) -> T:
    """A dataclass with its tensors on the GPU."""
    given: Any = value
    moved = {
        field.name: on_gpu(held)
        for field in dataclasses.fields(given)
        if isinstance(held := getattr(given, field.name), Tensor)
    }
    return dataclasses.replace(given, **moved)
