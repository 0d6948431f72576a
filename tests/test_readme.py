"""What the README says is so."""

from __future__ import annotations

import json
import pathlib
import re
import shlex
from typing import Any

from posenc_runtime.encodings.scaling import available
from posenc_runtime.vllm_adapter.section import ScalingSettings
from server.deployment import deployment_of
from server.load import load

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found.group(1)


def test_every_method_has_its_row() -> None:
    rows = re.findall(r"^\| `(?!posenc_)(\w+)` \|", README, re.MULTILINE)
    assert sorted(rows) == sorted(available())


def test_every_metric_has_its_row() -> None:
    source = (ROOT / "posenc_runtime/vllm_adapter/prometheus.py").read_text(encoding="utf-8")
    registered = set(re.findall(r'"(posenc_(?!\d)[a-z_]+)"', source)) - {"posenc_"}
    assert set(re.findall(r"^\| `(posenc_[a-z_]+)", README, re.MULTILINE)) == registered


def test_the_configuration_that_it_shows_can_be_loaded(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "shown.yaml"
    file.write_text(block("yaml"), encoding="utf-8")
    deployment = deployment_of(load(file, environment={}), None)
    assert deployment.scale_set.lengths == (32768, 65536, 131072)


def section_of_the_flag() -> dict[str, Any]:
    words = shlex.split(block("bash"))
    section: dict[str, Any] = json.loads(words[words.index("--additional-config") + 1])["posenc"]
    return section


def test_the_flag_that_it_shows_is_all_that_a_deployment_needs() -> None:
    settings = ScalingSettings.model_validate(section_of_the_flag())
    assert (settings.rope_type, settings.scales) == ("yarn", [1, 2, 4])


def test_the_python_that_it_shows_asks_for_what_the_flag_does() -> None:
    code = block("python").replace("from vllm import LLM\n", "").replace("llm = LLM(", "arguments = dict(model=")
    scope: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), scope)
    assert scope["arguments"]["additional_config"]["posenc"] == section_of_the_flag()


def test_its_pictures_are_shown_wherever_it_is_read_and_are_files_of_the_repository() -> None:
    start = "https://raw.githubusercontent.com/posenc/posenc/main/"
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README)
    assert pictures
    for picture in pictures:
        assert picture.startswith(start) and (ROOT / picture.removeprefix(start)).exists()


def test_every_file_that_it_links_to_exists() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    assert links and all((ROOT / link).exists() for link in links)
