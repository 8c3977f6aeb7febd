"""etcd, as far as the cluster needs it. `store` is the port; whoever builds on it needs no other module but `view`.

    store      Store: get, commit by compare-and-swap, watch, session; the words they speak in
    session    Session: a lease that is kept alive, and until when it can be relied on
    view       View: everything under a prefix as last known, by watch and by periodic full read
    client     EtcdStore: the port over etcd's JSON gateway
    leases     leases over the same
    watching   a watch over the same
    commits    what may be committed at once
    gateway    requests to one of several members, fail-over, keys of users
    members    one member: connections to it, each looked at before it is used
    http       one HTTP/1.1 connection
    answers    etcd's JSON, and its errors as ours
    settings   addresses, TLS, user, times
    versions   which versions of etcd are used, refused, or warned of
    process    a local etcd for trying out and for tests

Safety rests on `commit` alone. A watch, a session and a view say that something may have changed, never that something
may be done. `penstock.testing.FakeEtcd` is the same port in memory, and passes the same suite (`tests/contracts`).
"""
