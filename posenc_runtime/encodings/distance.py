"""A distance bias as data: the five forms that kernels compute, and the protocol of a family of biases.

A bias b(h, d) is added to the scaled score of head h between a query and the key d tokens before it. The bias depends
on no absolute position, so keys are cached without any encoding and a cached prefix is valid at every length. Families
differ in where their numbers come from. Kernels compute one of the five forms below and know no family. Decision 29.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Protocol

import torch
from torch import Tensor

# A reach of this many tokens stands for "every distance". It is longer than any context, and exact in float32.
FURTHEST = 2.0**30


@dataclasses.dataclass(frozen=True, eq=False)
class Flat:
    """b(h, d) = 0."""

    num_heads: int

    def bias(self, distance: Tensor) -> Tensor:
        """The bias of each head at each distance.

        Args:
            distance: tokens, at least 0; any shape.

        Returns:
            ``[num_heads, *distance.shape]``, in distance's data type if that is floating, float32 if not.
        """
        return _floating(distance).new_zeros(self.num_heads, *distance.shape)

    def reach(self, drop: Tensor) -> Tensor:
        """The largest distance at which the bias is above ``-drop``, at most ``FURTHEST``.

        At every larger distance the bias is ``-drop`` or less.

        Args:
            drop: ``[num_heads, ...]``. A drop of 0 or less reaches nothing, not even distance 0.

        Returns:
            Tokens, in drop's shape; -1 where the bias is above ``-drop`` at no distance.
        """
        return torch.where(drop > 0, FURTHEST, -1.0)


@dataclasses.dataclass(frozen=True, eq=False)
class Linear:
    """b(h, d) = -slope d.

    Attributes:
        slope: float32 ``[num_heads]``, above 0.
    """

    slope: Tensor

    def __post_init__(self) -> None:
        _require_positive("slope", self.slope)

    def bias(self, distance: Tensor) -> Tensor:
        distance = _floating(distance)
        return -_of_heads(self.slope, distance.ndim, distance.dtype) * distance

    def reach(self, drop: Tensor) -> Tensor:
        return _reach(drop, drop / _of_heads(self.slope, drop.ndim - 1, drop.dtype))


@dataclasses.dataclass(frozen=True, eq=False)
class Power:
    """b(h, d) = -slope d^exponent.

    Attributes:
        slope, exponent: float32 ``[num_heads]``, above 0.
    """

    slope: Tensor
    exponent: Tensor

    def __post_init__(self) -> None:
        _require_positive("slope", self.slope)
        _require_positive("exponent", self.exponent)

    def bias(self, distance: Tensor) -> Tensor:
        distance = _floating(distance)
        slope, exponent = (_of_heads(x, distance.ndim, distance.dtype) for x in (self.slope, self.exponent))
        return -slope * distance**exponent

    def reach(self, drop: Tensor) -> Tensor:
        slope, exponent = (_of_heads(x, drop.ndim - 1, drop.dtype) for x in (self.slope, self.exponent))
        return _reach(drop, (drop.clamp(min=0) / slope) ** (1 / exponent))


@dataclasses.dataclass(frozen=True, eq=False)
class Log:
    """b(h, d) = -slope log(1 + rate d).

    Attributes:
        slope, rate: float32 ``[num_heads]``, above 0.
    """

    slope: Tensor
    rate: Tensor

    def __post_init__(self) -> None:
        _require_positive("slope", self.slope)
        _require_positive("rate", self.rate)

    def bias(self, distance: Tensor) -> Tensor:
        distance = _floating(distance)
        slope, rate = (_of_heads(x, distance.ndim, distance.dtype) for x in (self.slope, self.rate))
        return -slope * torch.log1p(rate * distance)

    def reach(self, drop: Tensor) -> Tensor:
        slope, rate = (_of_heads(x, drop.ndim - 1, drop.dtype) for x in (self.slope, self.rate))
        return _reach(drop, torch.expm1((drop / slope).clamp(max=math.log(FURTHEST) + 10)) / rate)


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """b(h, d) = values[h, min(d, length - 1)]: any bias that is constant from some distance on.

    A table reaches every distance, because nothing is known about how its values decay.

    Attributes:
        values: float32 ``[num_heads, length]``.
    """

    values: Tensor

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or not self.values.numel():
            raise ValueError(f"values must be [num_heads, length], got {list(self.values.shape)}")
        if not self.values.isfinite().all():
            raise ValueError(f"values must be finite, got {self.values[~self.values.isfinite()][0].item()} among them")

    def bias(self, distance: Tensor) -> Tensor:
        values = self.values.to(_floating(distance).dtype)
        return values[:, distance.long().clamp(max=values.shape[1] - 1)]

    def reach(self, drop: Tensor) -> Tensor:
        return torch.full_like(drop, FURTHEST)


BiasForm = Flat | Linear | Power | Log | Table


def of_heads(form: BiasForm, heads: slice) -> BiasForm:
    """The same bias with only some of its heads, for one rank of a tensor-parallel group."""
    if isinstance(form, Flat):
        return Flat(len(range(form.num_heads)[heads]))
    values = {field.name: getattr(form, field.name)[heads] for field in dataclasses.fields(form)}
    return dataclasses.replace(form, **values)


def on_device(form: BiasForm, device: torch.device) -> BiasForm:
    """The same bias with its numbers on a device."""
    if isinstance(form, Flat):
        return form
    values = {field.name: getattr(form, field.name).to(device) for field in dataclasses.fields(form)}
    return dataclasses.replace(form, **values)


def overwrite(form: BiasForm, other: BiasForm) -> None:
    """Write the numbers of ``other`` into the tensors of ``form``, in place: CUDA graphs hold their addresses.

    Both have the same form and size.
    """
    if not isinstance(form, Flat):
        for field in dataclasses.fields(form):
            getattr(form, field.name).copy_(getattr(other, field.name))


class DistanceBias(Protocol):
    """One family of biases. Each file of ``bias/`` holds one, a frozen dataclass of the family's parameters."""

    bias_type: ClassVar[str]

    def form(self) -> BiasForm:
        """The bias in the form that kernels compute."""
        ...


def _floating(distance: Tensor) -> Tensor:
    return distance if distance.is_floating_point() else distance.float()


def _of_heads(parameter: Tensor, num_others: int, dtype: torch.dtype) -> Tensor:
    """``[num_heads]`` as ``[num_heads, 1, ...]`` with ``num_others`` ones, so that it broadcasts over them."""
    return parameter.to(dtype).view(-1, *[1] * num_others)


def _reach(drop: Tensor, reach: Tensor) -> Tensor:
    return torch.where(drop > 0, reach.clamp(max=FURTHEST), -1.0)


def _require_positive(name: str, values: Tensor) -> None:
    if values.ndim != 1 or not values.numel():
        raise ValueError(f"{name} must hold one number for each head, got the shape {list(values.shape)}")
    if not ((values > 0) & values.isfinite()).all():
        raise ValueError(f"{name} must be finite and above 0 for every head, got {values.tolist()}")
