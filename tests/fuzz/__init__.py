"""Fuzzing: what strangers send ends in the protocol's own error, or in an answer, and in nothing else.

`targets` lists what is fuzzed, `texts`, `machines` and `wire` run it; `python -m tests.fuzz` searches for minutes,
guided by coverage, and the suite takes a seeded slice of it.
"""
