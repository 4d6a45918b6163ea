"""A prompt to a picture or a video: what stands around a plan's engines, by diffusers itself.

Text encoders and the scheduler give what engines read, of every step ahead; the engines run them
all; the VAE decodes what they leave. A picture that a video begins with is encoded by both.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.tensorrt.runner.errors import InputError, MissingError
from planner.tensorrt.runner.library import Document, Foreign
from planner.tensorrt.runner.texts import padded

Arrays = dict[str, NDArray[np.generic]]
"""Inputs by the names of their files, ``NAME#FORWARD``."""
FRAMES_A_SECOND: Final = {"wan": 16, "cosmos3": 24}
ENDS: Final = {"flux": ".png", "wan": ".mp4", "cosmos3": ".mp4"}
"""By family of models that are made, the end of a result's name."""
PIXELS: Final = 64
"""Of a picture, for each point of its latents."""
CONTEXT: Final = "input.image_context"
"""What layers read of a picture."""
_TRANSFORMERS: Final = ("transformer", "transformer_2")
"""Of a pipeline, by attribute; the second takes over in later steps where there are two."""
WRITERS: Final = ("imageio", "cv2")
"""Packages that diffusers writes videos with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked of a model. guidance : how far, the model's usual where None.

    picture : the first frame, or what a picture is made after, where the model reads one.
    mask : white where a picture is made anew, where the model reads that too.
    """

    prompt: str
    negative: str = ""
    seed: int = 0
    guidance: float | None = None
    picture: Foreign = None
    mask: Foreign = None


def check_made(plan: Document) -> str:
    """Return the end of a result's name.

    Raises `InputError` if nothing here makes results of the plan's model.
    """
    name, family = plan["model"], plan["family"]
    latents = plan.get("latents")
    if not plan["computes"]:
        raise InputError(f"{name}: networks for timing, which do not compute the model")
    if latents is None or family not in ENDS:
        raise InputError(f"{name}: got {family}, wanted {' or '.join(ENDS)}")
    beside = _beside(plan)
    if family == "flux" and beside not in (0, _features(latents), _masked(latents)):
        raise InputError(f"{name}: got {beside} features beside latents, wanted a picture's")
    return ENDS[family]


def given_to(plan: Document) -> set[str]:
    """Name what a plan's engines are given."""
    return {buffer["given"]["name"] for buffer in plan["buffers"].values() if buffer["given"]}


def reads_picture(plan: Document) -> bool:
    """Whether a plan of a diffusion model reads a picture beside the prompt."""
    return CONTEXT in given_to(plan) or _beside(plan) > 0


def reads_mask(plan: Document) -> bool:
    """Whether a plan reads which part of a picture is made anew."""
    return plan["family"] == "flux" and _beside(plan) == _masked(plan["latents"])


def _beside(plan: Document) -> int:
    """Count the features of a picture, and of its mask, behind those that are made."""
    return int(plan["buffers"][plan["output"]]["shape"][-1] - _features(plan["latents"]))


def _masked(latents: Document) -> int:
    """Count the features of a row of a picture's latents and its mask, a number for each pixel."""
    return _features(latents) + prod(latents["patch"]) * PIXELS


def _features(latents: Document) -> int:
    """Count the features of a row of latents that are made."""
    return int(latents["channels"] * prod(latents["patch"]))


def opened(folder: str, plan: Document) -> Foreign:
    """Load a pipeline's folder but for the transformers of a plan.

    Raises `MissingError` if diffusers, or what it writes videos with, is not installed, and
    `InputError` if the folder holds no pipeline, or one of two transformers for a plan of one.
    """
    without = dict.fromkeys(_TRANSFORMERS[: plan["transformers"]])
    try:
        torch, diffusers = import_module("torch"), import_module("diffusers")
    except ImportError as error:
        remedy = "pip install 'torch>=2.6,<3' 'diffusers>=0.42,<1' 'transformers>=4.51,<6'"
        raise MissingError(f"generate: {error}: {remedy}") from None
    if ENDS[plan["family"]] == ENDS["wan"] and not any(find_spec(name) for name in WRITERS):
        remedy = "pip install 'imageio>=2.34,<3' 'imageio-ffmpeg>=0.5,<1'"
        raise MissingError(f"generate: nothing writes videos: {remedy}")
    try:
        pipe = diffusers.DiffusionPipeline.from_pretrained(
            folder, torch_dtype=torch.bfloat16, **without
        )
    except ImportError as error:  # such as of what judges prompts
        raise MissingError(f"generate: {error}") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{folder}: no pipeline of diffusers: {error}") from None
    if getattr(pipe, _TRANSFORMERS[1], None) is not None:
        raise InputError(f"{folder}: two transformers take turns, and engines are of one")
    return pipe


