"""The results of all checks of one vLLM as plain values, found in a process that imports that vLLM."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import pathlib
from typing import Self

from posenc_runtime.vllm_adapter.comparison import imports, overrides
from posenc_runtime.vllm_adapter.releases import names, presence, versions
from posenc_runtime.vllm_adapter.releases.differences import DIFFERENCES
from posenc_runtime.vllm_adapter.releases.unpacked import line_of_sources

# Marks the line with another process's report, because vLLM writes to both output streams as well.
_MARK = "posenc-release-report: "


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """One vLLM, compared with what we know.

    Attributes:
        version: the version that it states.
        is_known: whether we support that version.
        is_compiled: whether its compiled libraries are beside its sources; without them nothing of it can run.
        num_names, lacking: how many of its names we use, and which of them it lacks.
        num_functions, misfits: how many of our functions it calls in the place of its own, and how they do not fit.
        old_ways: names of the differences from the newest release that it has.
        astray: differences that it has although its version should not have them, or the reverse.
    """

    version: str
    is_known: bool
    is_compiled: bool
    num_names: int
    lacking: list[str]
    num_functions: int
    misfits: list[str]
    old_ways: list[str]
    astray: list[str]

    @property
    def is_good(self) -> bool:
        """Whether every check passed."""
        return self.is_known and not (self.lacking or self.misfits or self.astray)

    @classmethod
    def of_this_process(cls) -> Self:
        """The vLLM that this process imports."""
        every = [
            *names.ENGINE_NAMES,
            *names.SERVER_NAMES,
            *names.CORE_NAMES,
            *names.CPU_RUNNER_NAMES,
            *names.NIXL_NAMES,
            *names.OFFLINE_NAMES,
        ]
        made = [
            *names.ENGINE_ATTRIBUTES,
            *names.SERVER_ATTRIBUTES,
            *names.CORE_ATTRIBUTES,
            *names.CPU_RUNNER_ATTRIBUTES,
            *names.NIXL_ATTRIBUTES,
        ]
        replaced = list(overrides.everywhere())
        version = versions.installed_version()
        expected = {name for name, difference in DIFFERENCES.items() if version in difference.versions}
        seen = {name for name, difference in DIFFERENCES.items() if difference.seen()}
        return cls(
            version=version,
            is_known=version in versions.SUPPORTED,
            is_compiled=importlib.util.find_spec("vllm._C") is not None,
            num_names=len(every) + sum(len(attributes) for *_, attributes in made) + len(imports.imported_names()),
            lacking=[*presence.missing(tuple(every), tuple(made)), *imports.missing()],
            num_functions=len(replaced),
            misfits=[*(misfit for each in replaced for misfit in each.misfits()), *overrides.abstract()],
            old_ways=sorted(seen),
            astray=sorted(expected ^ seen),
        )

    @classmethod
    def of_sources(cls, folder: pathlib.Path, device: str) -> Self:
        """The vLLM whose package lies in a folder; another process of this interpreter imports and checks it.

        Other packages that this vLLM needs come from the environment of the present process.

        Args:
            device: ``cpu`` or ``cuda``: what this vLLM is told that it was built for; sources alone do not say.

        Raises:
            ValueError: when there is no vLLM, or it cannot be checked; the message has the reason.
        """
        line = line_of_sources(folder, device, "posenc_runtime.vllm_adapter.comparison", "--report", mark=_MARK)
        return cls(**json.loads(line))

    def line(self) -> str:
        """The report in one line, for ``of_sources`` in another process to read."""
        return _MARK + json.dumps(dataclasses.asdict(self))

    def told(self, where: str) -> str:
        """The report in words.

        Args:
            where: where this vLLM was found.
        """
        known = "" if self.is_known else ", which posenc does not support"
        compiled = "" if self.is_compiled else "; without its compiled libraries, so it can be checked but not run"
        lines = [f"vLLM {self.version}{known} ({where}{compiled})"]
        lines += _part(f"{self.num_names} names of vLLM that posenc uses", "found", self.lacking)
        lines += _part(
            f"{self.num_functions} functions of posenc that vLLM calls instead of its own", "compatible", self.misfits
        )
        lines += [f"  differences from vLLM {versions.SUPPORTED[-1]}: {len(self.old_ways) or 'none'}"]
        lines += [f"    {name}: {DIFFERENCES[name].what}" for name in self.old_ways]
        if self.astray:
            lines += [f"  differences that do not fit its version: {', '.join(self.astray)}"]
        return "\n".join(lines)


def _part(what: str, state: str, wrong: list[str]) -> list[str]:
    return [f"  {what}: {f'{len(wrong)} not' if wrong else 'all'} {state}", *(f"    {each}" for each in wrong)]
