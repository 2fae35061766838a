"""The programs under load. Each does the same job: what a publisher of a group sends reaches every app of that group.

`python -m benchmarks.systems.NAME GROUPS` listens on a free loopback port, prints one line of JSON with that `port` (and
whatever its dialect needs to get in), and serves until it is killed.
"""
