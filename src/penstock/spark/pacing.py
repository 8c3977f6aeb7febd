"""How much of what is there goes into the next micro-batch."""

from __future__ import annotations

from collections.abc import Mapping

Partition = tuple[str, int]


def allotted(waiting: Mapping[Partition, int], most: int) -> dict[Partition, int]:
    """`most` offsets, from each partition in proportion to what waits there, and at least one from each of them.

    So with fewer than there are partitions, it is one each and more than `most`, as with Spark's Kafka source: a
    partition that others outrun would never be read. What is left over by rounding goes to those that lost most by it.
    """
    total = sum(waiting.values())
    if total <= most:
        return dict(waiting)
    shares = dict.fromkeys(waiting, 1)
    rest = most - len(shares)
    # How far its proportion is above one, in parts of `total`.
    above = {each: count * most - total for each, count in waiting.items() if count * most > total}
    if rest <= 0 or not above:
        return shares
    whole = sum(above.values())
    for each, part in above.items():
        shares[each] += rest * part // whole
    by_loss = sorted(above, key=lambda each: (-(rest * above[each] % whole), each))
    for each in by_loss[: most - sum(shares.values())]:
        shares[each] += 1
    return shares


def within_bytes(waiting: Mapping[Partition, int], sizes: Mapping[Partition, float], bytes_max: int) -> int:
    """How many offsets are about that many bytes, taken from all partitions alike; at least one.

    `sizes` are the bytes for an offset in each partition, on average over all of it.
    """
    total_bytes = sum(count * sizes[each] for each, count in waiting.items())
    total = sum(waiting.values())
    if total_bytes <= bytes_max:
        return total
    return max(int(total * bytes_max / total_bytes), 1)
