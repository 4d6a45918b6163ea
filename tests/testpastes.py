"""Machines as people paste them, typed for these tests with the oddities that pastes have."""

LEGEND = """
Legend:

  X    = Self
  SYS  = crosses the link between sockets
  NV#  = a bonded set of # NVLinks
"""


def square(label, count, *, tail=(), head="", glue="\t"):
    """A matrix of `count` GPUs in which every two have the same label."""
    names = [f"GPU{i}" for i in range(count)]
    rows = [
        glue.join([name, *(" X " if a == b else label for b in range(count)), *tail])
        for a, name in enumerate(names)
    ]
    return "\n".join([glue.join(["", *names]) + head, *rows])


HGX = square("NV18", 8, tail=("0-31", "0"), head="\tCPU Affinity\tNUMA Affinity") + LEGEND

# Colours as the terminal got them, and as they look once the escape character is lost.
COLOURED = (
    "\t\x1b[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV6\t0-7\t0\t\tN/A\nGPU1\tNV6\t X \t0-7\t0\t\tN/A\n"
)
STRIPPED = "[4mGPU0\tGPU1\t[0m\n GPU0\tX\tOK\n GPU1\tOK\tX\n"

# The header lost its first tab, so that columns seem one to the left.
NO_LEADING_TAB = """GPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity
GPU0\t X \tPIX\tNODE\t0-7\t0
GPU1\tPIX\t X \tNODE\t0-7\t0
GPU2\tNODE\tNODE\t X \t0-7\t0
"""

# The last column name and the next heading have grown together; half of the rows are gone.
GLUED_AND_CUT = """GPU Topology:
        GPU0    GPU1    GPU2    GPU3    NIC0    NIC1CPU Affinity     NUMA Affinity
GPU0     X      NV18    NV18    NV18    PIX     SYS  0-27,56-83       0
GPU1    NV18     X      NV18    NV18    SYS     PIX  28-55,84-111     1
"""

MARKDOWN = """Trays have four GPUs:

|      | GPU0 | GPU1 | GPU2 | GPU3 | NIC0 | NIC1 |
|------|------|------|------|------|------|------|
| GPU0 | X    | NV18 | NV18 | NV18 | SYS  | SYS  |
| GPU1 | NV18 | X    | NV18 | NV18 | SYS  | SYS  |
| GPU2 | NV18 | NV18 | X    | NV18 | SYS  | SYS  |
| GPU3 | NV18 | NV18 | NV18 | X    | SYS  | SYS  |

Ports: NIC0=mlx5_0/rdma0 (NUMA 0), ..., NIC1=mlx5_4/rdma3 (NUMA 1)
"""

# Two sockets with named NICs, no affinity columns for the NIC rows, labels of old drivers.
LEGACY = """\tGPU0\tGPU1\tGPU2\tmlx5_0\tCPU Affinity
GPU0\t X \tPIX\tPXB\tSOC\t0-13
GPU1\tPIX\t X \tPXB\tSOC\t0-13
GPU2\tPXB\tPXB\t X \tQPI\t0-13
mlx5_0\tSOC\tSOC\tQPI\t X
"""

RANGES = """--- Topology at 2024-01-02 03:04:05 ---
\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV4\tSYS\t0,64\t0-3
GPU1\tNV4\t X \tPHB\t0,64\t0-3
NIC0\tSYS\tPHB\t X \t\t

NIC Legend:

  NIC0: mlx5_bond_0
"""

EMPTY_AFFINITY = """        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV12    PXB                                     N/A
GPU1    NV12     X      SYS                                     N/A
NIC0    PXB     SYS      X
"""

ODD_SPACING = """Output on my box:
          GPU0 GPU1    CPU Affinity    NUMA Affinity   GPU NUMA ID
    GPU0  X      NODE    0-15    0               N/A
    GPU1 NODE     X      0-15    0               N/A
"""

