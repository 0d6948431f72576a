"""Finds the model that a rotary embedding is a part of, and the size of its weights.

vLLM gives a connector the KV caches, but not the model.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook


class WholeModel:
    """Follows a module through its parents, until ``find_model`` is called.

    Modules are built from the inside to the outside: each is added to its parent when the parent is built. So the last
    parent is the model.
    """

    def __init__(self, part: nn.Module) -> None:
        self._found = part
        self._hook = register_module_module_registration_hook(self._put_into)

    def stop(self) -> None:
        """Stop following."""
        self._hook.remove()

    def found(self, layers: Iterable[object]) -> nn.Module:
        """The outermost module.

        Args:
            layers: attention layers of the model, which must be in it.

        Raises:
            ValueError: when a layer is not in the module.
        """
        self.stop()
        outside = {layer for layer in layers if isinstance(layer, nn.Module)} - set(self._found.modules())
        if outside:
            raise ValueError(
                f"scaling asks the whole model how it rotates, but {len(outside)} attention layers are outside of the "
                f"{type(self._found).__name__} that has the rotary embedding: serve this model without scaling"
            )
        return self._found

    def _put_into(self, outer: nn.Module, name: str, inner: nn.Module | None) -> None:
        if inner is self._found:
            self._found = outer


def num_weight_bytes(model: nn.Module) -> int:
    """Bytes of all weights that a step reads. Shared weights count once, and weights on another device do not count."""
    parameters = list(model.parameters())
    device = next(iter(parameters)).device
    storages = {
        parameter.untyped_storage().data_ptr(): parameter.untyped_storage().nbytes()
        for parameter in parameters
        if parameter.device == device and parameter.numel()
    }
    return sum(storages.values()) + sum(_num_packed_bytes(module) for module in model.modules())


def _num_packed_bytes(module: nn.Module) -> int:
    """Bytes of a linear layer's packed weights: on the CPU vLLM packs them for a library and empties the parameter."""
    weight, num_inputs = getattr(module, "weight", None), getattr(module, "input_size", None)
    if num_inputs is None or not isinstance(weight, nn.Parameter) or weight.numel():
        return 0
    num_inputs = getattr(module, "input_size_per_partition", num_inputs)
    num_outputs = getattr(module, "output_size_per_partition", module.output_size)
    return int(num_inputs) * int(num_outputs) * weight.element_size()  # type: ignore[arg-type]
