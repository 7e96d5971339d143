"""Topics in a folder, in Kafka's own on-disk format: the transport that needs no broker.

    folder/meta.json                     {"format": 1, "partitions": 4}
    folder/events-0/00000000000000000000.log, ...   record batches v2, rolled by size
    folder/commits/link-0                the task's manifest, replaced atomically
    folder/commits/link-0.lock           held (flock) by whoever runs the task

    Segments.create(folder, partitions=4)    makes it, or opens it: UsageError if it has another count
    Segments.open(folder)                    opens what is there; TransportError if nothing is

    durable=False                            no fsync: for folders thrown away after `run`
    transport.partitions, .claim(task, inputs), .records(place): see `stream.transport`
"""
