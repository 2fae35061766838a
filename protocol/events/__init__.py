"""The vocabularies of events: what the types mean, how one becomes another, and what may be left out or shortened.

`session_manager` is the canonical one: runners and the normaliser speak it, `views` turns it into the others and
`readings` turns the others into it. A model is a *reading* of an event. What travels and what is stored are the bytes
the producer wrote; nobody encodes an event anew to pass it on.
"""
