"""An order in which instructions can all run, none before what it waits for; or the circle in the way."""

import graphlib
from collections import deque
from collections.abc import Callable, Sequence

from kareus.errors import ScheduleError

DependsOn = Sequence[Sequence[int]]
"""By instruction, the numbers of those that it waits for."""


def order_of_dependency(depends_on: DependsOn, name: Callable[[int], str]) -> tuple[int, ...]:
    """Return all instructions in an order in which each is behind all that it waits for.

    Args:
        depends_on: what waits for what.
        name: of an instruction, for people.

    Raises:
        ScheduleError: some wait for one another in a circle, which the message names.
    """
    order = _sorted(depends_on)
    if len(order) == len(depends_on):
        return tuple(order)
    # Only a circle is told by graphlib, which takes nine times as long to sort those of a large pipeline.
    try:
        graphlib.TopologicalSorter(dict(enumerate(depends_on))).prepare()
    except graphlib.CycleError as error:
        circle = min((_shortest_circle(depends_on, number) for number in sorted(set(error.args[1]))), key=len)
        waits = ", which waits for ".join(name(number) for number in (*circle, circle[0]))
        raise ScheduleError(f"the pipeline's order can never run: {waits}; put one of them elsewhere.") from error
    raise AssertionError("an instruction without a place is on a circle")


def _sorted(depends_on: DependsOn) -> list[int]:
    """The instructions that can run, each after all that it waits for; fewer than all where some wait in a circle."""
    followers: list[list[int]] = [[] for _ in depends_on]
    for number, before in enumerate(depends_on):
        for waited in before:
            followers[waited].append(number)
    waits = list(map(len, depends_on))
    order = [number for number, count in enumerate(waits) if not count]
    for number in order:  # which grows meanwhile
        for after in followers[number]:
            waits[after] -= 1
            if not waits[after]:
                order.append(after)
    return order


def _shortest_circle(depends_on: DependsOn, start: int) -> tuple[int, ...]:
    """The shortest way from an instruction on a circle over those that it waits for back to it, in that order."""
    came_from: dict[int, int] = {}
    queue = deque([start])
    while start not in came_from:
        number = queue.popleft()
        for before in depends_on[number]:
            if before not in came_from:
                came_from[before] = number
                queue.append(before)
    way = [start]
    while came_from[way[-1]] != start:
        way.append(came_from[way[-1]])
    return (start, *reversed(way[1:]))
