"""The compose file, Prometheus, Grafana and the dashboard agree with each other and with the metrics that exist."""

from __future__ import annotations

import importlib.util
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from posenc_runtime.vllm_adapter.metrics.names import Metric
from server.deployment.load import load
from tests.deploy.dashboard_queries import (
    DASHBOARD,
    RATES,
    Selector,
    load_dashboard,
    missing_from_exposition,
    panels,
    queries,
    selectors,
)

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
OBSERVABILITY = DEPLOY / "observability"
SUFFIXES = ("_total", "_bucket", "_sum", "_count")
SERVERS = ("posenc", "posenc-cuda")


def parsed(path: pathlib.Path) -> dict[str, Any]:
    result: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return result


COMPOSE = parsed(DEPLOY / "compose.yaml")
PROMETHEUS = parsed(OBSERVABILITY / "prometheus.yaml")
DASHBOARDS = load_dashboard()
PANELS = list(panels(DASHBOARDS))
QUERIES = queries(DASHBOARDS)


def asked() -> list[Selector]:
    return [selector for query in QUERIES for selector in selectors(query.expression)]


def registered_name(metric: str) -> str:
    """The metric that a sample belongs to, by the client library's rules."""
    return re.sub(r"_(bucket|sum|count)$", "", metric)


def bind_mounts(service: dict[str, Any]) -> Iterator[tuple[pathlib.Path, str]]:
    for volume in service.get("volumes", []):
        source, target, *_ = volume.split(":")
        if source.startswith("."):
            yield (DEPLOY / source).resolve(), target


def on_the_host(service: dict[str, Any], path: str) -> pathlib.Path:
    """Where a path of a container comes from."""
    for source, target in bind_mounts(service):
        if path == target or path.startswith(target + "/"):
            return source / path.removeprefix(target).lstrip("/")
    raise AssertionError(f"{path} is not mounted")


@pytest.mark.parametrize("path", sorted(OBSERVABILITY.rglob("*.yaml")), ids=lambda path: path.name)
def test_every_yaml_file_holds_a_mapping(path: pathlib.Path) -> None:
    assert isinstance(parsed(path), dict)


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_every_panel_has_a_title_a_description_a_unit_and_a_query(panel: dict[str, Any]) -> None:
    assert panel["title"].strip()
    assert len(panel["description"]) > 20
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"]
    assert all(target["expr"].strip() for target in panel["targets"])


