"""The broker embedded in a process: the client of the network, with the broker itself behind its port.

embedded      opening one
transport     the port: messages on their way
handlers      the port: what a request asks of the broker
topics groups history    those requests, by what they are about
keeper        what time alone does, now and then
"""

from penstock.local.embedded import open, open_async

__all__ = ["open", "open_async"]
