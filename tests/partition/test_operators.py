"""How bytes are counted and kernels grouped, on traces written by hand."""

from kareus.graph.records import Direction, OperatorKind
from kareus.partition.events import Region, TracedEvent
from kareus.partition.operators import CollectiveRun, Run, collective_of, count_reads, operator_of, program_of

ITEM = 2


def region(buffer: int, *shape: int, offset: int = 0) -> Region:
    elements = 1
    for size in shape:
        elements *= size
    return Region(buffer, offset, ITEM * elements, shape, ITEM)


def kernel(path: str, name: str, reads: list[Region], writes: list[Region], axis: str = "") -> TracedEvent:
    return TracedEvent(path, Direction.FORWARD, name, tuple(reads), tuple(writes), axis, 4 if axis else 1)


def names(program: list[Run | CollectiveRun]) -> list[str]:
    return [item.name if isinstance(item, Run) else item.events[0].kernel for item in program]


def test_temporaries_inside_an_operator_cost_nothing() -> None:
    events = [
        kernel("norm", "square", [region(1, 8)], [region(2, 8)]),
        kernel("norm", "mul", [region(1, 8), region(2, 8)], [region(3, 8)]),
        kernel("down", "mm", [region(3, 2, 4), region(4, 4, 4)], [region(5, 2, 4)]),
    ]
    norm, product = program_of(events)
    assert isinstance(norm, Run)
    assert isinstance(product, Run)
    measured = operator_of(norm, count_reads(events), frozenset())
    assert (measured.bytes_read, measured.bytes_written) == (8 * ITEM, 8 * ITEM)
    lasting = operator_of(norm, count_reads(events), frozenset({2}))
    assert lasting.bytes_written == 2 * 8 * ITEM
    unread = operator_of(product, count_reads(events), frozenset())
    assert unread.bytes_written == 0


def test_only_memory_bound_neighbours_become_one_operator() -> None:
    events = [
        kernel("residual", "add", [region(1, 8), region(2, 8)], [region(3, 8)]),
        kernel("norm", "mul", [region(3, 8)], [region(4, 8)]),
        kernel("qkv", "mm", [region(4, 2, 4), region(5, 4, 4)], [region(6, 2, 4)]),
        kernel("activation", "mul", [region(6, 8)], [region(7, 8)]),
        kernel("down", "allreduce_", [region(7, 8)], [region(7, 8)], axis="tp"),
        kernel("residual", "add", [region(7, 8), region(3, 8)], [region(8, 8)]),
    ]
    program = program_of(events)
    assert names(program) == ["norm", "qkv", "activation", "allreduce_", "residual"]
    norm = operator_of(program[0], count_reads(events), frozenset())
    assert (norm.bytes_read, norm.bytes_written, norm.kernels) == (2 * 8 * ITEM, 2 * 8 * ITEM, 2)


def test_parts_of_a_buffer_are_counted_once_each() -> None:
    first, second = region(1, 4), region(1, 4, offset=4 * ITEM)
    events = [kernel("rope", "mul", [first, second, first], [region(2, 8)])]
    (rope,) = program_of(events)
    assert operator_of(rope, count_reads(events), frozenset({2})).bytes_read == 8 * ITEM


def test_only_collectives_of_one_kind_are_fused() -> None:
    def gather(buffer: int) -> TracedEvent:
        return kernel("attention", "_allgather_base_", [region(buffer, 8)], [region(buffer + 1, 32)], axis="cp")

    reduce = kernel("down", "allreduce_", [region(9, 8)], [region(9, 8)], axis="tp")
    both, other = program_of([gather(1), gather(3), reduce])
    assert isinstance(both, CollectiveRun)
    assert isinstance(other, CollectiveRun)
    assert (collective_of(both).fused, collective_of(both).message_bytes) == (2, 2 * 32 * ITEM)
    assert (collective_of(other).fused, collective_of(other).group_size) == (1, 4)


def test_a_products_backward_is_split_input_gradient_first() -> None:
    events = [
        TracedEvent("down", Direction.BACKWARD, "mm", (region(1, 2, 4), region(2, 4, 3)), (region(3, 2, 3),)),
        TracedEvent("down", Direction.BACKWARD, "mm", (region(1, 4, 2), region(4, 2, 3)), (region(5, 4, 3),)),
        TracedEvent("down", Direction.BACKWARD, "add_", (region(6, 4, 3), region(5, 4, 3)), (region(6, 4, 3),)),
    ]
    program = program_of(events)
    assert names(program) == ["down.dgrad", "down.wgrad"]
    wgrad = operator_of(program[1], count_reads(events), frozenset({6}))
    assert wgrad.kind is OperatorKind.GEMM
    assert (wgrad.shape, wgrad.flops) == ((4, 3, 2), 2 * 4 * 3 * 2)
    assert (wgrad.bytes_read, wgrad.bytes_written) == (ITEM * (8 + 6 + 12), ITEM * 12)