NUMA_WORDS = """        GPU0  GPU1  GPU2
GPU0     X    PIX   SYS     NUMA 0
GPU1    PIX    X    SYS     NUMA 0
GPU2    SYS   SYS    X      NUMA 1
"""

PREFIXED = """[10:00:01] INFO out: \tGPU0\tGPU1
[10:00:01] INFO out: GPU0\t X \tPHB
[10:00:01] INFO out: GPU1\tPHB\t X
"""

WITH_PEERS = """\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tPHB\t0-15\t0\t\tN/A
GPU1\tPHB\t X \t0-15\t0\t\tN/A

$ nvidia-smi topo -p2p r
 \tGPU0\tGPU1\t
 GPU0\tX\tGNS\t
 GPU1\tGNS\tX\t
"""

PEERS_ONLY = """        GPU0    GPU1    GPU2    GPU3
 GPU0   X       OK      NS      NS
 GPU1   OK      X       NS      NS
 GPU2   NS      NS      X       OK
 GPU3   NS      NS      OK      X
"""

ONE_BRIDGE = """\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV4\tNODE\t0-31\t0
GPU1\tNV4\t X \tNODE\t0-31\t0
GPU2\tNODE\tNODE\t X \t0-31\t0

$ nvidia-smi nvlink -s
GPU 0: NVIDIA RTX A6000
\t Link 0: 14.062 GB/s
\t Link 1: 14.062 GB/s
\t Link 2: 14.062 GB/s
\t Link 3: 14.062 GB/s
GPU 1: NVIDIA RTX A6000
\t Link 0: 14.062 GB/s
\t Link 1: 14.062 GB/s
\t Link 2: 14.062 GB/s
\t Link 3: <inactive>
GPU 2: NVIDIA RTX A6000
NVML: Unable to retrieve NVLink information as all links are inActive
"""

MANY_NICS = (
    "9 NICs found in the topology, only displaying 2 in the matrix.\n"
    "\tGPU0\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPXB\tNODE\t0-7\t0\n"
)

ONE_GPU_IN_WINDOWS = (
    "\t\x1b[4mGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\nGPU0\t X \t\t\t\tN/A\n"
)

DEGRADED = """\tGPU0\tGPU1\tGPU2\tGPU3
GPU0\tX\tNV18\tNV16\tNV18
GPU1\tNV18\tX\tNV16\tNV18
GPU2\tNV16\tNV16\tX\tNV16
GPU3\tNV18\tNV18\tNV16\tX
"""

ALL_SYS = """\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tSYS\tSYS\tSYS\tSYS\t0-31\t0
GPU1\tSYS\t X \tSYS\tSYS\tSYS\t0-31\t0
GPU2\tSYS\tSYS\t X \tSYS\tPHB\t32-63\t1
GPU3\tSYS\tSYS\tSYS\t X \tSYS\t32-63\t1
NIC0\tSYS\tSYS\tPHB\tSYS\t X
"""

PAIRS = """\tGPU0\tGPU1\tGPU2\tGPU3
GPU0\t X \tPHB\tNV4\tPHB
GPU1\tPHB\t X \tPHB\tNV4
GPU2\tNV4\tPHB\t X \tPHB
GPU3\tPHB\tNV4\tPHB\t X
"""

TWO_SOCKETS = """\tGPU0\tGPU1\tGPU2\tGPU3\tNUMA Affinity
GPU0\t X \tPIX\tSYS\tSYS\t0
GPU1\tPIX\t X \tSYS\tSYS\t0
GPU2\tSYS\tSYS\t X \tPXB\t1
GPU3\tSYS\tSYS\tPXB\t X \t1
"""

# The links of a DGX-1: four GPUs on each socket, every GPU with six links, two of them across.
MESH = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip


