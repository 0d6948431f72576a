"""The deployments that come with Posenc, in a checkout or an installed package, and models in installed packages."""

from __future__ import annotations

import dataclasses
import importlib.util
import pathlib

from posenc_runtime.vllm_adapter.contract.errors import did_you_mean

_PACKAGE = "package:"
# In a checkout this is a link to the folder at the top; in a wheel it is a folder. Decision 63.
_FOLDER = (pathlib.Path(__file__).parents[1] / "configs").resolve()


@dataclasses.dataclass(frozen=True)
class About:
    """What a deployment's file says of itself.

    Attributes:
        summary: its first line, a comment.
        model: as written there.
    """

    summary: str
    model: str


def names() -> list[str]:
    """Names of the deployments that come with Posenc, in the order of the alphabet.

    Raises:
        SettingRefused: when none are there.
    """
    found = sorted(path.stem for path in _FOLDER.glob("*.yaml"))
    if not found:
        from posenc_runtime.vllm_adapter.settings.section import SettingRefused

        raise SettingRefused(
            f"configurations: {_FOLDER} must have the YAML files that come with Posenc, got none: install posenc "
            "again. In a checkout, server/configs is a symbolic link: check it out again with symbolic links"
        )
    return found


def path_of(name: str) -> pathlib.Path:
    """The file of a deployment that comes with Posenc.

    Raises:
        SettingRefused: when there is none of this name.
    """
    known = names()
    if name not in known:
        from posenc_runtime.vllm_adapter.settings.section import SettingRefused

        raise SettingRefused(
            f"configuration: must be one of {', '.join(known)}, got {name!r}{did_you_mean(name, known)}"
        )
    return _FOLDER / f"{name}.yaml"


def about(name: str) -> About:
    """What the file of a deployment says of itself.

    Raises:
        SettingRefused: when there is none of this name.
    """
    import yaml

    from server.deployment.setting_layers import UniqueKeysLoader

    text = path_of(name).read_text(encoding="utf-8")
    return About(
        summary=text.partition("\n")[0].removeprefix("#").strip(),
        model=yaml.load(text, Loader=UniqueKeysLoader)["model"],
    )


def locate_model(model: str) -> str:
    """The folder that ``package:NAME/PATH`` names, as an absolute path; any other model as it is.

    The package is found and not imported.

    Raises:
        ValueError: when there is no such package, or no such folder in it.
    """
    if not model.startswith(_PACKAGE):
        return model
    package, _, path = model.removeprefix(_PACKAGE).partition("/")
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    places = [pathlib.Path(place) for place in (spec and spec.submodule_search_locations) or ()]
    if not places:
        raise ValueError(
            f"model: must be {_PACKAGE}NAME/PATH of an installed package, got {model!r}: there is no such package; "
            "install it, or correct the name"
        )
    folders = [place / path for place in places]
    for folder in folders:
        if folder.is_dir():
            return str(folder.resolve())
    raise ValueError(f"model: must name a folder of package {package}, got {model!r}: there is no folder {folders[0]}")
