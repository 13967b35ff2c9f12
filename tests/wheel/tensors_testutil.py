# SPDX-License-Identifier: Apache-2.0
"""Random tensors of every form that torch has, in nested dicts, and tensors that have no values to save."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

DTYPES = [
    getattr(torch, name)
    for name in "float64 float32 bfloat16 float16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz "
    "float8_e8m0fnu int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool complex32 complex64 complex128".split()
]
# torch negates and conjugates these lazily.
NEGATED = {torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16}
CONJUGATED = {torch.complex64, torch.complex128}


class Subclass(torch.Tensor):
    """Has its elements itself; __torch_function__ gives Subclass for every operation."""


class Wrapper(torch.Tensor):
    """Has its elements in another tensor."""

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), named=None):
        def unwrap(value):
            return value.inner if isinstance(value, Wrapper) else value

        result = function(*map(unwrap, arguments), **{k: unwrap(v) for k, v in (named or {}).items()})
        return Wrapper(result) if isinstance(result, torch.Tensor) else result


def memory(generator, numel, dtype):
    """`numel` elements: numbers that every dtype has, so that negation and conjugation change no NaN's payload."""
    parts = 2 if dtype.is_complex else 1
    numbers = torch.tensor([generator.randrange(0, 9) for _ in range(numel * parts)])
    if dtype.is_complex:
        half = {torch.complex32: torch.float16, torch.complex64: torch.float32}.get(dtype, torch.float64)
        return torch.view_as_complex((numbers - 4).to(half).reshape(numel, 2))
    if dtype.is_signed and dtype != torch.float8_e8m0fnu:
        numbers -= 4
    return (numbers % 2 if dtype == torch.bool else numbers).to(dtype)


def strided(generator, dtype):
    """A view with any strides and storage offset; its elements may overlap, and its size be 0."""
    shape = [generator.choice((0, 1, 2, 3, 5)) for _ in range(generator.randrange(5))]
    strides = [generator.choice((0, 1, 2, 7, 15)) for _ in shape]
    if generator.random() < 0.3:
        strides = torch.empty(shape).stride()
    offset = generator.randrange(4)
    end = offset + 1 + sum(max(0, size - 1) * stride for size, stride in zip(shape, strides))
    return memory(generator, end + generator.randrange(3), dtype).as_strided(shape, strides, offset)


def lazy(generator, tensor):
    """Perhaps a view of it that torch computes when it is used."""
    if tensor.dtype in CONJUGATED and generator.random() < 0.7:
        tensor = tensor.conj()
        return tensor.imag if generator.random() < 0.3 else tensor
    return torch._neg_view(tensor) if tensor.dtype in NEGATED and generator.random() < 0.5 else tensor


def random_tensor(generator):
    tensor = lazy(generator, strided(generator, generator.choice(DTYPES)))
    kind = generator.random()
    if kind < 0.2:
        return tensor.as_subclass(Subclass)
    if kind < 0.4:
        return torch.nn.Parameter(tensor, requires_grad=tensor.is_floating_point() or tensor.is_complex())
    return tensor


def random_dict(generator, leaf=random_tensor, depth=3):
    """Nested dicts with tensors, texts and numbers; the names have dots, slashes and letters of any script."""
    state = {}
    for number in range(generator.randrange(1, 5)):
        name = f"{generator.choice(('w', 'a.b', 'x/y', 'é', ' ', '数', 'model', 'optim'))}{number}"
        kind = generator.random()
        if depth > 0 and kind < 0.3:
            state[name] = random_dict(generator, leaf, depth - 1)
        else:
            state[name] = generator.choice((7, "text", 2.5, 2**80)) if kind < 0.4 else leaf(generator)
    return state


def mapped(state, function):
    """The state with function(tensor) for each tensor."""
    if isinstance(state, dict):
        return {name: mapped(value, function) for name, value in state.items()}
    return function(state) if isinstance(state, torch.Tensor) else state


def tensors_of(state, prefix=""):
    """(DCP's name, tensor) of each tensor."""
    for name, value in state.items():
        if isinstance(value, dict):
            yield from tensors_of(value, f"{prefix}{name}.")
        elif isinstance(value, torch.Tensor):
            yield prefix + name, value


def resized(nbytes, step=1):
    """Every `step`th of 1,000 elements, after their storage has been made smaller."""
    tensor = torch.ones(1000)[::step]
    tensor.untyped_storage().resize_(nbytes)
    return tensor


def without_values():
    """Tensors that a checkpoint cannot have, each with a part of the reason that is given."""
    with FakeTensorMode():
        fake = torch.ones(3)
    return {
        "sparse": (torch.eye(3).to_sparse(), "layout is torch.sparse_coo"),
        "quantized": (torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "torch.qint8"),
        "meta": (torch.ones(3, device="meta"), "meta device"),
        "fake": (fake, "a FakeTensor keeps its elements elsewhere"),
        "wrapper": (Wrapper(torch.ones(3)), "a Wrapper keeps its elements elsewhere"),
        "functional": (torch._to_functional_tensor(torch.ones(3)), "no memory of its own"),
        "freed": (resized(0), "0 bytes, and its elements need 4000"),
        "cut": (resized(2000), "2000 bytes, and its elements need 4000"),
        "cut view": (resized(2000, step=3), "2000 bytes, and its elements need 4000"),
    }
