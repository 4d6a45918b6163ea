"""Whatever a text holds, the answer is a machine or one line that says what is wrong and where."""

import json

import pytest
import testpastes as pastes
from growth import grows_in_proportion
from hypothesis import given
from hypothesis import strategies as st

from topology.base import InputError
from topology.base.page import web
from topology.base.table import document
from topology.drawing import parts
from topology.machine import Machine
from topology.readers import read_topology, xml

ASYMMETRIC = pastes.NO_LEADING_TAB.replace("GPU1\tPIX", "GPU1\tSYS")
BOMB = '<!DOCTYPE a [<!ENTITY b "x"><!ENTITY c "&b;&b;">]>\n<system>&c;</system>'
TWINS = pastes.topology_xml(
    pastes.cpu_xml(0, *(pastes.pci_xml(f"{i}", "gpu", pastes.gpu_xml(0, 80)) for i in range(2)))
)
ODD_JSON = '{"gpus": [{"name": "GPU0"}], "links": [{"a": "GPU0", "b": "?", "kind": "PIX"}]}'
MANY = " ".join(f"GPU{i}" for i in range(300)) + "\nGPU0 X " + "SYS " * 299

BAD = [
    ("empty", "  \n\t\n", "empty"),
    ("prose", "My machine has four GPUs.\nThey are fast.", "no topology in a text that begins"),
    ("unknown label", pastes.NO_LEADING_TAB.replace("PIX", "PIQ"),
     "line 2: GPU0-GPU1: unknown label 'PIQ'"),
    ("asymmetric", ASYMMETRIC, "line 3: GPU1-GPU0 is SYS, line 2 says GPU0-GPU1 is PIX"),
    ("shifted", "GPU0 GPU1\nGPU0 NV4 X\nGPU1 X NV4", "line 2: GPU0-GPU0 is NV4: expected X"),
    ("twin columns", "GPU0 GPU0\nGPU0 X PIX\n", "line 1: GPU0 heads two columns"),
    ("twin rows", "GPU0 GPU1\nGPU0 X PIX\nGPU0 X SYS\n", "a second row GPU0 differs"),
    ("mixed", "GPU0 GPU1\nGPU0 X OK\nGPU1 SYS X\n", "SYS among peer statuses"),
    ("no links at all", "GPU0 GPU1\nGPU0 X NV0\n", "line 2: GPU0-GPU1: unknown label 'NV0'"),
    ("own types", "<!DOCTYPE a [<!ELEMENT b ANY>]>\n<system/>", "XML line 1: declares"),
    ("bomb", BOMB, "XML line 1: declares entities: refused"),
    ("cut xml", pastes.switched_xml()[:500], "XML line 1, column 462 inside <gpu>: the XML is cut"),
    ("foreign xml", "<svg/>", "XML line 1: <svg>: expected <system>"),
    ("deep xml", "<system>" + "<pci>" * 100, "nested deeper than 64"),
    ("bad number", '<system>\n<cpu numaid="one"/></system>', "XML line 2: numaid='one': expected"),
    ("twin cpu", '<system><cpu numaid="1"/><cpu numaid="1"/></system>', "a second <cpu>"),
    ("twin gpu", TWINS, "GPU0 comes twice"),
    ("no gpu", pastes.smi_xml(), "lists no GPU"),
    ("measurements", '{"T1": {"p2p": 54.7}}', "with gpus and links, got \\['T1'\\]"),
    ("broken json", '{"gpus": [', "JSON: "),
    ("deep json", "[" * 100_000 + "\n", "JSON"),
    ("odd json", ODD_JSON, "joins no two known devices"),
    ("binary", "GPU0\x00\x01\x02\nGPU1", "binary data"),
    ("huge", "x" * (10 * 2**20 + 1) + "\n", "expected at most"),
    ("many gpus", MANY, "at most 256"),
    ("many columns", " ".join(f"GPU{i}" for i in range(2000)) + "\nGPU0 X", "2000 columns"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_input_is_one_line_that_names_the_place(text, message):
    with pytest.raises(InputError, match=message) as caught:
        read_topology(text)

    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_xml_of_too_many_elements_is_refused(monkeypatch):
    monkeypatch.setattr(xml, "_MOST_ELEMENTS", 200)
    with pytest.raises(InputError, match="more than 200 elements"):
        read_topology("<system>" + "<pci/>" * 201 + "</system>")


def test_files_that_are_missing_large_or_binary(tmp_path):
    binary = tmp_path / "core"
    binary.write_bytes(b"\x7fELF\x02\xff\xfe\x00" * 10)
    large = tmp_path / "large.txt"
    large.write_bytes(b"GPU0 " * (3 * 2**20))

    with pytest.raises(InputError, match="no such file"):
        read_topology("nowhere.txt")
    with pytest.raises(InputError, match="line 1 is not text"):
        read_topology(binary)
    with pytest.raises(InputError, match="expected at most"):
        read_topology(large)


TOKENS = [
    "GPU0",
    "GPU1",
    "GPU2",
    "GPU9",
    "NIC0",
    "mlx5_0",
    "X",
    "NV4",
    "NV18",
    "NV12NV12",
    "SYS",
    "PIX",
    "NODE",
    "PHB",
    "OK",
    "NS",
    "0-7",
    "N/A",
    "NUMA",
    "0",
    "1",
    "|",
    "FOO",
    "\x1b[4m",
    "[0m",
    "-p2p",
    "r",
]
PHRASES = ["CPU Affinity", "GPU 0: NVIDIA L4", "Link 0: 25 GB/s", "NIC0: mlx5_0", "\t"]
WORDS = st.sampled_from([*TOKENS, *PHRASES, "\n", "\n", "\n"])


@given(st.lists(WORDS, max_size=60), st.sampled_from([" ", "\t", "  ", ""]))
def test_shuffled_tables_give_a_machine_or_an_input_error(words, glue):
    assert reads_or_refuses(glue.join(words) + "\n")


@given(st.text(max_size=200))
def test_any_text_gives_a_machine_or_an_input_error(text):
    assert reads_or_refuses(text + "\n")


SOUND = [
    pastes.HGX,
    pastes.RANGES,
    pastes.switched_xml(),
    pastes.GRAPHS,
    pastes.ONE_BRIDGE,
    pastes.MARKDOWN,
    pastes.LEGACY,
    pastes.smi_xml(pastes.smi_gpu_xml("1", "Tesla T4", 15360)),
    'hosts = 4\nhardware = "h100-sxm"\n[network]\nnics = 8\nrails = 4\n',
    json.dumps(read_topology(pastes.PAIRS).to_dict()),
]


@given(st.sampled_from(SOUND), st.data())
def test_damaged_texts_give_a_machine_or_an_input_error(text, data):
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        size = data.draw(st.integers(0, 30))
        put = data.draw(
            st.text(max_size=4) | st.sampled_from(["-1", "1e9", "99999999999", '"', "<", "\n"])
        )
        text = text[:at] + put + text[at + size :]
    assert reads_or_refuses(text + "\n")


def reads_or_refuses(text):
    """Whether it is refused in one line, or is a machine that can be shown in every way."""
    try:
        machine = read_topology(text)
    except InputError as error:
        return "\n" not in str(error)
    if machine.hosts <= 64:
        json.dumps(machine.to_dict(), allow_nan=False)
        return bool(document(parts(machine)) and web("", parts(machine)))
    return isinstance(machine, Machine)


@pytest.mark.parametrize(
    "hostile",
    [
        lambda n: "GPU0 GPU1\n" + "GPU0 X NV4\n" * n,
        lambda n: "GPU0 " * n + "\nGPU0 X\n",
        lambda n: "NV1" * n + "\n",
        lambda n: "[4m" * n + "\n",
        lambda n: "NIC0: " * n + "\n",
        lambda n: "|   0  " + " a" * n + "\n",
        lambda n: "GPU 0: " + "x " * n + "\n",
        lambda n: "<system>" + "<cpu/>" * n,
        lambda n: "GPU0\n" * n,
    ],
)
def test_reading_takes_time_in_proportion(hostile):
    """A text of a quarter of a megabyte is read about eight times as long as an eighth of it."""
    each = len(hostile(2)) - len(hostile(1))

    assert grows_in_proportion(lambda size: reads_or_refuses(hostile(size // each)), 2**18)
