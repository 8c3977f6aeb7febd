"""penstock cluster: where partitions are, and who leads them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.bundles import bundled
from penstock.cli.cluster_site import Call, Site
from penstock.cli.cluster_view import copy_name, names, place, some
from penstock.cli.cluster_waiting import Step, emptied, led, moved, wait_for
from penstock.cli.given import duration_given, names_given, size_given
from penstock.cli.options import OutputOption, Yes
from penstock.cli.output import EXIT_BAD_NEWS, Column, Output, console, note, print_json, print_table
from penstock.cli.shown import counted
from penstock.errors import ClusterError, ConnectionLost, InvalidInput, NotFound, PenstockError

if TYPE_CHECKING:
    from penstock.client.cluster_requests import ClusterReport, Elected, ElectLeaders, Move

# A leader hands over within half a second, or tries again.
_ELECTED_WITHIN_S, _ASKED_AGAIN_S = 15.0, 2.0

_UNDRAINED = (
    "may lead again, and leads what it is preferred for once no leader has changed for ten seconds (`penstock cluster "
    "elect`: at once); what was moved stays (`penstock cluster rebalance` spreads replicas)"
)

Place = Annotated[str, typer.Argument(metavar="TOPIC[:PARTITION]", help="A topic, or one partition of it.")]
Throttle = Annotated[
    str | None,
    typer.Option("--throttle", metavar="RATE", help='Bytes a second from each node to catch up, as 20MB, or "none".'),
]
Timeout = Annotated[
    str | None, typer.Option("--timeout", metavar="DURATION", help="Wait no longer. What was begun goes on.")
]


@bundled
def reassign(
    site: Site,
    where: Place,
    nodes: Annotated[
        str | None, typer.Argument(metavar="NODE,NODE…", help="The preferred leader first.", show_default=False)
    ] = None,
    *,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Call a move off, and stay on the nodes there were.")
    ] = False,
    throttle: Throttle = None,
    wait: Annotated[bool, typer.Option("--wait", help="Until it is moved.")] = False,
    timeout: Timeout = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Move partitions to these nodes. New replicas catch up first; then the others delete their copies."""
    from penstock.client.cluster_requests import CancelMoves, Reassign

    topic, number = _place(where)
    if cancel == (nodes is not None):
        raise InvalidInput("name the nodes to move to, or --cancel, and not both", argument="nodes")
    if cancel and throttle is not None:
        raise InvalidInput("a move that is called off has no --throttle", argument="--throttle")
    rate, timeout_s = _rate(throttle), _timeout(timeout)
    with site.open() as call:
        if cancel:
            moves = call(CancelMoves(topic, number))
        else:
            moves = call(Reassign(topic, number, tuple(names_given("NODE,NODE…", nodes)), rate))
            _warn_of_no_spare(call, moves)
        left = _waited(call, moves, timeout_s) if wait or timeout_s is not None else None
    _print_moves(output, moves, "nothing to move: the replicas are there, or on their way", left=left)


