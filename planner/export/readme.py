"""The README of an exported folder."""

from collections.abc import Mapping, Sequence

from planner.engines.tables import allowed
from planner.export.tools import Tool
from planner.models import Exports
from planner.tensorrt.runner.library import Document
from planner.tensorrt.runner.pictures import reads_mask, reads_picture
from planner.tensorrt.runner.texts import text_of
from topology.base import format_bytes, format_seconds


def readme(document: Document, tools: Sequence[Tool], gives: Exports, *, tables: bool) -> str:
    """Say what is in a TensorRT folder, how it is built and run, and what to expect.

    gives : what its networks do of the model. tables : whether the folder has any.
    """
    makes = _makes(document, gives)
    expected, engines = document["expected"], document["engines"]
    build = sum(engine["expected_build_s"] for engine in engines)
    expectation = (
        f"Expected: {format_seconds(expected['latency_s'])} a request, "
        f"{format_seconds(expected['step_s'])} a step, "
        f"{format_bytes(expected['memory_bytes'])} on the fullest GPU; "
        f"about {format_seconds(build)} to build the engines."
    )
    cautions = [f"- {caution}" for caution in document["cautions"]]
    caution_lines = ["", "Watch:", "", *cautions] if cautions else []
    return "\n".join(
        [
            f"# {document['model']}, {document['plan']}, TensorRT",
            "",
            *_PURPOSE[makes],
            "",
            f"{document['gpus']} x {document['hardware']}, {document['precision']}.",
            expectation,
            "",
            "| engine | does | for | files | collectives |",
            "|---|---|---|---:|---|",
            *[_engine_row(engine) for engine in engines],
            *caution_lines,
            "",
            *_needs_lines(document["needs"]),
            *_environment_lines(document["environment"]),
            *_enqueue_lines(document["enqueue"]),
            *_TIME_SECTION,
            *_run_lines(document),
            "",
            *_compute_steps(document, makes),
            *_SHOW_SECTION,
            *_CPP_SECTION,
            f"    {_mpirun_line(document)} build/runner .",
            "",
            *_triton_lines(document),
            *_other_tools(tools),
            *_file_notes(tables=tables),
            *(_TIMING_TEXT if makes == "times" else _computed_lines(document, makes)),
            *_unused_tensors(document["checkpoint"]),
            "",
            f"TensorRT builds no engines of several GPUs with {_or_list(document['excluded'])}.",
            "",
        ]
    )


def _makes(document: Document, gives: Exports) -> str:
    """Say what a folder makes: pictures, videos or text, where the runner's host has all ranks."""
    if gives != "results":
        return gives
    text = text_of(document) is not None
    if _host_count(document) > 1 or text != bool(document["vocabulary"]):
        return "numbers"
    return "text" if text else gives


def _computed_lines(document: Document, gives: str) -> list[str]:
    """Say what engines of a model that is computed are given, and what they give."""
    buffers = document["buffers"]
    if document["vocabulary"]:
        return [*_COMPUTED_TEXT, *_TOKENS_TEXT, *_room_lines(document)]
    names = {buffer["given"]["name"] for buffer in buffers.values() if buffer["given"]}
    input_lines = [f"- `{name}`: {what}" for name, what in _INPUT_MEANINGS.items() if name in names]
    token_inputs = {f"input.{stream}" for stream in document["checkpoint"]["embeddings"]}
    picture_lines = _PICTURE_TEXT if gives == "results" else ()
    rows = [
        f"- `{name}`: " + (_TEXT_INPUT if name in token_inputs else "as its encoder gives it")
        for name in sorted(names - {*_INPUT_MEANINGS, document["output"]})
    ]
    return [*_COMPUTED_TEXT, *_STEPS_TEXT, "", *input_lines, *rows, *picture_lines]


def _room_lines(document: Document) -> list[str]:
    """Say how long prompts and texts may be, and how steps go on."""
    text = text_of(document)
    if text is None:
        return []
    return [
        f"A prompt has up to {text.rows} tokens, and the cache room for {text.room}. With --tokens",
        "each step of `run` goes on from the likeliest token, and `results` has all their numbers;",
        "without, and in C++, all steps read the same row, and are there to be timed.",
    ]


def _triton_lines(document: Document) -> list[str]:
    """Say how Triton serves an engine of the folder, where it can."""
    if not document["served"]:
        return []
    return [
        "Triton's TensorRT backend, built with TRITON_ENABLE_TENSORRT_MULTI_DEVICE=ON, serves",
        f"`{document['served'][0]}` as one model on all GPUs, once its engines are built with",
        "their weights inside. Nobody has run that yet.",
        "",
        "    python -m runner build --weights FOLDER --keep engine",
        "    sh triton/place.sh",
        "    tritonserver --model-repository triton",
        "",
    ]


