"""A prompt to a picture by the runner: what diffusers is asked, what engines read, what they leave.

Text encoders, VAE and engines are stand-ins, the last in numpy; the steps are the model's.
"""

import json
from types import SimpleNamespace

import cosmos3model as cosmos3
import fluxmodel as flux
import numpy as np
import pytest
import wanmodel as wan
from computedmodels import made, model_in, save
from exportedfolders import as_built

from planner.export.export import files
from planner.export.files import write_folder
from planner.request.request import Request
from planner.strategies import parse_plan
from planner.tensorrt.runner import __main__ as command
from planner.tensorrt.runner import harness, pictures
from planner.tensorrt.runner.harness import given_from
from validate.tensorrt.numbers import Numbers, run_networks

torch = pytest.importorskip("torch")

STEPS = 3
SIGMAS = np.linspace(1, 0, STEPS + 1).astype(np.float32) ** 0.5


class Scheduler:
    """Steps of flow matching, as they were asked for."""

    def __init__(self, shift=None, **config):
        self.config, self.told = config, {"shift": shift}
        self.sigmas = torch.tensor(SIGMAS)
        self.timesteps = 1000 * self.sigmas[:-1]

    def set_timesteps(self, *counts, **told):
        self.told |= {"counts": counts, **told}


class Picture:
    """What was decoded; written as numbers."""

    def __init__(self, array):
        self.array = array

    def save(self, target):
        np.save(target, self.array)


