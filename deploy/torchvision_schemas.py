"""Lets torchvision's build for CUDA be imported beside PyTorch's build for the CPU, where no other can be had.

Set-up puts this file into the environment, and has Python import it at each start. torchvision then declares what its
operators would be: image processors, which use none of its operators, work. Its operators do not.
"""

from __future__ import annotations

import sys
from typing import Any


class Schemas:
    """Finds no module; declares the operators when somebody is about to import torchvision."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "torchvision":
            sys.meta_path.remove(self)  # type: ignore[arg-type]
            import torch

            operators = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                operators.define(operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            torch._posenc_torchvision = operators  # type: ignore[attr-defined]  # it lives as long as its torch


sys.meta_path.insert(0, Schemas())  # type: ignore[arg-type]
