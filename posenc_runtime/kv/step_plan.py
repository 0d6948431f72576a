"""What the bookkeeping says about the step that is being scheduled: to the workers, and to the scheduler."""

from __future__ import annotations

import dataclasses

from posenc_runtime.kv.crossing import Rotation


@dataclasses.dataclass(kw_only=True)
class StepPlan:
    """What the workers must do before a forward, the rotations first and in their order.

    Attributes:
        rotations: cached keys to turn from one scale to another.
        block_scales: scale index to the physical blocks that are to carry it from this step on.
    """

    rotations: list[Rotation] = dataclasses.field(default_factory=list)
    block_scales: dict[int, list[int]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(kw_only=True)
class Progress:
    """What the moves of a step, once they are in its plan, mean for the scheduler.

    Attributes:
        read: blocks that the plan copies from; the scheduler gives them back once the step is planned.
        crossed: requests whose keys all carry their new scale; they may run in this step.
        reused: requests whose copied prefix is complete; they may run in this step.
    """

    read: list[int] = dataclasses.field(default_factory=list)
    crossed: list[str] = dataclasses.field(default_factory=list)
    reused: list[str] = dataclasses.field(default_factory=list)
