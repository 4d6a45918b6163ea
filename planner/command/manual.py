"""What ``--help`` says of each command: a sentence, examples, and what the exit code means."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One command's words.

    help : a line in the list of commands. text : what it does. examples : lines to type, each
    with what comes back. one : what exit code 1 means, empty where it does not occur.
    """

    help: str
    text: str
    examples: tuple[tuple[str, str], ...]
    one: str = ""

    @property
    def epilog(self) -> str:
        """Examples and exit codes, as they stand below the options."""
        shown = [f"  {line}\n      {what}" for line, what in self.examples]
        one = f"\n  1   {self.one}" if self.one else ""
        codes = f"exit codes:\n  0   done{one}\n  2   bad input, said in one line"
        codes += "\n  130 stopped by Ctrl-C"
        return "\n".join(["examples:", *shown, "", codes])


PAGES: Final = {
    "recommend": Page(
        help="rank every way to split a model",
        text="Try every plan that splits a model over the GPUs, and rank those that can run and\n"
        "fit. Sizes that are left out are the model's usual ones.",
        examples=(
            ("planner recommend --model cosmos3 --gpus 8", "plans on 8 H100, fastest first"),
            (
                "planner recommend --model flux --gpus 8 --hardware l40s --at-most-gpus",
                "fewer GPUs come first where more gain less than 3 % of the time",
            ),
        ),
        one="no plan can run",
    ),
    "estimate": Page(
        help="one plan in full",
        text="Price one plan: time by stage and by part, memory by part, and how to run it.",
        examples=(
            (
                "planner estimate --model cosmos3 --gpus 8 --plan cfg2.ulysses4",
                "its latency, and what it is made of",
            ),
            (
                "planner estimate --model llama-3.1-8b --output-tokens 128 --format json",
                "the same as data, on one GPU, where no plan needs to be named",
            ),
        ),
    ),
    "simulate": Page(
        help="one plan as events on every rank",
        text="Run one plan as events: every rank's kernels and messages on its streams, issued by\n"
        "its host, at the pace of its GPU. Says what each rank does and draws one layer.",
        examples=(
            (
                "planner simulate --model flux --gpus 4 --plan ring4",
                "time of each stage beside the closed form, of each rank, and a timeline",
            ),
            (
                "planner simulate --model flux --gpus 4 --plan ring4 --slow 3=1.1 --trace out.json",
                "what a GPU that is a tenth slower costs; every operation, for Perfetto",
            ),
        ),
    ),
    "capacity": Page(
        help="how many GPUs a demand needs",
        text="Find the plan and the number of replicas with which a share of requests are done in\n"
        "time, for each kind of hardware: the least money, or the fewest GPUs.",
        examples=(
            (
                "planner capacity --model flux --rate 30/min --slo 10s --hardware h100-sxm,l40s",
                "fleets of both kinds, the best one first, and GPUs by rate",
            ),
            (
                "planner capacity --demand examples/demand.toml --format html --output report.html",
                "several demands, as a page",
            ),
        ),
        one="a demand that no hardware meets",
    ),
    "collectives": Page(
        help="what collectives cost",
        text="Price a collective over a range of sizes, as a table of nccl-tests; or put the\n"
        "output of nccl-tests beside what is predicted, and say why the two part.",
        examples=(
            (
                "planner collectives --op all_to_all --gpus 8 --bytes 1MiB:1GiB",
                "time, bandwidths, algorithm and protocol of each size",
            ),
            (
                "planner collectives --compare all_reduce.log --hardware h100-sxm",
                "measured and predicted times, a plot, and reasons",
            ),
        ),
    ),
    "models": Page(
        help="the models that are known, and files",
        text="list: names, with those that cannot be planned yet and why.\n"
        "show: what a model is made of, by name, or from a config.json or pipeline folder.\n"
        "import: the same as JSON, to see what was read from a file.",
        examples=(
            ("planner models list", "a name a line"),
            ("planner models show flux.1-dev", "layers, widths, parameters, usual request"),
        ),
    ),
    "topology": Page(
        help="machines: catalogue names and files",
        text="list: the hardware that has a name (what --hardware takes).\n"
        "show: a machine by that name or from a file: its links, what NCCL makes of them, what\n"
        "was assumed, and what is worrying. Files are nvidia-smi topo -m, nvidia-smi -q -x, XML\n"
        "of NCCL, a cluster in TOML, or JSON of this program; - reads what is piped in.\n"
        "import: the same as JSON, a file that --topology takes.\n"
        "detect: the machine this runs on.",
        examples=(
            ("planner topology list", "name, GPUs, memory, links and precisions of each"),
            ("nvidia-smi topo -m | planner topology show - --hardware h100-sxm", "this machine"),
        ),
    ),
    "export": Page(
        help="a plan as a folder to build and run",
        text="Write a plan as a folder. For the backend tensorrt it holds the layers of each\n"
        "engine, a builder and runners in Python and C++; for an engine such as xdit or sglang\n"
        "its launch line and settings.",
        examples=(
            (
                "planner export --model flux.1-dev --gpus 4 --plan ulysses4 --output engines",
                "networks, builder and runners for TensorRT in ./engines",
            ),
            (
                "planner export --model flux --gpus 4 --plan ulysses4 --backend xdit --output run",
                "how xDiT runs the plan",
            ),
        ),
    ),
    "validate": Page(
        help="run a plan, prove its numbers, and time it beside what was predicted",
        text="Run plans of a model. The reference needs no GPU: it runs all ranks in numpy and\n"
        "proves that their parts add up to the whole. torch runs them on GPUs and times them;\n"
        "tensorrt checks, builds and runs engines as far as this machine can.",
        examples=(
            (
                "planner validate --model flux.1-dev --plan ulysses2,tp2",
                "proof that the ranks of both plans compute what one GPU does",
            ),
            (
                "planner validate --model flux.1-dev --plan ulysses2 --backend torch",
                "measured and predicted times of a step, and pass or miss",
            ),
        ),
        one="a proof failed or a gate was missed",
    ),
    "calibrate": Page(
        help="measure this machine, and write a profile of it",
        text="Time products, attention, row-wise kernels and collectives on this machine's GPUs,\n"
        "fit the models' parameters to them, and write a profile that --profile takes.",
        examples=(
            ("planner calibrate --output mine.toml", "10 minutes, then how good each fit is"),
            ("planner calibrate --quick --gpus 2 --output mine.toml", "3 minutes on 2 GPUs"),
        ),
    ),
    "profile": Page(
        help="what a calibration profile holds",
        text="list: profiles that ship: of which hardware, used by itself or by name, parts.\n"
        "show: what a profile was measured on, how far to trust it, its parameters.\n"
        "diff: what two of one hardware differ in, and what that does to a few operations.\n"
        "install: copy one to where --detect and validate find it by themselves.",
        examples=(
            ("planner profile show h100-sxm", "machine, errors of fits, parameters"),
            ("planner profile diff h100-sxm mine.toml", "examples, then what changed"),
        ),
    ),
    "doctor": Page(
        help="whether this machine can run multi-device TensorRT engines",
        text="Look for the driver, GPUs, TensorRT, NCCL, Python packages and shared memory, and\n"
        "say what to install or set.",
        examples=(
            ("planner doctor", "a line each: ok, watch or MISSING, and what to do"),
            ("planner doctor --format json", "the same as data"),
        ),
        one="something is missing",
    ),
}

WHOLE: Final = Page(
    help="",
    text="Say how to split a generative model over GPUs, how fast it will be, and whether it fits.",
    examples=(
        ("planner recommend --model cosmos3 --gpus 8", "every way to split it, best first"),
        ("planner recommend --help", "options of a command"),
    ),
    one="no plan can run, a gate was missed, or the doctor found lacks",
)
