# SPDX-License-Identifier: Apache-2.0
"""Python's values as the bytes of torch.save and back."""

import io
from typing import Any

import torch

UNREADABLE = object()


def value_of_pickle(data: bytes) -> Any:
    """The value that torch.save wrote as `data`; an exception of torch.load for one that weights_only refuses."""
    return torch.load(io.BytesIO(data), weights_only=True)


def readable_value(data: bytes) -> Any:
    """The value that torch.save wrote, or UNREADABLE."""
    try:
        return value_of_pickle(data)
    except Exception:  # torch.load raises many: such a value is kept as its bytes
        return UNREADABLE


def pickle_of_value(value: Any) -> io.BytesIO:
    """The form in which planners take a value: the bytes of torch.save."""
    data = io.BytesIO()
    torch.save(value, data)
    data.seek(0)
    return data
