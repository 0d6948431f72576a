"""The deployments that scaled requests are compared with: one scale for every request, or none."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from server.client.started_server import HOST
from server.evaluation import EvaluationRefused

if TYPE_CHECKING:
    from server.deployment.settings import Settings

STATIC, UNSCALED = "static:", "unscaled:"  # what a target begins with
# No plugin of anybody, ours among them; one core for the scheduler, as posenc serve leaves it.
ENVIRONMENT = {"VLLM_PLUGINS": "", "VLLM_CPU_NUM_OF_RESERVED_CPU": "1", "VLLM_NO_USAGE_STATS": "1"}


def describe_stock(settings: Settings) -> dict[str, Any]:
    """What stock vLLM gets, for the journal.

    Raises:
        EvaluationRefused: when the deployment's method is none that stock vLLM has.
    """
    return {"model": settings.model, "stock vLLM": _arguments(settings)}


def stock_command(settings: Settings, *, logits_processor: str | None) -> Callable[[int], list[str]]:
    """How stock vLLM is started on a port.

    Args:
        logits_processor: to be loaded by name; None for none.
    """
    served = {"model": settings.model, "served_model_name": settings.served_model_name or settings.model, "host": HOST}
    started = stock_server(served | _arguments(settings) | {"logits_processors": logits_processor})
    return lambda port: [*started, "--port", str(port)]


def stock_server(arguments: Mapping[str, Any]) -> list[str]:
    """The command of stock vLLM's server.

    Args:
        arguments: by name, with underscores. None is left out, and what is no text is written as JSON.
    """
    module = "vllm.entrypoints.openai.api_server"  # vllm serve, which vLLM's package for CPUs has not
    return [sys.executable, "-m", module, *(flag for each in arguments.items() for flag in _flag(*each))]


def _arguments(settings: Settings) -> dict[str, Any]:
    """Engine arguments: the deployment's own, and its method at its largest scale as static parameters."""
    from server.deployment.checkpoint import checkpoint_of

    scaling = settings.scaling
    if not scaling.is_complete:
        raise EvaluationRefused(f"--target {STATIC}: needs a rope_type and scales, got {scaling.rope_type}: name them")
    checkpoint = checkpoint_of(settings)
    trained = scaling.original_max_position_embeddings or checkpoint.max_position_embeddings
    if checkpoint.spec is None or checkpoint.rope_type != "default" or trained is None:
        raise EvaluationRefused(
            f"--target {STATIC}: needs a checkpoint that rotates plainly and says its trained length, got "
            f"{settings.model}: start stock vLLM yourself, and give its address"
        )
    theta = scaling.rope_theta or checkpoint.spec.rope_theta
    factor = scaling.scales[-1]
    longest = settings.max_model_len or int(factor * trained)
    if scaling.parameters:
        raise EvaluationRefused(
            f"--target {STATIC}: stock vLLM is started without parameters of the method, got "
            f"{', '.join(scaling.parameters)}: start it yourself, and give its address"
        )
    match scaling.rope_type:
        case "default":
            rope: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
        case "yarn":
            rope = {
                "rope_type": "yarn",
                "factor": factor,
                "original_max_position_embeddings": trained,
                "rope_theta": theta,
            }
        case "linear":
            rope = {"rope_type": "linear", "factor": factor, "rope_theta": theta}
        case "ntk":
            from posenc_runtime.encodings.scaling.ntk import stretched

            base = stretched(dataclasses.replace(checkpoint.spec, rope_theta=theta), factor).rope_theta
            rope = {"rope_type": "default", "rope_theta": base}
        case other:
            raise EvaluationRefused(
                f"--target {STATIC}: rope_type must be default, yarn, ntk or linear for stock vLLM, got {other}: start "
                "it yourself, and give its address"
            )
    return {
        **settings.engine,
        "max_model_len": longest,
        "hf_overrides": {"max_position_embeddings": longest, "rope_parameters": rope},
    }


def _flag(name: str, value: Any) -> list[str]:
    flag = name.replace("_", "-")
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", value if isinstance(value, str) else json.dumps(value)]


def unscaling(settings: Settings) -> list[str]:
    """What ``--set`` gets so that every request runs at scale 1, and may be as long as with the deployment's scales.

    Args:
        settings: of the deployment with its scales.

    Raises:
        SettingRefused: when the deployment is refused.
    """
    from server.start_up.reading import plan_read

    lengths = plan_read(settings).deployment.scale_set.lengths
    found = [
        f"max_model_len={settings.max_model_len or lengths[-1]}",
        "scaling.scales=[1]",
        "scaling.allow_beyond_trained=true",
    ]
    return [*found, "scaling.rope_theta=null"] if settings.scaling.rope_theta else found
