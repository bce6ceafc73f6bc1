#!/usr/bin/env python3
"""Lists the memory accesses of kernels that cost the most transactions, counted on the modelled GPU.

    CUDA_COUNTS=counts.json LD_LIBRARY_PATH=build/model-gpu build/cuda-model/train_gpt2 ...
    bench/memory_accesses.py counts.json [--lines 20]

A transaction is a sector of 32 bytes of device memory, or a wavefront of shared memory, which serves one word of each
of the 32 banks. An access is an instruction of a line of a kernel, over all launches. Accesses are sorted by their
transactions above the least number that can move the same words.
"""

if __name__ == "__main__":
    from begin import startup

import collections
import json
import sys

from common.arguments import Parser


def accesses(path):
    """Reads a file of CUDA_COUNTS: {(kernel, place, opcode): [requests, transactions, least]}"""
    with open(path, encoding="utf-8") as file:
        kernels = json.load(file)["kernel"]
    found = collections.defaultdict(lambda: [0, 0, 0])
    for kernel in kernels:
        for opcode, place, warps, _, transactions, least, _ in kernel["code"]:
            if transactions:
                for i, n in enumerate((warps, transactions, least)):
                    found[kernel["name"], place, opcode][i] += n
    return found


def main():
    parser = Parser(__doc__)
    parser.add_argument("counts", help="file of CUDA_COUNTS")
    parser.add_argument("--lines", type=int, default=20)
    args = parser.parse_args()
    worst = sorted(accesses(args.counts).items(), key=lambda item: item[1][2] - item[1][1])[:args.lines]
    print(f"{'requests':>12}{'per request':>13}{'least':>7}  access")
    for (kernel, place, opcode), (requests, transactions, least) in worst:
        print(f"{requests:12}{transactions / requests:13.2f}{least / requests:7.2f}  {place} {opcode}  {kernel}")


if __name__ == "__main__":
    sys.exit(startup.exit_code(main, {ValueError: 1}))
