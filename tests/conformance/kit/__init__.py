"""The conformance kit: our own vectors of the Phoenix channels protocol, played to any server that speaks it.

`script` reads the vectors, `line` is one connection, `play` compares, `report` tells, `hub` is our own hub with the
channels that the vectors need.
"""
