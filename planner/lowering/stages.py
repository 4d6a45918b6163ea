"""Work around the transformer: text encoders before it, the VAE's decoder after it."""

from costmodels.program.ops import Convolve, Loop, Matmul, Part, Tensor, Weight
from planner.lowering.scene import Scene
from planner.models.architecture import Encoder

SERIAL_SHARE = 0.2
"""Part of a VAE decode that does not split over GPUs: overlaps of tiles, joining, the first layers.

Published decodes reach 1.6 to 1.75 times on 2 GPUs and at most 3.3 on 8 (TensorRT-LLM's and
SGLang's reports), which a fifth reproduces: 1.67, 3.33.
"""


def text_encode(scene: Scene) -> Loop:
    """Run every encoder over the prompts: as many as forwards a step, so two with guidance."""
    body = tuple(_encoder(scene, encoder) for encoder in scene.model.encoders)
    return Loop(name="text_encode", count=1, body=body)


def _encoder(scene: Scene, encoder: Encoder) -> Loop:
    prompts = scene.share.batch * scene.share.passes
    x = Tensor(f"{encoder.name}.x", (prompts, encoder.tokens, encoder.hidden))
    width = max(1, round(encoder.parameters / encoder.layers / encoder.hidden))
    weight = Weight(
        name=f"encoder.{encoder.name}", rows=(Part(encoder.hidden),), columns=(Part(width),)
    )
    out = Tensor(f"{encoder.name}.y", (prompts, encoder.tokens, width))
    product = Matmul(x=x, weight=weight, out=out)
    return Loop(name=encoder.name, count=encoder.layers, body=(product,), layers=True)


def vae_decode(scene: Scene, degree: int) -> Loop:
    """Decode the latents to pixels, on `degree` GPUs where asked for."""
    vae = scene.model.vae
    if vae is None:
        return Loop(name="vae_decode", count=1, body=())
    share = SERIAL_SHARE + (1 - SERIAL_SHARE) / degree if degree > 1 else 1.0
    slower = vae.eager if scene.workload.slow_decoder else 1.0
    pixels = scene.share.batch * scene.workload.pixels * share * slower
    work = Convolve(
        name=vae.name,
        flop=pixels * vae.flop_per_pixel,
        traffic=pixels * vae.peak_bytes_per_pixel,
        planes=scene.model.latent is not None and scene.model.latent.temporal == 1,
    )
    return Loop(name="vae_decode", count=1, body=(work,))
