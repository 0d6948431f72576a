"""How wrong logits are at far positions: rotated into the cache, and by float32 tables of float32 angles."""

from __future__ import annotations

import dataclasses

from posenc_runtime.kernels import ops
from tests.benchmarks.gpu.rows import Row, at_least, at_most
from tests.benchmarks.gpu.sizes import Sizes
from tests.benchmarks.gpu.trial import Stage, Trial
from tests.benchmarks.intervals import median_and_quartiles
from tests.kernels.rotary_precision import errors
from tests.tolerance import LOGITS_OVER_TABLES

SUBJECT = "numerics"
_FAR, _TIMES_BETTER = 1_000_000, 3.0


@dataclasses.dataclass(frozen=True)
class Logits:
    """Root mean square errors against float64 of the logits between consecutive tokens, in the model's data type."""

    subject: str
    first_position: int

    @property
    def name(self) -> str:
        return f"logits from position {self.first_position:,}"

    @property
    def rows(self) -> tuple[Row, ...]:
        found = [Row(self.name, "times the error of float32 tables", at_most(LOGITS_OVER_TABLES))]
        if self.first_position >= _FAR:
            found.append(Row(self.name, "times better than float32 tables", at_least(_TIMES_BETTER)))
        return tuple(found)

    def answer(self, stage: Stage) -> tuple[Row, ...]:
        sizes = stage.sizes
        ours, tables = errors(
            ops.rotary_store, sizes.model.dtype, self.first_position, sizes.logits, device=stage.device
        )
        remark = f"rms errors {ours:.2e} and {tables:.2e}"
        values = (ours / tables, tables / ours)
        return tuple(
            row.measured(median_and_quartiles([value]), remark=remark)
            for row, value in zip(self.rows, values, strict=False)
        )


def trials(sizes: Sizes) -> list[Trial]:
    return [Logits(SUBJECT, first) for first in sizes.positions]
