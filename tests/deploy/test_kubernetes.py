"""Manifests and values for what others deploy vLLM with: the stock engine with one flag, which vLLM and Posenc take."""

from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

# Importing vLLM warns; see there.
import tests.vllm_adapter.conftest  # noqa: F401
from posenc_runtime.vllm_adapter.settings.section import ScalingSettings
from tests.deploy.manifests import (
    DEPLOY,
    RELEASES,
    Manifest,
    check_against_definition,
    check_against_kubernetes,
    documents,
    of_kind,
    rendered,
)

FOLDER = DEPLOY / "kubernetes"
FILES = {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}
CHARTS = {"production-stack": "vllm-stack", "llm-d": "llm-d-modelservice"}
SHIPPED = {"qwen3-8b": "qwen3-yarn", "deepseek": "deepseek-v31-yarn"}


def parsed(name: str) -> list[Manifest]:
    return documents(FILES[name].read_text(encoding="utf-8"))


def commands() -> Iterator[tuple[str, list[str]]]:
    """What each file tells vLLM's server, without the program: the model first."""
    (stack,) = parsed("production-stack")
    (model,) = stack["servingEngineSpec"]["modelSpec"]
    config = model["vllmConfig"]
    yield "production-stack", [model["modelURL"], f"--max-model-len={config['maxModelLen']}", *config["extraArgs"]]
    (llm_d,) = parsed("llm-d")
    (container,) = llm_d["decode"]["containers"]
    yield "llm-d", [llm_d["modelArtifacts"]["name"], *container["args"]]
    runtime, service = parsed("kserve")
    (container,) = runtime["spec"]["containers"]
    assert container["command"][:2] == ["vllm", "serve"]
    arguments = [*container["command"][2:], *container["args"]]
    yield "kserve runtime", arguments
    yield "kserve model", [*arguments, *service["spec"]["predictor"]["model"]["args"]]
    group = of_kind(parsed("leaderworkerset"), "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    set_by_the_controller = {"LWS_GROUP_SIZE": str(group["size"]), "LWS_LEADER_ADDRESS": "leader"}
    for index, role in enumerate(("leader", "worker")):
        (container,) = group[f"{role}Template"]["spec"]["containers"]
        assert container["command"][:2] == ["vllm", "serve"]
        variables = set_by_the_controller | {"LWS_WORKER_INDEX": str(index)}
        yield (
            f"leaderworkerset {role}",
            [
                re.sub(r"\$\((\w+)\)", lambda found, known=variables: known[found[1]], word)
                for word in container["command"][2:]
            ],
        )


COMMANDS = dict(commands())


def pods() -> Iterator[tuple[str, Manifest]]:
    """Each file's pods, as far as it spells them out."""
    for role in ("leaderTemplate", "workerTemplate"):
        group = of_kind(parsed("leaderworkerset"), "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
        yield f"leaderworkerset {role}", group[role]["spec"]
    cluster = of_kind(parsed("ray-serve"), "RayService")["spec"]["rayClusterConfig"]
    yield "ray-serve head", cluster["headGroupSpec"]["template"]["spec"]
    for group in cluster["workerGroupSpecs"]:
        yield f"ray-serve {group['groupName']}", group["template"]["spec"]
    runtime = of_kind(parsed("kserve"), "ServingRuntime")["spec"]
    yield "kserve", {name: runtime[name] for name in ("containers", "volumes")}


PODS = dict(pods())


def section_of(command: list[str]) -> dict[str, Any]:
    """The section of the last flag; vLLM takes the last."""
    *_, last = (index for index, word in enumerate(command) if word == "--additional-config")
    (section,) = json.loads(command[last + 1]).values()
    return dict(section)


def ray_arguments() -> dict[str, Any]:
    served = yaml.safe_load(of_kind(parsed("ray-serve"), "RayService")["spec"]["serveConfigV2"])
    (application,) = served["applications"]
    (config,) = application["args"]["llm_configs"]
    return dict(config["engine_kwargs"])


@pytest.mark.parametrize("name", FILES)
def test_a_file_begins_by_saying_where_it_goes(name: str) -> None:
    comment = re.match(r"(# .*\n)+", FILES[name].read_text(encoding="utf-8"))
    assert comment is not None
    said = comment[0].replace("\n# ", " ")
    assert "Where it goes" in said and f"deploy/kubernetes/{name}.yaml" in said
    assert "one flag" in said or "one argument" in said


@pytest.mark.parametrize("name", COMMANDS)
def test_vllm_takes_every_flag(name: str) -> None:
    from posenc_runtime.vllm_adapter.settings.arguments.parser import parser as vllms_parser

    parser, _ = vllms_parser()
    model, *flags = COMMANDS[name]
    args = parser.parse_args(["--model", model, *flags])
    assert args.additional_config == {"posenc": section_of(COMMANDS[name])}


def test_ray_serve_gives_vllm_arguments_that_it_has() -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs

    AsyncEngineArgs(model="x", **ray_arguments())


@pytest.mark.parametrize("name", COMMANDS)
def test_posenc_takes_the_section(name: str) -> None:
    ScalingSettings.model_validate_json(json.dumps(section_of(COMMANDS[name])))


@pytest.mark.parametrize("name", ["production-stack", "llm-d", "kserve model"])
def test_the_small_model_has_the_scales_of_the_deployment_that_ships(name: str) -> None:
    assert_as_shipped("qwen3-yarn", section_of(COMMANDS[name]))


@pytest.mark.parametrize("name", ["leaderworkerset leader", "leaderworkerset worker", "ray-serve"])
def test_the_large_model_has_the_scales_of_the_deployment_that_ships(name: str) -> None:
    section = ray_arguments()["additional_config"]["posenc"] if name == "ray-serve" else section_of(COMMANDS[name])
    assert_as_shipped("deepseek-v31-yarn", section)


def assert_as_shipped(name: str, section: dict[str, Any]) -> None:
    shipped = yaml.safe_load((DEPLOY.parent / f"configs/{name}.yaml").read_text(encoding="utf-8"))["scaling"]
    assert section == {key: shipped[key] for key in ("rope_type", "original_max_position_embeddings", "scales")}


def test_members_of_a_group_differ_only_in_that_workers_have_no_server() -> None:
    of_the_server = {"--headless", "--shutdown-timeout=60", "--node-rank=0", "--node-rank=1"}
    leader, worker = (COMMANDS[f"leaderworkerset {role}"] for role in ("leader", "worker"))
    assert "--headless" in worker and "--headless" not in leader
    assert [word for word in leader if word not in of_the_server] == [
        word for word in worker if word not in of_the_server
    ]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", PODS)
def test_pods_fit_the_schema_of_kubernetes(name: str, release: str) -> None:
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": PODS[name]}
    check_against_kubernetes(manifest, release)


@pytest.mark.parametrize("release", RELEASES)
def test_the_service_of_a_group_fits_the_schema_and_selects_leaders(release: str) -> None:
    manifests = parsed("leaderworkerset")
    service = of_kind(manifests, "Service")
    check_against_kubernetes(service, release)
    group = of_kind(manifests, "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    selector = service["spec"]["selector"].items()
    assert selector <= group["leaderTemplate"]["metadata"]["labels"].items()
    assert not selector <= group["workerTemplate"]["metadata"]["labels"].items()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("kserve", "ServingRuntime"),
        ("kserve", "InferenceService"),
        ("leaderworkerset", "LeaderWorkerSet"),
        ("ray-serve", "RayService"),
    ],
)
def test_objects_of_others_fit_their_definitions(name: str, kind: str) -> None:
    check_against_definition(of_kind(parsed(name), kind))


@pytest.mark.parametrize("name", CHARTS)
@pytest.mark.parametrize("release", RELEASES)
def test_charts_of_others_make_valid_objects_of_the_values(name: str, release: str) -> None:
    """HELM_CHARTS names a folder with those charts as their projects publish them, without their dependencies."""
    folder = os.environ.get("HELM_CHARTS")
    if folder is None:
        pytest.skip("HELM_CHARTS names no folder with charts of others: deploy/README.md says which")
    (values,) = parsed(name)
    made = rendered(values, chart=pathlib.Path(folder) / CHARTS[name])
    for manifest in made:
        if manifest["apiVersion"] in ("v1", "apps/v1", "policy/v1"):
            check_against_kubernetes(manifest, release)
    engine = next(
        container
        for manifest in made
        if manifest["kind"] == "Deployment"
        for container in manifest["spec"]["template"]["spec"]["containers"]
        if container["name"] == "vllm"
    )
    arguments = [*engine["command"], *engine.get("args", [])]
    assert arguments[:3] == ["vllm", "serve", "Qwen/Qwen3-8B"]
    assert section_of(arguments) == section_of(COMMANDS[name])
    assert engine["livenessProbe"]["httpGet"]["path"] == "/health/live"
    assert engine["readinessProbe"]["httpGet"]["path"] == engine["startupProbe"]["httpGet"]["path"] == "/health/ready"
