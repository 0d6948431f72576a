"""What the README says is so."""

from __future__ import annotations

import json
import pathlib
import re
import shlex

from posenc_runtime.encodings.scaling import available
from posenc_runtime.kv.deployment import Deployment
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


def test_the_flags_that_it_shows_are_a_deployment() -> None:
    words = shlex.split(block("bash").replace("\\\n", " "))
    additional_config = json.loads(words[words.index("--additional-config") + 1])
    deployment = Deployment.from_mapping(additional_config["posenc"])
    assert deployment.max_model_len == int(words[words.index("--max-model-len") + 1])


def test_the_python_that_it_shows_makes_engine_arguments() -> None:
    code = block("python").replace("from vllm import LLM\n", "").replace("llm = LLM(", "arguments = dict(model=")
    scope: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), scope)
    arguments = scope["arguments"]
    assert isinstance(arguments, dict) and arguments["kv_transfer_config"]["kv_connector"] == "PosencConnector"


def test_its_pictures_are_shown_wherever_it_is_read_and_are_files_of_the_repository() -> None:
    start = "https://raw.githubusercontent.com/posenc/posenc/main/"
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README)
    assert pictures
    for picture in pictures:
        assert picture.startswith(start) and (ROOT / picture.removeprefix(start)).exists()


def test_every_file_that_it_links_to_exists() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    assert links and all((ROOT / link).exists() for link in links)
