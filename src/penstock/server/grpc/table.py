"""Which function answers which method, by service."""

from __future__ import annotations

from penstock.server.grpc import consuming, dead_letters, groups, later, messages, publishing, subscribing, topics
from penstock.server.grpc.calls import Methods

SERVICES: dict[str, Methods] = {
    "Publisher": publishing.METHODS,
    "Consumer": {
        "Poll": consuming.poll,
        "Subscribe": subscribing.subscribe,
        "Ack": consuming.answer,
        "Nack": consuming.answer,
        "Reject": consuming.answer,
        "Release": consuming.answer,
        "Extend": consuming.answer,
        "Leave": consuming.leave,
    },
    "Topics": topics.METHODS,
    "Groups": groups.METHODS,
    "Messages": messages.METHODS,
    "Scheduled": later.METHODS,
    "DeadLetters": dead_letters.METHODS,
}
