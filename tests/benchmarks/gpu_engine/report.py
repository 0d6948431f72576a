"""The result: a table of all rows, and what a reader must know to judge it."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from server.printing.tables import Table
from tests.benchmarks import record
from tests.benchmarks.gpu.report import not_measured
from tests.benchmarks.gpu.rows import Row
from tests.benchmarks.gpu_engine.sizes import SCALES, Sizes

MODULE = "tests.benchmarks.gpu_engine"


def table(rows: Sequence[Row]) -> Table:
    """Values are medians, with quartiles over repetitions or pairs."""
    return Table(
        "The engine",
        ("what", "measured as", "value", "target", "reached"),
        tuple(
            (
                row.name,
                row.quantity,
                row.state.value if row.value is None else f"{row.value:.3f}",
                str(row.target or ""),
                {True: "yes", False: "no", None: ""}[row.is_reached],
            )
            for row in rows
        ),
    )


def remarks(rows: Sequence[Row], sizes: Sizes, *, is_rehearsal: bool) -> list[str]:
    """Paragraphs below the table."""
    said = [setup(sizes, is_rehearsal=is_rehearsal)]
    reached = [row.is_reached for row in rows if row.is_reached is not None]
    if reached and not is_rehearsal:
        said.append(f"{sum(reached)} of {len(reached)} targets reached.")
    if noted := [f"- {row.name}, {row.quantity}: {row.remark}" for row in rows if row.remark]:
        said.append("Seen besides:\n\n" + "\n".join(noted))
    return said + not_measured(rows)


def setup(sizes: Sizes, *, is_rehearsal: bool) -> str:
    """What is measured, in words."""
    if is_rehearsal:
        return (
            "A rehearsal: a tiny model and short requests on a processor, to see that everything runs. Nothing here is "
            "a measurement."
        )
    model = sizes.model
    heads = f"{model['num_attention_heads']} heads to {model['num_key_value_heads']} of {model['head_dim']}"
    return (
        f"A Llama of {model['num_hidden_layers']} layers, {model['hidden_size']:,} wide, {heads}, weights made up by "
        f"vLLM, in {sizes.dtype}; compiled, in CUDA graphs, {sizes.step_tokens:,} tokens a step. YaRN at scales "
        f"{' and '.join(f'{scale:g}' for scale in SCALES)} of {sizes.trained:,} trained tokens, for throughput of "
        f"{sizes.throughput_trained:,}, where stock vLLM has the larger one for everybody; ReRoPE of as many trained "
        "tokens beside stock vLLM that scales nothing, both of which take longer requests, too. Crossings and reuse: "
        f"{sizes.repetitions} repetitions. Throughput: {sizes.pairs} pairs, both engines alive, one after the other, "
        f"in changing order, for {sizes.sample_seconds:g} s each or longer; decoding of {sizes.decode_tokens} tokens "
        f"from prompts of 8, prompts of {sizes.prefill_tokens:,}, if the row says nothing else, none of them cached; "
        "the time of decoding has that of the prompts in it."
    )


def write(
    out: pathlib.Path,
    rows: Sequence[Row],
    sizes: Sizes,
    samples: Mapping[str, Any],
    device: Mapping[str, str],
    *,
    is_rehearsal: bool,
) -> list[pathlib.Path]:
    """Write ``out`` with the endings ``.json`` and ``.md``; returns the two files."""
    here = record.Provenance.of_this_run(MODULE)
    described = {name: value if name in ("GPU", "memory") else f"{name} {value}" for name, value in device.items()}
    provenance = dataclasses.replace(here, machine=here.machine | described)
    result = {
        "rehearsal": is_rehearsal,
        "device": dict(device),
        "sizes": dataclasses.asdict(sizes),
        "rows": [row.to_json() for row in rows],
        "samples": dict(samples),
    }
    markdown = "\n\n".join([table(rows).as_markdown(), *remarks(rows, sizes, is_rehearsal=is_rehearsal)])
    return record.write(out, result, provenance, markdown)


def in_a_line(row: Row) -> str:
    """As it is told while others are measured."""
    value = row.state.value if row.value is None else f"{row.value:.3f}"
    target = f", {row.target}" if row.target else ""
    why = f": {row.why}" if row.why else ""
    return f"{row.name}, {row.quantity}: {value}{target}{why}"
