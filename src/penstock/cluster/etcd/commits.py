"""A commit, checked before anything is sent. What is wrong with it is the same for every implementation of the port."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from penstock.cluster.etcd.store import Put
from penstock.errors import EtcdRequestTooLarge, InvalidInput, SessionLost
from penstock.limits import KIB, MIB

# etcd's defaults (--max-txn-ops, --max-request-bytes). The latter is of the request as etcd writes it to its own log:
# beside keys and values each operation has a few numbers and tags.
OPERATIONS_MAX = 128
REQUEST_BYTES_MAX = 3 * MIB // 2
_BYTES_PER_OPERATION = 64
_BYTES_AROUND = 4 * KIB
KEY_BYTES_MAX = 4 * KIB


def check(guards: Mapping[str, int], puts: Sequence[Put], deletes: Collection[str]) -> None:
    keys = [*(put.key for put in puts), *deletes]
    if not keys:
        raise InvalidInput("a commit puts or deletes something")
    if len(set(keys)) != len(keys):
        raise InvalidInput("a commit names each key once, be it to put or to delete it", keys=keys)
    for key in (*keys, *guards):
        check_key(key)
    for key, revision in guards.items():
        if revision < 0:
            raise InvalidInput(
                f"{key} is guarded by {revision}; a revision is positive, or 0 for a key that is not there"
            )
    if len(keys) > OPERATIONS_MAX or len(guards) > OPERATIONS_MAX:
        raise EtcdRequestTooLarge(
            f"a commit has up to {OPERATIONS_MAX} guards, and as many puts and deletes;"
            f" not {len(guards)} and {len(keys)}",
            guards=len(guards),
            operations=len(keys),
        )
    # A guarded key is in the comparison, and in what is read if it does not hold.
    size = _BYTES_AROUND + sum(len(key.encode()) + _BYTES_PER_OPERATION for key in (*keys, *guards, *guards))
    size += sum(len(put.value) for put in puts)
    if size > REQUEST_BYTES_MAX:
        raise EtcdRequestTooLarge(
            f"a commit of {size} bytes, keys included, is more than the {REQUEST_BYTES_MAX} that etcd takes at once",
            bytes=size,
        )
    for put in puts:
        if put.session is not None and put.session.lost.is_set():
            raise SessionLost(f"the session that {put.key} was to be bound to is lost; nothing was changed")


def check_key(key: str) -> None:
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{key!r} is no key: it can't be written as UTF-8") from error
    if not 1 <= size <= KEY_BYTES_MAX:
        raise InvalidInput(f"a key, or the prefix of keys, has 1 to {KEY_BYTES_MAX} bytes, not {size}")


def check_watch(prefix: str, from_revision: int) -> None:
    check_key(prefix)
    if from_revision < 1:
        raise InvalidInput(f"a watch begins at a revision from 1 on, not at {from_revision}")
