"""Page ids: one owner each, the null page none."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.memory.allocator import PageAllocator


def test_every_page_but_the_null_page() -> None:
    allocator = PageAllocator(6)
    assert (allocator.free_pages, allocator.held_pages) == (5, 0)
    assert sorted(allocator.allocate(5)) == [1, 2, 3, 4, 5]
    assert (allocator.free_pages, allocator.held_pages) == (0, 5)
    assert allocator.allocate(0) == []
    allocator.check_integrity()


def test_a_freed_page_rests_as_long_as_it_can() -> None:
    allocator = PageAllocator(5)
    first = allocator.allocate(2)
    allocator.free(first)
    assert allocator.allocate(2) == [3, 4]
    assert allocator.allocate(2) == first


@pytest.mark.parametrize("pages", [[3], [0], [1, 1], [2, 3]])
def test_freeing_what_is_not_held_is_our_mistake(pages: list[int]) -> None:
    allocator = PageAllocator(5)
    assert allocator.allocate(2) == [1, 2]
    with pytest.raises(AssertionError):
        allocator.free(pages)


def test_taking_more_than_there_is_is_our_mistake() -> None:
    allocator = PageAllocator(3)
    with pytest.raises(AssertionError):
        allocator.allocate(3)
    assert allocator.free_pages == 2, "nothing was taken"
    with pytest.raises(AssertionError):
        PageAllocator(1)


@settings(max_examples=200, deadline=None, database=None, derandomize=True)
@given(
    num_pages=st.integers(2, 40),
    moves=st.lists(st.tuples(st.booleans(), st.integers(0, 12), st.randoms(use_true_random=False)), max_size=40),
)
def test_no_page_has_two_owners(num_pages: int, moves: list[tuple[bool, int, object]]) -> None:
    allocator = PageAllocator(num_pages)
    free, held = set(range(1, num_pages)), []
    for take, count, dice in moves:
        if take:
            count = min(count, len(free))
            pages = allocator.allocate(count)
            assert len(set(pages)) == len(pages) == count
            assert set(pages) <= free
            free -= set(pages)
            held += pages
        else:
            dice.shuffle(held)  # type: ignore[attr-defined]
            back, held = held[:count], held[count:]
            allocator.free(iter(back))
            free |= set(back)
        assert (allocator.free_pages, allocator.held_pages) == (len(free), len(held))
        allocator.check_integrity()


@pytest.mark.parametrize("harm", ["twice in line", "held and in line", "lost", "null page"])
def test_check_integrity_sees(harm: str) -> None:
    allocator = PageAllocator(5)
    allocator.allocate(2)
    if harm == "twice in line":
        allocator._free.append(3)
    elif harm == "held and in line":
        allocator._free.append(1)
    elif harm == "lost":
        allocator._free.pop()
    else:
        allocator._held[0] = 1
        allocator._free.pop()
    with pytest.raises(AssertionError):
        allocator.check_integrity()
