"""What the dashboard shows, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="no browser: playwright is not installed")
expect = playwright.expect
expect.set_options(timeout=60_000)


def _row(page: Any, text: str) -> Any:
    return page.get_by_role("row").filter(has_text=text)


@contextmanager
def _publishing(broker: Any, topic: str, **more: Any) -> Iterator[None]:
    """All the while: rates are of the last seconds."""
    is_enough = Event()

    def publish() -> None:
        while not is_enough.wait(0.2):
            broker.published(topic, "x", **more)

    with ThreadPoolExecutor(1) as thread:
        publishing = thread.submit(publish)
        try:
            yield
        finally:
            is_enough.set()
        publishing.result()


def test_an_empty_broker_says_what_to_do_next(page: Any) -> None:
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    expect(page.get_by_text("There are no topics yet.")).to_be_visible()
    expect(page.get_by_text("penstock consume orders --group billing")).to_be_visible()
    page.get_by_role("button", name="New topic").click()
    page.get_by_label("Name", exact=True).fill("no/name")
    page.get_by_role("button", name="Make it").click()
    expect(page.get_by_role("alert").filter(has_text="invalid_name")).to_be_visible()
    page.get_by_label("Name", exact=True).fill("orders")
    page.get_by_label("Partitions").fill("3")
    page.get_by_role("button", name="Make it").click()
    expect(page.get_by_role("status")).to_have_text("Topic orders is there.")
    expect(_row(page, "orders").get_by_role("cell").first).to_have_text("3")


def test_rates_come_from_successive_reads(broker: Any, look: Any) -> None:
    broker.ok("POST", "/v1/topics", {"name": "orders", "partitions": 6})
    broker.polled("billing", "orders", consumer="ann")
    page = look(broker)
    expect(_row(page, "orders").first).to_contain_text("–")
    expect(_row(page, "orders").first).to_contain_text("0/s")
    broker.published("orders", *"abcdefgh", partition=2)
    expect(_row(page, "billing")).to_contain_text("8")
    with _publishing(broker, "orders", partition=2):
        expect(_row(page, "1 hot partition")).to_contain_text(re.compile(r"[1-9]\d*(\.\d)?/s|0\.[1-9]/s"))
        expect(page.get_by_role("img", name=re.compile("^Throughput: Published"))).to_be_visible()
        page.get_by_role("link", name="orders", exact=True).click()
        hot = page.get_by_role("row", name=re.compile("^2 hot"))
        expect(hot).to_contain_text("/s")
        expect(page.get_by_role("row").filter(has_text="hot")).to_have_count(1)


def test_the_latest_messages_are_those_of_all_partitions(broker: Any, look: Any) -> None:
    broker.ok("POST", "/v1/topics", {"name": "orders", "partitions": 2})
    for number in range(30):
        broker.published("orders", f"value {number}", partition=number % 2, key=f"user-{number}")
    page = look(broker, "/#/topics/orders/messages")
    expect(page.get_by_role("row")).to_have_count(26)
    expect(page.get_by_role("row").nth(1)).to_contain_text("value 29")
    broker.published("orders", "<b>not markup</b>", partition=0, priority="high")
    expect(page.get_by_role("row").nth(1)).to_contain_text("<b>not markup</b>")
    expect(page.get_by_role("row").nth(1)).to_contain_text("high priority")
    page.get_by_label("Of which partition").select_option("1")
    expect(page.get_by_role("row")).to_have_count(16)
    page.get_by_role("link", name="orders:1:14").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("orders:1:14")


def test_a_message_with_its_story_and_why(broker: Any, look: Any) -> None:
    broker.ok("POST", "/v1/topics", {"name": "orders", "partitions": 1})
    value = '{"order": 12345678901234567890, "total": 1.50, "none": []}'
    broker.published("orders", value, key="ann", headers={"source": "web"})
    [first] = broker.polled("billing", "orders", consumer="worker-1")
    broker.ok("POST", "/v1/groups/billing/nack", {"receipts": [first["receipt"]], "reason": "busy", "delay": "0s"})
    [again] = broker.polled("billing", "orders", consumer="worker-1", wait="5s")
    page = look(broker)
    page.get_by_label("Find a message by its id").fill("orders:0:0")
    page.keyboard.press("Enter")
    shown = page.get_by_label("Value", exact=True).locator("pre")
    expect(shown).to_have_text('{ "order": 12345678901234567890, "total": 1.50, "none": [] }')
    expect(_row(page, "source")).to_contain_text("web")
    expect(_row(page, "billing")).to_contain_text("leased")
    steps = page.locator(".timeline li")
    expect(steps).to_contain_text(["Published", "Delivered", "Nacked", "Redelivered", "Retained"])
    expect(steps.nth(2)).to_contain_text("“busy”")
    broker.ok("POST", "/v1/groups/billing/ack", {"receipts": [again["receipt"]]})
    expect(_row(page, "billing")).to_contain_text("worker-1 acknowledged it")
    expect(steps).to_contain_text(["Published", "Delivered", "Nacked", "Redelivered", "Acknowledged", "Retained"])


def test_a_value_that_is_not_text_and_one_that_is_not_there(broker: Any, look: Any) -> None:
    broker.ok("POST", "/v1/topics", {"name": "raw", "partitions": 1})
    broker.ok("POST", "/v1/topics/raw/publish", {"value": "AP8=", "encoding": "base64", "key_base64": "/w=="})
    broker.ok("POST", "/v1/topics/raw/publish", {"value": None, "key": "ann"})
    page = look(broker, "/#/messages/raw:0:0")
    expect(page.get_by_text("2 bytes that are not text, in base64:")).to_be_visible()
    expect(page.get_by_text("base64 /w==")).to_be_visible()
    page.goto("/#/messages/raw%3A0%3A1")
    expect(page.get_by_text("It has no value: a tombstone.")).to_be_visible()
    expect(page.get_by_text("No group consumes this topic.")).to_be_visible()


def test_what_is_not_there_is_said_in_words_with_its_code(broker: Any, look: Any) -> None:
    page = look(broker, "/#/topics/nope")
    expect(page.get_by_text("topic_not_found")).to_be_visible()
    page.get_by_role("link", name="Back to the overview").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.goto("/#/messages/nonsense")
    expect(page.get_by_text("invalid_input")).to_be_visible()
    page.goto("/#/nowhere")
    expect(page.get_by_text("page_not_found")).to_be_visible()


def test_a_broker_that_goes_is_noticed_and_what_was_seen_stays(broker: Any, page: Any) -> None:
    expect(page.get_by_text("There are no topics yet.")).to_be_visible()
    broker.stop()
    expect(page.get_by_role("alert").filter(has_text="no_answer")).to_contain_text("The broker does not answer.")
    expect(page.get_by_text("There are no topics yet.")).to_be_visible()
