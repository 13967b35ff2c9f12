#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the machine code that ptxas makes of kernels for sm_90 for properties that their speed needs and no emulator
sees: a division that became a call, registers that spill to memory, loads that wait for each other. RULES is the table.
It needs nvdisasm: of the CUDA Toolkit, of PyPI's nvidia-cuda-nvdisasm, or the file in FSDP_NVDISASM. Without one it
skips.
"""

import glob
import os
import pathlib
import re
import shutil
import site
import struct
import subprocess
import sys
import sysconfig
import unittest
from dataclasses import dataclass


@dataclass
class Rule:
    """The rule for every kernel of `cubin` whose name contains a match of `pattern`."""
    cubin: str
    pattern: str
    calls: bool = False           # may have subroutines, such as the slow path of a division
    loads_in_flight: int = 0      # loads of 16 bytes before the first use of one
    wide_stores: int = 0          # stores of 16 bytes; ptxas splits one that it cannot prove to be aligned
    needs: tuple = ()             # opcodes that it must have, with suffixes or without
    max_registers: int = 255
    local_memory: bool = False    # may spill, or index arrays in memory


# A type of 16 bits, in a name.
H = r"(?:__nv_bfloat16|__half)"

RULES = [
    Rule("cuda_elementwise", rf"Map<8, {H}, ", loads_in_flight=2, wide_stores=2, max_registers=64),
    Rule("cuda_norm", rf"NormRegisters<.*{H}>", loads_in_flight=4, max_registers=64),
    Rule("cuda_norm_backward", rf"BackwardRegisters<.*{H}>", loads_in_flight=8, max_registers=128),
    Rule("cuda_column_sums", rf"SumRuns<8, {H}>", loads_in_flight=8, max_registers=64),
    Rule("cuda_cross_entropy", rf"Visit<true, .*{H}>", calls=True, loads_in_flight=4, max_registers=64),
    Rule("cuda_attention", rf"Forward<.*<64, 1>, {H}>", calls=True, needs=("HMMA", "LDSM"), max_registers=128),
    Rule("cuda_online_attention", rf"Forward<{H}, 64>", wide_stores=1, needs=("HMMA", "LDSM", "LDGSTS.128")),
    # A few registers kept over the loop spill, none within a product.
    Rule("cuda_online_attention", rf"Forward<{H}, 128>", wide_stores=1, needs=("HMMA", "LDSM", "LDGSTS.128"),
         local_memory=True),
    Rule("cuda_online_attention_backward", rf"Grad(Queries|Keys)<{H}, 64>", wide_stores=1,
         needs=("HMMA", "LDSM", "LDGSTS.128"), max_registers=168),
    Rule("cuda_online_attention_backward", rf"Grad(Queries|Keys)<{H}, 128>", wide_stores=1,
         needs=("HMMA", "LDSM", "LDGSTS.128")),
    # Blocks of 1,024 threads, which do not start with more registers.
    Rule("cuda_norm", "NormMemory<", calls=True, local_memory=True, max_registers=64),
    Rule("cuda_norm_backward", "BackwardMemory<", calls=True, local_memory=True, max_registers=64),
    Rule("cuda_column_sums", "AddPartialSums<", calls=True, local_memory=True, max_registers=64),
    # It divides as IEEE requires.
    Rule("cuda_update_kernels", rf"AdamWSlice<{H}>", calls=True, loads_in_flight=2, max_registers=64),
]


@dataclass
class Kernel:
    name: str
    instructions: list  # of (opcode with its suffixes, the operands' text)
    registers: int

    def count(self, opcode):
        """Of the instructions with this opcode and the suffixes that are given."""
        base, *suffixes = opcode.split(".")
        names = [name.split(".") for name, _ in self.instructions]
        return sum(name[0] == base and all(suffix in name for suffix in suffixes) for name in names)

    def wide_stores(self):
        return sum(name.startswith("STG") and ".128" in name for name, _ in self.instructions)

    def loads_in_flight(self):
        """Loads of 16 bytes from global memory before the first instruction that reads a loaded register."""
        loaded, loads = set(), 0
        for opcode, operands in self.instructions:
            registers = [int(number) for number in re.findall(r"\bR(\d+)\b", operands)]
            if opcode.startswith("LDG") and ".128" in opcode:
                if loaded.intersection(registers[1:]):
                    break
                loads += 1
                loaded.update(range(registers[0], registers[0] + 4))
            elif loaded.intersection(registers):
                break
        return loads


def find_nvdisasm():
    packages = [sysconfig.get_paths()["purelib"], *site.getsitepackages(), site.getusersitepackages()]
    candidates = [os.environ.get("FSDP_NVDISASM"), shutil.which("nvdisasm"), "/usr/local/cuda/bin/nvdisasm",
                  *(found for package in packages for found in glob.glob(f"{package}/nvidia/*/bin/nvdisasm"))]
    return next((path for path in candidates if path and os.access(path, os.X_OK)), None)


def demangled(names):
    output = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return dict(zip(names, output.splitlines()))


def register_counts(cubin):
    """For each kernel, from .nv.info: the records EIATTR_REGCOUNT of (symbol, count)."""
    data = cubin.read_bytes()
    table, = struct.unpack_from("<Q", data, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", data, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * size) for i in range(count)]

    def text(start, offset):
        return data[start + offset:data.index(b"\0", start + offset)].decode()

    by_name = {text(sections[names_index][4], section[0]): section for section in sections}
    symbols, strings, info = by_name[".symtab"], by_name[".strtab"], by_name[".nv.info"]
    counts, at = {}, info[4]
    while at < info[4] + info[5]:
        form, attribute, length = struct.unpack_from("<BBH", data, at)
        if form != 4:  # the value is in place of the length
            length = 0
        elif attribute == 0x2F:
            symbol, registers = struct.unpack_from("<II", data, at + 4)
            name_at, = struct.unpack_from("<I", data, symbols[4] + symbol * 24)
            counts[text(strings[4], name_at)] = registers
        at += 4 + length
    return counts


def kernels_of(nvdisasm, cubin):
    """The kernels by demangled name."""
    registers = register_counts(cubin)
    listing = subprocess.run([nvdisasm, "-c", cubin], capture_output=True, text=True, check=True).stdout
    bodies, current = {}, None
    for line in listing.splitlines():
        begins = re.match(r"\.text\.(\S+):$", line)
        if begins:
            current = bodies.setdefault(begins.group(1), [])
            continue
        instruction = re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)\s*(.*?)\s*;", line)
        if instruction and current is not None:
            current.append(instruction.groups())
    names = demangled(list(bodies))
    return [Kernel(names[name], body, registers[name]) for name, body in bodies.items()]


def faults_of(kernel, rule):
    faults = []
    if not rule.calls and kernel.count("CALL"):
        faults.append(f"{kernel.count('CALL')} calls")
    if not rule.local_memory and kernel.count("LDL") + kernel.count("STL"):
        faults.append(f"{kernel.count('LDL') + kernel.count('STL')} accesses of local memory")
    if kernel.loads_in_flight() < rule.loads_in_flight:
        faults.append(f"{kernel.loads_in_flight()} loads of 16 bytes before the first use, not {rule.loads_in_flight}")
    if kernel.wide_stores() < rule.wide_stores:
        faults.append(f"{kernel.wide_stores()} stores of 16 bytes, not {rule.wide_stores}")
    if kernel.registers > rule.max_registers:
        faults.append(f"{kernel.registers} registers, more than {rule.max_registers}")
    return faults + [f"no {opcode}" for opcode in rule.needs if not kernel.count(opcode)]


class SassTest(unittest.TestCase):
    def test_every_kernel_keeps_to_its_rule(self):
        nvdisasm = find_nvdisasm()
        if nvdisasm is None:
            self.skipTest("no nvdisasm: neither the toolkit nor python3 has it (pip install nvidia-cuda-nvdisasm)")
        cubins = {pathlib.Path(path).stem: kernels_of(nvdisasm, pathlib.Path(path)) for path in CUBINS}
        for rule in RULES:
            matched = [kernel for kernel in cubins[rule.cubin] if re.search(rule.pattern, kernel.name)]
            for dtype in ("__nv_bfloat16", "__half"):
                self.assertTrue(any(dtype in kernel.name for kernel in matched),
                                f"{rule.cubin} has no kernel {rule.pattern} of {dtype}; it has "
                                f"{[kernel.name[:80] for kernel in cubins[rule.cubin]]}")
            for kernel in matched:
                with self.subTest(kernel=kernel.name):
                    self.assertEqual(faults_of(kernel, rule), [])

    def test_a_use_ends_the_loads_in_flight(self):
        load = ("LDG.E.128", "R4, desc[UR4][R22.64]")
        other = ("LDG.E.128", "R8, desc[UR4][R22.64+0x1000]")
        use, unrelated = ("FADD", "R20, R5, R21"), ("IADD3", "R30, R31, R32, RZ")
        self.assertEqual(Kernel("", [load, unrelated, other, use, load], 0).loads_in_flight(), 2)
        self.assertEqual(Kernel("", [load, use, other], 0).loads_in_flight(), 1)
        self.assertEqual(Kernel("", [load, ("LDG.E.128", "R8, desc[UR4][R4.64]")], 0).loads_in_flight(), 1)

    def test_faults_are_named_with_their_numbers(self):
        bad = Kernel("", [("CALL.REL.NOINC", "`(.L_x)"), ("STL.64", "[R1], R2"), ("LDL", "R2, [R1]")], 70)
        rule = Rule("", "", loads_in_flight=1, wide_stores=1, needs=("HMMA",), max_registers=64)
        self.assertEqual(faults_of(bad, rule),
                         ["1 calls", "2 accesses of local memory", "0 loads of 16 bytes before the first use, not 1",
                          "0 stores of 16 bytes, not 1", "70 registers, more than 64", "no HMMA"])
        self.assertEqual(faults_of(bad, Rule("", "", calls=True, local_memory=True)), [])


CUBINS = [path for path in sys.argv if path.endswith(".cubin")] or glob.glob("**/_nvcc/*/*.cubin", recursive=True)

if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