def prepared(pipe: Foreign, plan: Document, asked: Asked) -> Arrays:
    """Encode the prompt, and lay out what all steps read."""
    torch, latents = import_module("torch"), plan["latents"]
    batch, steps = plan["ranks"][0]["samples"], plan["steps"]
    with torch.no_grad():
        prepared_inputs = _PREPARED[plan["family"]](pipe, plan, asked)
    scheduler = prepared_inputs.pop("scheduler")
    numbers, sigmas = (
        np.asarray(tensor.cpu().float().numpy(), np.float32)
        for tensor in (scheduler.timesteps, scheduler.sigmas)
    )
    generator = torch.Generator().manual_seed(asked.seed)
    noise = torch.randn((batch, latents["channels"], *_sides(latents)), generator=generator)
    with torch.no_grad():
        if CONTEXT in given_to(plan):
            context = _numbers(pipe.encode_image(asked.picture))
            prepared_inputs |= dict.fromkeys((CONTEXT, f"{CONTEXT}#1"), context)
        if _beside(plan):
            beside = _BESIDE[plan["family"]](pipe, noise, asked, generator)
            noise = torch.cat([noise, beside], dim=1)
    prepared_inputs |= {
        plan["output"]: rows_of(noise.numpy(), latents),
        "time": numbers[:steps].reshape(1, steps, 1),
        "change": np.diff(sigmas)[:steps].reshape(1, steps, 1),
    }
    given_names = given_to(plan)
    return {
        name if "#" in name else f"{name}#0": np.repeat(array, batch // len(array), axis=0)
        for name, array in prepared_inputs.items()
        if name.partition("#")[0] in given_names
    }


def taken_turns(pipe: Foreign, plan: Document, inputs: Arrays) -> tuple[int, ...]:
    """Count the steps of each transformer: the first has those of the most noise."""
    every, most = plan["steps"], pipe.scheduler.config.get("num_train_timesteps", 1000)
    ratio = pipe.config.boundary_ratio if plan["transformers"] > 1 else None
    if ratio is None:
        return (every,)
    first = int(np.count_nonzero(inputs["time#0"] >= ratio * most))
    return first, every - first


def passed_on(inputs: Arrays, steps: int, name: str, rows: NDArray[np.generic]) -> Arrays:
    """Lay out what later steps read, after so many that left rows of latents; name : of those."""
    later = {key: np.roll(inputs[key], -steps, axis=1) for key in ("time#0", "change#0")}
    return {**inputs, **later, f"{name}#0": rows}


def _frame(pipe: Foreign, noise: Foreign, asked: Asked, _: Foreign) -> Foreign:
    """Give a first frame's latents, and the mask of what is known."""
    batch, channels, frames, *sides = noise.shape
    height, width = (side * pipe.vae_scale_factor_spatial for side in sides)
    count = (frames - 1) * pipe.vae_scale_factor_temporal + 1
    first = pipe.video_processor.preprocess(asked.picture, height=height, width=width).float()
    _, condition = pipe.prepare_latents(
        first, batch, channels, height, width, count, noise.dtype, noise.device, None, noise
    )
    return condition


def _picture(pipe: Foreign, noise: Foreign, asked: Asked, generator: Foreign) -> Foreign:
    """Give a picture's latents; those of what stays, and each pixel's mask, where it has one."""
    torch, known = import_module("torch"), pipe.vae.config
    size = dict(zip(("height", "width"), (8 * side for side in noise.shape[-2:]), strict=True))
    pixels, points = pipe.image_processor.preprocess(asked.picture, **size), []
    if asked.mask is not None:
        anew = pipe.mask_processor.preprocess(asked.mask, **size)
        pixels = pixels * (1 - anew)
        points = [torch.nn.functional.pixel_unshuffle(anew, 8).float()]
    seen = pipe.vae.encode(pixels.to(pipe.vae.dtype)).latent_dist.sample(generator).float()
    beside = torch.cat([(seen - known.shift_factor) * known.scaling_factor, *points], dim=1)
    return beside[:, :, None].expand(len(noise), -1, -1, -1, -1)


_BESIDE: Final[Mapping[str, Callable[[Foreign, Foreign, Asked, Foreign], Foreign]]] = {
    "flux": _picture,
    "wan": _frame,
}
"""What lies beside latents, by family of models that read it there."""


def _flux(pipe: Foreign, plan: Document, asked: Asked) -> dict[str, Foreign]:
    pipeline = import_module("diffusers.pipelines.flux.pipeline_flux")
    shape, steps = plan["buffers"]["input.text#0"]["shape"], plan["steps"]
    text, pooled, _ = pipe.encode_prompt(
        prompt=asked.prompt, prompt_2=None, max_sequence_length=shape[1]
    )
    scheduler, config = pipe.scheduler, pipe.scheduler.config
    config_names = ("base_image_seq_len", "max_image_seq_len", "base_shift", "max_shift")
    values = (256, 4096, 0.5, 1.15)
    shift_values = [
        config.get(name, value) for name, value in zip(config_names, values, strict=True)
    ]
    shift = pipeline.calculate_shift(prod(plan["latents"]["grid"]), *shift_values)
    scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=shift)
    default_values = 3.5 if asked.mask is None else 30.0
    guidance = default_values if asked.guidance is None else asked.guidance
    return {
        "input.text": _numbers(text),
        "pooled": _numbers(pooled)[:, None],
        "guidance": np.full((1, 1, 1), guidance, np.float32),
        "scheduler": scheduler,
    }


