"""Prometheus's rules: its own tool tests what they say of made-up series, and they ask for metrics that exist."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import subprocess
from typing import Any

import pytest
import yaml

from posenc_runtime.vllm_adapter.metrics.names import Metric
from tests.deploy import tools

FOLDER = pathlib.Path(__file__).parent
OBSERVABILITY = FOLDER.parents[1] / "deploy/observability"
RULES = OBSERVABILITY / "rules.yaml"
TESTS = FOLDER / "rules_test.yaml"
# Of Prometheus itself, and of every Python process.
OF_OTHERS = {"up", "process_start_time_seconds"}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def asked() -> set[str]:
    """The metrics that the rules ask for, a histogram's without the suffix of its series."""
    names = re.findall(r"\b(?:posenc|vllm)[:_][a-z0-9_:]+|\bup\b|\bprocess_\w+", " ".join(r["expr"] for r in rules()))
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


def test_promtool_accepts_the_rules() -> None:
    said = subprocess.run([tools.need("promtool"), "check", "rules", str(RULES)], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr


def test_the_rules_say_of_made_up_series_what_they_should() -> None:
    said = subprocess.run([tools.need("promtool"), "test", "rules", str(TESTS)], capture_output=True, text=True)
    assert said.returncode == 0, said.stdout + said.stderr


def test_promtool_accepts_the_configuration_with_the_rules_beside_it(tmp_path: pathlib.Path) -> None:
    for name in ("prometheus.yaml", "rules.yaml"):
        (tmp_path / name).write_text((OBSERVABILITY / name).read_text(encoding="utf-8"))
    said = subprocess.run(
        [tools.need("promtool"), "check", "config", str(tmp_path / "prometheus.yaml")], capture_output=True, text=True
    )
    assert said.returncode == 0, said.stderr
    assert "rule files found" in said.stdout + said.stderr


@pytest.mark.parametrize("alert", [rule["alert"] for rule in rules() if "alert" in rule])
def test_an_alert_is_seen_to_fire_and_to_stay_silent(alert: str) -> None:
    tests = yaml.safe_load(TESTS.read_text(encoding="utf-8"))["tests"]
    seen = [
        each["exp_alerts"] for test in tests for each in test.get("alert_rule_test", []) if each["alertname"] == alert
    ]
    assert any(seen)
    # A series that must not fire stands beside those that must.
    assert all(len(alerts) <= 1 for alerts in seen)


@pytest.mark.parametrize("record", [rule["record"] for rule in rules() if "record" in rule])
def test_what_is_recorded_is_tested_or_asked_by_an_alert_that_is(record: str) -> None:
    alerts = " ".join(rule["expr"] for rule in rules() if "alert" in rule)
    assert (
        record in alerts or f"expr: {record}" in TESTS.read_text(encoding="utf-8") or f"({record}," in TESTS.read_text()
    )


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    for rule in rules():
        if "alert" in rule:
            assert rule["labels"]["severity"] in ("warning", "critical")
            assert rule["annotations"]["summary"].endswith(".") and len(rule["annotations"]["description"]) > 50


def test_the_rules_ask_for_metrics_that_exist() -> None:
    spec = importlib.util.find_spec("vllm")
    assert spec is not None and spec.submodule_search_locations
    source = pathlib.Path(spec.submodule_search_locations[0], "v1/metrics/loggers.py").read_text(encoding="utf-8")
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    of_vllm = {name for name in asked() if name.startswith("vllm:") and f'"{name.removesuffix("_total")}"' in source}
    of_vllm |= {name for name in asked() if name.startswith("vllm:") and f'"{name}"' in source}
    ours = {name for name in asked() if name.startswith("posenc_")}
    assert ours <= set(Metric)
    assert asked() == recorded & asked() | OF_OTHERS | of_vllm | ours
