"""Where events come from: producers read captures and write EVENTS, and nothing else.

`source` opens a capture by what is in it, `nsys` and `kineto` read the two formats, `publish`
advances several of them together in session time. Imports `schemas` only.
"""
