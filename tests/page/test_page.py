"""The page in Chromium, over a server without an engine."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.in_a_thread import running
from tests.page.chromium import NARROW, WIDE, Scheme, browser, needs_chromium, opened, violations
from tests.page.fake_server import ONE_SCALE, TURNED, UNROTATED, Fake

pytestmark = [pytest.mark.slow, needs_chromium]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a server with four scales."""
    with running(Fake()) as found:
        yield found


def is_shown(page: Page) -> None:
    expect(page.locator("#state")).to_have_text("Live")
    expect(page.locator("#served-table tbody tr").first).to_be_visible()


def run_all(page: Page) -> None:
    page.get_by_role("button", name="Run all").click()
    for status in page.locator("#cards .status").all():
        expect(status).to_contain_text("The server reports", timeout=30_000)


def test_everything_is_accessible_at_every_width_and_in_both_themes(chromium: Browser, address: str) -> None:
    schemes: tuple[Scheme, ...] = ("light", "dark")
    for width in (WIDE, NARROW):
        for scheme in schemes:
            with opened(chromium, address, width=width, scheme=scheme) as watched:
                page = watched.page
                is_shown(page)
                run_all(page)
                for summary in page.locator("summary").all():
                    summary.click()
                page.wait_for_timeout(1500)  # until the open tables are filled
                assert violations(page) == []
                page.get_by_role("button", name="Key", exact=True).click()
                assert violations(page) == []
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
                assert watched.faults == []


def test_the_three_cards_show_their_scales_and_a_crossing(chromium: Browser) -> None:
    with running(fake := Fake(token_seconds=0.02)) as address, opened(chromium, address) as watched:
        page = watched.page
        is_shown(page)
        page.get_by_role("button", name="Run all").click()
        growing = page.locator('[data-kind="growing"]')
        expect(growing.locator(".badge")).to_have_text("Scale 1")
        expect(growing.locator(".status")).to_have_text("Crossed from scale 1 to 2 at 512 tokens")
        expect(growing.locator(".badge")).to_have_text("Scale 2")
        expect(growing.locator(".status")).to_have_text(
            "The server reports: ended at scale 2; it crossed from 1 to 2 at 512 tokens (rerotate)."
        )
        expect(page.locator('[data-kind="short"] .badge')).to_have_text("Scale 1")
        expect(page.locator('[data-kind="long"] .badge')).to_have_text("Scale 8")
        expect(page.locator("#tiles")).to_contain_text("Crossings1 since the start")
        assert [body["ignore_eos"] for body in fake.requests if body.get("stream")].count(True) == 1
        assert watched.faults == []


def test_where_queries_turn_the_page_says_how_far_away_they_see_keys(chromium: Browser) -> None:
    with running(Fake(deployment=TURNED)) as address, opened(chromium, address) as watched:
        page = watched.page
        is_shown(page)
        expect(page.locator("#lead")).to_contain_text("sees keys at most 318 tokens away")
        expect(page.locator("#served")).to_contain_text("the last 256 tokens are at their trained distances")
        run_all(page)
        reports = [status.inner_text() for status in page.locator("#cards .status").all()]
        past = [re.search(r"reports: ([\d,]+) tokens past the trained length", report) for report in reports]
        assert [bool(found and found[1] != "0") for found in past] == [False, True]  # the short one, and the long one
        assert violations(page) == []
        assert watched.faults == []


def test_a_request_can_be_stopped(chromium: Browser) -> None:
    with running(Fake(token_seconds=0.2)) as address, opened(chromium, address) as watched:
        card = watched.page.locator('[data-kind="growing"]')
        card.get_by_role("button", name="Run").click()
        expect(card.locator(".badge")).to_have_text("Scale 1")
        card.get_by_role("button", name="Stop").click()
        expect(card.locator(".status")).to_have_text("Stopped")
        assert watched.faults == []


def test_a_chat_keeps_its_turns_and_says_what_ran_and_where_it_was_cut(chromium: Browser) -> None:
    with running(fake := Fake(token_seconds=0.01)) as address, opened(chromium, address) as watched:
        page = watched.page
        page.get_by_label("Message").fill("One")
        page.get_by_role("spinbutton", name="New tokens").last.fill("3")
        page.get_by_label("Message").press("Enter")
        last = page.locator("#talk li").last
        expect(last.locator(".length")).to_have_text(
            re.compile(r"^scale 1; 4 tokens, 3 of them new; [\d.,]+ tokens a second; cut at 3 tokens$")
        )
        expect(last.locator(".said")).to_have_text(" and and and")
        page.get_by_label("Message").fill("Two")
        page.get_by_role("button", name="Send").click()
        expect(page.locator("#talk li")).to_have_count(4)
        expect(page.locator("#talk li").last.locator(".length")).to_contain_text("of them new")
        turns = [(each["role"], each["content"]) for each in fake.requests[-1]["messages"]]
        assert turns == [("user", "One"), ("assistant", " and and and"), ("user", "Two")]
        assert violations(page) == []
        page.get_by_role("button", name="New chat").click()
        expect(page.locator("#talk li")).to_have_count(0)
        assert watched.faults == []


def test_a_chat_is_stopped_and_goes_on_with_what_was_said(chromium: Browser) -> None:
    with running(fake := Fake(token_seconds=0.1)) as address, opened(chromium, address) as watched:
        page = watched.page
        page.get_by_label("Message").fill("One")
        page.get_by_role("button", name="Send").click()
        expect(page.locator("#talk li").last.locator(".said")).to_contain_text("and")
        page.locator("#chat-send").click()
        expect(page.locator("#talk li").last.locator(".length")).to_have_text("Stopped")
        page.get_by_label("Message").fill("Two")
        page.get_by_role("button", name="Send").click()
        expect(page.locator("#talk li")).to_have_count(4)
        expect(page.locator("#talk li").last.locator(".said")).to_contain_text("and")
        assert [each["role"] for each in fake.requests[-1]["messages"]] == ["user", "assistant", "user"]


