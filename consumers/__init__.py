"""What is made of the events: linker, aggregates, roles, sink.

Processors here are pure (records in, records and new state out) and import `schemas` only; the
thin edges (`files`) touch the disk. `stream` runs them.
"""
