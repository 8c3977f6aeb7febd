"""The gRPC door: proto/penstock/v1/penstock.proto on a port, with health and reflection.

door          the port: opening, closing, what happens every second
calls         a call comes in: who asks, what is answered, how errors are told; made from the descriptors of the proto
intake        reading requests, no more of one connection than may be in flight
table         which function answers which method
publishing consuming subscribing topics groups messages later dead_letters     those functions: decode, one call, encode
answering     receipts to leases: what an ack, a nack and their like do
rows settings     what messages and settings look like outside
replies       replies of a stream, in the order of its requests
desk          what all calls share: who is waiting here, and whether it is over
failures      errors to status codes
tls           certificates
penstock_pb2  made from the proto by proto/generate.py
"""
