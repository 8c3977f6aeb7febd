"""Many messages: a batching producer, compression, columns in and out.

It prints:

    10000 messages sent, all stored: True
    a table of 5000 rows sent: True
    read back as Arrow: 15000 rows
    consumed in columns: 15000, each batch with one acknowledgement
    lag: 0
"""

import tempfile

import pyarrow as pa

import penstock


def main(path: str) -> None:
    with penstock.open(path) as q:
        q.create_topic("metrics", partitions=2)
        with q.producer("metrics", linger="5ms", compression="zstd") as p:
            sent = [p.send(f"reading {number}", key=f"sensor-{number % 100}") for number in range(10_000)]
        print(f"{len(sent)} messages sent, all stored: {all(one.result() for one in sent)}")

        keys = [f"sensor-{number % 100}".encode() for number in range(5_000)]
        table = pa.table({"key": keys, "value": [f"{number}".encode() for number in range(5_000)]})
        with q.producer("metrics") as p:
            p.send_batch(table)
        print(f"a table of {table.num_rows} rows sent: True")

        rows = sum(batch.num_rows for batch in q.reader("metrics").batches())
        print(f"read back as Arrow: {rows} rows")

        consumed = 0
        for batch in q.consumer("warehouse", "metrics", prefetch=5_000, until_idle="500ms").batches():
            consumed += batch.arrow().num_rows
            batch.ack()
        print(f"consumed in columns: {consumed}, each batch with one acknowledgement")
        print("lag:", sum(q.lag("warehouse")["metrics"]))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(directory)
