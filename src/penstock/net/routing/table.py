"""Who answers which request in a cluster, and what becomes of it if the answer is lost.

    ANY         any node: it is about the catalog, which all of them know
    TOPIC       the same, and the topic is described then as ALL do: a node tells only of what it leads
    GROUP       the same, and the group is described
    LEADER      the leader of one partition: that of a message's id, or the one that is named
    LEADERS     the leaders of all partitions of a topic, or of those that are named, each for its own
    GRAVES      the same, of the partitions of its dead-letter topic
    ALL         all nodes, each telling of what it leads; what is not whole by then is asked for topic by topic
    TURNED      turned into another request, which any node can answer

Requests to several have `partitions`, or `offsets` by partition, and each node answers for exactly those or not at all:
a leader that changes in between makes its part be asked again, of the new one, and is never merged wrongly. What nodes
ask each other (`placement.OF_NODES`) is not routed: whoever asks knows whom.

    request             way         merged
    ──────────────────  ──────────  ────────────────────────────────────────────────────────────────
    CreateTopic         TOPIC
    ChangeTopic         TOPIC
    DeleteTopic         ANY
    DescribeTopic       LEADERS     partitions by number; `scheduled` added up. Of none of them: ANY
    ListTopics          ALL         by name, each as DescribeTopic
    FindOffsets         LEADERS     by number
    Archived            LEADERS     each leader records its own partitions; then the topic is described
    FindArchive         LEADERS     `whole_from` by number
    CreateGroup         GROUP
    ChangeGroup         GROUP
    DeleteGroup         ANY
    DescribeGroup       ALL         lags by number; the members as their coordinator knows them
    ListGroups          ALL         by name, each as DescribeGroup
    Seek                LEADERS
    ListParkedKeys      ALL         by topic and number
    ReleaseKey          LEADERS     added up; NotFound only if nobody has it
    Replay              TURNED      times become offsets, of every partition: the catalog has them all
    ListScheduled       LEADERS     the first by time
    GetScheduled        LEADER
    CancelScheduled     LEADER
    Reschedule          LEADER
    CreateSchedule      ANY
    ListSchedules       ANY
    DeleteSchedule      ANY
    ListDeadLetters     GRAVES      by number and offset
    GetDeadLetter       LEADER
    Redrive             GRAVES      each list put together; each node has its share of the rate
    Discard             GRAVES      added up
    GetMessage          LEADER
    GetTrace            LEADER
    FindDeliveries      LEADERS     by number
    ReadDeliveries      LEADER
    AskWhy              LEADER
    GetStateAt          LEADERS     by number
    DescribeCluster     ANY
    FindPlacement       ANY
    FindCoordinator     ANY
    SurveyCluster       ANY
    Reassign            ANY
    CancelMoves         ANY
    Rebalance           ANY
    ElectLeaders        ANY
    DrainNode           ANY
    UndrainNode         ANY
    DiscardCopy         ANY
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any, NamedTuple

import msgspec

from penstock.client import cluster_requests as c
from penstock.client import placement as p
from penstock.client import requests as r
from penstock.client.requests import Request

# What the name of a dead-letter topic ends with.
GRAVES = ".dlq"


class Way(Enum):
    ANY = auto()
    TOPIC = auto()
    GROUP = auto()
    LEADER = auto()
    LEADERS = auto()
    GRAVES = auto()
    ALL = auto()
    TURNED = auto()


class Route(NamedTuple):
    """`is_repeatable`: to be asked again, also if nobody knows whether it was carried out."""

    way: Way
    is_repeatable: bool


def _looking(way: Way) -> Route:
    return Route(way, is_repeatable=True)


def _changing(way: Way) -> Route:
    return Route(way, is_repeatable=False)


ROUTES: dict[type[Request[Any]], Route] = {
    r.CreateTopic: _changing(Way.TOPIC),
    r.ChangeTopic: _changing(Way.TOPIC),
    r.DeleteTopic: _changing(Way.ANY),
    r.DescribeTopic: _looking(Way.LEADERS),
    r.ListTopics: _looking(Way.ALL),
    r.FindOffsets: _looking(Way.LEADERS),
    # Said twice is the same as said once.
    r.Archived: _looking(Way.LEADERS),
    r.FindArchive: _looking(Way.LEADERS),
    r.CreateGroup: _changing(Way.GROUP),
    r.ChangeGroup: _changing(Way.GROUP),
    r.DeleteGroup: _changing(Way.ANY),
    r.DescribeGroup: _looking(Way.ALL),
    r.ListGroups: _looking(Way.ALL),
    r.Seek: _changing(Way.LEADERS),
    r.ListParkedKeys: _looking(Way.ALL),
    r.ReleaseKey: _changing(Way.LEADERS),
    r.Replay: _changing(Way.TURNED),
    r.ListScheduled: _looking(Way.LEADERS),
    r.GetScheduled: _looking(Way.LEADER),
    r.CancelScheduled: _changing(Way.LEADER),
    r.Reschedule: _changing(Way.LEADER),
    r.CreateSchedule: _changing(Way.ANY),
    r.ListSchedules: _looking(Way.ANY),
    r.DeleteSchedule: _changing(Way.ANY),
    r.ListDeadLetters: _looking(Way.GRAVES),
    r.GetDeadLetter: _looking(Way.LEADER),
    r.Redrive: _changing(Way.GRAVES),
    r.Discard: _changing(Way.GRAVES),
    r.GetMessage: _looking(Way.LEADER),
    r.GetTrace: _looking(Way.LEADER),
    r.FindDeliveries: _looking(Way.LEADERS),
    r.ReadDeliveries: _looking(Way.LEADER),
    r.AskWhy: _looking(Way.LEADER),
    r.GetStateAt: _looking(Way.LEADERS),
    p.DescribeCluster: _looking(Way.ANY),
    p.FindPlacement: _looking(Way.ANY),
    p.FindCoordinator: _looking(Way.ANY),
    c.SurveyCluster: _looking(Way.ANY),
    c.Reassign: _changing(Way.ANY),
    c.CancelMoves: _changing(Way.ANY),
    c.Rebalance: _changing(Way.ANY),
    c.ElectLeaders: _changing(Way.ANY),
    c.DrainNode: _changing(Way.ANY),
    c.UndrainNode: _changing(Way.ANY),
    c.DiscardCopy: _changing(Way.ANY),
}


def partition_of(request: Request[Any]) -> tuple[str, int] | None:
    """The one partition that it is about. None if it is about several, or its id is none: whoever is asked says so."""
    identity = getattr(request, "id", None)
    if identity is not None:
        topic, _, rest = str(identity).partition(":")
        number = rest.partition(":")[0]
        return (topic, int(number)) if number.isascii() and number.isdigit() and len(number) < 20 else None
    named: int | None = getattr(request, "partition", None)
    return None if named is None else (topic_of(request), named)


def partitions_of(request: Request[Any]) -> tuple[int, ...] | None:
    """The partitions that a request to several leaders names. None means all partitions of the topic."""
    if isinstance(request, r.Archived):
        return tuple(request.offsets)
    named: tuple[int, ...] | None = getattr(request, "partitions", None)
    return named


def restricted(request: Request[Any], numbers: tuple[int, ...]) -> Request[Any]:
    """The same request, for these partitions only: what one leader receives."""
    if isinstance(request, r.Archived):
        return msgspec.structs.replace(request, offsets={number: request.offsets[number] for number in numbers})
    changed: Request[Any] = msgspec.structs.replace(request, partitions=numbers)
    return changed


def topic_of(request: Request[Any]) -> str:
    is_by_name = isinstance(request, r.CreateTopic | r.ChangeTopic | r.DescribeTopic)
    name: str = request.name if is_by_name else request.topic  # type: ignore[attr-defined]
    return name
