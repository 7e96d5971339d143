"""Topics on Apache Kafka, exactly once: the transport that outgrows one machine.

`transport` fits the seam of `stream.transport`; `membership` and `service` decide which process runs
which task; `topics` makes and checks topics, `properties` reads how to reach the brokers.
`client` alone touches kafka-python. Imports `schemas` and `stream`.
"""
