"""Several brokers as one. etcd decides who leads a partition; this package replicates it.

core         the replication of one partition as a state machine without I/O, clock or randomness; what a controller
             decides
"""
