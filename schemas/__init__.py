"""What is said: types, record formats, configuration and the ledger document.

Lives here: every format that crosses a process boundary. No I/O, no clock.
May import: the standard library, msgspec and numpy. Never `stream` or `consumers`.
"""
