"""The deployments whose answers are compared: some scale all requests alike, some each by itself, some none at all."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from server.deployment.settings import Settings
from server.evaluation.baselines import stock_server
from tests.benchmarks.servers import Command

UNSCALED = ("scaling.rope_type=default", "scaling.scales=[1]", "scaling.allow_beyond_trained=true")


@dataclasses.dataclass(frozen=True)
class Variant:
    """One deployment, one row of the table.

    Attributes:
        sets: what ``posenc serve`` gets by ``--set``; None for stock vLLM.
        rope_parameters: what stock vLLM gets by ``hf_overrides``; None for ours.
        scales: those that our responses may name, ascending; empty where none is named, as in stock vLLM and where
            positions are set at read time.
    """

    name: str
    sets: tuple[str, ...] | None = None
    rope_parameters: dict[str, Any] | None = None
    scales: tuple[float, ...] = ()

    def expected_scale(self, num_tokens: int, trained: int) -> float | None:
        """The scale that a response must name: the smallest that covers the request, or the largest there is."""
        if not self.scales:
            return None
        return next((scale for scale in self.scales if num_tokens <= scale * trained), self.scales[-1])


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What a deployment's variants need to know of its checkpoint, and which one it was."""

    trained: int
    rope_theta: float
    rotary_dim: int
    weights_sha256: str = ""

    @classmethod
    def of(cls, settings: Settings) -> Checkpoint:
        """Read it from the folder of a deployment's model."""
        folder = pathlib.Path(settings.model)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        digest = hashlib.sha256()
        for file in sorted(folder.glob("*.safetensors")):
            digest.update(file.read_bytes())
        return cls(
            trained=settings.scaling.original_max_position_embeddings or config["max_position_embeddings"],
            rope_theta=float(config["rope_parameters"]["rope_theta"]),
            rotary_dim=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
            weights_sha256=digest.hexdigest(),
        )


def variants(checkpoint: Checkpoint, scales: Sequence[float]) -> dict[str, Variant]:
    """Every variant under its short name.

    Args:
        scales: of the per-request deployments; the static ones get the largest.
    """
    largest = float(scales[-1])
    # With it, far pages come to the trained length at about the length of the largest scale.
    leak = 2 * largest
    return {
        "unscaled": Variant("unscaled", sets=UNSCALED, scales=(1.0,)),
        "static-yarn": Variant(
            f"static YaRN x{largest:g} (stock vLLM)",
            rope_parameters={
                "rope_type": "yarn",
                "factor": largest,
                "original_max_position_embeddings": checkpoint.trained,
                "rope_theta": checkpoint.rope_theta,
            },
        ),
        "static-ntk": Variant(
            f"static NTK x{largest:g} (stock vLLM)",
            rope_parameters={
                "rope_type": "default",
                "rope_theta": ntk_theta(checkpoint.rope_theta, checkpoint.rotary_dim, largest),
            },
        ),
        "yarn": _per_request("per-request YaRN", "yarn", scales),
        "yarn-continue": _per_request("per-request YaRN, continue", "yarn", scales, "prefix_reuse=continue"),
        "yarn-two": _per_request(f"per-request YaRN, scales 1 and {largest:g}", "yarn", (1, largest)),
        "mrrope": _per_request("per-request MrRoPE", "mrrope", scales),
        "dynamic": _per_request("per-request dynamic NTK", "dynamic", scales),
        "dynamic-two": _per_request(f"per-request dynamic NTK, scales 1 and {largest:g}", "dynamic", (1, largest)),
        "base": _per_request("per-request base", "base", scales),
        "linear": _per_request("per-request linear", "linear", scales),
        # Every scale above 1 is the same rotation.
        "clipped": _per_request("per-request clipped", "clipped", (1, largest)),
        "proportional": _per_request("per-request proportional", "proportional", (1, largest)),
        "rerope": _read_time("ReRoPE, log n", "rerope"),
        "rerope-yarn": _read_time("ReRoPE, YaRN's temperature", "rerope", "temperature=yarn"),
        "rerope-none": _read_time("ReRoPE, no temperature", "rerope", "temperature=none"),
        "rerope-leak-8": _read_time("ReRoPE, leak 8, log n", "rerope", "leak=8"),
        "rerope-leaky": _read_time(f"leaky ReRoPE, leak {leak:g}, log n", "rerope", f"leak={leak:g}"),
        "dual-chunk": _read_time("dual chunk", "dual_chunk"),
    }


def ntk_theta(rope_theta: float, rotary_dim: int, factor: float) -> float:
    """The base with which the lowest frequency is divided by ``factor`` and the highest is left alone."""
    return float(rope_theta * factor ** (rotary_dim / (rotary_dim - 2)))


def command(
    variant: Variant, config: pathlib.Path, overrides: Sequence[str], settings: Settings, max_model_len: int
) -> Command:
    """How a variant is started.

    Args:
        overrides: ``path=value``, for every variant alike; the variant's own win.
        settings: the deployment's file with ``overrides`` over it; stock vLLM gets the same engine arguments.
        max_model_len: the same for all, the unscaled one among them.
    """
    if variant.sets is not None:
        own = (*variant.sets, f"max_model_len={max_model_len}", "server.host=127.0.0.1", "server.port={port}")
        sets = [*overrides, *own]
        posenc = str(pathlib.Path(sys.executable).with_name("posenc"))
        return Command((posenc, "serve", "--config", str(config), *(part for one in sets for part in ("--set", one))))
    engine = settings.engine | {
        "max_model_len": max_model_len,
        "hf_overrides": {"max_position_embeddings": max_model_len, "rope_parameters": variant.rope_parameters},
    }
    served = {"model": settings.model, "served_model_name": served_name(settings), "host": "127.0.0.1"}
    started = stock_server(served | engine | {"port": "{port}", "uvicorn_log_level": "warning"})
    return Command(tuple(started), {"VLLM_PLUGINS": ""})


def served_length(settings: Settings, checkpoint: Checkpoint) -> int:
    """The longest request, tokens: what the file says, or what the largest scale reaches."""
    return settings.max_model_len or int(settings.scaling.scales[-1] * checkpoint.trained)


def served_name(settings: Settings) -> str:
    """What clients call the model."""
    return settings.served_model_name or settings.model


def _per_request(name: str, rope_type: str, scales: Sequence[float], *settings: str) -> Variant:
    listed = f"scaling.scales=[{', '.join(f'{scale:g}' for scale in scales)}]"
    sets = (f"scaling.rope_type={rope_type}", listed, *(f"scaling.{one}" for one in settings))
    return Variant(name, sets=sets, scales=tuple(map(float, scales)))


def _read_time(name: str, rope_type: str, *parameters: str) -> Variant:
    # The method comes first: it drops the file's scales, which it does not have.
    return Variant(name, sets=(f"scaling.rope_type={rope_type}", *(f"scaling.{one}" for one in parameters)))
