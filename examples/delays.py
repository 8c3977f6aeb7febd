"""Delayed messages and schedules. Time is virtual here, so that a week takes milliseconds.

It prints:

    now: nothing for the mailer; scheduled: remind, cancel me, move me, at once
    delivered now: at once
    after 6 days: move me
    after 7 days: remind
    the archive, which started in between, gets it too: remind
    cancelled for good: True
    each morning at 7: 3 times in 3 days, also after a restart
"""

from penstock.testing import VirtualQueue


def words(messages: list) -> str:
    for message in messages:
        message.ack()
    return ", ".join(message.value.decode() for message in messages) or "nothing"


def main() -> None:
    with VirtualQueue() as q:
        q.create_topic("mail", partitions=1)
        mailer = q.consumer("mailer", "mail")
        ids = {word: q.publish("mail", word, delay="7d").id for word in ("remind", "cancel me", "move me", "at once")}
        listed = ", ".join(one.message.value.decode() for one in q.scheduled.list("mail"))
        print(f"now: {words(mailer.poll())} for the mailer; scheduled: {listed}")

        q.scheduled.cancel(ids["cancel me"])
        q.scheduled.reschedule(ids["move me"], delay="6d")
        q.scheduled.deliver_now(ids["at once"])
        print("delivered now:", words(mailer.poll()))

        archive = q.consumer("archive", "mail", start="latest")
        archive.poll()
        q.clock.advance("6d")
        print("after 6 days:", words(mailer.poll()))
        words(archive.poll())
        q.clock.advance("1d")
        print("after 7 days:", words(mailer.poll()))
        print("the archive, which started in between, gets it too:", words(archive.poll()))
        print("cancelled for good:", ids["cancel me"] not in [message.id for message in mailer.poll()])

        q.schedules.create("morning", "mail", "0 7 * * *", "good morning", timezone="Europe/Berlin")
        came = 0
        for day in range(3):
            q.clock.advance("1d")
            if day == 1:
                q.restart()
            for message in q.consumer("mailer", "mail", until_idle="1s"):
                message.ack()
                came += 1
        print(f"each morning at 7: {came} times in 3 days, also after a restart")


if __name__ == "__main__":
    main()
