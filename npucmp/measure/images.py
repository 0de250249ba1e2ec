"""Small pictures of the first samples of an input that holds images: of both runs, on one scale of brightness."""

from __future__ import annotations

import math
from itertools import islice
from typing import Any, Optional, Sequence

import numpy as np
import numpy.typing as npt

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.errors import NpucmpError
from npucmp.measure.pairs import payload_of
from npucmp.model import ImageBatch, TensorRef
from npucmp.model.tensor_detail import image_axes

Array = npt.NDArray[Any]

IMAGES = 8  # pictures of all runs together
EDGE = 96  # pixels of the longer side of a picture
ELEMENTS = 1 << 24  # that are read of a tensor
READ = 1 << 16
VALUES = 8  # different values from which on a tensor of one channel is a picture and not a mask
LOST = (255, 0, 255)  # colour of a value that is not finite


def image_batch(
    tensors: Sequence[TensorRef], names: Sequence[str], context: ReadContext = ANYWHERE
) -> Optional[ImageBatch]:
    """Return pictures of the first samples of the same input of each run; None if a tensor cannot be read or holds no
    images. Only the first samples are read. Never raises for the content of a dump."""

    try:
        batches = [_samples(tensor, IMAGES // len(tensors), context) for tensor in tensors]
    except NpucmpError:
        return None
    if any(one is None for one in batches):
        return None
    pictures = [one for one in batches if one is not None]
    count = min(len(one) for one in pictures)
    pictures = [one[:count] for one in pictures]
    finite = np.concatenate([one[np.isfinite(one)] for one in pictures])
    if not len(finite) or (pictures[0].shape[-1] == 1 and len(np.unique(finite[: 1 << 16])) < VALUES):
        return None
    low, high = float(finite.min()), float(finite.max())
    if not 0 < high - low < math.inf:
        return None
    largest = None
    if len(pictures) > 1 and pictures[0].shape == pictures[1].shape:
        with np.errstate(all="ignore"):
            largest = float(np.nanmax(np.abs(pictures[0] - pictures[1]), initial=0.0))
    small = [[_thumbnail(sample, low, high) for sample in one] for one in pictures]
    sizes = [(int(one[0].shape[1]), int(one[0].shape[0])) for one in small]
    return ImageBatch(
        tuple(names),
        tuple(sizes),
        tuple(tuple(sample.tobytes() for sample in one) for one in small),
        low,
        high,
        largest,
    )


def _samples(tensor: TensorRef, most: int, context: ReadContext) -> Optional[Array]:
    """Return the first samples as N × H × W × C in float64; None without values or images."""

    from npucmp.dump.readers.values import blocks
    from npucmp.measure.kernel.numpy_kernel import widen

    payload = payload_of(tensor, context=context)
    axes = "" if payload is None else image_axes(tensor.dtype, payload.shape)
    if payload is None or not axes:
        return None
    each = math.prod(payload.shape[1:])
    count = min(payload.shape[0], most, ELEMENTS // each)
    if not count:
        return None
    found = islice(blocks(payload, READ, context=context), -(-count * each // READ))
    values = widen(np.concatenate([*map(np.array, found)])[: count * each])
    samples = values.reshape(count, *payload.shape[1:])
    return samples.transpose(0, 2, 3, 1) if axes == "NCHW" else samples


def _thumbnail(sample: Array, low: float, high: float) -> npt.NDArray[np.uint8]:
    """Return a sample of H × W × C as bytes of H × W × 3; cells of neighbouring elements are averaged."""

    factor = -(-max(sample.shape[:2]) // EDGE)
    height, width = (length // factor * factor for length in sample.shape[:2])
    cells = sample[:height, :width].reshape(height // factor, factor, width // factor, factor, -1)
    with np.errstate(all="ignore"):
        shades = (cells.mean(axis=(1, 3)) - low) / (high - low) * 255
    is_lost = ~np.isfinite(shades).all(axis=-1)
    found = np.clip(np.rint(np.nan_to_num(shades)), 0, 255).astype(np.uint8)
    found = np.array(np.broadcast_to(found, (*found.shape[:2], 3)))
    found[is_lost] = LOST
    return found
