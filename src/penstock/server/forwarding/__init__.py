"""What is behind the HTTP and gRPC doors of a node of a cluster: all of it, whoever leads what.

forwarding  the site that doors work with
way         to one node: this one, or another one by connections of its own
polls       asking those who lead for messages
standing    consumers who came through the doors of this node, as members of their groups
catching_up what this node does not know of yet, and others may
identities  for batches that come without one, so that they can be sent again
copies      of dead letters, to whoever leads the partition that they are for
"""
