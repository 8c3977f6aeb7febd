"""Retries, dead letters and redriving.

It prints:

    handled: 2, failed attempts: 3
    a dead letter: 'not a number' of payments:0:1, after 3 attempts
      attempt 1: ValueError: could not convert string to float: b'not a number'
      attempt 2: ValueError: could not convert string to float: b'not a number'
      attempt 3: ValueError: could not convert string to float: b'not a number'
    a dry run would redrive 1 in place; dead letters left: 1
    redriven in place: 1; dead letters left: 0
    it comes again as payments:0:1, attempt 1
"""

import tempfile

import penstock


def main(path: str) -> None:
    with penstock.open(path) as q:
        q.create_topic("payments", partitions=1)
        for value in ("10.00", "not a number", "12.50"):
            q.publish("payments", value)

        settings = {"max_retries": 2, "backoff": {"initial": "10ms"}}
        consumer = q.consumer("ledger", "payments", until_idle="500ms", **settings)
        handled = consumer.run(lambda message: float(message.value))
        print(f"handled: {handled.done}, failed attempts: {handled.failed}")

        (letter,) = q.dead_letters.list("payments", group="ledger")
        print(
            f"a dead letter: {letter.message.value.decode()!r} of {letter.original}, after {letter.attempts} attempts"
        )
        for failure in letter.failures:
            print(f"  attempt {failure.attempt}: {failure.reason}")

        would = q.dead_letters.redrive("payments", reason="ValueError", dry_run=True)
        left = len(q.dead_letters.list("payments"))
        print(f"a dry run would redrive {len(would.in_place)} in place; dead letters left: {left}")
        done = q.dead_letters.redrive("payments", reason="ValueError", rate=100)
        left = len(q.dead_letters.list("payments"))
        print(f"redriven in place: {len(done.in_place)}; dead letters left: {left}")

        (again,) = q.consumer("ledger", "payments").poll(wait="5s")
        print(f"it comes again as {again.id}, attempt {again.attempt}")
        again.ack()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(directory)
