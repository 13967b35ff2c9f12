# SPDX-License-Identifier: Apache-2.0
"""A checkpoint open for reading."""

import ctypes
import json
import os
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from . import _arguments, _library
from ._library import library

if TYPE_CHECKING:
    # Under these names, since methods of Checkpoint are called numpy and torch.
    from numpy import ndarray
    from torch import Tensor
    from torch import dtype as TorchDtype

    from ._stored import StoredTensor

Path = Union[str, "os.PathLike[str]"]
# What branches of a torch file or DCP directory are, as `ckpt --map` has it: {"app.model": "model"}, "app.model=model",
# or several of these.
SourceLayout = Union[None, str, Mapping[str, str], Sequence[str]]


class TensorInfo(NamedTuple):
    """The properties of a tensor that are known before any of its elements is read.

    >>> checkpoint.info("model/wte.weight").shape
    (50257, 768)
    """

    name: str
    dtype: str  # PyTorch's name: "float32", "bfloat16", ...
    shape: Tuple[int, ...]
    numel: int


class ReadRequest(NamedTuple):
    """Elements [begin, end), row-major, of a tensor, as `dtype` to the address `out`, which the caller keeps alive.

    >>> checkpoint.read_into([ReadRequest("model/w", 0, 4096, "float32", buffer.ctypes.data)])
    """

    name: str
    begin: int
    end: int
    dtype: str
    out: int