def pipe_of(said, channels, text):
    """A pipeline's parts: their answers are random, and what they were asked is in `said`."""
    random = torch.Generator().manual_seed(1)

    def encode(**told):
        said["encode"] = told
        one, other = (torch.randn((1, *text), generator=random) for _ in range(2))
        said["text"] = one, other
        row = torch.randn((1, flux.POOLED), generator=random)
        return (one, other) if "negative_prompt" in told else (one, row, None)

    config = SimpleNamespace(
        scaling_factor=0.5, shift_factor=0.25, latents_mean=[0.5] * channels,
        latents_std=[2.0] * channels,
    )  # fmt: skip

    def condition(first, batch, channels, height, width, count, dtype, device, generator, noise):
        assert (first, dtype, device, generator) == ("first frame", noise.dtype, noise.device, None)
        said["frames"] = batch, channels, height, width, count
        said["condition"] = torch.randn((1, channels + 1, *noise.shape[2:]), generator=random)
        return noise, said["condition"]

    def tokenize(prompt, negative, **size):
        said["tokenized"] = prompt, negative, size
        return [3, 1, 4, 1, 5], [2, 7, 1]

    guard = SimpleNamespace(
        check_text_safety=lambda prompt: said["allowed"],
        check_video_safety=lambda frames: np.minimum(frames, 200),
    )

    def pixels(picture, height, width):
        """A picture's, or a mask's."""
        said[picture[0]] = torch.rand((1, 1, height, width), generator=random)
        if picture[0] == "mask.png":
            return said["mask.png"].round()
        return said[picture[0]].expand(-1, 3, -1, -1)

    def seen(pixels):
        said["pixels"] = pixels
        sides = (side // 8 for side in pixels.shape[-2:])
        said["seen"] = torch.randn((1, channels, *sides), generator=random)
        return SimpleNamespace(latent_dist=SimpleNamespace(sample=lambda generator: said["seen"]))

    def preprocess(picture, height, width):
        said["picture"] = picture, height, width
        return SimpleNamespace(float=lambda: "first frame")

    def encode_image(picture):
        said["context"] = torch.randn((1, 257, wan.PICTURE["image_dim"]), generator=random)
        return said["context"]

    def decode(latents, return_dict):
        said["latents"] = latents
        return (latents[:, :3],)

    return SimpleNamespace(
        encode_prompt=encode,
        scheduler=Scheduler(flow_shift=3.0, max_shift=1.2),
        vae=SimpleNamespace(config=config, dtype=torch.float32, decode=decode, encode=seen),
        image_processor=SimpleNamespace(
            postprocess=lambda x, output_type: [Picture(x.numpy())], preprocess=pixels
        ),
        mask_processor=SimpleNamespace(preprocess=pixels),
        video_processor=SimpleNamespace(
            postprocess_video=lambda x, output_type: x.numpy(), preprocess=preprocess
        ),
        encode_image=encode_image,
        tokenize_prompt=tokenize,
        safety_checker=guard if said["guarded"] else None,
        config=SimpleNamespace(use_native_flow_schedule=False, boundary_ratio=0.8),
        prepare_latents=condition,
        vae_scale_factor_spatial=16 if said["guarded"] else 8,
        vae_scale_factor_temporal=4,
    )


def test_a_prompt_becomes_a_video_of_cosmos_3(asked):
    """Its tokens with the prompt and without are of two lengths, both shorter than engines take."""
    words = ("a fox", "--negative", "a dog", "--output", "fox.npy")
    code, said = asked(cosmos3, cosmos3.CONFIG, cosmos3.SIZES, *words)

    assert code == 0
    size = {"num_frames": 5, "height": 96, "width": 128}
    assert said["tokenized"] == ("a fox", "a dog", size)
    inputs = said["inputs"]
    assert inputs["input.text#0"].tolist() == [[3, 1, 4, 1, 5]]
    assert inputs["input.text#1"].tolist() == [[2, 7, 1]]
    assert inputs["scale#0"].item() == 6
    wanted = looped(cosmos3, cosmos3.CONFIG, inputs, "input.video")
    image = pictures.image_of(wanted.astype(np.float32), said["plan"]["latents"])
    np.testing.assert_allclose(said["latents"], image * 2 + 0.5, atol=1e-3)
    assert np.load("fox.npy").max() <= 200 / 255  # as the guardrail gave it back


def test_branches_of_guidance_count_the_tokens_of_their_own_prompts(tmp_path):
    ranks = [{"samples": 2, "sample": 0, "forward": number} for number in range(2)]
    buffer = {"shape": [2, 1, 1], "start": 7, "counts": "input.text"}
    plan = {"ranks": ranks, "buffers": {"prompted#0": buffer, "turn": {"shape": [1, 1, 1]}}}
    folder = harness.Folder(path=tmp_path, plan=plan, documents=())
    harness.save(tmp_path / "inputs", "input.text#0", np.asarray([[4, 2, 9], [5, -1, -1]]))

    found = [harness.starts_of(folder, rank) for rank in range(2)]

    assert [one["prompted#0"].ravel().tolist() for one in found] == [[3, 1], [7, 7]]
    harness.save(tmp_path / "inputs", "input.text#1", np.ones((2, 8), np.int64))
    with pytest.raises(pictures.InputError, match=r"input.text#1: got prompts of \[8, 8\], wanted"):
        harness.starts_of(folder, 1)


def test_a_prompt_that_the_guardrail_refuses_is_one_line(asked, capsys):
    code, said = asked(cosmos3, cosmos3.CONFIG, cosmos3.SIZES, "a fox", allowed=False)

    assert code == 2
    assert "prompt: got one that the model's guardrail refuses" in capsys.readouterr().err
    assert "argv" not in said


def opened_picture(path):
    if path == "none.png":
        raise FileNotFoundError(2, "No such file", path)
    return SimpleNamespace(convert=lambda mode: (path, mode))


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Runs ``generate`` for a small model on stand-ins; gives what was said and the latents."""

    def generate(kind, config, sizes, *words, plan="single", allowed=True, made_of=1):
        said, weights = {}, tmp_path / "weights"
        parts = ["transformer", "transformer_2"][:made_of]
        for number, part in enumerate(parts):
            (weights / part).mkdir(parents=True)
            save(weights / part, config, checkpoint(kind, config, number))
        index = {part: ["diffusers", config["_class_name"]] for part in parts}
        (weights / "model_index.json").write_text(json.dumps(index))
        request = Request(model=str(weights), gpus=parse_plan(plan).gpus, steps=STEPS, **sizes)
        folder = write_folder(files(request, plan, "tensorrt"), str(tmp_path / "out"))
        opened = as_built(folder, weights)
        for each in harness.turns(opened, str(weights))[1:]:
            each.built.mkdir()
            for path in (path for one in each.documents for path in each.engines(one)):
                path.write_bytes(b"engine")
        latents = opened.plan["latents"]
        text = opened.plan["buffers"]["input.text#0"]["shape"][1:]
        said |= {"allowed": allowed, "guarded": kind is cosmos3}
        pipe = pipe_of(said, latents["channels"], text)
        libraries = {
            "torch": torch,
            "diffusers": SimpleNamespace(
                DiffusionPipeline=SimpleNamespace(
                    from_pretrained=lambda *_, **without: said.update(without=without) or pipe
                ),
                FlowMatchEulerDiscreteScheduler=lambda shift: said.setdefault(
                    "euler", Scheduler(shift)
                ),
            ),
            "PIL.Image": SimpleNamespace(open=opened_picture),
            "diffusers.utils": SimpleNamespace(
                export_to_video=lambda video, target, fps: np.save(target, video)
            ),
            "diffusers.pipelines.flux.pipeline_flux": SimpleNamespace(
                calculate_shift=lambda *told: said.setdefault("shift", told)
            ),
        }
        for room in (pictures, harness):
            monkeypatch.setattr(room, "import_module", libraries.__getitem__)
        monkeypatch.setattr(pictures, "find_spec", {"imageio": True}.get)

        def ranks(argv, world, limit, environment):
            said["argv"] = argv
            steps = int(argv[argv.index("--steps") + 1])
            said.setdefault("turns", []).append(steps)
            part = weights / parts["--second" in argv]
            (networks, order), source = made(part, plan, {"steps": STEPS, **sizes})
            order["steps"] = steps
            stored = {path.stem: np.load(path) for path in folder.glob("inputs/*")}
            said.setdefault("started", stored)
            for name, rows in harness.starts_of(opened, 0).items():
                order["buffers"][name]["start"] = rows
            counted = harness.counted(opened.plan)
            given = given_from(folder / "inputs", source.embedding, counted)
            numbers = Numbers(weights=source.weights, learned=source.learned, given=given)
            for rank, output in enumerate(run_networks(networks, order, numbers)):
                harness.save(folder / "results", f"output.rank{rank}", output)
                harness.save(folder / "results", f"times.rank{rank}", {"step_s": [1.0]})

        monkeypatch.setattr(command, "start", ranks)
        monkeypatch.chdir(tmp_path)
        code = command.main(["generate", *words, "--folder", str(folder)])
        said["inputs"] = {path.stem: np.load(path) for path in folder.glob("inputs/*")}
        said["pipe"], said["plan"] = pipe, opened.plan
        return code, said

    return generate


def checkpoint(kind, config, number):
    """Weights of one of two transformers: those of the second are another's but for their sizes."""
    return {name: array * 0.9**number for name, array in kind.checkpoint(config).items()}


def looped(kind, config, inputs, main, first=STEPS):
    """Latents after all steps, by the models in PyTorch and the sigmas.

    first : steps ahead of the second transformer's.
    """
    models = [model_in(checkpoint(kind, config, number), torch.float64) for number in range(2)]
    given = {name: torch.tensor(array).double() for name, array in inputs.items()}

    def forward(x, step, number):
        own = {name.partition("#")[0]: one for name, one in given.items() if name.endswith("#0")}
        own |= {n.partition("#")[0]: one for n, one in given.items() if n.endswith(f"#{number}")}
        own |= {main: x, "time": torch.full((1, 1, 1), 1000 * float(SIGMAS[step]))}
        return kind.predicted(config, *models[step >= first], own)

    x = given[f"{main}#0"]
    for step in range(STEPS):
        made = forward(x, step, 0)
        if "scale#0" in given:
            without = forward(x, step, 1)
            made = without + given["scale#0"] * (made - without)
        x[..., : made.shape[-1]] += (float(SIGMAS[step + 1]) - float(SIGMAS[step])) * made
    return x.numpy()


def test_a_prompt_becomes_a_picture(asked):
    """Every step is the model's at its own number, over two ranks."""
    code, said = asked(
        flux, flux.CONFIG, flux.SIZES, "a fox", "--seed", "5", "--output", "fox.npy",
        "--graph", plan="tp2",
    )  # fmt: skip

    assert code == 0
    assert said["encode"] == {
        "prompt": "a fox", "prompt_2": None, "max_sequence_length": flux.TOKENS,
    }  # fmt: skip
    assert said["shift"] == (flux.HIGH * flux.WIDE, 256, 4096, 0.5, 1.2)
    told = said["pipe"].scheduler.told
    np.testing.assert_allclose(told["sigmas"], [1, 2 / 3, 1 / 3])
    assert told["mu"] == said["shift"]
    assert said["argv"][2:4] == ["run", "--folder"]
    assert said["argv"][-1] == "--graph"
    inputs = said["inputs"]
    assert inputs["guidance#0"].item() == 3.5
    np.testing.assert_allclose(inputs["time#0"].ravel(), 1000 * SIGMAS[:-1])
    noise = torch.randn(
        (1, 4, 1, 2 * flux.HIGH, 2 * flux.WIDE), generator=torch.Generator().manual_seed(5)
    )
    rows = pictures.rows_of(noise.numpy(), said["plan"]["latents"])
    np.testing.assert_array_equal(inputs["input.image#0"], rows)
    wanted = looped(flux, flux.CONFIG, inputs, "input.image")
    image = pictures.image_of(wanted.astype(np.float32), said["plan"]["latents"])[:, :, 0]
    np.testing.assert_allclose(said["latents"], image / 0.5 + 0.25, atol=1e-4)
    np.testing.assert_array_equal(np.load("fox.npy"), said["latents"][:, :3])


def test_replicas_make_a_picture_each(asked):
    """Each begins with noise of its own; the first one's is decoded."""
    sizes = {**flux.SIZES, "batch": 2}
    code, said = asked(flux, flux.CONFIG, sizes, "a fox", "--output", "fox.npy", plan="dp2")

    assert code == 0
    rows = said["inputs"]["input.image#0"]
    assert len(rows) == 2
    assert not np.allclose(*rows)
    wanted = looped(flux, flux.CONFIG, said["inputs"], "input.image")[:1]
    image = pictures.image_of(wanted.astype(np.float32), said["plan"]["latents"])[:, :, 0]
    np.testing.assert_allclose(said["latents"], image / 0.5 + 0.25, atol=1e-4)


def test_what_fills_a_picture_is_guided_further(asked):
    words = ("a fox", "--picture", "fox.png", "--mask", "mask.png", "--output", "new.npy")
    _, said = asked(flux, flux.MASKED, flux.SIZES, *words)

    assert said["inputs"]["guidance#0"].item() == 30


@pytest.mark.parametrize(
    ("config", "words"),
    [(flux.PICTURE, ()), (flux.MASKED, ("--mask", "mask.png", "--guidance", "3.5"))],
)
def test_a_picture_is_made_after_another(asked, config, words):
    """Latents of the other, or of what stays of it, lie beside those that are made."""
    words = ("a fox", "--picture", "fox.png", *words, "--output", "new.npy")
    code, said = asked(flux, config, flux.SIZES, *words, plan="tp2")

    assert code == 0
    inputs, shown = said["inputs"], said["fox.png"].expand(-1, 3, -1, -1)
    assert inputs["guidance#0"].item() == 3.5
    beside = [(said["seen"] - 0.25) * 0.5]
    if config is flux.MASKED:
        anew = said["mask.png"].round()
        shown = shown * (1 - anew)
        high, wide = (side // 8 for side in anew.shape[-2:])
        points = anew.view(1, high, 8, wide, 8).permute(0, 2, 4, 1, 3)
        beside.append(points.reshape(1, 64, high, wide))
    torch.testing.assert_close(said["pixels"], shown)
    latents = said["plan"]["latents"]
    rows = pictures.rows_of(torch.cat(beside, 1)[:, :, None].numpy(), latents)
    np.testing.assert_array_equal(inputs["input.image#0"][..., flux.CHANNELS :], rows)
    wanted = looped(flux, config, inputs, "input.image")
    image = pictures.image_of(wanted.astype(np.float32), latents)[:, :, 0]
    np.testing.assert_allclose(said["latents"], image / 0.5 + 0.25, atol=1e-4)


def test_a_prompt_becomes_a_video(asked):
    """With guidance, by branches of one step each on a rank of its own."""
    words = ("a fox", "--negative", "a dog", "--guidance", "4", "--output", "fox.npy")
    code, said = asked(wan, wan.CONFIG, wan.SIZES, *words, plan="cfg2")

    assert code == 0
    assert said["encode"] == {
        "prompt": "a fox", "negative_prompt": "a dog", "max_sequence_length": wan.TOKENS,
    }  # fmt: skip
    assert said["euler"].told == {"shift": 3.0, "counts": (STEPS,)}
    inputs = said["inputs"]
    assert inputs["scale#0"].item() == 4
    for number, text in enumerate(said["text"]):
        np.testing.assert_array_equal(inputs[f"input.text#{number}"], text)
    wanted = looped(wan, wan.CONFIG, inputs, "input.video")
    image = pictures.image_of(wanted.astype(np.float32), said["plan"]["latents"])
    np.testing.assert_allclose(said["latents"], image * 2 + 0.5, atol=1e-3)
    np.testing.assert_array_equal(np.load("fox.npy"), said["latents"][0, :3])


def test_a_picture_becomes_a_video(asked):
    """Its latents and mask stay beside those that are made; both branches read what it shows."""
    config = {**wan.PICTURE, "in_channels": wan.MASKED["in_channels"]}
    code, said = asked(
        wan, config, wan.SIZES, "a fox", "--picture", "fox.png", "--output", "fox.npy", plan="tp2"
    )

    assert code == 0
    latents, inputs = said["plan"]["latents"], said["inputs"]
    sides = [n * each for n, each in zip(latents["grid"], latents["patch"], strict=True)]
    height, width = (8 * side for side in sides[1:])
    assert said["picture"] == (("fox.png", "RGB"), height, width)
    channels = wan.CHANNELS
    assert said["frames"] == (1, channels, height, width, 4 * (sides[0] - 1) + 1)
    for number in range(2):
        np.testing.assert_array_equal(inputs[f"input.image_context#{number}"], said["context"])
    rows = inputs["input.video#0"]
    beside = pictures.rows_of(said["condition"].numpy(), latents)
    np.testing.assert_array_equal(rows[..., 4 * channels :], beside)
    wanted = looped(wan, config, inputs, "input.video")
    image = pictures.image_of(wanted.astype(np.float32), latents)
    assert image.shape[1] == channels
    np.testing.assert_allclose(said["latents"], image * 2 + 0.5, atol=1e-3)


@pytest.mark.parametrize(
    ("config", "words"), [(wan.CONFIG, ()), (wan.MASKED, ("--picture", "fox.png"))]
)
def test_a_second_transformer_takes_over_where_there_is_less_noise(asked, config, words):
    code, said = asked(
        wan, config, wan.SIZES, "a fox", *words, "--output", "fox.npy", plan="cfg2", made_of=2
    )

    assert code == 0
    assert said["plan"]["transformers"] == 2
    assert {name for name in said["without"] if name.startswith("transformer")} == {
        "transformer", "transformer_2",
    }  # fmt: skip
    first = int(np.sum(SIGMAS[:-1] >= 0.8))
    assert said["turns"] == [first, STEPS - first]
    assert 0 < first < STEPS
    wanted = looped(wan, config, said["started"], "input.video", first)
    image = pictures.image_of(wanted.astype(np.float32), said["plan"]["latents"])
    np.testing.assert_allclose(said["latents"], image * 2 + 0.5, atol=1e-3)


@pytest.mark.parametrize(
    ("config", "words", "told"),
    [
        (flux.PICTURE, (), "--picture: got none, wanted one: that is what"),
        (flux.MASKED, ("--picture", "fox.png"), "--mask: got none, wanted one: that is what"),
        (flux.PICTURE, ("--picture", "a.png", "--mask", "b.png"), "--mask: got one, wanted none"),
        (wan.PICTURE, (), "--picture: got none, wanted one: that is what"),
        (wan.MASKED, (), "--picture: got none, wanted one: that is what"),
        (wan.CONFIG, ("--picture", "fox.png"), "--picture: got one, wanted none: that is what"),
        (wan.PICTURE, ("--picture", "none.png"), "--picture: got none.png, wanted a picture: "),
    ],
)
def test_pictures_are_of_models_that_read_them(asked, capsys, config, words, told):
    kind = flux if config in (flux.PICTURE, flux.MASKED) else wan
    code, said = asked(kind, config, kind.SIZES, "a fox", *words)

    assert code == 2
    assert told in capsys.readouterr().err
    assert "encode" not in said


def test_a_result_that_cannot_be_written_is_said_first(asked, capsys):
    code, said = asked(flux, flux.CONFIG, flux.SIZES, "a fox", "--output", "none/fox.png")

    assert code == 2
    assert "--output: got none/fox.png, wanted a file in a folder" in capsys.readouterr().err
    assert "argv" not in said


def test_what_writes_videos_is_missed_before_anything_runs(monkeypatch):
    monkeypatch.setattr(pictures, "import_module", lambda name: None)
    monkeypatch.setattr(pictures, "find_spec", lambda name: None)

    with pytest.raises(pictures.MissingError, match="nothing writes videos: pip install 'imageio"):
        pictures.opened("folder", {"family": "wan", "transformers": 1})


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"computes": False}, "m: networks for timing, which do not compute the model"),
        ({"computes": True, "family": "llama"}, "m: got llama, wanted flux or wan"),
    ],
)
def test_what_no_picture_comes_of_is_said(plan, said):
    with pytest.raises(pictures.InputError, match=said):
        pictures.check_made({"model": "m", "family": "", "buffers": {}, **plan})


def test_a_folder_that_is_no_pipeline_is_refused(tmp_path):
    with pytest.raises(
        pictures.InputError, match=r"--weights: got .*, wanted the folder of a diff"
    ):
        harness.pipeline_of(str(tmp_path))


def test_rows_and_latents_are_the_same_numbers():
    latents = json.loads('{"channels": 3, "grid": [2, 3, 4], "patch": [1, 2, 2]}')
    image = np.random.default_rng(0).standard_normal((2, 3, 2, 6, 8)).astype(np.float32)

    for last in (False, True):
        rows = pictures.rows_of(image, latents | {"channels_last": last})

        assert rows.shape == (2, 24, 12)
        again = pictures.image_of(rows, latents | {"channels_last": last})
        np.testing.assert_array_equal(again, image)
    np.testing.assert_array_equal(rows[0, 0], image[0, :, 0, :2, :2].transpose(1, 2, 0).ravel())
