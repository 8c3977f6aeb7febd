"""The client: what users of Penstock have in their hands. Knows no broker, only the port to one.

client        everything one can ask; async
admin         its part for topics and groups
later         its part for delayed and recurring messages
dead_letters  its part for messages that were given up
producer      many messages to one topic; outbox gathers them, sender sends them, sending is one on its way; unheard has
              those that nobody waits for
identified    many messages under an identity that the caller names; cutting is how they fit into frames
consumer      a member of a group; membership is its place there, runner hands messages to a function
received      messages as a consumer gets them; lease is what it holds together; acks tells acknowledgements together
reader        the log as it was written; deliveries what happened to messages; bounds is where they begin and end
blocking      all of these for code without an event loop; portal is the loop they run on

transport     the port to a broker: answers and requests are what goes through it
words         how users write messages, times and names
settings      how users write settings
rows          frames to rows and Arrow
"""
