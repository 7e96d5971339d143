"""How records move: the transport seam, the segments folder, the runner and the producers.

`transport` is the seam, `segments` the one behind it, `log` Kafka's format on disk, `runner` drives
processors, `producers` read captures, `cli` is the command line. Imports `schemas` only; the
command line alone also imports `consumers`, to hand processors to the runner.
"""
