#!/usr/bin/env python3
"""Plants faults in the PTX of a program that nvcc built, one at a time, and sees that the modelled GPU names each.

    test/gpusim/plant_faults.py build/cuda-model/tests

A fault replaces text of a kernel's PTX in a copy of the program, by no more bytes than it had; so nothing is compiled.
Exit status: 0 if each was found by the check that it is meant for, else 1.
"""
import collections
import os
import re
import subprocess
import sys
import tempfile

# The n-th match of `pattern` in a kernel (of the PTX for sm_90a) becomes `text`; `tests` must then fail with `words`.
Fault = collections.namedtuple("Fault", "name kernel pattern n text tests words")
BARRIER, WARP_BARRIER = rb"bar\.sync\s+0;", rb"bar\.warp\.sync\s+-1;"
FORWARD = rb"flash_attention_forward_kernelILi64"
FLASH = "kernels/attention_flash: either*"
FAULTS = [
    Fault("a barrier before tiles are read", FORWARD, BARRIER, 0, b";", FLASH, "a race"),
    Fault("a barrier before a tile is overwritten", rb"flash_attention_key_gradient_kernelILi64", BARRIER, 1, b";",
          FLASH, "a race"),
    Fault("a __syncwarp", FORWARD, WARP_BARRIER, 1, b";", FLASH, "a race"),
    Fault("waiting for all copies", FORWARD, rb"cp\.async\.wait_group\s+0;", 0,
          b"cp.async.wait_group 1;", FLASH, "which cp.async still writes"),
    Fault("the barrier of a column sum", rb"column_sums_kernelILi1", BARRIER, 0, b";", "kernels/gelu: backward*",
          "which nothing has written"),
    Fault("waiting for earlier kernels", rb"activation_forward_kernelIfLi4ENS_4Gelu", rb"griddepcontrol\.wait;",
          0, b";", "kernels/gelu: forward*", "before griddepcontrol.wait"),
    Fault("the end of a loop", rb"activation_forward_kernelIfLi4ENS_4Gelu", rb"setp\.ge\.s64", 0, b"setp.gt.s64",
          "kernels/gelu: forward*", "after the last element"),
]


def kernels(program, name):
    """(begin, end) of the PTX of each kernel whose mangled name matches."""
    for module in re.finditer(rb"\.target sm_90a", program):
        end = program.index(b"\0", module.start())
        entries = list(re.finditer(rb"\.entry (\S+)\(", program[module.start():end]))
        for entry, after in zip(entries, entries[1:] + [None]):
            if re.search(name, entry[1]):
                yield module.start() + entry.end(), module.start() + after.start() if after else end


def plant(program, fault):
    places = [m.span() for begin, end in kernels(program, fault.kernel)
              for m in re.compile(fault.pattern).finditer(program, begin, end)]
    if fault.n >= len(places):
        sys.exit(f"plant_faults: {fault.name}: {len(places)} places match; update the table")
    begin, end = places[fault.n]
    return program[:begin] + fault.text.ljust(end - begin) + program[end:]


def main():
    with open(sys.argv[1], "rb") as file:
        program = file.read()
    missed = 0
    environment = {**os.environ, "LD_LIBRARY_PATH": "build/model-gpu", "CUDA_DEVICE": "H200"}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tests")
        for fault in FAULTS:
            with open(path, "wb") as file:
                file.write(plant(program, fault))
            os.chmod(path, 0o755)
            run = subprocess.run([path, fault.tests], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                 text=True, timeout=600)
            found = run.returncode != 0 and fault.words in " ".join(run.stdout.split())
            missed += not found
            print(f"{'found ' if found else 'MISSED'}  {fault.name}", flush=True)
    print(f"{len(FAULTS) - missed} of {len(FAULTS)} planted faults found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
