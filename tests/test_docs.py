"""What README and the pages of ``docs`` say is so."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import itertools
import json
import pathlib
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer
import yaml
from pydantic import BaseModel
from typer.testing import CliRunner

# The commands import vLLM as they need it; see there why it is imported before.
import tests.vllm_adapter.conftest  # noqa: F401
from posenc_runtime.encodings.methods import available, method
from posenc_runtime.vllm_adapter.metrics.names import Metric
from posenc_runtime.vllm_adapter.settings.front_end import AccessSettings, LimitSettings
from posenc_runtime.vllm_adapter.settings.section import AttentionSettings, ScalingSettings
from server.cli import app
from server.deployment.load import load
from server.deployment.settings import HttpSettings, Settings
from server.start_up.planning import plan_settings
from tests.pages import (
    DOCS,
    README,
    ROOT,
    Block,
    blocks,
    console_commands,
    inline_commands,
    name,
    pages,
    sessions,
    table_rows,
)
from tests.shown_commands import refuse_unknown

TEXT = README.read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
REPOSITORY = "https://github.com/posenc/posenc/"
SECTIONS = (ScalingSettings, AttentionSettings, AccessSettings, LimitSettings, HttpSettings)
EVERY_PAGE = pytest.mark.parametrize("page", pages(), ids=name)


def first(language: str, page: pathlib.Path = README) -> str:
    return blocks(language, page=page)[0].text


# README


def test_readme_is_short() -> None:
    assert README.stat().st_size <= 7000


def test_its_pictures_are_shown_wherever_it_is_read_and_are_files_of_the_repository() -> None:
    start = "https://raw.githubusercontent.com/posenc/posenc/main/"
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", TEXT)
    assert pictures
    for picture in pictures:
        assert picture.startswith(start) and (ROOT / picture.removeprefix(start)).exists()


def test_every_file_and_heading_that_it_links_to_exists() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", TEXT) if "://" not in link]
    assert links
    for link in links:
        file, _, anchor = link.partition("#")
        assert (ROOT / file).exists(), link
        assert not anchor or anchor in anchors(ROOT / file), link


def anchors(page: pathlib.Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def section_of_the_flag(page: pathlib.Path) -> dict[str, Any]:
    words = shlex.split(first("bash", page))
    found: dict[str, Any] = json.loads(words[words.index("--additional-config") + 1])["posenc"]
    return found


@pytest.mark.parametrize("page", [README, DOCS / "plugin.md"], ids=name)
def test_the_flag_for_vllm_is_all_that_a_deployment_needs(page: pathlib.Path) -> None:
    settings = ScalingSettings.model_validate(section_of_the_flag(page))
    assert (settings.rope_type, settings.scales) == ("yarn", [1, 2, 4])


@pytest.mark.parametrize("page", [README, DOCS / "plugin.md"], ids=name)
def test_the_python_beside_the_flag_asks_for_what_the_flag_does(page: pathlib.Path) -> None:
    code = first("python", page).replace("from vllm import LLM\n", "").replace("llm = LLM(", "arguments = dict(model=")
    scope: dict[str, Any] = {}
    exec(compile(code, name(page), "exec"), scope)
    assert scope["arguments"]["additional_config"]["posenc"] == section_of_the_flag(page)


# What has a row or a page


def test_every_method_has_its_row_and_its_page() -> None:
    rows = [row for row in table_rows((DOCS / "methods/index.md").read_text(encoding="utf-8")) if "](" in row[0]]
    linked = dict(re.findall(r"\[`(\w+)`\]\((\w+\.md)", "\n".join(row[0] for row in rows)))
    assert sorted(linked) == sorted([*available(), "auto"])
    assert all((DOCS / "methods" / page).exists() for page in linked.values())


@pytest.mark.parametrize("rope_type", available())
def test_every_parameter_of_a_method_has_its_row_on_the_methods_page(rope_type: str) -> None:
    rows = [row[0] for row in table_rows((DOCS / f"methods/{rope_type}.md").read_text(encoding="utf-8"))]
    described = {parameter for row in rows for parameter in re.findall(r"`(\w+)`", row)}
    assert {field.name for field in dataclasses.fields(method(rope_type))} <= described  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("heading", "model"),
    list(zip(("scaling", "attention", "access", "limits", "server"), SECTIONS, strict=True)),
)
def test_every_setting_has_its_row_with_its_default(heading: str, model: type[BaseModel]) -> None:
    found = re.search(rf"^### `{heading}`\n(.*?)(?=^##)", configuration(), re.MULTILINE | re.DOTALL)
    assert found is not None
    defaults = {row[0].strip("`"): row[-1] for row in table_rows(found[1])}
    for key, field in model.model_fields.items():
        if field.default is not None:
            assert str(field.default).lower().replace("[1.0]", "[1]") in defaults[key], key
        else:
            assert key in defaults


def test_every_setting_at_the_top_has_its_row_or_its_section() -> None:
    page = configuration()
    assert all(f"\n| `{key}` |" in page or f"\n### `{key}`\n" in page for key in Settings.model_fields)


def configuration() -> str:
    return (DOCS / "configuration.md").read_text(encoding="utf-8")


def test_every_metric_has_its_row() -> None:
    page = (DOCS / "metrics.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(posenc_[a-z_]+)", page, re.MULTILINE)) == set(Metric)


def test_every_page_is_in_the_navigation() -> None:
    """``make docs`` says so, too, but is not among the tests."""
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    assert sorted(in_navigation(navigation)) == sorted(name(page).removeprefix("docs/") for page in pages()[1:])


def in_navigation(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for below in entry.values() if isinstance(entry, dict) else entry:
            yield from in_navigation(below)


# Blocks


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_every_configuration_can_be_loaded(block: Block, tmp_path: pathlib.Path) -> None:
    if block.is_told_not_to_load:
        pytest.skip("its page says why it is not loaded")
    load(saved(block, tmp_path), environment={})


def saved(block: Block, folder: pathlib.Path) -> pathlib.Path:
    file = folder / "shown.yaml"
    file.write_text(block.text, encoding="utf-8")
    return file


def test_the_configuration_with_every_section_is_a_deployment(tmp_path: pathlib.Path) -> None:
    [shown, *_] = blocks("yaml", page=DOCS / "configuration.md")
    settings = load(saved(shown, tmp_path), environment={})
    assert plan_settings(settings, is_read=False).deployment.scale_set.lengths == (32768, 65536, 131072)
    assert set(Settings.model_fields) == settings.model_fields_set


def test_only_methods_with_parameters_from_a_checkpoint_need_one_for_a_deployment(
    tmp_path: pathlib.Path,
) -> None:
    for rope_type in sorted({"yarn", "ntk", "dynamic", "linear", "default"}):
        [shown, *_] = blocks("yaml", page=DOCS / f"methods/{rope_type}.md")
        settings = load(saved(shown, tmp_path), environment={})
        assert plan_settings(settings, is_read=False).deployment.rope_type == rope_type


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_compiles_and_what_it_imports_of_ours_exists(block: Block) -> None:
    tree = ast.parse(block.text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(("posenc_runtime", "server")):
            module = importlib.import_module(str(node.module))
            assert all(hasattr(module, alias.name) for alias in node.names)
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith(("posenc_runtime", "server")):
                    importlib.import_module(alias.name)


def test_the_deployment_made_in_python_is_complete() -> None:
    [code] = [block.text for block in blocks("python", page=DOCS / "plugin.md") if "engine_arguments" in block.text]
    scope: dict[str, Any] = {"LLM": lambda model, **arguments: arguments}
    exec(compile(code.replace("from vllm import LLM\n", ""), "docs/plugin.md", "exec"), scope)
    assert scope["llm"]["additional_config"]["posenc"]["max_model_len"] == 131072


@pytest.mark.parametrize("block", blocks("json"), ids=str)
def test_json_can_be_parsed(block: Block) -> None:
    json.loads(block.text)


@pytest.mark.parametrize("block", blocks("console", "bash"), ids=str)
def test_a_body_that_is_sent_is_json(block: Block) -> None:
    commands = [command for command, _ in sessions(block)] if block.language == "console" else [block.text]
    for command in commands:
        words = shlex.split(command, comments=True)
        for flag, body in itertools.pairwise(words):
            if flag in ("-d", "--additional-config"):
                json.loads(body)


def test_no_block_goes_unread_for_its_language_or_for_lack_of_a_prompt() -> None:
    assert {block.language for block in blocks()} <= {"bash", "console", "javascript", "json", "python", "text", "yaml"}
    assert all(block.text.startswith("$ ") for block in blocks("console"))


# Commands


@EVERY_PAGE
def test_commands_of_ours_have_the_subcommands_options_and_settings_that_are_shown(
    page: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    for command in [*console_commands(page), *inline_commands(page)]:
        words = shlex.split(command.replace("\\\n", ""), comments=True)
        if words[0].removeprefix(".venv/bin/") == "posenc" and len(words) > 1:
            refuse_unknown(command, filled_in(words[1:], tmp_path))


# What pages write for something of the reader's.
PLACES = {"N": "1", "MODEL": "Qwen/Qwen3-8B", "NAME": "demo"}


def filled_in(words: list[str], folder: pathlib.Path) -> list[str]:
    file = saved(blocks("yaml", page=DOCS / "configuration.md")[0], folder)
    return [str(file) if word in ("my.yaml", "FILE") else PLACES.get(word, word) for word in words]


@EVERY_PAGE
def test_verbs_of_make_exist_and_take_the_variables_and_options_that_are_shown(page: pathlib.Path) -> None:
    for command in [*console_commands(page), *inline_commands(page)]:
        words = shlex.split(command, comments=True)
        if words[0] == "make" and len(words) > 1:
            refuse_unknown_verb(command, words[1], words[2:])


def refuse_unknown_verb(command: str, verb: str, assignments: list[str]) -> None:
    recipe = re.search(rf"^{re.escape(verb)}:.*\n((?:\t.*\n)*)", MAKEFILE, re.MULTILINE)
    assert recipe is not None, command
    for variable, value in (assignment.split("=", 1) for assignment in assignments):
        assert f"$({variable})" in recipe[1], command
        if variable == "CONFIG":
            assert (ROOT / value).exists(), command
        if module := re.search(r"-m ((?:tests|posenc_runtime)\.\S+|tests\.\w+) \$\(ARGS\)", recipe[1]):
            refuse_unknown_options(command, module[1], shlex.split(value))


@EVERY_PAGE
def test_modules_that_are_run_exist_and_take_the_options_that_are_shown(page: pathlib.Path) -> None:
    for command in [*console_commands(page), *inline_commands(page)]:
        words = shlex.split(command, comments=True)
        if words[:2] == ["python", "-m"] and words[2].startswith("tests."):
            refuse_unknown_options(command, words[2], words[3:])


def refuse_unknown_options(command: str, module: str, options: list[str]) -> None:
    found = importlib.import_module(module)
    if hasattr(found, "__path__"):
        found = importlib.import_module(f"{module}.__main__")
    if found.__name__ == "tests.matrix.__main__":  # argparse's, which cannot be parsed without being run
        assert set(options) <= {"0.31.0", "0.32.0", "0.33.0", "--engine"}, command
        return
    single = typer.Typer()
    single.command()(found.main)
    parsed: Any = typer.main.get_command(single)
    parsed.make_context(module, options)


def sessions_that_print() -> list[tuple[str, str]]:
    """Commands of ours whose output is shown and which start no engine."""
    found = [each for block in blocks("console") for each in sessions(block)]
    return [(command, printed) for command, printed in found if printed and command.startswith("posenc")]


@pytest.mark.parametrize(("command", "printed"), sessions_that_print(), ids=lambda each: each.split("\n")[0])
def test_a_command_prints_what_is_shown(command: str, printed: str) -> None:
    result = CliRunner().invoke(app, shlex.split(command)[1:], env={"COLUMNS": "200"})
    said = [line.rstrip() for line in (result.stdout + result.stderr).splitlines()]
    shown = [line.rstrip() for line in printed.splitlines() if line not in ("...", "")]
    assert shown and [line for line in said if line in shown] == shown


# Links


@EVERY_PAGE
def test_links_into_the_repository_lead_to_files_of_it(page: pathlib.Path) -> None:
    for kind, path in re.findall(
        re.escape(REPOSITORY) + r"(blob|tree)/main/([^)#\s]+)", page.read_text(encoding="utf-8")
    ):
        target = ROOT / path
        assert target.is_file() if kind == "blob" else target.is_dir(), path
