"""What Helm makes of the chart: valid objects, that agree with each other, with the images and with the server."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import pytest
import yaml

from server.deployment.load import load
from tests.deploy.manifests import (
    CHART,
    DEPLOY,
    RELEASES,
    Manifest,
    check_against_definition,
    check_against_kubernetes,
    helm,
    of_kind,
    rendered,
)

SHARED = {"cache": {"accessMode": "ReadWriteMany"}}
EVERYTHING: dict[str, Any] = SHARED | {
    "keys": {"existingSecret": "our-keys", "key": "clients"},
    "hubToken": {"existingSecret": "our-token"},
    "imagePullSecrets": [{"name": "our-registry"}],
    "env": [{"name": "VLLM_LOGGING_LEVEL", "value": "DEBUG"}],
    "extraVolumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "our-models"}}],
    "extraVolumeMounts": [{"name": "models", "mountPath": "/models", "readOnly": True}],
    "networkPolicy": {"from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gateway"}}}]},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "autoscaling": {"enabled": True},
    "inferencePool": {"enabled": True},
    "serviceAccount": {"name": "ours"},
    "service": {"annotations": {"a": "b"}},
    "podLabels": {"team": "ours"},
    "podAnnotations": {"c": "d"},
    "nodeSelector": {"gpu": "h200"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
    "priorityClassName": "serving",
    "runtimeClassName": "nvidia",
}
OF_OTHERS = {"ServiceMonitor", "PrometheusRule", "ScaledObject", "InferencePool"}
BY_DEFAULT = {
    "ConfigMap",
    "Deployment",
    "NetworkPolicy",
    "PersistentVolumeClaim",
    "Pod",
    "PodDisruptionBudget",
    "Service",
}
VALUES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "everything": EVERYTHING,
    "a folder for each pod": {"replicas": 3, "cache": {"kind": "emptyDir"}},
    "a volume of the user": {"replicas": 2, "cache": {"existingClaim": "our-cache"}},
    "little": {"networkPolicy": {"enabled": False}, "podDisruptionBudget": {"enabled": False}},
}


@pytest.fixture(scope="module")
def made() -> dict[str, list[Manifest]]:
    return {name: rendered(values) for name, values in VALUES.items()}


@pytest.fixture(scope="module")
def everything(made: dict[str, list[Manifest]]) -> list[Manifest]:
    return made["everything"]


def pod(manifests: list[Manifest]) -> dict[str, Any]:
    found: dict[str, Any] = of_kind(manifests, "Deployment")["spec"]["template"]["spec"]
    return found


def container(manifests: list[Manifest]) -> dict[str, Any]:
    (found,) = pod(manifests)["containers"]
    return dict(found)


def environment(manifests: list[Manifest]) -> dict[str, Any]:
    return {variable["name"]: variable for variable in container(manifests)["env"]}


def test_helm_lints_the_chart_without_a_warning() -> None:
    said = helm("lint", "--strict", str(CHART))
    assert said.returncode == 0, said.stdout
    assert "[WARNING]" not in said.stdout and "[ERROR]" not in said.stdout


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", VALUES)
def test_objects_of_kubernetes_fit_its_schemas(name: str, release: str, made: dict[str, list[Manifest]]) -> None:
    for manifest in made[name]:
        if manifest["kind"] not in OF_OTHERS:
            check_against_kubernetes(manifest, release)


@pytest.mark.parametrize("kind", sorted(OF_OTHERS))
def test_objects_of_others_fit_their_definitions(kind: str, everything: list[Manifest]) -> None:
    check_against_definition(of_kind(everything, kind))


def test_by_default_nothing_is_made_that_a_bare_cluster_does_not_know(made: dict[str, list[Manifest]]) -> None:
    assert {manifest["kind"] for manifest in made["defaults"]} == BY_DEFAULT
    assert {manifest["kind"] for manifest in made["everything"]} == BY_DEFAULT | OF_OTHERS
    assert {manifest["kind"] for manifest in made["little"]} == BY_DEFAULT - {"NetworkPolicy", "PodDisruptionBudget"}


def test_every_object_is_in_the_namespace_and_selects_the_pods(everything: list[Manifest]) -> None:
    labels = of_kind(everything, "Deployment")["spec"]["template"]["metadata"]["labels"]
    selectors = [
        of_kind(everything, "Deployment")["spec"]["selector"]["matchLabels"],
        of_kind(everything, "Service")["spec"]["selector"],
        of_kind(everything, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        of_kind(everything, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        of_kind(everything, "InferencePool")["spec"]["selector"]["matchLabels"],
    ]
    assert all(selector and selector.items() <= labels.items() for selector in selectors)
    monitored = of_kind(everything, "ServiceMonitor")["spec"]["selector"]["matchLabels"]
    assert monitored.items() <= of_kind(everything, "Service")["metadata"]["labels"].items()
    assert {manifest["metadata"]["namespace"] for manifest in everything} == {"serving"}
    # The pod that asks whether the server is ready must not become an endpoint of it.
    (asking,) = (manifest for manifest in everything if manifest["kind"] == "Pod")
    assert not selectors[0].items() <= asking["metadata"]["labels"].items()


def test_a_rendered_configuration_is_one_that_the_server_loads(
    made: dict[str, list[Manifest]], tmp_path: pathlib.Path
) -> None:
    (text,) = of_kind(made["defaults"], "ConfigMap")["data"].values()
    (tmp_path / "posenc.yaml").write_text(text)
    settings = load(tmp_path / "posenc.yaml", environment={})
    assert settings.model_dump(exclude_unset=True) == yaml.safe_load((CHART / "values.yaml").read_text())["config"]


def test_the_variables_of_the_pod_are_settings_that_the_server_takes(
    everything: list[Manifest], tmp_path: pathlib.Path
) -> None:
    (text,) = of_kind(everything, "ConfigMap")["data"].values()
    (tmp_path / "posenc.yaml").write_text(text)
    variables = {name: each["value"] for name, each in environment(everything).items() if "value" in each}
    settings = load(tmp_path / "posenc.yaml", environment=variables)
    assert (settings.server.host, settings.server.port) == ("0.0.0.0", 8000)
    assert settings.access.metrics == "0.0.0.0:9000"
    assert settings.access.keys_file == "/etc/posenc-keys/clients"
    assert settings.engine["shutdown_timeout"] == 60


def test_the_server_is_started_with_the_mounted_configuration(everything: list[Manifest]) -> None:
    (file,) = of_kind(everything, "ConfigMap")["data"]
    (volume,) = (volume for volume in pod(everything)["volumes"] if "configMap" in volume)
    (mount,) = (mount for mount in container(everything)["volumeMounts"] if mount["name"] == volume["name"])
    assert container(everything)["command"] == ["posenc", "serve", "--config", f"{mount['mountPath']}/{file}"]


def test_a_changed_configuration_starts_new_pods(made: dict[str, list[Manifest]]) -> None:
    other = rendered({"config": {"max_model_len": 1024}})
    sums = [
        of_kind(each, "Deployment")["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
        for each in (made["defaults"], made["everything"], other)
    ]
    assert sums[0] == sums[1] != sums[2]


def test_probes_and_ports_are_where_the_server_listens(everything: list[Manifest]) -> None:
    ports = {port["name"]: port["containerPort"] for port in container(everything)["ports"]}
    variables = environment(everything)
    assert int(variables["POSENC_SERVER__PORT"]["value"]) == ports["http"]
    assert variables["POSENC_ACCESS__METRICS"]["value"] == f"0.0.0.0:{ports['metrics']}"
    paths = {
        kind: container(everything)[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")
    }
    assert paths == {"startup": "/health/ready", "liveness": "/health/live", "readiness": "/health/ready"}
    assert of_kind(everything, "InferencePool")["spec"]["targetPorts"] == [{"number": ports["http"]}]
    (endpoint,) = of_kind(everything, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["port"] == "metrics"
    assert {port["targetPort"] for port in of_kind(everything, "Service")["spec"]["ports"]} == ports.keys()


def test_the_metrics_are_for_prometheus_and_requests_for_those_that_are_named(everything: list[Manifest]) -> None:
    requests, metrics = of_kind(everything, "NetworkPolicy")["spec"]["ingress"]
    assert (requests["from"], [port["port"] for port in requests["ports"]]) == (
        EVERYTHING["networkPolicy"]["from"],
        ["http"],
    )
    assert [port["port"] for port in metrics["ports"]] == ["metrics"]


def test_a_pod_has_longer_to_stop_than_its_requests_and_routers_learn_of_it_first(everything: list[Manifest]) -> None:
    delay = container(everything)["lifecycle"]["preStop"]["sleep"]["seconds"]
    for_requests = int(environment(everything)["POSENC_ENGINE__SHUTDOWN_TIMEOUT"]["value"])
    assert delay > 0
    assert pod(everything)["terminationGracePeriodSeconds"] > delay + for_requests


def test_nothing_runs_as_root_or_writes_to_the_image(everything: list[Manifest]) -> None:
    (asking,) = (manifest["spec"] for manifest in everything if manifest["kind"] == "Pod")
    for spec in (pod(everything), asking):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["automountServiceAccountToken"] is False
        for each in spec["containers"]:
            assert each["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
    assert {mount["mountPath"] for mount in container(everything)["volumeMounts"] if not mount.get("readOnly")} == {
        "/cache",
        "/dev/shm",
        "/tmp",
    }


@pytest.mark.parametrize("dockerfile", ["Dockerfile.cpu", "Dockerfile.cuda"])
def test_the_pod_runs_as_the_user_of_the_images(dockerfile: str, made: dict[str, list[Manifest]]) -> None:
    context = pod(made["defaults"])["securityContext"]
    user = re.search(r"^USER (\d+):(\d+)$", (DEPLOY / dockerfile).read_text(), re.MULTILINE)
    assert user is not None
    assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (
        int(user[1]),
        int(user[2]),
        int(user[2]),
    )


def test_the_names_of_services_do_not_become_settings(made: dict[str, list[Manifest]]) -> None:
    """Kubernetes would set POSENC_PORT for a service of the name posenc, and the server refuses unknown settings."""
    assert pod(made["defaults"])["enableServiceLinks"] is False


def test_secrets_are_named_and_never_written_down(everything: list[Manifest]) -> None:
    assert not [manifest for manifest in everything if manifest["kind"] == "Secret"]
    assert environment(everything)["HF_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "our-token", "key": "token"}
    (volume,) = (volume for volume in pod(everything)["volumes"] if "secret" in volume)
    assert volume["secret"]["secretName"] == "our-keys"
    (mount,) = (mount for mount in container(everything)["volumeMounts"] if mount["name"] == volume["name"])
    assert environment(everything)["POSENC_ACCESS__KEYS_FILE"]["value"] == f"{mount['mountPath']}/clients"


def test_pods_are_added_by_the_queue_and_nobody_else_sets_their_number(made: dict[str, list[Manifest]]) -> None:
    scaled = of_kind(made["everything"], "ScaledObject")["spec"]
    deployment = of_kind(made["everything"], "Deployment")
    assert scaled["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert "replicas" not in deployment["spec"]
    assert of_kind(made["defaults"], "Deployment")["spec"]["replicas"] == 1
    (trigger,) = scaled["triggers"]
    service = of_kind(made["everything"], "Service")["metadata"]["name"]
    assert trigger["metadata"]["query"] == (
        f'sum(vllm:num_requests_waiting{{namespace="serving",service="{service}"}})'
    )


def test_the_rules_are_those_of_observability(everything: list[Manifest]) -> None:
    rules = yaml.safe_load((DEPLOY / "observability/rules.yaml").read_text(encoding="utf-8"))
    assert of_kind(everything, "PrometheusRule")["spec"] == rules


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"replica": 2}, "replica"),
        ({"image": {"repository": ""}}, "repository"),
        ({"config": {"modle": "x"}}, "modle"),
        ({"replicas": 2}, "cache.accessMode: must be ReadWriteMany"),
        ({"autoscaling": {"enabled": True}}, "cache.accessMode: must be ReadWriteMany"),
        ({"config": {"server": {"port": 9}}}, "host and port must be left out"),
        ({"startup": {"timeout": "long"}}, "timeout"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(values: dict[str, Any], why: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    said = helm("template", "r", str(CHART), "--values", str(tmp_path / "values.yaml"))
    assert said.returncode != 0
    assert why in said.stderr


def test_the_schema_knows_every_value_that_has_a_default() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert schema["properties"].keys() - {"global"} == values.keys()