@bundled
def rebalance(
    site: Site,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be moved.")] = False,
    throttle: Throttle = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Until it is moved, and led as preferred.")] = True,
    timeout: Timeout = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Spread replicas evenly over nodes and racks, new ones included, with few moves; then leaders."""
    from penstock.client.cluster_requests import ElectLeaders, Rebalance

    rate, timeout_s = _rate(throttle), _timeout(timeout)
    with site.open() as call:
        plan = call(Rebalance(dry_run, rate))
        if plan.skipped:
            note(f"{counted(plan.skipped, 'partition')} left alone: a node with a replica is gone")
        left = None
        if wait and not dry_run:
            left = _waited(call, plan.moves, timeout_s)
            if not left:
                left = _led(call, ElectLeaders(None), call(ElectLeaders(None)))
    _print_moves(output, plan.moves, "nothing to move: replicas are spread evenly", left=left, is_dry=dry_run)


@bundled
def elect(
    site: Site,
    where: Annotated[
        str | None, typer.Argument(metavar="TOPIC[:PARTITION]", help="Default: of all topics.", show_default=False)
    ] = None,
    *,
    node: Annotated[str | None, typer.Option("--node", metavar="NODE", help="This one, not the preferred one.")] = None,
    unclean: Annotated[
        bool, typer.Option("--unclean", help="One that may lack what was acknowledged, where nobody in sync is alive.")
    ] = False,
    yes: Yes = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Have partitions led by their preferred leaders, or by another node."""
    from penstock.client.cluster_requests import ElectLeaders

    topic, number = (None, None) if where is None else _place(where)
    if topic is None and node is not None:
        raise InvalidInput("--node leads a TOPIC or a TOPIC:PARTITION: name it", argument="--node")
    with site.open() as call:
        if unclean:
            would = call(ElectLeaders(topic, number, node, is_unclean=True, is_dry=True))
            loses = ".\n".join(each.loses for each in would)
            if not yes:
                raise InvalidInput(f"{loses}. If that is meant, say --yes as well", argument="--yes")
            note(f"{loses}.")
            elected = _elected_unclean(call, would)
            left = _led(call, None, elected) or _leaderless(call, topic, number)
        else:
            elected = call(ElectLeaders(topic, number, node))
            left = _led(call, ElectLeaders(topic, number, node), elected)
    if output is Output.JSON:
        print_json(console(), {"elected": [_elected_json(each) for each in elected], "is_done": not left})
    elif not elected and not unclean:
        console().print("nothing to do: they lead already")
    elif elected:
        columns = [Column("topic"), Column("partition", is_number=True), Column("from"), Column("to")]
        rows = [[each.topic, str(each.number), each.before or "-", each.leader] for each in elected]
        print_table(console(), columns, rows)
    _end(left)


@bundled
def drain(
    site: Site,
    node: Annotated[str, typer.Argument(metavar="NODE", help="A node's id.")],
    *,
    undo: Annotated[bool, typer.Option("--undo", help="It may lead and get replicas again.")] = False,
    move: Annotated[bool, typer.Option("--move", help="Its replicas go to other nodes, too.")] = False,
    throttle: Throttle = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Until it leads nothing, and is empty.")] = True,
    timeout: Timeout = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Have a node lead nothing, for a restart or for good. It stays so, also after a restart, until --undo."""
    from penstock.client.cluster_requests import DrainNode, SurveyCluster, UndrainNode

    if undo and (move or throttle is not None):
        raise InvalidInput("--undo is not for --move or --throttle: what was moved stays", argument="--undo")
    rate, timeout_s = _rate(throttle), _timeout(timeout)
    with site.open() as call:
        if undo:
            call(UndrainNode(node))
            _print_drained(output, node, False, [], f"{node} {_UNDRAINED}")
            return
        led_before = sum(each.leader == node for each in call(SurveyCluster()).partitions)
        moves = call(DrainNode(node, move, rate))
        left = None
        if wait:
            left = wait_for(call, f"draining {node}", partial(emptied, node, moves, led_before), timeout_s)
    what = "is being drained" if left is None or left else "leads nothing" + (" and has no replicas" if move else "")
    _print_drained(output, node, left == "", moves, f"{node} {what}")
    _end(left)


@bundled
def discard(
    site: Site,
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node that has the copy.")],
    partition_id: Annotated[str, typer.Argument(metavar="PARTITION-ID", help="As `penstock cluster status` shows it.")],
    *,
    yes: Yes = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete a quarantined copy of a partition from a node."""
    from penstock.client.cluster_requests import DiscardCopy, SurveyCluster

    with site.open() as call:
        copies = [each for each in call(SurveyCluster()).quarantined if (each.node, each.id) == (node, partition_id)]
        if not copies:
            raise NotFound(
                f"node {node} has no quarantined copy of partition {partition_id}. List them: penstock cluster status",
                partition=partition_id,
            )
        (copy,) = copies
        what = f"offsets {copy.start_offset} to {copy.end_offset} of {copy_name(copy)}, at epoch {copy.epoch}"
        if not yes:
            raise InvalidInput(f"this deletes {what}, for good. If that is meant, say --yes as well", argument="--yes")
        call(DiscardCopy(node, partition_id))
    if output is Output.JSON:
        print_json(console(), {"node": node, "id": partition_id, "is_done": True})
    else:
        console().print(f"deleted {what}")


def _elected_unclean(call: Call, would: list[Elected]) -> list[Elected]:
    """Those that were told, by whom was told. What is different by now is left alone."""
    from penstock.client.cluster_requests import ElectLeaders

    elected = []
    for each in would:
        try:
            elected += call(ElectLeaders(each.topic, each.number, each.leader, is_unclean=True))
        except PenstockError as error:
            if len(would) == 1 or error.in_doubt:
                raise
            note(f"{each.topic}:{each.number} is left alone: {error.message}")
    return elected


def _leaderless(call: Call, topic: str | None, number: int | None) -> str:
    """Which still are. Empty if none is."""
    from penstock.client.cluster_requests import SurveyCluster

    try:
        report = call(SurveyCluster(() if topic is None else (topic,)))
    except (ConnectionLost, ClusterError) as error:
        return f"who leads is not known: {error.message}"
    left = [place(each) for each in report.partitions if not each.leader and number in (None, each.number)]
    return f"nobody leads {some(left)}" if left else ""


# --- waiting ------------------------------------------------------------------------------------------------


def _waited(call: Call, moves: list[Move], timeout_s: float | None) -> str:
    if not moves:
        return ""
    return wait_for(call, f"moving {counted(len(moves), 'partition')}", partial(moved, moves), timeout_s)


def _led(call: Call, again: ElectLeaders | None, elected: list[Elected]) -> str:
    """A leader that can't hand over in time goes on leading: it is asked `again`."""
    if not elected:
        return ""
    asked = time.monotonic()

    def step(report: ClusterReport) -> Step:
        nonlocal asked
        now = led(elected, report)
        if again is not None and now.done < 1 and time.monotonic() - asked > _ASKED_AGAIN_S:
            asked = time.monotonic()
            call(again)
        return now

    return wait_for(call, "electing", step, _ELECTED_WITHIN_S)


def _end(left: str | None) -> None:
    if left:
        note(f"not done yet: {left}")
        raise typer.Exit(EXIT_BAD_NEWS)


# --- what is typed and shown --------------------------------------------------------------------------------


def _place(text: str) -> tuple[str, int | None]:
    topic, sign, number = text.partition(":")
    if not topic or (sign and not (number.isascii() and number.isdigit())):
        raise InvalidInput(f"a partition is TOPIC:NUMBER, as in orders:0, not {text!r}", argument="TOPIC[:PARTITION]")
    return topic, int(number) if sign else None


def _rate(text: str | None) -> int | None:
    if text is None:
        return None
    return 0 if text == "none" else size_given("--throttle", text)


def _timeout(text: str | None) -> float | None:
    return None if text is None else duration_given("--timeout", text) / 1e6


def _move_json(move: Move) -> dict[str, Any]:
    return {
        "topic": move.topic,
        "partition": move.number,
        "from": list(move.replicas),
        "to": list(move.target),
    }


def _elected_json(each: Elected) -> dict[str, Any]:
    found = {"topic": each.topic, "partition": each.number, "from": each.before or None, "to": each.leader}
    if each.loses:
        found |= {"loses": each.loses, "end_offset": each.end, "groups_set_back": each.groups}
    return found


def _warn_of_no_spare(call: Call, moves: Sequence[Move]) -> None:
    """With as many replicas as must be in sync, publishing waits whenever a node is away."""
    from penstock.client.cluster_requests import SurveyCluster

    targets = {(move.topic, move.number): move.target for move in moves}
    for each in call(SurveyCluster()).partitions if targets else ():
        count = len(targets.get((each.topic, each.number), ()))
        if 1 < count <= each.min_isr:
            note(
                f"{each.topic}:{each.number} will have {count} replicas, and its min_isr is {each.min_isr}: while one "
                "of those nodes is away, nothing can be published there with acks=all"
            )


def _print_moves(
    output: Output, moves: Sequence[Move], nothing: str, *, left: str | None, is_dry: bool = False
) -> None:
    """`left` is None if nobody waited."""
    if output is Output.JSON:
        done = {} if left is None else {"is_done": not left}
        print_json(console(), {"moves": [_move_json(move) for move in moves], "is_dry": is_dry, **done})
    elif not moves:
        console().print(nothing)
    else:
        columns = [Column("topic"), Column("partition", is_number=True), Column("from"), Column("to")]
        rows = [[move.topic, str(move.number), names(move.replicas), names(move.target)] for move in moves]
        print_table(console(), columns, rows)
        if left is None and not is_dry:
            note("under way; `penstock cluster status` shows how far it is")
    _end(left)


def _print_drained(output: Output, node: str, is_done: bool, moves: Sequence[Move], sentence: str) -> None:
    if output is Output.JSON:
        print_json(console(), {"node": node, "is_done": is_done, "moves": [_move_json(move) for move in moves]})
    else:
        console().print(sentence)