def _wan(pipe: Foreign, plan: Document, asked: Asked) -> dict[str, Foreign]:
    """Encode for Wan; steps are Euler's, with the shift of the pipeline's own scheduler."""
    diffusers = import_module("diffusers")
    shape = plan["buffers"]["input.text#0"]["shape"]
    text, negative_text = pipe.encode_prompt(
        prompt=asked.prompt, negative_prompt=asked.negative, max_sequence_length=shape[1]
    )
    shift = pipe.scheduler.config.get("flow_shift", 1.0)
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=shift)
    scheduler.set_timesteps(plan["steps"])
    guidance = 5.0 if asked.guidance is None else asked.guidance
    return {
        "input.text": _numbers(text),
        "input.text#1": _numbers(negative_text),
        "scale": np.full((1, 1, 1), guidance, np.float32),
        "scheduler": scheduler,
    }


def _cosmos3(pipe: Foreign, plan: Document, asked: Asked) -> dict[str, Foreign]:
    """Count tokens for Cosmos 3, whose engines read them; steps are at the pipeline's own noise."""
    guard, max_tokens = pipe.safety_checker, plan["buffers"]["input.text#0"]["shape"][1]
    if guard is not None and not guard.check_text_safety(asked.prompt):
        raise InputError("prompt: got one that the model's guardrail refuses")
    frames, height, width = _pixels(pipe, plan)
    token_lists = pipe.tokenize_prompt(
        asked.prompt, asked.negative, num_frames=frames, height=height, width=width
    )
    longest = max(map(len, token_lists))
    if longest > max_tokens:
        expected = f"at most {max_tokens} (planner export --text-tokens)"
        raise InputError(
            f"prompt: got {longest} tokens with what the model adds, wanted {expected}"
        )
    noise = {}
    if pipe.config.use_native_flow_schedule:
        first_sigma = 1 - 1 / pipe.scheduler.config.num_train_timesteps
        noise = {"sigmas": np.linspace(first_sigma, 0.0, plan["steps"] + 1)[:-1]}
    pipe.scheduler.set_timesteps(plan["steps"], **noise)
    guidance = 6.0 if asked.guidance is None else asked.guidance
    return {
        "input.text": padded(token_lists[:1]),
        "input.text#1": padded(token_lists[1:]),
        "scale": np.full((1, 1, 1), guidance, np.float32),
        "scheduler": pipe.scheduler,
    }