def test_panels_have_distinct_ids_and_titles_and_do_not_overlap() -> None:
    every = DASHBOARDS["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    assert len({panel["title"] for panel in every}) == len(every)
    cells: set[tuple[int, int]] = set()
    for panel in every:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        covered = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not covered & cells, panel["title"]
        cells |= covered


def test_everything_asks_the_provisioned_data_source() -> None:
    (source,) = parsed(OBSERVABILITY / "grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    expected = {"type": source["type"], "uid": source["uid"]}
    asking = [*PANELS, *(target for panel in PANELS for target in panel["targets"]), *DASHBOARDS["templating"]["list"]]
    assert all(each["datasource"] == expected for each in asking)
    assert source["jsonData"]["timeInterval"] == PROMETHEUS["global"]["scrape_interval"]
    host, port = source["url"].removeprefix("http://").split(":")
    assert f"127.0.0.1:{port}:{port}" in COMPOSE["services"][host]["ports"]


def test_model_and_engine_are_template_variables_that_every_query_filters_by() -> None:
    assert [variable["name"] for variable in DASHBOARDS["templating"]["list"]] == ["model_name", "engine"]
    model, engine = ("model_name", "=~", "$model_name"), ("engine", "=~", "$engine")
    for query in QUERIES:
        if not query.where.startswith("variable "):
            for selector in selectors(query.expression):
                # A refused request gets to no engine, and a server is ready with all of its engines.
                of_servers = (Metric.REFUSED_REQUESTS, Metric.READY)
                by = {model} if selector.metric in of_servers else {model, engine}
                assert by <= set(selector.matchers), query


def test_every_metric_of_ours_is_shown_and_every_metric_shown_as_ours_exists() -> None:
    shown = {registered_name(selector.metric) for selector in asked() if selector.metric.startswith("posenc_")}
    assert shown == set(Metric)


def test_every_metric_of_vllm_that_is_shown_is_in_the_installed_vllm() -> None:
    spec = importlib.util.find_spec("vllm")
    assert spec is not None and spec.submodule_search_locations
    source = pathlib.Path(spec.submodule_search_locations[0], "v1/metrics/loggers.py").read_text(encoding="utf-8")
    shown = {registered_name(selector.metric) for selector in asked() if selector.metric.startswith("vllm:")}
    assert shown
    assert sorted(name for name in shown if f'"{name.removesuffix("_total")}"' not in source) == []


def test_there_are_only_metrics_of_ours_and_of_vllm() -> None:
    assert all(selector.metric.startswith(("posenc_", "vllm:")) for selector in asked())


def test_rates_are_taken_of_everything_that_only_grows_and_of_nothing_else() -> None:
    for selector in asked():
        of_a_rate = bool(selector.functions) and selector.functions[-1] in RATES
        assert of_a_rate == selector.metric.endswith(SUFFIXES), selector
        # Grafana widens it with the step: a fixed window would miss samples when the view spans days.
        assert selector.window == ("[$__rate_interval]" if of_a_rate else None), selector


def test_quantiles_are_taken_of_buckets_grouped_by_their_bounds() -> None:
    for selector in asked():
        assert ("histogram_quantile" in selector.functions) == selector.metric.endswith("_bucket"), selector
        assert ("le" in selector.grouped_by) == selector.metric.endswith("_bucket"), selector


def test_legends_use_only_labels_that_the_query_keeps() -> None:
    for query in QUERIES:
        kept = frozenset[str]().union(*(selector.grouped_by for selector in selectors(query.expression)))
        assert set(re.findall(r"\{\{\s*(\w+)\s*\}\}", query.legend)) == kept - {"le"} or not query.legend, query


@pytest.mark.parametrize("title", ["Scaling strategy", "Attention backends"])
def test_a_table_names_exactly_the_labels_that_its_query_keeps(title: str) -> None:
    (table,) = [panel for panel in PANELS if panel["type"] == "table" and panel["title"] == title]
    (selector,) = selectors(table["targets"][0]["expr"])
    (organize,) = table["transformations"]
    assert set(organize["options"]["renameByName"]) == selector.grouped_by


def test_compose_refers_only_to_files_that_exist() -> None:
    for name, service in COMPOSE["services"].items():
        for source, _ in bind_mounts(service):
            assert source.exists(), (name, source)
        if "build" in service:
            context = (DEPLOY / service["build"]["context"]).resolve()
            assert context == ROOT
            assert (context / service["build"]["dockerfile"]).is_file()


def test_compose_declares_the_volumes_that_services_name() -> None:
    named = {
        volume.split(":")[0]
        for service in COMPOSE["services"].values()
        for volume in service.get("volumes", [])
        if not volume.startswith(".")
    }
    assert named == set(COMPOSE["volumes"])


def test_every_port_is_published_on_the_loopback_address_only() -> None:
    for service in COMPOSE["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_a_container_can_write_to_its_volumes_and_to_tmp_only_and_gets_no_rights(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert all(mount.partition(":")[0] == "/tmp" for mount in service.get("tmpfs", []))
    assert all(volume.endswith(":ro") for volume in service["volumes"] if volume.startswith("."))
    assert service.get("cap_add", []) == (["SYS_NICE"] if name == "posenc" else [])


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_has_the_volume_that_its_image_saves_to(name: str) -> None:
    service = COMPOSE["services"][name]
    assert [volume for volume in service["volumes"] if volume.endswith(":/cache")]
    assert "HOME=/cache" in (ROOT / service["build"]["dockerfile"]).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_mounts_the_configuration_that_it_is_started_with_by_default(name: str) -> None:
    service = COMPOSE["services"][name]
    *_, config = service["command"]
    default = re.fullmatch(r"/\$\{CONFIG:-(.+)\}", config)
    assert default is not None
    assert on_the_host(service, f"/{default[1]}") == ROOT / default[1]
    assert (ROOT / default[1]).is_file()


@pytest.mark.parametrize("name", SERVERS)
def test_health_check_published_port_and_scrape_target_are_where_the_server_listens(name: str) -> None:
    service = COMPOSE["services"][name]
    port = service["environment"]["POSENC_SERVER__PORT"]
    assert service["environment"]["POSENC_SERVER__HOST"] == "0.0.0.0"
    assert service["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert f"http://127.0.0.1:{port}/health/ready'" in service["healthcheck"]["test"][-1]
    (scrape,) = PROMETHEUS["scrape_configs"]
    assert scrape["metrics_path"] == "/metrics"
    names = {name, *service.get("networks", {}).get("default", {}).get("aliases", [])}
    metrics = service["environment"]["POSENC_ACCESS__METRICS"].removeprefix("0.0.0.0:")
    assert metrics != port
    assert [target for config in scrape["static_configs"] for target in config["targets"]] == [
        f"{known}:{metrics}" for known in names & {"posenc"}
    ]


@pytest.mark.parametrize("name", SERVERS)
def test_the_variables_of_a_server_are_settings_that_it_takes(name: str) -> None:
    variables = {key: value for key, value in COMPOSE["services"][name]["environment"].items() if value is not None}
    settings = load(ROOT / "configs/demo.yaml", environment=variables)
    assert settings.access.metrics == variables["POSENC_ACCESS__METRICS"]


def test_only_the_server_of_the_cuda_profile_reserves_gpus() -> None:
    reserving = [name for name, service in COMPOSE["services"].items() if "deploy" in service]
    assert reserving == ["posenc-cuda"]
    service = COMPOSE["services"]["posenc-cuda"]
    assert service["profiles"] == ["cuda"]
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    assert [name for name, other in COMPOSE["services"].items() if "profiles" in other] == ["posenc-cuda"]


def test_names_of_vllm_that_arrive_with_an_underscore_get_their_colon_back() -> None:
    (scrape,) = PROMETHEUS["scrape_configs"]
    (rule,) = scrape["metric_relabel_configs"]
    assert rule["source_labels"] == [rule["target_label"]] == ["__name__"]
    for metric in sorted({selector.metric for selector in asked()}):
        match = re.fullmatch(rule["regex"], metric.replace(":", "_"))
        assert (rule["replacement"].replace("$1", match[1]) if match else metric) == metric


def test_prometheus_is_started_with_the_file_that_is_mounted() -> None:
    service = COMPOSE["services"]["prometheus"]
    (path,) = [flag.partition("=")[2] for flag in service["command"] if flag.startswith("--config.file=")]
    assert on_the_host(service, path) == OBSERVABILITY / "prometheus.yaml"


def test_grafana_finds_its_provisioning_and_the_dashboard_in_the_mounted_folders() -> None:
    service = COMPOSE["services"]["grafana"]
    assert on_the_host(service, "/etc/grafana/provisioning") == OBSERVABILITY / "grafana/provisioning"
    (provider,) = parsed(OBSERVABILITY / "grafana/provisioning/dashboards/posenc.yaml")["providers"]
    assert on_the_host(service, provider["options"]["path"]) == DASHBOARD.parent
    assert on_the_host(service, service["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]) == DASHBOARD


def exposition(without: str = "", without_label: str = "") -> str:
    """A server's metrics that have all that the dashboard asks for, but one metric or one label."""
    labels: dict[str, set[str]] = {}
    for selector in asked():
        labels.setdefault(selector.metric, set()).update(selector.labels)
    lines = []
    for metric, names in sorted(labels.items()):
        if metric != without:
            pairs = ",".join(f'{label}="1"' for label in sorted(names - {without_label}))
            lines.append(f"{metric}{{{pairs}}} 1.0")
    return "\n".join(lines) + "\n"


def test_nothing_is_missing_from_an_exposition_that_has_everything() -> None:
    assert missing_from_exposition(exposition()) == []


def test_a_metric_that_is_not_exposed_is_missing() -> None:
    assert missing_from_exposition(exposition(without="posenc_kv_blocks")) == ["posenc_kv_blocks"]
    assert missing_from_exposition(exposition(without="vllm:num_preemptions_total")) == ["vllm:num_preemptions_total"]


def test_a_label_that_no_sample_has_is_missing() -> None:
    assert missing_from_exposition(exposition(without_label="headroom_tokens")) == [
        "posenc_strategy_info{headroom_tokens}"
    ]


def test_a_counter_and_a_histogram_are_found_as_a_client_library_writes_them() -> None:
    text = """
# HELP posenc_requests_total Requests admitted.
# TYPE posenc_requests_total counter
posenc_requests_total{engine="0",model_name="demo",rope_type="yarn",scale="1"} 3.0
# HELP posenc_requests_created Requests admitted.
# TYPE posenc_requests_created gauge
posenc_requests_created{engine="0",model_name="demo",rope_type="yarn",scale="1"} 1.7e+09
# HELP posenc_apply_seconds Seconds.
# TYPE posenc_apply_seconds histogram
posenc_apply_seconds_bucket{engine="0",le="0.1",model_name="demo"} 2.0
posenc_apply_seconds_bucket{engine="0",le="+Inf",model_name="demo"} 2.0
posenc_apply_seconds_count{engine="0",model_name="demo"} 2.0
posenc_apply_seconds_sum{engine="0"} 0.1
"""
    missing = missing_from_exposition(text)
    assert [name for name in missing if name.startswith(("posenc_requests", "posenc_apply"))] == [
        "posenc_apply_seconds_sum{model_name}"
    ]
    assert "posenc_kv_blocks" in missing


def test_an_empty_exposition_lacks_every_metric() -> None:
    assert missing_from_exposition("") == sorted({selector.metric for selector in asked()})


def test_selectors_are_read_with_what_surrounds_them() -> None:
    assert selectors('histogram_quantile(0.5, sum by (le, a) (rate(x:y_bucket{b=~"c,}", d!="e"}[5m]))) / z') == [
        Selector(
            metric="x:y_bucket",
            matchers=(("b", "=~", "c,}"), ("d", "!=", "e")),
            grouped_by=frozenset({"le", "a"}),
            functions=("histogram_quantile", "sum", "rate"),
            window="[5m]",
        ),
        Selector(metric="z", matchers=(), grouped_by=frozenset(), functions=(), window=None),
    ]


@pytest.mark.parametrize(
    "expression",
    [
        "sum(x",
        "x)",
        "rat(x[5m])",
        "x{a}",
        'x{a="b"',
        "sum(x) by (a)",
        "rate by (a) (x)",
        "x{a>'b'}",
        "x offset 5m",
        "}",
        "sum()",
        "a b",
        "a /",
        "",
        "a, b",
    ],
)
def test_an_expression_that_is_not_understood_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match=r".+: "):
        selectors(expression)
