# SPDX-License-Identifier: Apache-2.0
"""libfsdp_checkpoint.so by ctypes: the functions of fsdp_checkpoint.h, and their failures as exceptions.

ctypes releases the interpreter's lock while a function of the library runs.
"""

import atexit
import ctypes
import os
import pickle
import threading
import types
from typing import Any, Dict, List, Optional, Tuple

from ._arguments import PathText, Struct, checked

ABI_VERSION = 1

# By their numbers in fsdp_checkpoint.h, which never change.
DTYPES = (
    "float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int64", "int32", "int16", "int8",
    "uint64", "uint32", "uint16", "uint8", "bool", "complex32", "complex64", "complex128", "float8_e4m3fnuz",
    "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2",
)  # fmt: skip
DTYPE_NUMBERS = {name: number for number, name in enumerate(DTYPES)}

FULL, LOCAL, SHARDED = 0, 1, 2

_UNKNOWN, _NOT_FOUND, _ALREADY_EXISTS, _DATA_LOSS = 2, 5, 6, 15
_CODES = (
    "ok", "cancelled", "unknown", "invalid argument", "deadline exceeded", "not found", "already exists",
    "permission denied", "resource exhausted", "failed precondition", "aborted", "out of range", "unimplemented",
    "internal", "unavailable", "data loss",
)  # fmt: skip


class CheckpointError(RuntimeError):
    """A failure of the library. `code` is its kind, in words ("data loss"); the text has the details and the place.

    >>> try:
    ...     fsdp_checkpoint.open("checkpoints")
    ... except fsdp_checkpoint.CheckpointError as error:
    ...     print(error.code, error)
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code: str = _CODES[code] if 0 <= code < len(_CODES) else "unknown"
        self._number = code

    def __reduce__(self) -> Tuple[Any, ...]:
        # DCP pickles a rank's exception for the others. RuntimeError's own way calls __init__ with the text only.
        return type(self), (self._number, *self.args), self.__dict__


class NotFoundError(CheckpointError, FileNotFoundError):
    """There is nothing at the path, or it is not a checkpoint.

    >>> except fsdp_checkpoint.NotFoundError: start_from_scratch()
    """


class ExistsError(CheckpointError, FileExistsError):
    """The step, or the destination, exists and `overwrite` was not set.

    >>> except fsdp_checkpoint.ExistsError: Writer(path, overwrite=True)
    """


class DataLossError(CheckpointError):
    """Bytes differ from the bytes that were written. The text names tensor, file and byte range.

    >>> except fsdp_checkpoint.DataLossError as error: print(error)  # then: ckpt verify, ckpt repair
    """


def picklable(error: BaseException) -> BaseException:
    """The error, or its text as a RuntimeError if DCP cannot send it to the other ranks, which would lose the text."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        text = RuntimeError(f"{type(error).__name__}: {error}")
        text.__cause__ = error
        return text


class Tensor(Struct):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
        ("numel", ctypes.c_int64),
    ]


class Read(Struct):
    _fields_ = [
        ("tensor", ctypes.c_int64),
        ("begin", ctypes.c_int64),
        ("end", ctypes.c_int64),
        ("dtype", ctypes.c_int32),
        ("out", ctypes.c_void_p),
    ]


class Shard(Struct):
    _fields_ = [("begin", ctypes.c_int64), ("end", ctypes.c_int64), ("data", ctypes.c_void_p)]


class OpenOptions(Struct):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("no_verify", ctypes.c_int32),
        ("model_only", ctypes.c_int32),
        ("skip_links", ctypes.c_int32),
        ("map", ctypes.c_char_p),
    ]


class SaveOptions(Struct):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("overwrite", ctypes.c_int32),
        ("parity", ctypes.c_int32),
        ("io_threads", ctypes.c_int32),
        ("name", ctypes.c_char_p),
        ("base", ctypes.c_char_p),
    ]


BlobSink = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64)
Gather = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, BlobSink, ctypes.c_void_p)


class Group(Struct):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("rank", ctypes.c_int32),
        ("world_size", ctypes.c_int32),
        ("gather", Gather),
        ("context", ctypes.c_void_p),
    ]


class PruneOptions(Struct):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("keep_last", ctypes.c_int32),
        ("keep_every", ctypes.c_int64),
        ("dry_run", ctypes.c_int32),
        ("no_verify", ctypes.c_int32),
        ("keep", ctypes.c_char_p),
    ]


class ConvertOptions(Struct):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("to", ctypes.c_char_p),
        ("kind", ctypes.c_int32),
        ("world_size", ctypes.c_int32),
        ("parity", ctypes.c_int32),
        ("dtype_given", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("model_only", ctypes.c_int32),
        ("force", ctypes.c_int32),
        ("map", ctypes.c_char_p),
    ]


class VerifyOptions(Struct):
    _fields_ = [("struct_size", ctypes.c_size_t), ("threads", ctypes.c_int32), ("map", ctypes.c_char_p)]


class DiffOptions(Struct):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("atol", ctypes.c_double),
        ("rtol", ctypes.c_double),
        ("model_only", ctypes.c_int32),
        ("map", ctypes.c_char_p),
    ]


def options(structure: type, **members: object) -> Struct:
    """A struct of options with its size set."""
    return structure(struct_size=ctypes.sizeof(structure), **members)


_int32, _int64, _pointer, _text = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p
_path = PathText
_out = ctypes.POINTER

