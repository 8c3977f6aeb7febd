"""The client's port to a cluster: every request goes to the node that can answer it, and follows it when that moves.

transport   the port itself
table       who answers which request
nodes       the nodes, and a transport to each
atlas       which node leads which partition, as far as is known
coordinators  which node looks after which group
leading     one partition: asking its leader, whoever that is by then
scattering  all partitions of a topic: asking each of their leaders for its own
calls       requests: to any node, to a leader, or to all of them and merged
merging     many replies to one
topics      topics as a whole, from what their leaders tell
groups      groups as a whole, from their coordinator and the leaders
member      a consumer: a poll that waits at every leader
poller      one of those
place       its place in its group, at the coordinator
held        what came for a consumer while nobody asked
singles     single messages, with an identity of their own
plain       frames without one
failures    which errors are about having asked the wrong node
pace        how long to wait, and how often to ask again
"""
