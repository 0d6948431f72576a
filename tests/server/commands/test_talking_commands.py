"""``posenc chat``, ``posenc top`` and what they say when something is wrong, over a server without an engine."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest
from rich.console import Console
from typer.testing import CliRunner

from server.cli import app
from server.client import started_server
from server.client.client import Server
from server.client.started_server import DidNotStart
from server.commands import demo
from server.commands.chat import Conversation
from server.printing import terminal
from tests.benchmarks.servers import free_port
from tests.in_a_thread import running
from tests.page.fake_server import Fake


def posenc(*arguments: str, said: str = "", **environment: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a command of ours, run in this process."""
    terminal.console.cache_clear()  # it holds the streams of an earlier test
    result = CliRunner().invoke(app, arguments, input=said, env={"COLUMNS": "200", "OPENAI_API_KEY": "", **environment})
    terminal.console.cache_clear()
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def fake() -> Fake:
    return Fake(token_seconds=0)


@pytest.fixture(scope="module")
def address(fake: Fake) -> Iterator[str]:
    with running(fake) as found:
        yield found


def test_chat_shows_answer_and_scale_and_remembers_what_was_said(address: str, fake: Fake) -> None:
    status, out, err = posenc("chat", "--url", address, "--max-tokens", "2", "--system", "Be brief.", said="Hi\nMore\n")
    assert (status, err) == (0, "")
    speed = r"first token after \d+\.\d\d s, then \d+\.\d tokens/s\n"
    cut = r"cut at 2 tokens \(--max-tokens\)\n"
    first, second = (f"{cut}scale 1, {tokens} tokens, 2 of them new\n{speed}" for tokens in (5, 8))
    assert re.fullmatch(f" and and\n{first} and and\n{second}", out)
    roles = [message["role"] for message in fake.requests[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "user"]


def test_chat_says_when_a_request_crossed(address: str) -> None:
    _, out, _ = posenc("chat", "--url", f"{address}/v1/", "--max-tokens", "80", said="a " * 440 + "\n")
    assert out.splitlines()[2:-1] == [
        "crossed from scale 1 to 2 at 512 tokens (rerotate)", "scale 2, 520 tokens, 80 of them new",
    ]  # fmt: skip


def test_a_model_without_a_chat_template_completes_the_text_so_far() -> None:
    with running(fake := Fake(token_seconds=0, has_template=False)) as address:
        status, out, _ = posenc("chat", "--url", address, "--max-tokens", "1", said="One\nTwo\n")
    assert status == 0 and out.count("this model has no chat template: it completes the text so far") == 1
    assert [body["prompt"] for body in fake.requests] == ["One", "One and\nTwo"]


def test_chat_forgets_and_ends_when_it_is_told_to(address: str, fake: Fake) -> None:
    posenc("chat", "--url", address, "--completions", "--max-tokens", "1", said="One\n/new\nTwo\n/quit\nThree\n")
    assert [body["prompt"] for body in fake.requests[-2:]] == ["One", "Two"]


def test_a_file_is_put_before_the_next_message_alone(address: str, fake: Fake, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "some notes.txt"
    file.write_text("Once upon\na time")
    status, out, _ = posenc(
        "chat", "--url", address, "--completions", "--max-tokens", "1", said=f"/load {file}\nWho?\nWhy?\n/new\nWhen?\n"
    )
    assert status == 0 and out.startswith(f"{file}: 16 characters, before your next message\n")
    first = "Once upon\na time\n\nWho?"
    assert [body["prompt"] for body in fake.requests[-3:]] == [first, f"{first} and\nWhy?", "When?"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/load no/such.txt", "/load: must be followed by a text file, got 'no/such.txt': No such file or directory"),
        ("/load .", "/load: must be followed by a text file, got '.': Is a directory"),
        ("/lod x", "/lod: must be one of /load, /new, /quit, got '/lod x'; did you mean /load?"),
    ],
)
def test_a_command_that_cannot_be_done_is_not_sent_as_a_message(line: str, said: str, address: str, fake: Fake) -> None:
    before = len(fake.requests)
    assert posenc("chat", "--url", address, said=f"{line}\n") == (1, "", f"failed {said}\n")
    assert len(fake.requests) == before


class Terminal:
    """``posenc chat`` in a terminal of its own."""

    def __init__(self, address: str) -> None:
        self._ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "server", "chat", "--url", address]
        environment = os.environ | {"TERM": "xterm", "COLUMNS": "200", "OPENAI_API_KEY": ""}
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True,
            # A shell in the background has its programs ignore the signal.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )  # fmt: skip
        os.close(theirs)
        self.seen = ""

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def interrupt(self) -> None:
        """As Ctrl-C, a little after what was waited for: readline writes its prompt before it looks for signals."""
        time.sleep(0.5)
        self.process.send_signal(signal.SIGINT)

    def wait_for(self, said: str) -> None:
        """Until it has said something since the last wait."""
        with contextlib.suppress(OSError):  # the terminal is gone when the process has ended
            while said not in self.seen:
                self.seen += os.read(self._ours, 65536).decode(errors="replace")
        assert said in self.seen
        self.seen = self.seen.partition(said)[2]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.fixture
