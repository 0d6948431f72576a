"""Models that come in a Python package."""

from __future__ import annotations

import pathlib
import sys

import pytest

from posenc_runtime.vllm_adapter.settings.section import SettingRefused
from server.deployment.load import load
from server.deployment.shipped import locate_model


@pytest.fixture
def package(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """An installed package that must not be imported, with a model in it."""
    (tmp_path / "site" / "models_of_mine" / "small").mkdir(parents=True)
    (tmp_path / "site" / "models_of_mine" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return tmp_path / "site" / "models_of_mine"


def test_a_packages_folder_is_found_anywhere_without_importing_the_package(package: pathlib.Path) -> None:
    assert locate_model("package:models_of_mine/small") == str(package / "small")
    assert "models_of_mine" not in sys.modules


def test_other_models_stay_as_they_are(package: pathlib.Path) -> None:
    for model in ("Qwen/Qwen3-8B", "models_of_mine/small", "/weights/small", "s3://bucket/small"):
        assert locate_model(model) == model


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("package:models_of_yours/small", "no such package"),
        ("package:models_of_mine.small", "no such package"),
        ("package:", "no such package"),
        ("package:json.decoder/small", "no such package"),
        ("package:shlex/small", "no such package"),
    ],
)
def test_what_names_no_package_is_refused(model: str, reason: str, package: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=f"^model: must be package:NAME/PATH .*, got '{model}': there is {reason}"):
        locate_model(model)


def test_a_package_without_such_a_folder_is_refused_with_where_it_was_looked_for(package: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=f"^model: must name a folder of .*: there is no folder {package}/large$"):
        locate_model("package:models_of_mine/large")


def test_it_is_found_from_the_file_from_the_environment_and_by_set(
    package: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text("model: package:models_of_mine/small")
    assert load(file, environment={}).model == str(package / "small")
    file.write_text("model: package:of_another_machine/small")
    assert load(file, ["model=package:models_of_mine/small"], {}).model == str(package / "small")
    assert load(file, environment={"POSENC_MODEL": "package:models_of_mine/small"}).model == str(package / "small")
    with pytest.raises(SettingRefused, match=r"^model: must be package:NAME/PATH"):
        load(file, environment={})
