"""The result: a table of all rows, what a reader needs about targets that were missed, and what was not measured."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import pathlib
import statistics
from collections.abc import Sequence

from server.printing.tables import Table
from tests.benchmarks import record
from tests.benchmarks.gpu.rows import Row, State
from tests.benchmarks.gpu.sizes import Model, Sizes

MODULE = "tests.benchmarks.gpu"


@dataclasses.dataclass(frozen=True)
class Run:
    """
    Attributes:
        facts: of the device, by name.
    """

    sizes: Sizes
    rounds: int
    is_rehearsal: bool
    facts: dict[str, str]


def table(rows: Sequence[Row]) -> Table:
    """Values are medians with quartiles over the rounds; times are medians."""
    return Table(
        "Kernels",
        ("what", "measured as", "value", "target", "reached", "a call", "TB/s"),
        tuple(
            (
                row.name,
                row.quantity,
                _value(row),
                str(row.target or ""),
                {True: "yes", False: "no", None: ""}[row.is_reached],
                _time(row),
                _rate(row),
            )
            for row in rows
        ),
    )


def remarks(run: Run, rows: Sequence[Row]) -> list[str]:
    """Paragraphs below the table."""
    said = [setup(run)]
    reached = [row.is_reached for row in rows if row.is_reached is not None]
    if reached:
        said.append(f"{sum(reached)} of {len(reached)} targets reached that were measured.")
    if noted := [f"- {_about(row)}: {row.remark}" for row in rows if row.remark]:
        said.append("Seen besides:\n\n" + "\n".join(noted))
    if missed := [f"- {missed_target(row)}" for row in rows if row.is_reached is False]:
        said.append("Missed:\n\n" + "\n".join(missed))
    return said + not_measured(rows)


def not_measured(rows: Sequence[Row]) -> list[str]:
    """What failed, was skipped or has not been run, each with its reason."""
    said = []
    for state in (State.failed, State.skipped, State.open):
        if found := [f"- {_about(row)}{f': {row.why}' if row.why else ''}" for row in rows if row.state == state]:
            said.append(f"{state.value.capitalize()}:\n\n" + "\n".join(found))
    return said


def in_a_line(row: Row) -> str:
    """As it is told while others are measured."""
    parts = [_about(row), f"{_value(row)}{f', {row.target}' if row.target else ''}", _time(row), row.why]
    return ": ".join(part for part in parts if part)


def setup(run: Run) -> str:
    """What is measured, in words."""
    model, sizes = run.sizes.model, run.sizes
    if run.is_rehearsal:
        return (
            "A rehearsal: torch's references at tiny shapes on a processor, to see that everything runs. Nothing here "
            "is a measurement."
        )
    return (
        f"{_model(model)}, if nothing else is said. {run.rounds} rounds, in which rivals take turns, fewer where one "
        "takes long; a round's ratio is of two samples that follow each other. Samples are replays of a CUDA graph, "
        "but for copies, eager torch, and re-rotation where it says so, timed by events; they go through layers with "
        f"tensors of their own, and before each one {sizes.flush_bytes / 2**20:.0f} MiB of something else are read, so "
        "that caches are cold. TB/s are counted bytes, each once as it is read and once as it is written, over the "
        "time. What is timed was compared with its torch reference before. vLLM's rotation is its rotary_embedding; "
        "FlashAttention's store is reshape_and_cache_flash, Triton's triton_reshape_and_cache_flash. FlashAttention 3 "
        "takes the schedule that a step makes once for all layers, which is not timed."
    )


def missed_target(row: Row) -> str:
    """What a reader needs who wants to know why."""
    facts = [f"{_value(row)} {row.quantity}, {row.target}"]
    if row.seconds:
        facts.append(f"{_time(row)} a call")
    if rate := _rate(row):
        facts.append(f"{rate} TB/s")
    facts += [str(kernel) for kernel in row.kernels]
    return f"{row.name}: " + "; ".join(facts)


def write(out: pathlib.Path, run: Run, rows: Sequence[Row]) -> list[pathlib.Path]:
    """Write ``out`` with the endings ``.json`` and ``.md``; returns the two files."""
    here = record.Provenance.of_this_run(MODULE)
    provenance = dataclasses.replace(
        here, versions=here.versions | _triton(), machine=here.machine | _described(run.facts)
    )
    result = {
        "rehearsal": run.is_rehearsal,
        "rounds": run.rounds,
        "device": run.facts,
        "rows": [row.to_json() for row in rows],
    }
    markdown = "\n\n".join([table(rows).as_markdown(), *remarks(run, rows)])
    return record.write(out, result, provenance, markdown)


def _triton() -> dict[str, str]:
    try:
        return {"triton": importlib.metadata.version("triton")}
    except importlib.metadata.PackageNotFoundError:
        return {}


def _described(facts: dict[str, str]) -> dict[str, str]:
    """Facts as a sentence lists them; what is a number alone needs its name."""
    return {name: value if name in ("GPU", "GPU memory") else f"{name} {value}" for name, value in facts.items()}


def _model(model: Model) -> str:
    dtype = str(model.dtype).removeprefix("torch.")
    return (
        f"Shapes of Llama-3-8B: {model.num_heads} heads to {model.num_kv_heads} of {model.head_dim}, "
        f"{model.num_layers} layers, blocks of {model.block_size}, {dtype}"
    )


def _about(row: Row) -> str:
    return f"{row.name}, {row.quantity}"


def _value(row: Row) -> str:
    if row.value is None:
        return row.state.value
    if row.value.low == row.value.high:
        return f"{row.value.value:.2f}"
    return f"{row.value:.2f}"


def _time(row: Row) -> str:
    if not row.seconds:
        return ""
    microseconds = 1e6 * statistics.median(row.seconds)
    return f"{microseconds:.1f} µs" if microseconds < 1000 else f"{microseconds / 1000:.2f} ms"


def _rate(row: Row) -> str:
    return f"{row.moved / statistics.median(row.seconds) / 1e12:.2f}" if row.moved and row.seconds else ""
