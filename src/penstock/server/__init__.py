"""A broker that others reach: one process, one data directory, several doors.

server       from the start to a graceful end; config is what it is told, logs what it tells
native       the native protocol over TCP; session is one connection of it, subscription what it may be sent
http         HTTP, with OpenAPI; a package of its own
grpc         gRPC; a package of its own
members      consumers that are here, and so are heard of
parcels      messages on their way to a consumer: whole frames, or only what is wanted of them, or one by one
leases       what is left of a lease, and answers to it; receipts stand for one message of a lease
gate         who may come in: keys, in the access_file; tls has the certificate
guard        the broker as one principal sees it, by the rules of access
metrics      what is told to Prometheus
"""
