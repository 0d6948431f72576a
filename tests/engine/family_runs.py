"""Requests to a family's checkpoint: what Posenc, stock vLLM, and stock vLLM with a static scale answer to them."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

from tests import families
from tests.engine.conftest import PromptMaker
from tests.engine.families_oracle import SCALES, at_scale
from tests.engine.run_engine import Answer, counted, run_engine
from tests.families.family import Family, Picture

HEADROOM = 8  # tokens
# Blocks of 32 tokens: the mixed batch fits, the crowd does not. Where all layers have a window, requests take fewer.
_BLOCKS = {"mistral_0.1": 24, "mimo_v2": 48, "qwen3_next": 24, "qwen3_5": 24, "falcon_h1": 30}
_BLOCKS |= {"deepseek_v3_bfloat16": 40}
_RECOMPUTED = ("hunyuan",)  # keys are normalised after they are rotated

Request = tuple[Any, int]  # a prompt as run_engine takes it, and max_tokens


@dataclasses.dataclass(frozen=True)
class Requests:
    """Batches, each of (prompt, max_tokens).

    Attributes:
        unscaled: requests of scale 1.
        mixed: requests of each scale, none of which crosses; and the scale of each.
        crossing: batches with requests that cross, by name; one after the other.
        pictures: where a model sees, three requests: one with a picture and one of text cross, one with a picture does
            not.
    """

    unscaled: list[Request]
    mixed: list[Request]
    scales: list[int]
    crossing: dict[str, list[Request]]
    pictures: list[Request] = dataclasses.field(default_factory=list)


def requests(trained: int, rounds: int = 3) -> Requests:
    """Requests for a checkpoint with this trained length.

    Args:
        rounds: how often each kind of request is in the crowd.
    """
    prompts = PromptMaker(seed=0)
    unscaled = [(prompts(length), 24) for length in (1, 31, 32, 64, 90)]
    mixed = [(40, 24, 1), (trained - 24, 20, 1), (trained + 5, 24, 2), (2 * trained - 50, 40, 2)]
    mixed += [(2 * trained + 40, 24, 4), (4 * trained - 60, 50, 4)]
    together = [(40, 30), (trained - 20, 60), (trained - 3, 140), (2 * trained - 20, 60), (90, 100), (60, 100)]
    again = [(prompts(length), new) for length, new in together]
    prefix = prompts(64)
    crowd = [(60, 120), (trained - 16, 50), (trained - 10, 200), (2 * trained - 15, 60), (30, 130), (80, 60)] * rounds
    return Requests(
        unscaled=unscaled,
        mixed=[(prompts(length), new) for length, new, _ in mixed],
        scales=[scale for *_, scale in mixed],
        crossing={
            "alone": [(prompts(trained - 20), 160)],
            "together": again,
            "from the prefix cache": again,
            "crowded": [
                (prefix + prompts(length - 64) if length > 64 and index % 3 else prompts(length), new)
                for index, (length, new) in enumerate(crowd)
            ],
        },
    )


def with_pictures(asked: Requests, trained: int, picture: Picture) -> Requests:
    """The requests, and more with a picture: unscaled ones, one of the largest scale, and those of ``pictures``."""
    prompts = PromptMaker(seed=1)
    before, after = picture.around

    def showing(num_tokens: int, seed: int) -> dict[str, Any]:
        """A prompt of so many tokens in all, with a picture among them."""
        tokens = prompts(num_tokens - picture.num_tokens - len(before) - len(after))
        half = len(tokens) // 2
        around = [*tokens[:half], *before, picture.placeholder, *after, *tokens[half:]]
        return {"token_ids": around, "seed": seed, "height": picture.height, "width": picture.width}

    return dataclasses.replace(
        asked,
        unscaled=[*asked.unscaled, (showing(40, 0), 20), (showing(trained - 30, 1), 20)],
        mixed=[*asked.mixed, (showing(3 * trained, 2), 30)],
        scales=[*asked.scales, SCALES[-1]],
        pictures=[(showing(trained - 12, 3), 60), (prompts(trained - 15), 60), (showing(60, 0), 30)],
    )


@dataclasses.dataclass(frozen=True)
class Ran:
    """What Posenc answered.

    Attributes:
        model: the checkpoint's folder.
        folder: for more engines.
        pictures: to the requests with pictures that cross, and those beside them.
        picture_alone: to the first of them once more, alone.
        preemptions: how many there were.
    """

    name: str
    model: pathlib.Path
    folder: pathlib.Path
    asked: Requests
    unscaled: list[Answer]
    mixed: list[Answer]
    crossing: dict[str, list[Answer]]
    pictures: list[Answer]
    picture_alone: list[Answer]
    preemptions: float

    @property
    def family(self) -> Family:
        return families.FAMILIES[self.name]


def run(name: str, folder: pathlib.Path) -> Ran:
    """One engine with scales, and all requests."""
    family = families.FAMILIES[name]
    model = families.make(name, folder / "model")
    asked = requests(family.trained, 3 if family.dtype == "float32" else 2)  # 16-bit states are slow on the CPU
    if family.picture:
        asked = with_pictures(asked, family.trained, family.picture)
    arguments = _engine(name) | {"additional_config": {"posenc": _section(name)}}
    batches = [asked.unscaled, asked.mixed, asked.pictures, asked.pictures[:1], *asked.crossing.values()]
    unscaled, mixed, pictures, picture_alone, *crossing = run_engine(model, arguments, batches, folder=folder)
    return Ran(
        name=name,
        model=model,
        folder=folder,
        asked=asked,
        unscaled=unscaled,
        mixed=mixed,
        crossing=dict(zip(asked.crossing, crossing, strict=True)),
        pictures=pictures,
        picture_alone=picture_alone,
        preemptions=counted(folder, "vllm:num_preemptions"),
    )


def unrotated(name: str, folder: pathlib.Path) -> tuple[list[Answer], list[Answer]]:
    """What Posenc answers to the unscaled requests where no layer has a rotation to scale, and what stock vLLM does."""
    trained = families.FAMILIES[name].trained
    model, asked = families.make(name, folder / "model"), [requests(trained).unscaled]
    arguments = _engine(name) | {"max_model_len": trained}
    (ours,) = run_engine(model, arguments | {"additional_config": {"posenc": {}}}, asked, folder=folder)
    (theirs,) = run_engine(model, arguments, asked, plugins="", folder=folder)
    return ours, theirs


def past_the_trained_length(name: str, folder: pathlib.Path) -> tuple[list[Answer], list[Answer]]:
    """What Posenc answers to requests past the trained length where ``auto`` chooses everything, and stock vLLM does.

    Stock vLLM is told a longer ``max_position_embeddings``, so that its table has a row for each position.
    """
    trained, prompts = families.FAMILIES[name].trained, PromptMaker(seed=1)
    lengths = [(40, 24), (trained - 30, 60), (trained + 5, 40), (2 * trained - 60, 50)]
    model, asked = families.make(name, folder / "model"), [[(prompts(length), new) for length, new in lengths]]
    arguments = _engine(name) | {"max_model_len": 2 * trained}
    ours = arguments | {"additional_config": {"posenc": {"rope_type": "auto"}}}
    theirs = arguments | {"hf_overrides": {"max_position_embeddings": 2 * trained}}
    (of_ours,) = run_engine(model, ours, asked, folder=folder)
    (of_theirs,) = run_engine(model, theirs, asked, plugins="", folder=folder)
    return of_ours, of_theirs


def turned_in_float64(ran: Ran, batches: dict[str, list[tuple[Any, int]]]) -> dict[str, list[Answer]]:
    """What an engine of ours answers to batches, where plain torch turns keys in float64."""
    answers = run_engine(
        ran.model,
        scaling(ran),
        list(batches.values()),
        folder=ran.folder,
        module="tests.engine.turned_in_float64",
        environment={"POSENC_TEST_FAMILY": ran.name},
    )
    return dict(zip(batches, answers, strict=True))


def scaling(ran: Ran) -> dict[str, Any]:
    """The arguments of an engine of ours."""
    return _engine(ran.name) | {"additional_config": {"posenc": _section(ran.name)}}


def stock(ran: Ran, batch: list[tuple[Any, int]] | None = None) -> list[Answer]:
    """What stock vLLM answers to the unscaled requests, or to others."""
    arguments = _engine(ran.name) | {"max_model_len": ran.family.trained}
    (answers,) = run_engine(ran.model, arguments, [batch or ran.asked.unscaled], plugins="", folder=ran.folder)
    return answers


def static(ran: Ran, scale: int, batch: list[tuple[Any, int]] | None = None) -> list[Answer]:
    """What stock vLLM answers to the mixed batch, or to others, at one scale for all, with a table of exact angles."""
    longest = SCALES[-1] * ran.family.trained
    model = ran.folder / f"static-{scale}"
    model.mkdir(exist_ok=True)
    for file in ran.model.iterdir():
        (model / file.name).unlink(missing_ok=True)
        (model / file.name).symlink_to(file)
    config = json.loads((ran.model / "config.json").read_text())
    text = config.get("text_config", config)
    if "rope_parameters" in text:
        text["rope_parameters"] = at_scale(text["rope_parameters"], ran.family.trained, scale)
    else:  # as published before transformers 5
        own = dict(text.get("rope_scaling") or {"rope_type": "default"})
        own["rope_type"] = own.pop("type", None) or own["rope_type"]
        text["rope_scaling"] = at_scale(own, ran.family.trained, scale)
    text |= {name: longest for name in ("max_position_embeddings", "max_seq_len") if name in text}
    (model / "config.json").unlink()
    (model / "config.json").write_text(json.dumps(config))
    (answers,) = run_engine(
        model,
        _engine(ran.name) | {"max_model_len": longest},
        [batch or ran.asked.mixed],
        plugins="",
        folder=ran.folder,
        module="tests.engine.static_in_float64",
    )
    return answers


def on_crossing(name: str) -> str:
    """How requests to a family cross."""
    return "recompute" if name in _RECOMPUTED else "rerotate"


def start(name: str, folder: pathlib.Path, **section: Any) -> None:
    """Start an engine of ours with some settings changed; it is asked nothing."""
    arguments = _engine(name) | {"additional_config": {"posenc": _section(name) | section}}
    run_engine(families.make(name, folder / "model"), arguments, [], folder=folder)


def _section(name: str) -> dict[str, Any]:
    family = families.FAMILIES[name]
    return {
        "rope_type": "auto",
        "scales": list(SCALES),
        "headroom_tokens": HEADROOM,
        "max_model_len": SCALES[-1] * family.trained,
        "on_crossing": on_crossing(name),
    } | ({"rerotate_budget_tokens": 64} if on_crossing(name) == "rerotate" else {"prefix_reuse": "exact"})


def _engine(name: str) -> dict[str, Any]:
    return {
        "dtype": families.FAMILIES[name].dtype,
        "block_size": 32,
        "max_num_batched_tokens": 128,
        "max_num_seqs": 16,
        "enforce_eager": True,
        "enable_prefix_caching": True,
        "disable_log_stats": False,
        "kv_cache_memory_bytes": 2**28,
        "num_gpu_blocks_override": _BLOCKS.get(name, 80),
        **families.FAMILIES[name].engine,
    }
