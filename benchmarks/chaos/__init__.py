"""Faults of the machine, injected into real runs of a tiny model: each has to get the right word, and nothing is lost.

`scripts/chaos.sh` injects all of them and writes docs/reliability.md; the self-tests inject a few.
"""
