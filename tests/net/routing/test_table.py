"""Every request has a way through a cluster, and the table that tells of them is the one that is gone by."""

from __future__ import annotations

import re
from typing import get_args, get_origin

import msgspec
import pytest

from penstock.client import cluster_requests, placement, requests
from penstock.client.requests import Request
from penstock.net import remote
from penstock.net.routing import merging, table
from penstock.net.routing.table import ROUTES, Way, partition_of
from penstock.wire import words


def test_every_request_has_a_way() -> None:
    routed = set(words._REPLIES) - {*placement.OF_NODES, *cluster_requests.OF_NODES}
    assert set(ROUTES) == routed, "a new request: say in net/routing/table.py who answers it in a cluster"


def test_what_goes_to_several_leaders_says_which_partitions_it_is_about_and_can_be_merged() -> None:
    scattered = {kind for kind, route in ROUTES.items() if route.way in (Way.LEADERS, Way.GRAVES)}
    # After `Archived` the topic is described, whose partitions are merged.
    assert scattered - {requests.Archived} == set(merging._MERGES)
    for kind in scattered - {requests.Archived}:
        assert "partitions" in kind.__struct_fields__, kind


def test_a_request_that_names_several_partitions_goes_to_their_leaders() -> None:
    """A node answers only for partitions it leads, so no single node can carry out such a request."""
    named = {"partitions", "offsets"}
    plural = {kind for kind in ROUTES if any(_is_plural(kind, name) for name in named & {*kind.__struct_fields__})}
    to_one_node = {kind for kind in plural if ROUTES[kind].way not in (Way.LEADERS, Way.GRAVES, Way.ALL)}
    # `Replay` is turned into ranges that the catalog keeps.
    assert to_one_node == {requests.Replay}


def _is_plural(kind: type[Request[object]], name: str) -> bool:
    """Whether the field holds numbers of partitions, not how many there are."""
    (field,) = [one for one in msgspec.structs.fields(kind) if one.name == name]
    return any(origin in (dict, tuple) for origin in map(get_origin, (field.type, *get_args(field.type))))


def test_the_table_at_the_head_of_the_module_is_the_one_that_counts() -> None:
    assert table.__doc__ is not None
    told = dict(re.findall(r"^    (\w+) +([A-Z]+)(?: |$)", table.__doc__.split("──\n")[-1], re.MULTILINE))
    assert told == {kind.__name__: route.way.name for kind, route in ROUTES.items()}


def test_the_same_requests_are_asked_again_of_a_cluster_as_of_a_single_broker() -> None:
    repeatable = {kind for kind, route in ROUTES.items() if route.is_repeatable}
    assert repeatable == set(get_args(remote._LOOKING))


@pytest.mark.parametrize(
    ("request_", "place"),
    [
        (requests.GetMessage("t:3:7"), ("t", 3)),
        (requests.GetMessage("nonsense"), None),
        (requests.GetMessage("t:-1:0"), None),
        (requests.ReadDeliveries("t", 2, 0, 1, 1), ("t", 2)),
        (requests.Seek("g", "t", "latest", None, None, 4), ("t", 4)),
        (requests.Seek("g", "t", "latest", None, None, None), None),
        (requests.ReleaseKey("g", "t", None, 0), ("t", 0)),
    ],
)
def test_a_request_about_one_partition_is_known_by_it(request_: Request[object], place: tuple[str, int] | None) -> None:
    assert partition_of(request_) == place