def slow_fake() -> Fake:
    return Fake(token_seconds=0.05)


@pytest.fixture
def chat(slow_fake: Fake) -> Iterator[Terminal]:
    with running(slow_fake) as address, contextlib.closing(Terminal(address)) as found:
        found.wait_for("> ")
        yield found


@pytest.mark.slow
def test_an_interrupt_stops_an_answer_which_stays_in_the_conversation(chat: Terminal, slow_fake: Fake) -> None:
    chat.type("One\r")
    chat.wait_for(" and and")
    chat.interrupt()
    chat.wait_for("> ")
    chat.type("Two\r")
    chat.wait_for(" and and")
    asked = slow_fake.requests[-1]["messages"]
    assert [message["role"] for message in asked] == ["user", "assistant", "user"]
    assert asked[1]["content"].startswith(" and and") and asked[1]["content"].count("and") < 256


@pytest.mark.slow
def test_two_interrupts_end_the_chat_and_one_says_so(chat: Terminal) -> None:
    chat.interrupt()
    chat.wait_for("Ctrl-C once more, or /quit, ends the chat")
    chat.wait_for("> ")
    chat.interrupt()
    assert chat.process.wait(60) == 130


@pytest.mark.slow
def test_lines_that_are_pasted_are_one_message(chat: Terminal, slow_fake: Fake) -> None:
    chat.type("a first line\nand a second one\n")
    chat.wait_for(" and and")
    assert slow_fake.requests[-1]["messages"][-1]["content"] == "a first line\nand a second one"


def test_a_pipe_ends_at_the_first_error_with_one_line(address: str) -> None:
    with running(Fake(key="a secret")) as guarded:
        status, out, err = posenc("chat", "--url", guarded, said="Hi\n")
    said = f"failed {guarded} answered with status 401: a key is wanted; give the key in OPENAI_API_KEY\n"
    assert (status, out, err) == (1, "", said)


def test_the_key_comes_from_the_environment_as_for_other_clients(address: str) -> None:
    with running(Fake(key="a secret")) as guarded:
        assert posenc("top", "--once", "--url", guarded, OPENAI_API_KEY="a secret")[0] == 0


def test_a_terminal_shows_how_far_a_long_prompt_is_read_until_the_answer_begins() -> None:
    said = io.StringIO()
    prompt = " ".join(["word"] * 3000)
    with running(Fake(token_seconds=0, prompt_seconds=1.5)) as address, Server(address) as server:
        out = Console(file=said, width=200, force_terminal=True)
        Conversation(server, out, max_tokens=2, is_chat=True, system="").say(prompt)
    assert "reading prompts: 1,500 of 3,000 tokens" in said.getvalue()
    assert said.getvalue().index("reading prompts") < said.getvalue().index(" and and")


@pytest.mark.parametrize("command", [("top", "--once"), ("top",), ("chat",)], ids=" ".join)
def test_where_no_server_answers_one_line_says_what_to_do(command: tuple[str, ...]) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    status, out, err = posenc(*command, "--url", address)
    assert (status, out) == (1, "")
    assert err == (
        f"failed no server answers at {address}: start one with `posenc serve`, or name another with --url\n"
    )


