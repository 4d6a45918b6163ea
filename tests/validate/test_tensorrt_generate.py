"""A prompt to a picture by the runner: what diffusers is asked, what engines read, what they leave.

Text encoders, VAE and engines are stand-ins, the last in numpy; the steps are the model's.
"""

import json
from types import SimpleNamespace

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

    def decode(latents, return_dict):
        said["latents"] = latents
        return (latents[:, :3],)

    return SimpleNamespace(
        encode_prompt=encode,
        scheduler=Scheduler(flow_shift=3.0, max_shift=1.2),
        vae=SimpleNamespace(config=config, dtype=torch.float32, decode=decode),
        image_processor=SimpleNamespace(postprocess=lambda x, output_type: [Picture(x.numpy())]),
        video_processor=SimpleNamespace(postprocess_video=lambda x, output_type: x.numpy()),
    )


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Runs ``generate`` for a small model on stand-ins; gives what was said and the latents."""

    def generate(kind, config, sizes, *words, plan="single"):
        said, weights = {}, tmp_path / "weights"
        (weights / "transformer").mkdir(parents=True)
        save(weights / "transformer", config, kind.checkpoint(config))
        index = {"transformer": ["diffusers", config["_class_name"]]}
        (weights / "model_index.json").write_text(json.dumps(index))
        request = Request(model=str(weights), gpus=parse_plan(plan).gpus, steps=STEPS, **sizes)
        folder = write_folder(files(request, plan, "tensorrt"), str(tmp_path / "out"))
        opened = as_built(folder, weights)
        latents = opened.plan["latents"]
        text = opened.plan["buffers"]["input.text#0"]["shape"][1:]
        pipe = pipe_of(said, latents["channels"], text)
        libraries = {
            "torch": torch,
            "diffusers": SimpleNamespace(
                DiffusionPipeline=SimpleNamespace(from_pretrained=lambda *_, **__: pipe),
                FlowMatchEulerDiscreteScheduler=lambda shift: said.setdefault(
                    "euler", Scheduler(shift)
                ),
            ),
            "diffusers.utils": SimpleNamespace(
                export_to_video=lambda video, target, fps: np.save(target, video)
            ),
            "diffusers.pipelines.flux.pipeline_flux": SimpleNamespace(
                calculate_shift=lambda *told: said.setdefault("shift", told)
            ),
        }
        monkeypatch.setattr(pictures, "import_module", libraries.__getitem__)
        monkeypatch.setattr(pictures, "find_spec", {"imageio": True}.get)

        def ranks(argv, world, limit, environment):
            said["argv"] = argv
            (networks, order), source = made(weights, plan, {"steps": STEPS, **sizes})
            given = given_from(folder / "inputs")
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


def looped(kind, config, inputs, main):
    """Latents after all steps, by the model in PyTorch and the sigmas."""
    linear, weights = model_in(kind.checkpoint(config), torch.float64)
    given = {name: torch.tensor(array).double() for name, array in inputs.items()}

    def forward(x, step, number):
        own = {name.partition("#")[0]: one for name, one in given.items() if name.endswith("#0")}
        own |= {n.partition("#")[0]: one for n, one in given.items() if n.endswith(f"#{number}")}
        own |= {main: x, "time": torch.full((1, 1, 1), 1000 * float(SIGMAS[step]))}
        return kind.predicted(config, linear, weights, own)

    x = given[f"{main}#0"]
    for step in range(STEPS):
        made = forward(x, step, 0)
        if "scale#0" in given:
            without = forward(x, step, 1)
            made = without + given["scale#0"] * (made - without)
        x = x + (float(SIGMAS[step + 1]) - float(SIGMAS[step])) * made
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


def test_a_model_that_reads_a_picture_is_refused(asked, capsys):
    code, said = asked(wan, wan.PICTURE, wan.SIZES, "a fox")

    assert code == 2
    assert "reads a picture beside the prompt" in capsys.readouterr().err
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
        pictures.opened("folder", ".mp4")


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"computes": False}, "m: networks for timing, which do not compute the model"),
        ({"computes": True, "family": "llama"}, "m: got llama, wanted flux or wan"),
        (
            {"computes": True, "family": "cosmos3", "latents": {}},
            "m: nothing makes its videos here: frames count on behind the last token of a prompt",
        ),
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

    rows = pictures.rows_of(image, latents)

    assert rows.shape == (2, 24, 12)
    np.testing.assert_array_equal(pictures.image_of(rows, latents), image)
