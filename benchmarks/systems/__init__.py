"""The programs under load. Each does the same job: what a publisher of a group sends reaches all apps of that group.

`python -m benchmarks.systems.NAME GROUPS` listens on a free loopback port, prints lines of JSON (whatever its dialect
needs to get in, and last the one with its `port`), and serves until it is killed.
"""