# name: result type and argument types. An int32 result of a function in _CHECKED is a code.
_FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {
    "fsdp_checkpoint_abi_version": (_int32, []),
    "fsdp_error_message": (_text, []),
    "fsdp_free": (None, [_pointer]),
    "fsdp_reader_close": (None, [_pointer]),
    "fsdp_reader_path": (_text, [_pointer]),
    "fsdp_reader_format": (_text, [_pointer]),
    "fsdp_reader_step": (_int64, [_pointer]),
    "fsdp_reader_world_size": (_int32, [_pointer]),
    "fsdp_reader_tensor_count": (_int64, [_pointer]),
    "fsdp_reader_text_count": (_int64, [_pointer]),
    "fsdp_reader_alias_count": (_int64, [_pointer]),
    "fsdp_state_free": (None, [_pointer]),
}
_CHECKED: Dict[str, List[Any]] = {
    "fsdp_reader_open": [_path, _out(OpenOptions), _out(_pointer)],
    "fsdp_reader_identity": [_pointer, _out(_pointer)],
    "fsdp_reader_notes": [_pointer, _out(_pointer)],
    "fsdp_reader_attributes": [_pointer, _out(_pointer)],
    "fsdp_reader_tensor": [_pointer, _int64, _out(Tensor)],
    "fsdp_reader_text": [_pointer, _int64, _out(_text), _out(_pointer), _out(_int64)],
    "fsdp_reader_alias": [_pointer, _int64, _out(_text), _out(_text)],
    "fsdp_reader_read": [_pointer, _out(Read), _int64, _int32],
    "fsdp_state_create": [_int32, _out(_pointer)],
    "fsdp_state_add_tensor": [_pointer, _text, _int32, _int32, _out(_int64), _out(Shard), _int64],
    "fsdp_state_add_text": [_pointer, _text, _pointer, _int64],
    "fsdp_state_add_alias": [_pointer, _text, _text],
    "fsdp_state_set_attributes": [_pointer, _text],
    "fsdp_save": [_pointer, _path, _int64, _out(Group), _out(SaveOptions), _out(_pointer)],
    "fsdp_convert": [_path, _path, _out(ConvertOptions), _out(_pointer)],
    "fsdp_verify": [_path, _out(VerifyOptions), _out(_pointer)],
    "fsdp_diff": [_path, _path, _out(DiffOptions), _out(_int32), _out(_pointer)],
    "fsdp_repair": [_path, _int32, _out(_pointer)],
    "fsdp_steps": [_path, _out(_pointer)],
    "fsdp_latest": [_path, _out(_pointer)],
    "fsdp_prune": [_path, _out(PruneOptions), _out(_pointer)],
}


# Options of C in its messages, by their names here.
_OPTIONS = {
    "options->force": "overwrite=True",
    "options->map": "layout",
    "options->model_only": "model_only=True",
    "options->overwrite": "overwrite=True",
    "options->skip_links": "skip_links=True",
}


def with_option_names(text: str) -> str:
    """A message of the library with options as arguments of Python."""
    for name, ours in _OPTIONS.items():
        text = text.replace(name, ours)
    return text


def failure(code: int, message: str) -> CheckpointError:
    kind = {_NOT_FOUND: NotFoundError, _ALREADY_EXISTS: ExistsError, _DATA_LOSS: DataLossError}.get(code)
    return (kind or CheckpointError)(code, message)


def failure_of_code(name: str, message: str) -> CheckpointError:
    """`name` as ckpt and the messages of C++ have it: "NOT_FOUND"."""
    words = name.lower().replace("_", " ")
    return failure(_CODES.index(words) if words in _CODES else _UNKNOWN, message)


def _raise_on_failure(code: int, function: object, arguments: object) -> int:
    if code == 0:
        return code
    raise failure(code, with_option_names(library.fsdp_error_message().decode("utf-8", "replace")))


def _load() -> types.SimpleNamespace:
    loaded = ctypes.CDLL(os.path.join(os.path.dirname(os.path.abspath(__file__)), "libfsdp_checkpoint.so"))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    if loaded.fsdp_checkpoint_abi_version() != ABI_VERSION:
        raise ImportError(f"libfsdp_checkpoint.so has ABI {loaded.fsdp_checkpoint_abi_version()}, wanted {ABI_VERSION}")
    for name, arguments in _CHECKED.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = _int32, arguments
        function.errcheck = _raise_on_failure
    names = [*_FUNCTIONS, *_CHECKED]
    return types.SimpleNamespace(**{name: checked(name, getattr(loaded, name)) for name in names})


library = _load()


class _Saves:
    """The saves in progress, on threads of any kind. An interpreter that exits waits for them, as it waits for
    dcp.async_save's own threads: it would end a daemon thread inside of the save, at the next call of Python."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._is_exiting = False

    def __enter__(self) -> None:
        with self._changed:
            if self._is_exiting:
                raise RuntimeError("fsdp_checkpoint: the interpreter is exiting, and begins no save")
            self._count += 1

    def __exit__(self, *exception: object) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def wait(self) -> None:
        with self._changed:
            self._is_exiting = True
            self._changed.wait_for(lambda: self._count == 0)


saves = _Saves()
# A forked child does not have the threads that save.
os.register_at_fork(after_in_child=saves.forget)
atexit.register(saves.wait)


def take_bytes(pointer: ctypes.c_void_p) -> bytes:
    """The bytes of a string that the library returned for fsdp_free; calls fsdp_free."""
    if pointer.value is None:
        return b""
    text: Optional[bytes] = ctypes.string_at(pointer.value)
    library.fsdp_free(pointer)
    return text or b""


def take_string(pointer: ctypes.c_void_p) -> str:
    """As take_bytes, as text."""
    return take_bytes(pointer).decode("utf-8", "replace")


def take_lines(pointer: ctypes.c_void_p) -> List[str]:
    """As take_string, a text of sentences. A name in one may hold what str.splitlines takes for the end of a line."""
    text = with_option_names(take_string(pointer))
    return text.split("\n") if text else []
