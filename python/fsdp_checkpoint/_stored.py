# SPDX-License-Identifier: Apache-2.0
"""StoredTensor: a tensor of a checkpoint, of which only the rows that a program asks for are read."""

import operator
from typing import TYPE_CHECKING, Any, Iterator, Optional, Tuple

import numpy

from ._checkpoint import ReadRequest
from ._library import DTYPE_NUMBERS, DTYPES

if TYPE_CHECKING:
    from ._checkpoint import Checkpoint

# Rows as far apart as this are read one by one; rows closer together with those between them, so many bytes at a time.
_NEAR_BYTES = 1 << 16
_BETWEEN_BYTES = 1 << 24


def numpy_dtype(place: str, name: str) -> "numpy.dtype[Any]":
    """The dtype of NumPy, or of ml_dtypes if it is installed, of PyTorch's name for it. TypeError if there is none."""
    if name not in DTYPE_NUMBERS:
        raise TypeError(f"{place}: there is no dtype {name!r}; expected one of {', '.join(DTYPES)}")
    if name == "bool":
        return numpy.dtype(numpy.bool_)
    if isinstance(getattr(numpy, name, None), type):
        return numpy.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError(
            f"{place}: NumPy has no {name}; install ml_dtypes, which has, or name another dtype, such as "
            "numpy(name, dtype='float32'), or use torch(name)"
        ) from None
    # ml_dtypes calls float8_e4m3fn and the like as PyTorch does.
    if not hasattr(ml_dtypes, name):
        raise TypeError(f"{place}: neither NumPy nor ml_dtypes has {name}; name another dtype, or use torch(name)")
    return numpy.dtype(getattr(ml_dtypes, name))


class StoredTensor(numpy.lib.mixins.NDArrayOperatorsMixin):
    """A tensor of an open checkpoint, as h5py has datasets: an index or a slice of rows reads only these rows (and what
    is between rows that are close together), and everything else that an array can do reads all of it. Nothing is kept;
    numpy.asarray makes an array of it.

    >>> with fsdp_checkpoint.open("checkpoints") as checkpoint:
    ...     first = checkpoint["model/wte.weight"][:10]
    """

    def __init__(self, checkpoint: "Checkpoint", name: str) -> None:
        self._checkpoint = checkpoint
        self.name = name
        info = checkpoint.info(name)
        self.shape: Tuple[int, ...] = info.shape
        self.size, self.ndim = info.numel, len(info.shape)
        self.dtype = numpy_dtype(name, info.dtype)

    def __len__(self) -> int:
        if self.ndim == 0:
            raise TypeError(f"{self.name} has no dimensions")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(numpy.asarray(self))

    def __bool__(self) -> bool:
        return bool(numpy.asarray(self))

    def __int__(self) -> int:
        return int(numpy.asarray(self))

    def __float__(self) -> float:
        return float(numpy.asarray(self))

    def __contains__(self, value: object) -> bool:
        return value in numpy.asarray(self)

    def __getitem__(self, key: Any) -> Any:
        keys = key if isinstance(key, tuple) else (key,)
        rows = self._rows(keys[0]) if keys and self.ndim > 0 else None
        if rows is None:
            return numpy.asarray(self)[key]
        wanted, first = rows
        return self._read(wanted)[(first, *keys[1:])]

    def _rows(self, key: Any) -> Optional[Tuple[range, Any]]:
        """The rows that an index or a slice of rows needs, upwards, and the key among them; None for other keys."""
        if isinstance(key, slice):
            rows = range(*key.indices(self.shape[0]))
            return (rows, slice(None)) if rows.step > 0 else (rows[::-1], slice(None, None, -1))
        if isinstance(key, (bool, numpy.bool_)):
            return None
        try:
            row = operator.index(key)
        except TypeError:
            return None
        if not -self.shape[0] <= row < self.shape[0]:
            raise IndexError(f"{self.name}: row {row} of {self.shape[0]}")
        row %= self.shape[0]
        return range(row, row + 1), 0

    def _read(self, rows: range) -> "numpy.ndarray[Any, Any]":
        """These rows. Of rows that are close together also those between them, a few at a time."""
        array = numpy.empty((len(rows), *self.shape[1:]), self.dtype)
        size = self.size // self.shape[0] if self.size else 0
        if rows.step == 1 or array.size == 0:
            self._checkpoint.read_elements(self.name, rows.start * size, (rows.start + len(rows)) * size, array)
            return array
        distance = rows.step * size * array.itemsize
        if distance >= _NEAR_BYTES:
            dtype, address = str(self.dtype), array.ctypes.data
            places = range(address, address + array.nbytes, size * array.itemsize)
            read = [ReadRequest(self.name, row * size, (row + 1) * size, dtype, at) for row, at in zip(rows, places)]
            self._checkpoint.read_into(read)
            return array
        several = _BETWEEN_BYTES // distance
        for begin in range(0, len(rows), several):
            part = rows[begin : begin + several]
            array[begin : begin + several] = self._read(range(part[0], part[-1] + 1))[:: rows.step]
        return array

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> "numpy.ndarray[Any, Any]":
        if copy is False:
            raise ValueError(f"{self.name} is in a file, so an array of it is a copy")
        array = numpy.empty(self.shape, self.dtype)
        self._checkpoint.read_elements(self.name, 0, self.size, array)
        return array if dtype is None else array.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **arguments: Any) -> Any:
        arrays = (numpy.asarray(x) if isinstance(x, StoredTensor) else x for x in inputs)
        return getattr(ufunc, method)(*arrays, **arguments)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(numpy.asarray(self), name)

    def __repr__(self) -> str:
        return f"<{self.name}: {self.dtype} {list(self.shape)} of {self._checkpoint!r}>"
