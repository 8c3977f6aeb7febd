"""How the dashboard behaves: with the keyboard, in the dark, on a small screen, and towards the broker."""

from __future__ import annotations

from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="no browser: playwright is not installed")
expect = playwright.expect
expect.set_options(timeout=60_000)

VIEWS = (
    "#/",
    "#/topics/orders",
    "#/topics/orders/messages",
    "#/topics/orders/scheduled",
    "#/topics/orders/dead-letters",
    "#/topics/orders/publish",
    "#/groups/billing",
    "#/messages/orders:0:0",
)
# Everything that can be used has a name that is read out, and every table its heads.
NAMELESS = """() => [...document.querySelectorAll("button, input, select, textarea, a, table")].filter((node) => {
  const named = node.getAttribute("aria-label") || node.textContent.trim() || node.labels?.length;
  return node.matches("table") ? !node.caption || !node.querySelector("th[scope=col]") : !named;
}).map((node) => node.outerHTML)"""


@pytest.fixture
def busy(broker: Any) -> Any:
    """A broker with something in every view."""
    broker.ok("POST", "/v1/topics", {"name": "orders", "partitions": 1})
    broker.ok("POST", "/v1/groups", {"name": "billing", "ordering": "key"})
    broker.published("orders", "a value " * 40, key="a-key-that-goes-on-and-on-and-on-and-on-and-on-and-on")
    broker.given_up("billing", "orders", "a reason " * 20, consumer="ann")
    broker.published("orders", "later", delay="1h")
    return broker


def test_everything_has_a_name_and_fits_on_a_small_screen(busy: Any, look: Any) -> None:
    page = look(busy, viewport={"width": 360, "height": 640})
    for view in VIEWS:
        page.goto(f"/{view}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.locator("section.card").first).to_be_visible()
        assert page.evaluate(NAMELESS) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view


def test_the_keyboard_is_enough(busy: Any, look: Any) -> None:
    page = look(busy)
    expect(page.get_by_role("link", name="orders", exact=True)).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="New topic")).to_be_focused()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    expect(page.get_by_label("Name", exact=True)).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="New topic")).to_be_focused()
    page.get_by_role("link", name="orders", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    page.get_by_role("link", name="Dead letters").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="Dead letters")).to_be_focused()


def test_focus_and_typing_survive_what_is_read_meanwhile(busy: Any, look: Any) -> None:
    page = look(busy, "/#/topics/orders/scheduled")
    button = page.get_by_role("button", name="Cancel orders:0:1")
    button.focus()
    # It is due before the other one, and comes above it.
    busy.published("orders", "sooner", delay="10m")
    expect(page.get_by_role("row").nth(1)).to_contain_text("sooner")
    expect(button).to_be_focused()
    page.goto("/#/topics/orders/publish")
    page.get_by_label("Key", exact=True).fill("half a k")
    busy.published("orders", "another", delay="3h")
    expect(page.locator(".facts").first).to_contain_text("Scheduled3")
    expect(page.get_by_label("Key", exact=True)).to_have_value("half a k")
    expect(page.get_by_label("Key", exact=True)).to_be_focused()


def test_it_asks_every_two_seconds_and_never_while_nobody_looks(busy: Any, look: Any) -> None:
    page = look(busy)
    expect(page.get_by_role("link", name="orders", exact=True)).to_be_visible()
    page.clock.install()
    page.reload()
    expect(page.get_by_role("link", name="orders", exact=True)).to_be_visible()
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.url))
    with page.expect_response("**/v1/topics"):
        page.clock.run_for(2_100)
    _hide(page, True)
    page.evaluate("fetch('v1/topics')")
    before = len(asked)
    page.clock.run_for(60_000)
    assert asked[before:] == []
    with page.expect_response("**/v1/topics"):
        _hide(page, False)


def _hide(page: Any, is_hidden: bool) -> None:
    page.evaluate(
        """(is) => {
          Object.defineProperty(document, "hidden", { value: is, configurable: true });
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        is_hidden,
    )


def test_light_and_dark_as_the_system_has_it_and_by_the_switch(broker: Any, look: Any) -> None:
    def is_dark(page: Any) -> bool:
        red = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/)[0]")
        return int(red) < 128

    page = look(broker, color_scheme="dark")
    assert is_dark(page)
    switch = page.get_by_role("button", name="Theme")
    switch.click()
    expect(switch).to_have_text("Theme: light")
    assert not is_dark(page)
    page.reload()
    assert not is_dark(page)
    switch.click()
    page.emulate_media(color_scheme="light")
    assert is_dark(page)
    switch.click()
    assert not is_dark(page)