def _other_tools(tools: Sequence[Tool]) -> list[str]:
    """Say what to type for other tools, and which of them have no part in the plan."""
    lines = [line for tool in tools for line in tool.lines]
    toolless_lines = [f"- {tool.title}: {tool.reason}" for tool in tools if tool.reason]
    tool_lines = [
        "Other tools. Nobody has run these lines yet.",
        "",
        *[f"    {line}" for line in lines],
    ]
    return [
        *(tool_lines if lines else ["Other tools."]),
        "",
        *toolless_lines,
        *([""] if toolless_lines else []),
    ]


def _engine_row(engine: Document) -> str:
    collectives = [f"{count} x {name}" for name, count in engine["collectives"].items()]
    ranks = "all ranks" if engine["shared"] else "each rank"
    name, _, stage = engine["name"].partition(".")
    ranks += " of the stage" if stage else ""
    listing = ", ".join(collectives) or "none"
    purpose = f"{_ENGINE_PURPOSES[name]}: its layers" if stage else _ENGINE_PURPOSES[name]
    return f"| {engine['name']} | {purpose} | {ranks} | {len(engine['files'])} | {listing} |"


def _needs_lines(needs: Mapping[str, str]) -> list[str]:
    nccl = f", NCCL {needs['nccl']} on LD_LIBRARY_PATH" if "nccl" in needs else ""
    packages = allowed().packages
    newest = max(packages, key=int)
    install = ["pip install", *[f"'{package}'" for package in packages[newest]], "numpy"]
    oldest = packages[newest][0].partition(">=")[2].partition(",")[0]
    return [
        f"Needs TensorRT {needs['tensorrt']}{nccl}, or newer ones. With what the Python runner",
        f"imports, this installs such, TensorRT {oldest} or newer, for CUDA {newest}:",
        "",
        f"    {' '.join(install)}",
        "",
    ]


def _environment_lines(variables: Mapping[str, str]) -> list[str]:
    """Say what the runners set, which a runner of one's own has to set too."""
    settings = ", ".join(f"{name}={value}" for name, value in variables.items())
    sentence = (
        f"The runners set {settings}, unless it is set: nothing runs beside the graph of a step."
    )
    return [sentence, ""] if settings else []


def _host_count(document: Document) -> int:
    return 1 + max(int(rank["host"]) for rank in document["ranks"])


def _mpirun_line(document: Document) -> str:
    """Start the plan's ranks, as Open MPI is told to where there are several hosts."""
    gpus, hosts = document["gpus"], _host_count(document)
    host_slots = [f"HOST{host}:{gpus // hosts}" for host in range(hosts)]
    return f"mpirun -np {gpus}" + (f" --host {','.join(host_slots)}" if hosts > 1 else "")


def _run_lines(document: Document) -> list[str]:
    """Say how the ranks are started in Python."""
    hosts, mpirun = _host_count(document), _mpirun_line(document)
    if hosts == 1:
        return [
            "       python -m runner run --graph                # one process a GPU of this host",
            f"       {mpirun} python -m runner run --graph",
        ]
    return [
        f"       {mpirun} -x MASTER_ADDR=HOST0 python -m runner run --graph",
        "",
        f"All {hosts} hosts have this folder at the same path, with the engines built. These are",
        "options of Open MPI; MASTER_ADDR and MASTER_PORT say where rank 0 listens.",
    ]


def _enqueue_lines(enqueue: Mapping[str, float]) -> list[str]:
    """Say what a step waits for the host where no graph is replayed, if it waits at all."""
    if not enqueue["exposed_s_a_step"]:
        return []
    return [
        f"Without --graph the host starts {enqueue['calls_a_step']} engines a step, and GPUs wait",
        f"{format_seconds(enqueue['exposed_s_a_step'])} for it; what is expected leaves that out.",
        "",
    ]


def _unused_tensors(checkpoint: Mapping[str, Mapping[str, str]]) -> list[str]:
    """List what of a published checkpoint goes nowhere, and why."""
    if not checkpoint.get("unused"):
        return []
    lines = [f"- `{name}`: {reason}" for name, reason in checkpoint["unused"].items()]
    return ["", "Tensors of the model's checkpoint that have no place in the networks:", "", *lines]


def _compute_steps(document: Document, gives: str) -> list[str]:
    """Say in which order a model is computed, where it is."""
    if gives not in _MAKE_STEPS:
        return []
    folder, *makes = _MAKE_STEPS[gives]
    if gives == "results" and reads_picture(document):
        makes[-1] += " --picture FILE" + (" --mask FILE" if reads_mask(document) else "")
    return [
        "## Compute with weights",
        "",
        f"1. Build the engines of {folder}, whose weights lie beside them then",
        "   (--keep); --again replaces engines that are there:",
        "",
        "       python -m runner build --weights FOLDER",
        "",
        *makes,
        "",
    ]


def _file_notes(*, tables: bool) -> list[str]:
    """Say what the files are."""
    tables_note = "; `tables` what differs from rank to rank" if tables else ""
    return [
        "`plan.json` has the order of GPUs, ranks, groups, shapes and what was expected;",
        f"`networks` the layers of each engine{tables_note}.",
        "Inputs are read from `inputs/NAME#FORWARD.npy` (for C++: `inputs/BUFFER.rankN.bin`), and",
        "drawn where they are missing. Results go to `results`.",
        "",
    ]


