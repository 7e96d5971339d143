"""Drives processors over a transport: restore, poll, apply, and commit by bytes and by time.

The whole of `run`, in the parent of the process that publishes:

    transport = Segments.create(folder, partitions=2, durable=False)
    tasks = [
        *(Task(link_task(p), lambda p=p: Linker(config, p, 2), link_inputs(p, 2)) for p in range(2)),
        Task(SINK, lambda: sink, sink_inputs(2)),
    ]
    child.start()                                   # see `RecordWriter`
    with Driver(transport, tasks, limits) as driver:
        driver.run(until=lambda: not child.is_alive())    # until the child is done *and* all is linked
    if child.exitcode: ...                          # report; what it committed was linked all the same

and in the publishing process (spawned):

    with RecordWriter(Segments.open(folder, durable=False)) as writer:
        for output in publish(...):
            writer.write(output)                    # commits by size and time; the rest at the end

Everything is crash-only: any error leaves the `with` without committing; starting again resumes
from the last commits. A processor is made anew by its factory for every claim.
"""