def _pixels(pipe: Foreign, plan: Document) -> tuple[int, int, int]:
    """Count frames, rows and columns of a video.

    Raises `InputError` if patches of latents reach beyond those that were asked for.
    """
    frames, *sides = _sides(plan["latents"])
    height, width = (side * pipe.vae_scale_factor_spatial for side in sides)
    for name, actual in (("height", height), ("width", width)):
        asked = plan["request"][name]
        if asked is not None and asked != actual:
            raise InputError(
                f"{name}: got {asked}, wanted {actual}, whose latents are whole patches"
            )
    return (frames - 1) * pipe.vae_scale_factor_temporal + 1, height, width


def _sides(latents: Document) -> list[int]:
    """Frames, rows and columns of latents."""
    return [n * patch for n, patch in zip(latents["grid"], latents["patch"], strict=True)]


_PREPARED: Final[Mapping[str, Callable[[Foreign, Document, Asked], dict[str, Foreign]]]] = {
    "flux": _flux,
    "wan": _wan,
    "cosmos3": _cosmos3,
}


def _numbers(tensor: Foreign) -> NDArray[np.float32]:
    return np.asarray(tensor.cpu().float().numpy(), np.float32)


_FIRST: Final = (0, 2, 4, 6, 1, 3, 5, 7)
_LAST: Final = (0, 2, 4, 6, 3, 5, 7, 1)
"""Order of axes in rows of patches: channels ahead of a patch's points, or behind them."""


def rows_of(image: NDArray[np.float32], latents: Document) -> NDArray[np.float32]:
    """Lay latents ``[b, channels, frames, height, width]`` out as rows of patches.

    >>> latents = {"channels": 1, "grid": [1, 1, 2], "patch": [1, 2, 2], "channels_last": False}
    >>> image = np.arange(8, dtype=np.float32).reshape(1, 1, 1, 2, 4)
    >>> rows_of(image, latents).tolist()
    [[[0.0, 1.0, 4.0, 5.0], [2.0, 3.0, 6.0, 7.0]]]
    """
    split_sides = [n for pair in zip(latents["grid"], latents["patch"], strict=True) for n in pair]
    patches = image.reshape(*image.shape[:2], *split_sides)
    rows = patches.transpose(_LAST if latents["channels_last"] else _FIRST)
    return rows.reshape(len(image), prod(latents["grid"]), -1)


def image_of(rows: NDArray[np.float32], latents: Document) -> NDArray[np.float32]:
    """Lay rows of patches out as latents: the way back of `rows_of`, without a picture's."""
    patch, grid = latents["patch"], latents["grid"]
    channels, channels_last = latents["channels"], latents["channels_last"]
    features = (*patch, channels) if channels_last else (channels, *patch)
    patches = rows[..., : _features(latents)].reshape(len(rows), *grid, *features)
    image = patches.transpose(np.argsort(_LAST if channels_last else _FIRST))
    return image.reshape(len(rows), latents["channels"], *_sides(latents))


def decoded(pipe: Foreign, plan: Document, rows: NDArray[np.float32], target: str) -> None:
    """Decode the latents of the first sample, and write the picture or video."""
    torch, vae = import_module("torch"), pipe.vae
    image = torch.tensor(image_of(rows[:1], plan["latents"]))
    with torch.no_grad():
        if plan["family"] == "flux":
            config = vae.config
            image = image[:, :, 0] / config.scaling_factor + config.shift_factor
            pixels = vae.decode(image.to(vae.dtype), return_dict=False)[0]
            pipe.image_processor.postprocess(pixels, output_type="pil")[0].save(target)
            return
        mean, spread = (
            torch.tensor(statistic).reshape(1, -1, 1, 1, 1)
            for statistic in (vae.config.latents_mean, vae.config.latents_std)
        )
        frames = vae.decode((image * spread + mean).to(vae.dtype), return_dict=False)[0]
    video = pipe.video_processor.postprocess_video(frames.float(), output_type="np")[0]
    guard = getattr(pipe, "safety_checker", None)
    if guard is not None:
        checked_video = guard.check_video_safety((video * 255).astype(np.uint8))
        if checked_video is None:
            raise InputError("prompt: got a video of it that the model's guardrail refuses")
        video = checked_video / np.float32(255)
    rate = FRAMES_A_SECOND[plan["family"]]
    import_module("diffusers.utils").export_to_video(video, target, fps=rate)