def cube_mesh():
    lines = ["\t" + "\t".join(f"GPU{i}" for i in range(8)) + "\tCPU Affinity"]
    for a in range(8):
        counts = [MESH.get((min(a, b), max(a, b))) for b in range(8)]
        cells = [
            " X " if a == b else f"NV{count}" if count else "SYS" for b, count in enumerate(counts)
        ]
        lines.append(f"GPU{a}\t" + "\t".join(cells) + ("\t0-19" if a < 4 else "\t20-39"))
    return "\n".join(lines)


def topology_xml(*cpus):
    return '<system version="1">' + "".join(cpus) + "</system>"


def cpu_xml(numa, *inside, vendor="GenuineIntel", model=143, host="0x1"):
    return (
        f'<cpu host_hash="{host}" numaid="{numa}" affinity="ff" arch="x86_64" '
        f'vendor="{vendor}" familyid="6" modelid="{model}">{"".join(inside)}</cpu>'
    )


def pci_xml(bus, kind, *inside, speed="32.0 GT/s PCIe", width=16, device="0x0"):
    code = {"gpu": "0x030200", "nic": "0x020700", "switch": "0x060400", "host": "0x060000"}[kind]
    return (
        f'<pci busid="{bus}" class="{code}" vendor="0x10de" device="{device}" '
        f'link_speed="{speed}" link_width="{width}">{"".join(inside)}</pci>'
    )


def gpu_xml(number, sm, *links, gdr=1):
    return f'<gpu dev="{number}" sm="{sm}" rank="{number}" gdr="{gdr}">{"".join(links)}</gpu>'


def link_xml(target, count, *, switch=False):
    return (
        f'<nvlink target="{target}" count="{count}" tclass="0x0{"68000" if switch else "30200"}"/>'
    )


def net_xml(name, number, speed):
    return (
        f'<nic><net name="{name}" dev="{number}" latency="0" speed="{speed}" port="1" '
        f'guid="0x{number}" maxconn="128" gdr="1"/></nic>'
    )


def switched_xml():
    """Two H100 a socket behind switches of their own with a NIC each; four NVSwitches."""
    links = [link_xml(f"0000:0{i}:00.0", 4 + i % 2, switch=True) for i in range(4)]

    def group(number):
        return pci_xml(
            f"0000:{number + 1}0:00.0",
            "switch",
            pci_xml(
                f"0000:{number + 1}1:00.0", "gpu", gpu_xml(number, 90, *links), device="0x2330"
            ),
            pci_xml(f"0000:{number + 1}2:00.0", "nic", net_xml(f"mlx5_{number}", number, 400000)),
        )

    return topology_xml(cpu_xml(0, group(0), group(1)), cpu_xml(1, group(2), group(3)))


def smi_xml(*gpus):
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n'
        f"<nvidia_smi_log><attached_gpus>{len(gpus)}</attached_gpus>{''.join(gpus)}</nvidia_smi_log>"
    )


def smi_gpu_xml(bus, product, memory, *, lanes="16x", now=4, state="P0", mig="N/A"):
    return f"""<gpu id="{bus}"><product_name>{product}</product_name>
<product_architecture>Ampere</product_architecture>
<mig_mode><current_mig>{mig}</current_mig></mig_mode>
<performance_state>{state}</performance_state>
<pci><pci_gpu_link_info><pcie_gen><max_link_gen>4</max_link_gen>
<current_link_gen>{now}</current_link_gen></pcie_gen>
<link_widths><max_link_width>16x</max_link_width><current_link_width>{lanes}</current_link_width>
</link_widths></pci_gpu_link_info></pci>
<fb_memory_usage><total>{memory} MiB</total></fb_memory_usage>
<bar1_memory_usage><total>256 MiB</total></bar1_memory_usage></gpu>"""


GRAPHS = """<graphs version="1">
  <graph id="0" pattern="4" nchannels="2" speedintra="12" speedinter="12" typeintra="SYS">
    <channel><gpu dev="0"/><gpu dev="2"/><gpu dev="1"/></channel>
  </graph>
  <graph id="3" pattern="5" nchannels="0" speedintra="0" speedinter="0" typeintra="" typeinter=""/>
</graphs>
"""
