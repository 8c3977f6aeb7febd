"""Consumers come and go: partitions move one by one, and only those that must.

It prints:

    anna alone has [0, 1, 2, 3]
    with ben: anna keeps 2 of hers, ben has 2
    with cleo: nobody has more than 2, none is left out
    ben leaves: anna and cleo have all 4, and keep what they had
    shared: three workers on one partition get 2 each
"""

import tempfile

import penstock


def owned(q: penstock.aio.Client, group: str) -> dict:
    return {name: {number for _, number in parts} for name, parts in q.group(group).members.items()}


def main(path: str) -> None:
    with penstock.open(path) as q:
        q.create_topic("clicks", partitions=4)
        members = {name: q.consumer("counters", "clicks", name=name) for name in ("anna", "ben", "cleo")}
        members["anna"].join()
        alone = owned(q, "counters")["anna"]
        print(f"anna alone has {sorted(alone)}")
        members["ben"].join()
        two = owned(q, "counters")
        print(f"with ben: anna keeps {len(two['anna'] & alone)} of hers, ben has {len(two['ben'])}")
        members["cleo"].join()
        three = owned(q, "counters")
        most, together = max(map(len, three.values())), set().union(*three.values())
        print(f"with cleo: nobody has more than {most}, none is left out" if len(together) == 4 else three)
        members["ben"].close()
        left = owned(q, "counters")
        kept = all(three[name] <= left[name] for name in ("anna", "cleo"))
        total = len(left["anna"] | left["cleo"])
        print(f"ben leaves: anna and cleo have all {total}, and keep what they had" if kept else left)

        q.create_topic("single", partitions=1)
        for number in range(6):
            q.publish("single", str(number))
        workers = [q.consumer("workers", "single", name=f"w{i}", assignment="shared") for i in range(3)]
        counts = {len(worker.poll(2)) for worker in workers}
        print(f"shared: three workers on one partition get {counts.pop()} each")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(directory)
