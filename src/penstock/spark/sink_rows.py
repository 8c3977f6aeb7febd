"""Rows of a task as columns of messages. What can't be one is refused with the number of its row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.batch import Batch
from penstock.body import check_limits
from penstock.client.words import priority_of
from penstock.clock import TIME_MAX_US
from penstock.columns import Ints
from penstock.durations import duration_text, duration_us
from penstock.errors import InvalidInput, InvalidMessage, PenstockError
from penstock.limits import Limits


class Rows(NamedTuple):
    """Some rows of a task, in their order. `numbers` are their places among all that the task has."""

    columns: dict[str, pa.Array]
    numbers: Ints
    spark_partition: int

    def refused(self, row: int, error: PenstockError | str) -> PenstockError:
        """What to raise about a row."""
        where = f"row {self.numbers[row]} of Spark partition {self.spark_partition}"
        details: dict[str, Any] = {"row": int(self.numbers[row]), "spark_partition": self.spark_partition}
        if isinstance(error, str):
            return InvalidMessage(f"{where}: {error}", **details)
        return type(error)(f"{where}: {error.message}", **{**error.details, **details})

    def taken(self, rows: Ints) -> Rows:
        places = pa.array(rows)
        columns = {name: column.take(places) for name, column in self.columns.items()}
        return self._replace(columns=columns, numbers=self.numbers[rows])


def batch_of(rows: Rows, *, now_us: int, max_delay_us: int, limits: Limits) -> Batch:
    """`delay` and `ttl` count from `now_us` on."""
    deliver_at = _times(rows, "deliver_at", "delay", now_us)
    if deliver_at is not None:
        late = np.flatnonzero(deliver_at > now_us + max_delay_us)
        if len(late):
            told = duration_text(int(deliver_at[late[0]]) - now_us)
            raise rows.refused(
                int(late[0]), f"it is to be delivered {told} from now, the topic allows {duration_text(max_delay_us)}"
            )
    expires_at = _times(rows, "expires_at", "ttl", now_us)
    if expires_at is not None and "ttl" in rows.columns:
        due = now_us if deliver_at is None else np.maximum(deliver_at, now_us)
        over = np.flatnonzero((expires_at <= due) & rows.columns["ttl"].is_valid().to_numpy(zero_copy_only=False))
        if len(over):
            raise rows.refused(int(over[0]), "the ttl would be over before the message is due")
    _check_times(rows, "timestamp")
    columns = {"deliver_at": deliver_at, "expires_at": expires_at, "priorities": _priorities(rows)}
    try:
        batch = _batch(rows, columns, now_us)
    except InvalidInput as error:
        raise _blamed(rows, columns, now_us, error) from error
    _check_sizes(rows, batch, limits)
    return batch


def refuse_epochs(rows: Rows) -> None:
    """A time of 0 stands for none: a timestamp would be now, and what has expired long ago would never expire."""
    for name in ("timestamp", "expires_at"):
        if name in rows.columns:
            is_epoch = pc.fill_null(pc.equal(rows.columns[name].cast(pa.int64()), 0), False)
            found = np.flatnonzero(is_epoch.to_numpy(zero_copy_only=False))
            if len(found):
                raise rows.refused(
                    int(found[0]), f"{name} is 1970-01-01T00:00:00Z, which no message can have: use null for none"
                )


def _batch(rows: Rows, columns: dict[str, Any], now_us: int) -> Batch:
    return Batch.from_columns(
        rows.columns["value"],
        keys=rows.columns.get("key"),
        headers=rows.columns.get("headers"),
        timestamps=rows.columns.get("timestamp"),
        now_us=now_us,
        **columns,
    )


def _blamed(rows: Rows, columns: dict[str, Any], now_us: int, error: InvalidInput) -> PenstockError:
    """By the first row that is at fault, which is found by halving."""
    start, stop = 0, len(rows.numbers)
    while stop - start > 1:
        some = np.arange(start, (start + stop) // 2)
        try:
            _batch(rows.taken(some), {name: None if c is None else c[some] for name, c in columns.items()}, now_us)
            start = int(some[-1]) + 1
        except InvalidInput as found:
            error, stop = found, int(some[-1]) + 1
    return rows.refused(start, error)


def _times(rows: Rows, time: str, duration: str, now_us: int) -> Ints | None:
    """From a column of times, or of durations from now on."""
    if duration in rows.columns:
        waits = _durations(rows, duration)
        wrong = np.flatnonzero(waits > TIME_MAX_US - now_us)
        if len(wrong):
            raise rows.refused(int(wrong[0]), f"{duration} goes beyond the year 9999")
        return np.where(waits < 0, 0, now_us + waits)
    return _check_times(rows, time)


def _check_times(rows: Rows, name: str) -> Ints | None:
    """0 where there is none."""
    if name not in rows.columns:
        return None
    times: Ints = pc.fill_null(rows.columns[name].cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero((times < 0) | (times > TIME_MAX_US))
    if len(wrong):
        told = "before 1970" if times[wrong[0]] < 0 else "after the year 9999"
        raise rows.refused(int(wrong[0]), f"{name} is {told}")
    return times


def _durations(rows: Rows, name: str) -> Ints:
    """In microseconds; -1 where there is none. A delay of 0 is none, a ttl of 0 is refused later."""
    column = rows.columns[name]
    if pa.types.is_duration(column.type):
        given: Ints = pc.fill_null(column.cast(pa.duration("us")).cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero((given < 0) & column.is_valid().to_numpy(zero_copy_only=False))
        if len(wrong):
            raise rows.refused(int(wrong[0]), f"{name}: a duration can't be negative")
        found = given
    else:
        found = _mapped(rows, name, duration_us, -1)
    return np.where(found == 0, -1, found) if name == "delay" else found


def _priorities(rows: Rows) -> npt.NDArray[np.int8] | None:
    column = rows.columns.get("priority")
    if column is None:
        return None
    return _mapped(rows, "priority", priority_of, 0).astype(np.int8)


def _mapped(rows: Rows, name: str, meaning: Callable[[Any], int], missing: int) -> Ints:
    """What each row's text or number means; each different one is looked at once."""
    coded = pc.dictionary_encode(rows.columns[name])
    codes: Ints = pc.fill_null(coded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    meanings = [missing]
    for code, value in enumerate(coded.dictionary.to_pylist()):
        try:
            meanings.append(int(meaning(value)))
        except InvalidInput as error:
            told = error.message if error.message.startswith(name) else f"{name}: {error.message}"
            raise rows.refused(int(np.flatnonzero(codes == code)[0]), told) from error
    return np.array(meanings, np.int64)[codes + 1]


def _check_sizes(rows: Rows, batch: Batch, limits: Limits) -> None:
    for start in range(0, batch.count, limits.batch_messages_max):
        stop = min(start + limits.batch_messages_max, batch.count)
        try:
            check_limits(batch.slice(start, stop), limits)
        except InvalidInput:
            # One of them is too large: which?
            for row in range(start, stop):
                try:
                    check_limits(batch.rows(np.array([row])), limits)
                except InvalidInput as error:
                    raise rows.refused(row, error) from error
            raise
