"""From the size of an image or video to the length of every stream.

.. math:: T = ceil((1 + floor((F - 1) / temporal)) / patch_frames)
.. math:: N = T * ceil(ceil(H / spatial) / patch_height) * ceil(ceil(W / spatial) / patch_width)

for H x W pixels and F frames. Sizes that are not whole tokens are refused, rounded up as written,
or rounded down (`Latent.rounds`), as the model's pipeline does [1]_. Frames are rounded down to
whole latents, as Wan's own repository and TensorRT-LLM do; diffusers takes 80 of Wan's for 81.

References
----------
.. [1] diffusers, ``pipelines/flux/pipeline_flux.py``, as in those of Qwen-Image and HiDream
"""

from typing import Final

from costmodels.sizes import Size, any_true, ceil_div
from planner.models.architecture import Latent, Model, Stream
from topology.base import InputError

_LARGEST_SIDE: Final = 2**16
_MOST_FRAMES: Final = 2**16
_MOST_TEXT: Final = 2**20


def lengths(
    model: Model, height: Size, width: Size, frames: Size, text_tokens: int | None = None
) -> dict[str, Size]:
    """Count the tokens of every stream of a diffusion model.

    model : with a `latent`.
    height, width, frames : pixels and frames; numbers, or arrays that broadcast together.
    text_tokens : length of the prompt's stream, the usual one if None.

    Raises `InputError` if the autoencoder or the patches cannot take such a size.

    1280 x 720 pixels are 80 x 45 latents and, in patches of two rounded up, 40 x 23 tokens;
    189 frames are 1 + 188 / 4 = 48 latent frames.

    >>> from planner.models import read_model
    >>> lengths(read_model("cosmos3"), 720, 1280, 189)["video"] == 48 * 23 * 40 == 44160
    True
    """
    latent = model.latent
    if latent is None:
        raise InputError(f"{model.name}: got an image size, wanted a number of tokens")
    _check_sizes(model, latent, height, width, frames)
    if text_tokens is not None:
        _check_range("text tokens", text_tokens, _MOST_TEXT)
    images, rows, columns = grid(latent, height, width, frames)
    grid_tokens = images * rows * columns
    return {
        stream.name: _length(stream, grid_tokens, frames, text_tokens) for stream in model.streams
    }


def latent_frames(latent: Latent, frames: Size) -> Size:
    """Count frames after the autoencoder, the first one alone.

    >>> latent_frames(Latent(spatial=8, temporal=4, channels=16), 81)
    21
    """
    return 1 + (frames - 1) // latent.temporal


def line_of(latent: Latent, width: Size) -> Size:
    """Count the tokens of a line of the image.

    >>> line_of(Latent(spatial=32, temporal=1, channels=32, patch_height=1, patch_width=1), 1024)
    32
    """
    return _side(latent, width, latent.patch_width)


def grid(latent: Latent, height: Size, width: Size, frames: Size) -> tuple[Size, Size, Size]:
    """Count the tokens of a video along its frames, rows and columns.

    >>> latent = Latent(spatial=8, temporal=4, channels=16, patch_height=2, patch_width=2)
    >>> grid(latent, 720, 1280, 129)
    (33, 45, 80)
    """
    images = ceil_div(latent_frames(latent, frames), latent.patch_frames)
    return images, _side(latent, height, latent.patch_height), line_of(latent, width)


def sides_made(latent: Latent | None, height: int, width: int) -> tuple[int, int]:
    """Round sides in pixels down to whole tokens, where the pipeline does.

    >>> sides_made(Latent(spatial=8, temporal=1, channels=16, rounds="down"), 1000, 1024)
    (992, 1024)
    """
    if latent is None or latent.rounds != "down":
        return height, width
    row_step, column_step = (
        latent.spatial * latent.patch_height,
        latent.spatial * latent.patch_width,
    )
    return height - height % row_step, width - width % column_step


def _side(latent: Latent, side: Size, patch: int) -> Size:
    if latent.rounds == "down":
        return side // (latent.spatial * patch)
    return ceil_div(ceil_div(side, latent.spatial), patch)


def _length(stream: Stream, grid_tokens: Size, frames: Size, text_tokens: int | None) -> Size:
    if stream.name == "text" and text_tokens is not None:
        tokens: Size = text_tokens
    elif stream.per_frame:
        tokens = _whole_tokens(frames, stream.per_frame)
    else:
        tokens = stream.tokens or grid_tokens
    return ceil_div(tokens, stream.multiple) * stream.multiple


def _whole_tokens(count: Size, rate: float) -> Size:
    """Count whole tokens at `rate` a frame, one at least."""
    if isinstance(count, int):
        return max(round(count * rate), 1)
    import numpy as np  # noqa: PLC0415  # what describes a model needs no arrays

    tokens: Size = np.maximum(np.rint(count * rate), 1).astype(np.int64)
    return tokens


def _check_sizes(model: Model, latent: Latent, height: Size, width: Size, frames: Size) -> None:
    sides = (
        ("height", height, latent.spatial * latent.patch_height),
        ("width", width, latent.spatial * latent.patch_width),
    )
    for name, side, step in sides:
        _check_range(name, side, _LARGEST_SIDE)
        if latent.rounds == "down" and any_true(side < step):
            raise InputError(f"{name}: got {_count_text(side)}, wanted {step} at least")
        if not latent.rounds and any_true(side % step):
            raise InputError(
                f"{name}: got {_count_text(side)}, wanted {_nearest_multiples(side, step)}"
            )
    _check_range("frames", frames, _MOST_FRAMES)
    if latent.temporal == 1 and any_true(frames != 1):
        raise InputError(
            f"frames: got {_count_text(frames)}, wanted 1: {model.name} makes one image"
        )


def _check_range(name: str, count: Size, maximum: int) -> None:
    kind = getattr(getattr(count, "dtype", None), "kind", "i" if type(count) is int else "")
    if kind not in ("i", "u") or any_true(count < 1) or any_true(count > maximum):
        raise InputError(f"{name}: got {_count_text(count)}, wanted a whole number 1 to {maximum}")


def _nearest_multiples(side: Size, step: int) -> str:
    multiple_text = f"a multiple of {step}"
    if not isinstance(side, int):
        return multiple_text
    below, above = side // step * step, ceil_div(side, step) * step
    return f"{multiple_text} ({below} or {above})" if below else f"{multiple_text} ({above})"


def _count_text(count: Size) -> str:
    return ascii(count)[:60] if isinstance(count, int | str | float) else "an array"
