"""A progress bar on a terminal, nothing anywhere else."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


class Progress:
    """Shows how far reading has come, its rate and the time left; stderr, a terminal only.

    Use as a context manager; `update` may be called as often as one likes.
    """

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        """Begin to show it."""
        if self._shown:
            # 0.1 s of imports that only a person looking at a terminal has to wait for.
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                TaskProgressColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("starting", total=None, rate="")
            self._bar.start()
        return self

    def update(self, title: str, done: int, total: int) -> None:
        """Say what is going on and how many of how many rows are done; `total` 0: not known yet."""
        if self._bar is None or self._task is None:
            return
        if self._bar.tasks[0].description != title:
            # Rate and time left are those of this part of the work.
            self._bar.reset(self._task, description=title)
        speed = self._bar.tasks[0].speed
        rate = f"{speed / 1e6:.2f} M rows/s" if speed else ""
        self._bar.update(self._task, completed=done, total=total or None, rate=rate)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take it away, whatever happened."""
        if self._bar is not None:
            self._bar.stop()