def test_a_narrow_screen_says_which_tables_scroll(chromium: Browser, address: str) -> None:
    for width, is_told in ((NARROW, True), (WIDE, False)):
        with opened(chromium, address, width=width) as watched:
            is_shown(watched.page)
            told = watched.page.locator("#served .sideways")
            expect(told).to_be_visible() if is_told else expect(told).to_be_hidden()


def test_the_keyboard_alone_starts_a_request_and_pauses_the_page(chromium: Browser, address: str) -> None:
    with opened(chromium, address) as watched:
        page = watched.page
        is_shown(page)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator("#state")).to_have_text("Paused")
        expect(page.get_by_role("button", name="Pause")).to_have_attribute("aria-pressed", "true")
        for _ in range(20):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.id") == "run-all":
                break
        page.keyboard.press("Enter")
        expect(page.locator('[data-kind="short"] .status')).to_contain_text("The server reports")


def test_with_a_key_the_page_asks_for_it_and_sends_it(chromium: Browser) -> None:
    with running(Fake(key="a secret")) as address, opened(chromium, address) as watched:
        page = watched.page
        expect(page.locator("#state")).to_have_text("Key wanted")
        box = page.get_by_label("API key")
        box.fill("a mistake")
        page.get_by_role("button", name="Use this key").click()
        expect(page.locator("#notice")).to_have_text("The server did not take this key.")
        box.fill("a secret")
        box.press("Enter")
        is_shown(page)
        run_all(page)
        assert page.evaluate("[sessionStorage['posenc-key'], localStorage.length, document.cookie]") == [
            "a secret", 0, "",
        ]  # fmt: skip
        assert all("status of 401" in fault for fault in watched.faults)
        page.get_by_role("button", name="Key", exact=True).click()
        page.get_by_role("button", name="Forget it").click()
        expect(page.locator("#state")).to_have_text("Key wanted")
        assert page.evaluate("sessionStorage.length") == 0


@pytest.mark.parametrize(
    ("fake", "shown", "hidden"),
    [
        (Fake(counts=False), ["#served", "#try", "#frequencies"], ["#live", "#tiles"]),
        (Fake(deployment=ONE_SCALE), ["#served", "#try", "#live", "#frequencies"], ['[data-kind="growing"]']),
        (Fake(deployment=UNROTATED), ["#served", "#try", "#live", "#chat"], ["#frequencies"]),
        (Fake(has_template=False), ["#served", "#try", "#live"], ["#chat"]),
    ],
    ids=["without counts", "one scale", "without rotation", "without a chat template"],
)
def test_what_a_server_does_not_have_is_left_out(
    fake: Fake, shown: list[str], hidden: list[str], chromium: Browser
) -> None:
    with running(fake) as address, opened(chromium, address) as watched:
        page = watched.page
        is_shown(page)
        page.locator('[data-kind="short"]').get_by_role("button", name="Run").click()
        expect(page.locator('[data-kind="short"] .status')).to_contain_text("The server reports")
        for selector in shown:
            expect(page.locator(selector)).to_be_visible()
        for selector in hidden:
            expect(page.locator(selector)).to_be_hidden()
        assert violations(page) == []
        assert watched.faults == []


def test_a_server_without_scales_says_why_it_shows_nothing(chromium: Browser) -> None:
    with running(Fake(deployment=None)) as address, opened(chromium, address) as watched:
        expect(watched.page.locator("#notice")).to_contain_text("was started without additional_config.posenc")
        expect(watched.page.locator("#served")).to_be_hidden()


def test_a_server_that_ends_is_told_and_found_again(chromium: Browser) -> None:
    with running(Fake()) as address, opened(chromium, address) as watched:
        is_shown(watched.page)
        watched.page.route("**/posenc/live", lambda route: route.abort())
        expect(watched.page.locator("#state")).to_have_text("No answer")
        watched.page.unroute("**/posenc/live")
        expect(watched.page.locator("#state")).to_have_text("Live", timeout=10_000)


def test_what_a_model_answers_is_shown_as_text_and_never_as_markup(chromium: Browser) -> None:
    nasty = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    with running(Fake(model=f"model {nasty}", text=nasty)) as address, opened(chromium, address) as watched:
        page = watched.page
        expect(page.get_by_role("heading", level=1)).to_have_text(f"model {nasty}")
        page.locator('[data-kind="short"]').get_by_role("button", name="Run").click()
        expect(page.locator('[data-kind="short"] .answer')).to_contain_text(nasty)
        assert page.locator("img[src=x]").count() == 0
        assert watched.faults == []


def test_scripts_and_styles_in_the_page_itself_are_not_run(chromium: Browser, address: str) -> None:
    with opened(chromium, address) as watched:
        is_shown(watched.page)
        watched.page.evaluate(
            "() => document.body.append("
            "Object.assign(document.createElement('script'), {textContent: 'window.broken = 1'}))"
        )
        assert watched.page.evaluate("window.broken") is None
        assert any(re.search("Content Security Policy", fault) for fault in watched.faults)


def test_the_documentation_of_the_routes_asks_no_other_server(chromium: Browser, address: str) -> None:
    with opened(chromium, address, "/docs") as watched:
        expect(watched.page.get_by_text("/posenc/live").first).to_be_visible()
        assert watched.faults == []
