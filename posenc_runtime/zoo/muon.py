"""The optimizer: Muon for the weight matrices inside the layers, AdamW for embeddings, norms and position encodings."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
# Parts of the names of weights that have two dimensions but are tables, not matrices.
NOT_MATRICES = ("embed", "lm_head", ".position.")


def orthogonalized(updates: Tensor, iterations: int = 5) -> Tensor:
    """A stack of matrices of one shape after Newton-Schulz iterations, which move their singular values close to 1."""
    a, b, c = NEWTON_SCHULZ
    tall = updates.size(-2) > updates.size(-1)
    x = updates.mT if tall else updates
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = x.mT if tall else x
    return result


class Muon:
    """Momentum whose update is orthogonalized. Matrices of one shape go through Newton-Schulz together.

    This class stays in float32, unlike torch.optim.Muon, because bfloat16 products are slow on CPUs without AMX.
    """

    def __init__(self, matrices: list[nn.Parameter], momentum: float = 0.95, weight_decay: float = 0.01) -> None:
        self.groups: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        for matrix in matrices:
            self.groups[matrix.shape].append(matrix)
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.averages = [torch.zeros(len(g), *shape, device=g[0].device) for shape, g in self.groups.items()]

    @torch.no_grad()
    def step(self, lr: float) -> None:
        for average, (shape, group) in zip(self.averages, self.groups.items(), strict=True):
            gradients = torch.stack([p.grad for p in group if p.grad is not None])
            average.lerp_(gradients, 1 - self.momentum)
            update = orthogonalized(gradients.lerp(average, self.momentum))
            size = lr * max(1.0, shape[0] / shape[1]) ** 0.5
            for parameter, change in zip(group, update, strict=True):
                parameter.mul_(1 - lr * self.weight_decay).sub_(change, alpha=size)


class Optimizer:
    """Muon and AdamW under one schedule: `scale` multiplies their peak learning rates."""

    def __init__(self, model: nn.Module, matrix_lr: float, other_lr: float, weight_decay: float) -> None:
        named = list(model.named_parameters())
        matrices = [p for name, p in named if p.ndim == 2 and not any(part in name for part in NOT_MATRICES)]
        taken = {id(p) for p in matrices}
        others = [p for _, p in named if id(p) not in taken]
        self.matrix_lr = matrix_lr
        self.other_lr = other_lr
        self.muon = Muon(matrices, weight_decay=weight_decay)
        self.adamw = torch.optim.AdamW(others, lr=other_lr, betas=(0.9, 0.98), weight_decay=0.0)

    def step(self, scale: float) -> None:
        for group in self.adamw.param_groups:
            group["lr"] = self.other_lr * scale
        self.adamw.step()
        self.muon.step(self.matrix_lr * scale)

    def zero_grad(self) -> None:
        for average_group in self.muon.groups.values():
            for parameter in average_group:
                parameter.grad = None
        self.adamw.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        return {"averages": self.muon.averages, "adamw": self.adamw.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for average, stored in zip(self.muon.averages, state["averages"], strict=True):
            average.copy_(stored)
        self.adamw.load_state_dict(state["adamw"])
