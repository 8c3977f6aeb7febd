"""What a queue means. No sockets, no files of its own.

Today: topics, publishing, and groups without members, order, delays or dead letters.

broker       topics in a data directory; every door ends here
catalog      which topics there are, on disk
settings     what can be set on a topic
names        what topics and groups may be called
topic        its partitions, and which of them a message goes to
partitioner  the key's hash; splitting a batch
partition    its two logs
producers    idempotent producers: what comes again is recognised
journal      the way into a log: commit, and wait until it is on disk
"""
