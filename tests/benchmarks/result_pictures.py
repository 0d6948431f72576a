"""The pictures of docs/results.md, drawn from the files of results: ``python -m tests.benchmarks.result_pictures``."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from server.plots import style
from tests.benchmarks.crossings import Case, Crossed
from tests.benchmarks.intervals import median_and_quartiles
from tests.benchmarks.passkey_client import Haystack

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROOT = pathlib.Path(__file__).parents[2]
RESULTS = _ROOT / "tests" / "benchmarks" / "results"
# More lines than these cannot be told apart; the tables have all deployments.
DRAWN = (
    "unscaled",
    "static YaRN x8 (stock vLLM)",
    "per-request YaRN",
    "per-request YaRN, scales 1 and 8",
    "per-request MrRoPE",
    "per-request dynamic NTK",
)
_POINT = {"marker": "o", "markersize": 6, "capsize": 3, "linewidth": 1.5}


def draw_accuracy(result: Mapping[str, Any]) -> Figure:
    """Accuracy by length and deployment: a key alone in the text on the left, among other codes on the right.

    Args:
        result: the JSON that ``make accuracy`` wrote.
    """
    cells = result["cells"]
    haystacks = list(dict.fromkeys(cell["haystack"]["decoys"] for cell in cells))
    drawn, all_axes = style.figure("Pass keys found, by length and deployment", width=11, columns=len(haystacks))
    for axes, decoys in zip(all_axes, haystacks, strict=True):
        for index, name in enumerate(DRAWN):
            points = [
                (Haystack(**cell["haystack"]).length, *(cell["accuracy"][key] for key in ("value", "low", "high")))
                for cell in cells
                if cell["deployment"] == name and cell["haystack"]["decoys"] == decoys
            ]
            if points:
                style.band(axes, index, name, points)
        lengths = sorted({cell["haystack"]["length"] for cell in cells})
        axes.axvline(result["trained_length"], color=style.TEXT, linewidth=1, linestyle="--")
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.minorticks_off()
        axes.set_ylim(0, 1.02)
        axes.set_title(f"among {decoys} other codes" if decoys else "alone in the text")
        axes.set_xlabel("tokens of prompt and answer; the mark is the trained length")
    all_axes[0].set_ylabel("share found, with 95 % intervals")
    all_axes[0].legend(loc="lower left", fontsize=9)
    return drawn


def draw_crossings(result: Mapping[str, Any]) -> Figure:
    """What a crossing costs the requests beside it on the left, and the one that crosses on the right, by budget.

    Args:
        result: the JSON that ``tests.benchmarks.crossings`` wrote.
    """
    crossed = [_crossed(each) for each in result["cases"] if each["case"]["keeps_prefix"]]
    drawn, (others, own) = style.figure(
        "What a crossing costs, by the tokens that are turned before a step", width=11, columns=2, shared=False
    )
    for index, trained in enumerate(dict.fromkeys(one.case.trained for one in crossed)):
        cases = sorted((one for one in crossed if one.case.trained == trained), key=lambda one: one.num_budget_tokens)
        waits = [[1000 * sum(window) for window in one.crossing] for one in cases]
        for axes, values in ((others, [one.worst_steps for one in cases]), (own, waits)):
            estimates = [median_and_quartiles(each) for each in values]
            axes.errorbar(
                [one.num_budget_tokens for one in cases],
                [one.value for one in estimates],
                yerr=[[one.value - one.low for one in estimates], [one.high - one.value for one in estimates]],
                label=f"{trained:,} tokens cross",
                color=style.COLOURS[index],
                **_POINT,
            )
    ticks = sorted({one.num_budget_tokens for one in crossed})
    for axes in (others, own):
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, _named(ticks, crossed))
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set_xlabel("tokens that are turned before a step")
        axes.legend()
    others.set_ylabel("longest step / usual step, for all requests")
    own.set_ylabel("wait of the request that crosses, ms")
    return drawn


def _crossed(each: Mapping[str, Any]) -> Crossed:
    """A case as the benchmark has it."""
    from posenc_runtime.kv.budget import Budget

    given = {name: value for name, value in each.items() if name not in ("case", "budget")}
    return Crossed(case=Case(**each["case"]), budget=Budget(**each["budget"]) if each["budget"] else None, **given)


def _named(ticks: Sequence[int], crossed: Sequence[Crossed]) -> list[str]:
    defaults = {one.num_budget_tokens for one in crossed if one.case.budget is None}
    return [f"{tick:,}\n(default)" if tick in defaults else f"{tick:,}" for tick in ticks]


def newest(name: str, folder: pathlib.Path = RESULTS) -> pathlib.Path:
    """The newest file of results of a benchmark; their names begin with the date.

    Raises:
        FileNotFoundError: when there is none.
    """
    found = sorted(folder.glob(f"????-??-??-cpu-{name}.json"))
    if not found:
        raise FileNotFoundError(f"no results named {name} in {folder}: run the benchmark with --out")
    return found[-1]


def main(
    out: Annotated[
        pathlib.Path, typer.Option(help="The folder where pictures go.", show_default="docs/pictures")
    ] = _ROOT / "docs" / "pictures",
) -> None:
    """Draw the newest results: accuracy by length and deployment, and the cost of a crossing."""
    for name, draw in (("accuracy", draw_accuracy), ("crossings", draw_crossings)):
        result = json.loads(newest(name).read_text(encoding="utf-8"))
        style.save(draw(result), out / f"{name}.png")
        typer.echo(f"wrote {out / f'{name}.png'}")


if __name__ == "__main__":
    typer.run(main)
