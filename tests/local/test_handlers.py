"""Every request a client can make has somebody who answers it."""

from __future__ import annotations

import msgspec

from penstock.client import cluster_requests, placement, requests
from penstock.client.requests import Request
from penstock.local import transport
from penstock.local.handlers import HANDLERS
from penstock.testing import VirtualQueue


def test_every_request_has_a_handler() -> None:
    assert transport
    kinds = {
        kind
        for kind in [*vars(requests).values(), *vars(placement).values(), *vars(cluster_requests).values()]
        if isinstance(kind, type) and issubclass(kind, Request) and kind is not Request
    }
    assert kinds == set(HANDLERS)


def test_requests_can_go_over_a_wire() -> None:
    """They know themselves apart by their tags."""
    tags = [kind.__struct_config__.tag for kind in HANDLERS]
    assert len(set(tags)) == len(tags)
    sent = requests.Seek("g", "t", "latest", None, None, 3)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=requests.Seek) == sent


def test_why_tells_of_a_redriven_message_what_has_become_of_it_since() -> None:
    with VirtualQueue() as queue:
        queue.create_topic("orders", partitions=1)
        sent = queue.publish("orders", b"x")
        (message,) = queue.consumer("w", "orders", name="a").poll()
        message.reject("bad")
        assert queue.why(sent.id, "w").code == "dead_lettered"
        queue.dead_letters.redrive("orders")
        (message,) = queue.consumer("w", "orders", name="b").poll()
        message.ack()
        assert queue.why(sent.id, "w").code == "acknowledged"
