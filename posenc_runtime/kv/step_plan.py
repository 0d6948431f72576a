"""What the coordinator tells the workers and the scheduler about the step that is being scheduled."""

from __future__ import annotations

import dataclasses

from posenc_runtime.kv.crossing import Rotation


@dataclasses.dataclass(kw_only=True)
class StepPlan:
    """What the workers must do before a forward pass: first the rotations, in their order, then the block scales.

    Attributes:
        rotations: cached keys to turn from one scale to another.
        block_scales: for each scale index, the physical blocks that carry this scale from this step on.
    """

    rotations: list[Rotation] = dataclasses.field(default_factory=list)
    block_scales: dict[int, list[int]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(kw_only=True)
class Progress:
    """What the moves in a step's plan mean for the scheduler.

    Attributes:
        read: blocks that the plan copies from; the scheduler frees them once the step is planned.
        crossed: requests all of whose keys carry the new scale; they may run in this step.
        reused: requests whose copied prefix is complete; they may run in this step.
    """

    read: list[int] = dataclasses.field(default_factory=list)
    crossed: list[str] = dataclasses.field(default_factory=list)
    reused: list[str] = dataclasses.field(default_factory=list)