def _or_list(words: list[str]) -> str:
    *leading, final_word = words
    return f"{', '.join(leading)} or {final_word}"


_PURPOSE: Mapping[str, tuple[str, ...]] = {
    "results": (
        "This is the model: built of its weights, the engines make a picture or video of a prompt,",
        "with encoders and VAE by diffusers. Built of random weights, they time the plan. Nobody",
        "has run it on GPUs yet.",
    ),
    "text": (
        "This is the model: built of its weights, the engines go on from a prompt, token by token.",
        "Built of random weights, they time the plan. Nobody has run it on GPUs yet.",
    ),
    "numbers": (
        "This is the model's transformer: built of its weights, the engines compute it, and",
        "nothing here makes a result of a prompt yet. Built of random weights, they time the plan.",
        "Nobody has run it on GPUs yet.",
    ),
    "times": (
        "This is a skeleton for timing: its engines do the model's large operations at their real",
        "sizes, and do not compute it, whatever weights they are built of. Nobody has run it on",
        "GPUs yet.",
    ),
}
"""What networks do of a model, for the first lines."""
_ENGINE_PURPOSES = {
    "text_tower": "the prompt's own layers, once",
    "forward": "the transformer, for every step and branch of guidance",
    "combine": "the next step's latents, of what all branches predict",
    "prefill": "the prompt",
    "decode": "a token behind it, every step",
}
"""What engines do, by name."""
_TIME_SECTION = (
    "## Time it",
    "",
    "1. Build the engines on this GPU, of random weights that are made quickly:",
    "",
    "       python -m runner build --weights filler",
    "",
    "2. Run all steps, one process a GPU:",
    "",
)
_MAKE_STEPS: Mapping[str, tuple[str, ...]] = {
    "results": (
        "the folder of a diffusers pipeline",
        "2. Make a picture or video, with torch, diffusers and transformers installed:",
        "",
        '       python -m runner generate "..." --seed 1 --output FILE',
    ),
    "text": (
        "a checkpoint's folder that has tokenizer.json",
        "2. Go on from a prompt, with the package tokenizers installed:",
        "",
        '       python -m runner generate "..." --tokens N         # or a prompt for each sample',
    ),
    "numbers": (
        "safetensors files",
        "2. Put inputs into `inputs`, as below, and run as above; `results` has what comes out.",
    ),
}
"""Of what engines are built, what they then do, and what to type for it."""
_SHOW_SECTION = ("What is built:", "", "    python -m runner show", "")
_CPP_SECTION = (
    "## Other runners and tools",
    "",
    "In C++, with MPI. It takes a CUDA toolkit, and headers of TensorRT, which its wheels lack,",
    "and of NCCL: -DTENSORRT_ROOT=DIR, -DNCCL_ROOT=DIR say where. Engines are built as above, or",
    "in C++ too: Python writes what to build, with the options of `build`, on any machine that has",
    "numpy, and the builder makes up weights of which there is no FOLDER.",
    "",
    "    python -m runner build --record --weights FOLDER",
    "    cmake -S cpp -B build && cmake --build build",
    "    build/builder .                             # on the GPU that the engines are for",
    "    build/runner                                # its options, in one line",
)
_COMPUTED_TEXT = (
    "With --weights FOLDER the networks compute the model: its norms, turns of heads by position",
    "and biases too.",
)
_TOKENS_TEXT = (
    "Rows of the prompt and of the next token come embedded, or to the Python",
    "runner as numbers of tokens, [batch, tokens], which it looks up in that folder; what comes",
    "out are scores of the token after those.",
)
_STEPS_TEXT = (
    "They embed the step and project the prompt, and each step is one of Euler's method. Latents",
    "come as rows of tokens, as the model takes its patches. Text encoders and the VAE are not in",
    "this folder. Beside the latents the inputs are, [batch, steps or rows, features]:",
)
_TEXT_INPUT = "numbers of tokens, -1 behind the last where a sample has fewer"
_PICTURE_TEXT = (
    "",
    "`generate` writes all of these, of engines that were built of a pipeline's folder: text",
    "encoders and the VAE run by diffusers, all steps by these engines, on this host.",
)
_INPUT_MEANINGS = {
    "time": "number of every step, as its scheduler counts: 1000 for noise alone",
    "change": "what each step adds of what is predicted: the next sigma less its own",
    "scale": "of guidance, how far beyond what is predicted without the prompt (forward 1)",
    "guidance": "the scale of guidance that the model was taught",
    "pooled": "the prompt's one row of the first encoder",
}
_TIMING_TEXT = (
    "The networks do the model's matrix products, attentions and messages at their real sizes.",
    "With --weights FOLDER they have its biases and learned norms too. Norms divide by the root",
    "mean square, heads of queries and keys each by its own, and positions are not the model's:",
    "the networks are for timing a plan, and for proving that ranks fit together, not for making",
    "pictures. Text encoders and the VAE are not in this folder.",
)
