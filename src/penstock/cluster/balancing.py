"""Where replicas should be: spread evenly over nodes and racks, with as few moves as that takes.

    over racks      a partition has replicas in as many racks as it can
    over nodes      no node has two replicas more than another that could take one
    leaders         the first replica of a partition is its preferred leader: no node is that of two more than another
                    that could be instead

Pure: it is given what there is, and returns what there should be. What holds of a partition holds of its dead letters,
which are kept beside it: both are one thing here, and move together.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence

# Of each node that can be used: the rack that it is in, or "".
Racks = Mapping[str, str]
Replicas = tuple[str, ...]


def balanced(
    placed: Mapping[str, Sequence[str]], racks: Racks, *, fixed: Iterable[Sequence[str]] = ()
) -> list[tuple[str, Replicas]]:
    """By the names of what is placed: those that should have other replicas than they have.

    Replicas on nodes that can't be used are moved away. `fixed` is what is not to be moved, and counts all the same.
    """
    layout = _Layout(placed, racks, fixed)
    layout.leave_unusable()
    layout.spread_over_racks()
    layout.spread_over_nodes()
    layout.spread_leaders()
    return [(name, tuple(now)) for name, now in layout.placed.items() if tuple(now) != tuple(placed[name])]


def replaced(
    placed: Mapping[str, Sequence[str]], racks: Racks, *, fixed: Iterable[Sequence[str]] = ()
) -> list[tuple[str, Replicas]]:
    """Without those on nodes that can't be used, and otherwise as they are."""
    layout = _Layout(placed, racks, fixed)
    layout.leave_unusable()
    return [(name, tuple(now)) for name, now in layout.placed.items() if tuple(now) != tuple(placed[name])]


class _Layout:
    def __init__(self, placed: Mapping[str, Sequence[str]], racks: Racks, fixed: Iterable[Sequence[str]]) -> None:
        self.placed = {name: list(nodes) for name, nodes in placed.items()}
        self._racks = racks
        self._replicas: Counter[str] = Counter(dict.fromkeys(racks, 0))
        self._leaders: Counter[str] = Counter(dict.fromkeys(racks, 0))
        for nodes in (*self.placed.values(), *fixed):
            self._replicas.update(nodes)
            self._leaders[nodes[0]] += 1
        # By a node and another: what the one is the preferred leader of and the other could be.
        self._passable: dict[tuple[str, str], dict[str, None]] = {}

    # --- replicas ----------------------------------------------------------------------------------------

    def leave_unusable(self) -> None:
        for nodes in self.placed.values():
            for node in [node for node in nodes if node not in self._racks]:
                free = [other for other in self._racks if other not in nodes]
                if free:
                    left = [other for other in nodes if other != node]
                    self._swap(nodes, node, min(free, key=lambda other: self._cost(left, other)))

    def _cost(self, others: Sequence[str], node: str) -> tuple[bool, int, str]:
        return self._is_near(others, node), self._replicas[node], node

    def _is_near(self, others: Iterable[str], node: str) -> bool:
        """To have a replica there, beside those, adds no rack."""
        rack = self._racks.get(node, "")
        return bool(rack) and any(self._racks.get(other, "") == rack for other in others)

    def _swap(self, nodes: list[str], old: str, new: str) -> None:
        at = nodes.index(old)
        nodes[at] = new
        self._replicas[old] -= 1
        self._replicas[new] += 1
        if at == 0:
            self._leaders[old] -= 1
            self._leaders[new] += 1

    def spread_over_racks(self) -> None:
        for nodes in self.placed.values():
            while True:
                near = [node for node in nodes if self._is_near([other for other in nodes if other != node], node)]
                far = [node for node in self._racks if node not in nodes and not self._is_near(nodes, node)]
                if not near or not far or not any(self._racks.values()):
                    break
                old = max(near, key=lambda node: (self._replicas[node], nodes.index(node)))
                self._swap(nodes, old, min(far, key=lambda node: (self._replicas[node], node)))

    def spread_over_nodes(self) -> None:
        """From a node with more to one with at least two less, as long as there are such. Each time it gets more even,
        so it ends."""
        while self._move_one():
            pass

    def _move_one(self) -> bool:
        fullest = sorted(self._racks, key=lambda node: (-self._replicas[node], node))
        for old in fullest:
            for new in reversed(fullest):
                if self._replicas[old] - self._replicas[new] < 2:
                    break
                found = self._movable(old, new)
                if found is not None:
                    self._swap(found, old, new)
                    return True
        return False

    def _movable(self, old: str, new: str) -> list[str] | None:
        """One that would be in as many racks as before."""
        for nodes in self.placed.values():
            if old in nodes and new not in nodes:
                others = [node for node in nodes if node != old]
                if not self._is_near(others, new) or self._is_near(others, old):
                    return nodes
        return None

    # --- leaders -----------------------------------------------------------------------------------------

    def spread_leaders(self) -> None:
        """Along chains: what a node with too many gives up to another, that one may have to pass on."""
        for name in self.placed:
            self._index(name, is_there=True)
        while self._pass_one_on():
            pass

    def _pass_one_on(self) -> bool:
        for most in sorted(self._racks, key=lambda node: (-self._leaders[node], node)):
            chain = self._chain_from(most)
            for name, new in chain:
                self._pass_on(name, new)
            if chain:
                return True
        return False

    def _pass_on(self, name: str, new: str) -> None:
        nodes = self.placed[name]
        old, at = nodes[0], nodes.index(new)
        self._index(name, is_there=False)
        nodes[0], nodes[at] = new, old
        self._index(name, is_there=True)
        self._leaders[old] -= 1
        self._leaders[new] += 1

    def _chain_from(self, most: str) -> list[tuple[str, str]]:
        """The shortest way to a node that leads at least two less, as what passes to whom."""
        came: dict[str, tuple[str, str]] = {}
        to_see = deque([most])
        while to_see:
            node = to_see.popleft()
            if self._leaders[most] - self._leaders[node] >= 2:
                chain = []
                while node != most:
                    before, name = came[node]
                    chain.append((name, node))
                    node = before
                return chain[::-1]
            for other in self._racks:
                names = self._passable.get((node, other))
                if names and other != most and other not in came:
                    came[other] = node, next(iter(names))
                    to_see.append(other)
        return []

    def _index(self, name: str, *, is_there: bool) -> None:
        first, *others = self.placed[name]
        for other in others:
            names = self._passable.setdefault((first, other), {})
            if is_there:
                names[name] = None
            else:
                del names[name]