class Checkpoint(Mapping[str, "StoredTensor"]):
    """A checkpoint of any format, open for reading: names to tensors, which are read when they are used (StoredTensor).
    Made by `open`; close it, or use `with`. A pickled one is opened again, by its path, where it arrives, as in the
    workers of a DataLoader.

    Names are "model/NAME", "optim/state/NAME/STATE" and "extra/NAME"; texts have their own mapping. Every read is
    verified if the format has digests, and goes directly into the array that is returned. Any number of threads may
    read at the same time; none may read while another closes.

    >>> with fsdp_checkpoint.open("checkpoints") as checkpoint:
    ...     for name in checkpoint:
    ...         print(name, checkpoint.info(name).shape)
    ...     weight = checkpoint.torch("model/wte.weight")
    """

    def __init__(
        self,
        path: Path,
        *,
        verify: bool = True,
        model_only: bool = False,
        skip_links: bool = False,
        layout: SourceLayout = None,
    ) -> None:
        self._reader: Optional[ctypes.c_void_p] = None
        roles = _arguments.roles(layout)
        self._options = {"verify": verify, "model_only": model_only, "skip_links": skip_links, "layout": roles}
        reader = ctypes.c_void_p()
        options = _library.options(
            _library.OpenOptions,
            no_verify=int(not verify),
            model_only=int(model_only),
            skip_links=int(skip_links),
            map=_arguments.role_lines(roles),
        )
        library.fsdp_reader_open(path, options, ctypes.byref(reader))
        self._reader = reader
        self._numbers: Dict[str, int] = {}
        self._infos: List[TensorInfo] = [self._info(i) for i in range(library.fsdp_reader_tensor_count(reader))]
        self._numbers = {info.name: number for number, info in enumerate(self._infos)}
        self._aliases = self._read_aliases()
        self._texts = self._read_texts()

    def _info(self, number: int) -> TensorInfo:
        tensor = _library.Tensor()
        library.fsdp_reader_tensor(self._reader, number, ctypes.byref(tensor))
        shape = tuple(tensor.dims[axis] for axis in range(tensor.ndim))
        return TensorInfo(tensor.name.decode(), _library.DTYPES[tensor.dtype], shape, tensor.numel)

    def _read_aliases(self) -> Dict[str, str]:
        aliases = {}
        alias, name = ctypes.c_char_p(), ctypes.c_char_p()
        for number in range(library.fsdp_reader_alias_count(self._reader)):
            library.fsdp_reader_alias(self._reader, number, ctypes.byref(alias), ctypes.byref(name))
            aliases["model/" + (alias.value or b"").decode()] = "model/" + (name.value or b"").decode()
        return aliases

    def _read_texts(self) -> Dict[str, str]:
        texts = {}
        name, text, size = ctypes.c_char_p(), ctypes.c_void_p(), ctypes.c_int64()
        for number in range(library.fsdp_reader_text_count(self._reader)):
            library.fsdp_reader_text(self._reader, number, ctypes.byref(name), ctypes.byref(text), ctypes.byref(size))
            value = ctypes.string_at(text.value, size.value) if text.value else b""
            texts[(name.value or b"").decode()] = value.decode("utf-8", "replace")
        return texts

    def _open_reader(self) -> ctypes.c_void_p:
        if self._reader is None:
            raise ValueError("the checkpoint is closed")
        return self._reader

    def close(self) -> None:
        """Closes the checkpoint; arrays and tensors that were read stay. A second call does nothing.

        >>> checkpoint.close()
        """
        if self._reader is not None:
            library.fsdp_reader_close(self._reader)
            self._reader = None

    def __reduce__(self) -> object:
        return _opened_again, (self.path, self._options)

    def __repr__(self) -> str:
        if self._reader is None:
            return "<closed fsdp_checkpoint.Checkpoint>"
        step = "" if self.step is None else f", step {self.step}"
        tensors = f"{len(self)} tensor{'s' * (len(self) != 1)}"
        return f"<fsdp_checkpoint.Checkpoint {self.path!r}, {self.format}{step}, {tensors}>"

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_reader", None) is not None:
            self.close()

    @property
    def path(self) -> str:
        """The path that was opened: of a directory of checkpoints, the step.

        >>> checkpoint.path
        'checkpoints/step-00001000'
        """
        return os.fsdecode(library.fsdp_reader_path(self._open_reader()))

    def identity(self) -> str:
        """What the checkpoint holds, as a text that is equal for copies of it and differs for others. Ranks that open
        files by themselves can compare it before they read. Of other formats than ours it reads at most 64 MiB, and
        the ends of each file.

        >>> checkpoint.identity()
        'step 1000 of save 1f2e..., manifest digest 99aa...'
        """
        identity = ctypes.c_void_p()
        library.fsdp_reader_identity(self._open_reader(), ctypes.byref(identity))
        return _library.take_string(identity)

    @property
    def notes(self) -> List[str]:
        """Sentences about how the file was read: which branches of a torch file or DCP directory became model and
        optimizer, what was guessed, renamed or left out. [] if there is nothing to say.

        >>> fsdp_checkpoint.open("training.pt").notes
        ['model from "app.model", optimizer from "app.optim"']
        """
        notes = ctypes.c_void_p()
        library.fsdp_reader_notes(self._open_reader(), ctypes.byref(notes))
        return _library.take_lines(notes)

    @property
    def attributes(self) -> Dict[str, Any]:
        """What the run recorded about itself, by name: numbers, texts, booleans and None. {} if nothing is recorded, as
        in formats other than ours.

        >>> checkpoint.attributes["model.n_head"]
        12
        """
        attributes = ctypes.c_void_p()
        library.fsdp_reader_attributes(self._open_reader(), ctypes.byref(attributes))
        return json.loads(_library.take_string(attributes))

    @property
    def format(self) -> str:
        """ "hdf5", "safetensors", "torch", "dcp", ...

        >>> checkpoint.format
        'hdf5'
        """
        return library.fsdp_reader_format(self._open_reader()).decode()

    @property
    def step(self) -> Optional[int]:
        """The step that was saved; None if the checkpoint does not record one.

        >>> checkpoint.step
        1000
        """
        step = library.fsdp_reader_step(self._open_reader())
        return None if step < 0 else step

    @property
    def world_size(self) -> int:
        """The number of ranks that saved; 1 if the checkpoint does not record it.

        >>> checkpoint.world_size
        4
        """
        return library.fsdp_reader_world_size(self._open_reader())

    @property
    def aliases(self) -> Dict[str, str]:
        """Other names of shared parameters, which are not iterated over and can be read. In a Hugging Face directory
        also an output layer that config.json says to be the embedding; `notes` names it.

        >>> checkpoint.aliases
        {'model/lm_head.weight': 'model/transformer.wte.weight'}
        """
        return dict(self._aliases)

    @property
    def texts(self) -> Dict[str, str]:
        """The values that are not tensors, by name.

        >>> json.loads(checkpoint.texts["optim/param_groups"])
        """
        return dict(self._texts)

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._infos)

    # As open files: Mapping's would read and compare all tensors.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __contains__(self, name: object) -> bool:
        return name in self._numbers or name in self._aliases

    def __getitem__(self, name: str) -> "StoredTensor":
        from ._stored import StoredTensor

        self._open_reader()
        return StoredTensor(self, name)

    def info(self, name: str) -> TensorInfo:
        """Dtype and shape of a tensor. KeyError for a name that is not in the checkpoint.

        >>> checkpoint.info("model/wte.weight").dtype
        'bfloat16'
        """
        return self._infos[self._number(name)]

    def _number(self, name: str) -> int:
        number = self._numbers.get(self._aliases.get(name, name))
        if number is None:
            raise KeyError(name)
        return number

    def read_into(self, requests: Sequence[ReadRequest], threads: int = 0) -> None:
        """Carries out all requests together, in parallel on `threads` threads (0: 4), and reads each block once.

        >>> checkpoint.read_into([ReadRequest("model/w", 0, 8, "float64", array.ctypes.data)])
        """
        reads = (_library.Read * max(1, len(requests)))()
        for read, request in zip(reads, requests):
            if request.dtype not in _library.DTYPE_NUMBERS:
                raise TypeError(f"dtype {request.dtype!r} is not one of {', '.join(_library.DTYPES)}")
            read.tensor, read.begin, read.end = self._number(request.name), request.begin, request.end
            read.dtype, read.out = _library.DTYPE_NUMBERS[request.dtype], request.out
        library.fsdp_reader_read(self._open_reader(), reads, len(requests), threads)

    def read_elements(self, name: str, begin: int, end: int, array: "ndarray") -> None:
        """Reads elements [begin, end), row-major, of a tensor to a contiguous array, as the dtype of the array.

        >>> checkpoint.read_elements("model/w", 0, 8, numpy.empty(8, "float32"))
        """
        if array.size != end - begin or not array.flags.c_contiguous:
            raise ValueError(f"{name}: {end - begin} elements, and an array of {array.size}, which must be contiguous")
        if end > begin:
            self.read_into([ReadRequest(name, begin, end, str(array.dtype), array.ctypes.data)])

    def numpy(self, name: str, dtype: object = None) -> "ndarray":
        """The tensor as a new NumPy array, as stored or as `dtype`, which may be a name or a type: "float32",
        numpy.float32. NumPy has no bfloat16 and no float8: they need ml_dtypes, or a `dtype`.

        >>> checkpoint.numpy("model/wte.weight", dtype="float32").mean()
        """
        import numpy

        from ._stored import numpy_dtype

        info = self.info(name)
        # A name first: numpy.dtype knows none of ml_dtypes' before that is imported.
        wanted = numpy_dtype(name, dtype or info.dtype) if isinstance(dtype or info.dtype, str) else numpy.dtype(dtype)
        array = numpy.empty(info.shape, wanted)
        self.read_elements(name, 0, info.numel, array)
        return array

    def torch(self, name: str, dtype: Optional["TorchDtype"] = None) -> "Tensor":
        """The tensor as a new torch.Tensor in host memory, as stored or as `dtype`.

        >>> checkpoint.torch("model/wte.weight", dtype=torch.float32).cuda()
        """
        import torch

        info = self.info(name)
        wanted = str(dtype).replace("torch.", "") if dtype is not None else info.dtype
        if not isinstance(getattr(torch, wanted, None), torch.dtype):
            raise TypeError(f"{name}: this torch has no {wanted}")
        tensor = torch.empty(info.shape, dtype=getattr(torch, wanted))
        self.read_into([ReadRequest(name, 0, info.numel, wanted, tensor.data_ptr())])
        return tensor

    def state_dict(self) -> Dict[str, "Tensor"]:
        """The model as load_state_dict takes it: all tensors below "model/", without that prefix, in one read.
        Shared parameters are one tensor under each of their names.

        >>> model.load_state_dict(checkpoint.state_dict())
        """
        import torch

        tensors, requests = {}, []
        for info in self._infos:
            if not info.name.startswith("model/"):
                continue
            tensor = torch.empty(info.shape, dtype=getattr(torch, info.dtype))
            tensors[info.name[len("model/") :]] = tensor
            requests.append(ReadRequest(info.name, 0, info.numel, info.dtype, tensor.data_ptr()))
        self.read_into(requests)
        for alias, name in self._aliases.items():
            tensors[alias[len("model/") :]] = tensors[name[len("model/") :]]
        return tensors


def _opened_again(path: str, options: Dict[str, Any]) -> Checkpoint:
    return Checkpoint(path, **options)


def open(
    path: Path,
    *,
    verify: bool = True,
    model_only: bool = False,
    skip_links: bool = False,
    layout: SourceLayout = None,
) -> Checkpoint:
    """Opens the file or directory at `path`: a checkpoint of ours, a directory of them (its newest that verifies),
    safetensors, a Hugging Face directory, a file of torch.save, a DCP directory, an HDF5 file. Reads metadata only;
    runs no code of the file. `verify=False` does not compare digests; `model_only` leaves out the optimizer of a torch
    file or DCP directory; `skip_links` opens an HDF5 file although it has links that are not followed. `layout` says
    what branches of a torch file or DCP directory are, if their structure does not tell: {"app.ema": "model"}, roles as
    of `ckpt --map`.

    >>> with fsdp_checkpoint.open("model.safetensors") as checkpoint:
    ...     print(list(checkpoint))
    """
    return Checkpoint(path, verify=verify, model_only=model_only, skip_links=skip_links, layout=layout)
