"""A method's dataclass as a strict pydantic model."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import pytest
from pydantic import ValidationError

from posenc_runtime.vllm_adapter.settings import section


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stepped:
    rope_type: ClassVar[str] = "stepped"
    steps: int
    factors: list[float] = dataclasses.field(default_factory=lambda: [1.0, 2.0])
    smooth: bool = True


@pytest.fixture
def stepped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(section, "method", lambda rope_type: Stepped)


@pytest.mark.usefixtures("stepped")
def test_a_parameter_has_the_default_of_its_field() -> None:
    model = section.parameters_model("stepped")
    assert model.model_validate({"steps": 3}).model_dump() == {"steps": 3, "factors": [1.0, 2.0], "smooth": True}


@pytest.mark.usefixtures("stepped")
@pytest.mark.parametrize(
    ("given", "key"),
    [({}, "steps"), ({"steps": 3, "stepz": 1}, "stepz"), ({"steps": "3"}, "steps")],
    ids=["missing", "unknown", "of another type"],
)
def test_what_does_not_fit_is_refused_by_its_key(given: dict[str, object], key: str) -> None:
    with pytest.raises(ValidationError) as refused:
        section.parameters_model("stepped").model_validate(given)
    assert [error["loc"] for error in refused.value.errors()] == [(key,)]
