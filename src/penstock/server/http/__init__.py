"""The HTTP door: JSON over HTTP/1.1, for everything that does not speak the native protocol.

door          the port: opening, closing, what happens every second
connection    one connection: limits of time and size that uvicorn does not have
app           a request comes in: who is it, which route, what is answered; with a short way for publishing
routes        what a route is
table         all of them, for routing and for the description
about topics consuming answering groups history later     by what they are about: decode, one call, encode
desk          what all requests share, and what each of them has for itself
shapes        what goes in and out, as structs
rows receipts settings     messages, what they are answered for with, and settings: from and to those structs
waiting       long polls and streams, until something comes or the client goes
asking        bodies and queries, to structs
failures      errors to statuses
dashboard     the page at /, from the folder page
openapi       the description at /openapi.json, made from the table and the structs
"""
