"""What a command writes is ours alone, unless something fails that no line of ours explains. In fresh processes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.slow

# Beside what vLLM, transformers and others write by themselves, while they are imported and asked.
LOUD = """
    import os, warnings
    from posenc_runtime.vllm_adapter import serving

    stock = serving.prepare_environment

    def prepare_environment(**named):
        stock(**named)
        os.environ["VLLM_LOGGING_LEVEL"] = "DEBUG"
        os.environ["PYTHONWARNINGS"] = "default"
        warnings.simplefilter("always")

    serving.prepare_environment = prepare_environment
"""


def posenc(*arguments: str, before: str = LOUD) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a command, with something that is done before it."""
    program = f"{textwrap.dedent(before)}\nfrom server.cli import app\napp()"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True, text=True, timeout=300, env=os.environ | {"COLUMNS": "200"},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("command", "begins"), [("check", "demo: trained on 512 tokens"), ("flags", ("vllm serve ", "python -m vllm."))]
)
def test_a_command_that_is_well_writes_to_stdout_alone(command: str, begins: str | tuple[str, ...]) -> None:
    status, out, err = posenc(command, "demo")
    assert (status, err) == (0, "") and out.startswith(begins)


@pytest.mark.parametrize("command", ["check", "flags", "serve"])
def test_a_refusal_is_all_that_is_written(command: str) -> None:
    status, out, err = posenc(command, "demo", "--set", "engine.enforce_eager=maybe")
    assert (status, out, err) == (2, "", "refused engine.enforce_eager: must be true or false, got 'maybe'\n")


@pytest.mark.parametrize("command", ["check", "serve"])
def test_of_a_mistake_nothing_is_lost(command: str) -> None:
    failing = """
        import os
        from server.start_up import planning

        def serve_namespace(*given, **named):
            os.write(1, b"their last words\\n")
            raise KeyError("a mistake")

        planning.serve_namespace = serve_namespace
    """
    status, out, err = posenc(command, "demo", before=failing)
    assert (status, out) == (1, "")
    assert err.index("their last words\n") < err.index("Traceback") < err.index("KeyError: 'a mistake'")
