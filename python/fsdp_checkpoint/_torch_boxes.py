# SPDX-License-Identifier: Apache-2.0
"""Boxes of tensors, offsets and sizes as in DCP's plans, as intervals of row-major elements."""

from typing import List, Optional, Sequence, Tuple


def check_box(fqn: str, offsets: Sequence[int], sizes: Sequence[int], shape: Sequence[int]) -> None:
    """ValueError if the box is not inside of a tensor of that shape."""
    if len(offsets) == len(sizes) == len(shape):
        if all(0 <= begin and 0 <= size <= end - begin for begin, size, end in zip(offsets, sizes, shape)):
            return
    raise ValueError(f"{fqn}: the plan has {list(sizes)} at {list(offsets)}, outside of {list(shape)}")


def run_of(offsets: Sequence[int], sizes: Sequence[int], shape: Sequence[int]) -> Optional[Tuple[int, int]]:
    """The interval of elements that a box is, or None: it is several."""
    whole = len(shape)
    while whole > 0 and sizes[whole - 1] == shape[whole - 1]:
        whole -= 1
    if any(size != 1 for size in sizes[: max(0, whole - 1)]):
        return None
    begin = 0
    for offset, size in zip(offsets, shape):
        begin = begin * size + offset
    return begin, begin + numel_of(sizes)


def runs_of(offsets: Tuple[int, ...], sizes: Tuple[int, ...], shape: Tuple[int, ...]) -> List[Tuple[int, int]]:
    """A box of a row-major tensor as intervals of elements, in order: one interval if it has whole rows."""
    whole = len(shape)
    while whole > 0 and sizes[whole - 1] == shape[whole - 1]:
        whole -= 1
    inner = 1
    for size in shape[whole:]:
        inner *= size
    if whole == 0:
        return [(0, inner)]
    starts, stride = [0], inner
    length = sizes[whole - 1] * inner
    for axis in range(whole - 1, -1, -1):
        steps = [offsets[axis]] if axis == whole - 1 else range(offsets[axis], offsets[axis] + sizes[axis])
        starts = [step * stride + start for step in steps for start in starts]
        stride *= shape[axis]
    return [(start, start + length) for start in sorted(starts)]


def numel_of(sizes: Sequence[int]) -> int:
    numel = 1
    for size in sizes:
        numel *= size
    return numel