@pytest.mark.parametrize("url", ["nonsense", "ftp://x", "http://x:port"])
def test_what_is_no_address_is_told_as_one(url: str) -> None:
    status, _, err = posenc("top", "--once", "--url", url)
    assert status == 1 and re.fullmatch(r"failed --url: must be an address such as http\S+, got '.*'.*\n", err)


def test_top_prints_the_counts_of_each_scale() -> None:
    with running(fake := Fake()) as address:
        fake.counters.requests.labels("2").inc(1234)
        fake.counters.prompt_tokens.labels("2").inc(200)
        fake.counters.prefix_hit_tokens.labels("2").inc(50)
        fake.counters.kv_blocks.labels("8").set(77)
        fake.counters.crossings.labels("1", "2", "rerotate").inc(3)
        fake.counters.running.set(2)
        fake.counters.first_token.observe(0.05)
        status, out, err = posenc("top", "--once", "--url", address)
    assert (status, err) == (0, "")
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if re.match(r" +\d", line)}
    assert rows["2"] == ["1,234", "0", "200", "0", "25%"] and rows["8"] == ["0", "77", "0", "0", "-"]
    assert "2 running, 0 waiting" in out and "crossings: 1 to 2 3" in out and "first token p50 55 ms" in out


def test_top_says_why_a_server_has_nothing_to_show() -> None:
    with running(Fake(counts=False)) as address:
        status, _, err = posenc("top", "--once", "--url", address)
    assert status == 1 and "counts nothing by scale: start it with a section posenc" in err
    assert len(err.splitlines()) == 1


@pytest.mark.slow
def test_top_draws_rates_in_a_terminal_until_q() -> None:
    with running(fake := Fake()) as address:
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "server", "top", "--url", address, "--interval", "0.2"]
        environment = os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "30"}
        process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
        os.close(theirs)
        seen = ""
        while "requests/s" not in seen:
            fake.counters.requests.labels("1").inc()
            seen += os.read(ours, 65536).decode(errors="replace")
        os.write(ours, b"q")
        with contextlib.suppress(OSError):  # the terminal is gone when the process has ended
            while os.read(ours, 65536):
                pass
        os.close(ours)
        assert process.wait(60) == 0
    assert "q ends" in seen


def test_the_demonstration_shows_a_crossing_and_its_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()
    # The fake counts words, of which the demonstration's text has fewer than tokens.
    monkeypatch.setattr(demo, "_CROSSING", " ".join(["word"] * 440))
    with running(Fake(token_seconds=0)) as address, Server(address) as server:
        demo.show(server, Console(file=said, width=200))
    assert "crossed from scale 1 to 2 at 512 tokens (rerotate)" in said.getvalue()
    assert "cut at" not in said.getvalue()  # it has chosen how long its answers are
    assert 'posenc_crossings_total{from="1",how="rerotate",to="2"} 1' in said.getvalue()


def test_a_server_ends_with_the_command_that_started_it_even_if_that_is_killed(tmp_path: pathlib.Path) -> None:
    stub, noted = tmp_path / "python", tmp_path / "pid"
    stub.write_text(f"#!/bin/sh\necho $$ > {noted}.new; mv {noted}.new {noted}\nexec sleep 600\n")
    stub.chmod(0o755)
    code = (
        f"import sys; sys.executable = {str(stub)!r}\n"
        "from rich.console import Console\n"
        "from server.client.started_server import start_server\n"
        "with start_server([], Console()): pass"
    )
    command = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    while not noted.exists() and command.poll() is None:
        time.sleep(0.02)
    server = psutil.Process(int(noted.read_text()))
    command.kill()
    command.wait()
    server.wait(30)
    assert not server.is_running()


def test_a_server_that_does_not_start_is_told_in_one_line() -> None:
    refused = ["demo", "--set", "scaling.scale=2", "--set", "scaling.scalse=4"]
    console = Console(file=io.StringIO())
    said = r"^the server did not start: refused scaling\.scale: .+; refused scaling\.scalse: .+, got 4.*$"
    with pytest.raises(DidNotStart, match=said), started_server.start_server(refused, console):
        raise AssertionError("it has started")
