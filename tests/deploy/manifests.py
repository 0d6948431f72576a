"""Objects of Kubernetes, rendered by Helm or from a file, and what says whether they are valid."""

from __future__ import annotations

import os
import pathlib
import subprocess
from typing import Any

import jsonschema
import pytest
import yaml

from tests.deploy import tools

DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy"
CHART = DEPLOY / "helm/posenc"
# The oldest release that the chart names, and the newest that kubernetes-validate knows today.
RELEASES = ("1.30", "1.37")

Manifest = dict[str, Any]


def documents(text: str) -> list[Manifest]:
    """The objects of a YAML text with several documents."""
    # libyaml's loader: some definitions have a megabyte.
    return [document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document is not None]


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Helm; a test without it is skipped."""
    return subprocess.run([tools.need("helm"), *arguments], capture_output=True, text=True)


def rendered(
    values: dict[str, Any] | None = None, *, chart: pathlib.Path = CHART, release: str = "r"
) -> list[Manifest]:
    """What Helm makes of a chart."""
    arguments = ["template", release, str(chart), "--namespace", "serving"]
    done = subprocess.run(
        [tools.need("helm"), *arguments, "--values", "-"],
        input=yaml.safe_dump(values or {}),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return documents(done.stdout)


def of_kind(manifests: list[Manifest], kind: str) -> Manifest:
    """The only object of a kind, hooks left out."""
    (found,) = (
        manifest
        for manifest in manifests
        if manifest["kind"] == kind and "helm.sh/hook" not in manifest["metadata"].get("annotations", {})
    )
    return found


def check_against_kubernetes(manifest: Manifest, release: str) -> None:
    """Compare an object of Kubernetes itself with the schema of a release; unknown fields are errors."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="`make setup` installs kubernetes-validate")
    kubernetes_validate.validate(manifest, release, strict=True)


def check_against_definition(manifest: Manifest) -> None:
    """Compare an object of another project with its CustomResourceDefinition.

    KUBERNETES_CRDS names a folder with those files as their projects publish them. Without it the test is skipped.
    """
    folder = os.environ.get("KUBERNETES_CRDS")
    if folder is None:
        pytest.skip("KUBERNETES_CRDS names no folder with CustomResourceDefinitions: deploy/README.md says which")
    group, _, version = manifest["apiVersion"].partition("/")
    for path in sorted(pathlib.Path(folder).rglob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        if f"group: {group}" not in text or f"kind: {manifest['kind']}" not in text:
            continue
        for definition in documents(text):
            spec = definition.get("spec", {})
            if spec.get("group") == group and spec["names"]["kind"] == manifest["kind"]:
                (schema,) = (each["schema"] for each in spec["versions"] if each["name"] == version)
                jsonschema.Draft202012Validator(_closed(schema["openAPIV3Schema"])).validate(manifest)
                return
    raise AssertionError(f"no definition of {manifest['apiVersion']} {manifest['kind']} in {folder}")


def _closed(schema: Any) -> Any:
    """The schema for a validator of JSON: closed, as an API server reports fields that the schema does not name."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    is_open = "x-kubernetes-preserve-unknown-fields" in schema or "additionalProperties" in schema
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object" and not is_open:
        closed["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string"):
        closed.pop("type", None)
    if "(?i)" in str(schema.get("pattern", "")):  # a regular expression of Go's that Python does not read
        del closed["pattern"]
    return closed
