"""What can be done with the dashboard, in a real browser; the API tells whether it was."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="no browser: playwright is not installed")
expect = playwright.expect
expect.set_options(timeout=60_000)


@pytest.fixture
def orders(broker: Any) -> Any:
    broker.ok("POST", "/v1/topics", {"name": "orders", "partitions": 1})
    return broker


def test_publishing_a_message(orders: Any, look: Any) -> None:
    page = look(orders, "/#/topics/orders/publish")
    page.get_by_label("Value", exact=True).fill('{"n": 1.0}')
    page.get_by_label("The value is").select_option("json")
    page.get_by_label("Key", exact=True).fill("ann")
    page.get_by_label("Priority").select_option("high")
    page.get_by_label("Headers").fill("source: web\ntime: 12:30")
    page.get_by_label("Delay").fill("soon")
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_role("alert").filter(has_text="invalid_")).to_be_visible()
    page.get_by_label("Delay").fill("")
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_role("status")).to_have_text("Published orders:0:0: it is on disk.")
    stored = orders.ok("GET", "/v1/messages/orders:0:0?as=text")
    assert (stored["text"], stored["key"], stored["priority"]) == ('{"n": 1.0}', "ann", "high")
    assert stored["headers"] == {"source": "web", "time": "12:30"}
    page.get_by_label("Value", exact=True).fill("{")
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_text("The value is not JSON")).to_be_visible()
    page.get_by_label("The value is").select_option("null")
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_role("link", name="orders:0:1")).to_be_visible()
    assert orders.ok("GET", "/v1/messages/orders:0:1")["value"] is None


def test_cancelling_and_moving_scheduled_messages(orders: Any, look: Any) -> None:
    orders.published("orders", "one", "two", "three", delay="1h")
    page = look(orders, "/#/topics/orders/scheduled")
    page.get_by_role("button", name="Cancel orders:0:0").click()
    page.get_by_role("button", name="Leave it").click()
    page.get_by_role("button", name="Cancel orders:0:0").click()
    page.get_by_role("button", name="Cancel the message").click()
    expect(page.get_by_role("status")).to_have_text("orders:0:0 was cancelled.")
    expect(page.get_by_role("button", name="Cancel orders:0:0")).to_have_count(0)
    page.get_by_role("button", name="Reschedule orders:0:1").click()
    page.get_by_role("button", name="Reschedule", exact=True).click()
    expect(page.get_by_text("one of the two.").last).to_be_visible()
    page.get_by_label("From now, after").fill("2d")
    page.get_by_role("button", name="Reschedule", exact=True).click()
    expect(page.get_by_role("row").last).to_contain_text("orders:0:1")
    page.get_by_role("button", name="Reschedule orders:0:2").click()
    next_year = f"{datetime.now() + timedelta(days=300):%Y-%m-%d}"
    page.get_by_label("Or at").fill(f"{next_year}T12:00:00")
    page.get_by_role("button", name="Reschedule", exact=True).click()
    expect(page.get_by_role("row").last).to_contain_text(f"{next_year} 12:00:00")
    waiting = orders.ok("GET", "/v1/topics/orders/scheduled")["scheduled"]
    assert [message["id"] for message in waiting] == ["orders:0:1", "orders:0:2"]


def test_inspecting_redriving_and_discarding_dead_letters(orders: Any, look: Any) -> None:
    page = look(orders, "/#/topics/orders/dead-letters")
    expect(page.get_by_text("No group has given up a message of this topic.")).to_be_visible()
    orders.published("orders", "good", "bad", "ugly")
    orders.given_up("billing", "orders", "not a number", consumer="ann")
    page.get_by_role("button", name="Inspect orders:0:1").click()
    seen = page.get_by_role("dialog")
    expect(seen.get_by_label("Value", exact=True)).to_have_text("bad")
    expect(seen.get_by_role("row").filter(has_text="ann")).to_contain_text("not a number")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Inspect orders:0:1")).to_be_focused()

    page.get_by_role("button", name="Redrive …").click()
    page.get_by_label("Reason contains").fill("number")
    page.keyboard.press("Enter")
    expect(page.get_by_text("3 dead letters would go back.")).to_be_visible()
    page.get_by_label("Of the group").fill("nobody")
    page.get_by_role("button", name="Dry run").click()
    expect(page.get_by_text("0 dead letters would go back.")).to_be_visible()
    page.get_by_role("button", name="Close").click()
    assert len(orders.ok("GET", "/v1/topics/orders/dead-letters")["dead_letters"]) == 3

    page.get_by_role("button", name="Redrive orders:0:0").click()
    page.get_by_role("button", name="Redrive", exact=True).click()
    expect(page.get_by_role("status")).to_have_text("1 dead letter went back.")
    page.get_by_role("button", name="Discard orders:0:1").click()
    page.get_by_role("button", name="Discard it").click()
    expect(page.get_by_role("status")).to_have_text("The dead letter of orders:0:1 was discarded.")
    [left] = orders.ok("GET", "/v1/topics/orders/dead-letters")["dead_letters"]
    assert left["original"] == "orders:0:2"
    assert [message["offset"] for message in orders.polled("billing", "orders", consumer="ann")] == [0]


def test_keys_that_may_be_parked_where_nobody_leads_are_not_said_to_be_none(orders: Any, look: Any) -> None:
    orders.ok("POST", "/v1/groups", {"name": "billing", "ordering": "key"})
    page = look(orders, "/#/groups/billing")
    expect(page.get_by_text("No keys are parked.")).to_be_visible()
    answer = {"keys": [], "unknown": {"orders": [1, 2]}}
    page.route("**/v1/groups/billing/parked-keys*", lambda route: route.fulfill(json=answer))
    told = "Nobody serves 2 partitions (1, 2) of orders. What is parked there is not known."
    expect(page.get_by_text(told)).to_be_visible()
    expect(page.get_by_text("No keys are parked.")).not_to_be_visible()
    expect(page.get_by_text("0 + ?")).to_be_visible()


def test_releasing_a_parked_key(orders: Any, look: Any) -> None:
    orders.ok("POST", "/v1/groups", {"name": "billing", "ordering": "key"})
    orders.published("orders", "one", key="user-1")
    orders.given_up("billing", "orders", "no such user", consumer="ann")
    orders.published("orders", "two", key="user-1")
    page = look(orders, "/#/groups/billing")
    expect(page.get_by_role("row").filter(has_text="no such user")).to_contain_text("user-1")
    expect(page.get_by_role("table", name="Members of billing").get_by_role("row").nth(1)).to_contain_text("orders:0")
    page.get_by_role("button", name="Release user-1").click()
    page.get_by_role("button", name="Release it").click()
    expect(page.get_by_role("status")).to_have_text("user-1 was released.")
    expect(page.get_by_text("No keys are parked.")).to_be_visible()
    assert len(orders.polled("billing", "orders", consumer="ann")) == 1


def test_moving_a_group(orders: Any, look: Any) -> None:
    orders.published("orders", "one", "two", "three")
    orders.polled("billing", "orders", consumer="ann", max=1)
    page = look(orders, "/#/groups/billing")
    lag = page.get_by_role("table", name="Lag of billing").get_by_role("row").nth(1)
    expect(lag).to_contain_text("3")
    for target, left in (("latest", "0"), ("earliest", "3")):
        page.get_by_label("To", exact=True).select_option(target)
        page.get_by_role("button", name="Seek …").click()
        page.get_by_role("button", name="Move it").click()
        expect(page.get_by_role("status")).to_have_text("billing was moved.")
        expect(lag.get_by_role("cell").nth(1)).to_have_text(left)
    page.get_by_label("To", exact=True).select_option("offset")
    page.get_by_role("button", name="Seek …").click()
    expect(page.get_by_text("Say which partition, and to which offset of it.")).to_be_visible()
    page.get_by_label("Partition", exact=True).fill("0")
    page.get_by_label("Offset").fill("2")
    page.get_by_role("button", name="Seek …").click()
    page.get_by_role("button", name="Move it").click()
    expect(lag.get_by_role("cell").nth(1)).to_have_text("1")


def test_a_key_is_asked_for_and_kept_in_the_tab(guarded: Any, look: Any) -> None:
    guarded.ok("POST", "/v1/topics", {"name": "orders", "partitions": 1})
    page = look(guarded)
    asking = page.get_by_role("dialog", name="This broker asks for an API key")
    asking.get_by_role("button", name="Not now").click()
    page.get_by_role("button", name="Enter a key").click()
    asking.get_by_label("API key").fill("wrong")
    page.keyboard.press("Enter")
    expect(asking.get_by_text("unauthenticated")).to_be_visible()
    asking.get_by_label("API key").fill(guarded.key)
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="orders")).to_be_visible()
    page.reload()
    expect(page.get_by_role("link", name="orders")).to_be_visible()
    assert page.evaluate("[localStorage.length, sessionStorage.length]") == [0, 1]
    page.get_by_role("button", name="Forget key").click()
    expect(asking).to_be_visible()


_RULES = [{"principals": ["ann"], "operations": ["describe", "publish", "admin"], "topics": ["orders"]}]


@pytest.mark.parametrize("guarded", [_RULES], indirect=True)
def test_what_the_key_may_not_do_is_said_and_the_rest_is_there(guarded: Any, look: Any) -> None:
    guarded.ok("POST", "/v1/topics", {"name": "orders", "partitions": 1})
    page = look(guarded)
    page.get_by_label("API key", exact=True).fill(guarded.key)
    page.keyboard.press("Enter")
    page.get_by_role("link", name="orders").click()
    page.get_by_role("link", name="Latest messages").click()
    page.get_by_label("Of which partition").wait_for()
    guarded.published("orders", "secret")
    expect(page.get_by_label("Not allowed").get_by_text("forbidden")).to_be_visible()
    page.get_by_role("link", name="Partitions").click()
    expect(page.get_by_role("table", name="Partitions of orders")).to_be_visible()
    page.goto("/#/messages/orders:0:0")
    expect(page.get_by_label("Not allowed").get_by_text("forbidden")).to_be_visible()
