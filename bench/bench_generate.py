#!/usr/bin/env python3
"""Compares ./generate with llama.cpp on one core:  python3 bench/bench_generate.py RUN [--tokens 256] [--repeats 5]

RUN is a checkpoint, or a run whose newest is taken. Both programs read float32 weights (scripts/export_gguf.py --type
f32), take one thread on one core and choose the likeliest token each time; they run in turn, --repeats times. A figure
is the median of tokens per second of processor time behind the first tokens, so that loading does not count. Needs
xllamacpp and gguf (dev/requirements-readers.txt).
"""

if __name__ == "__main__":
    from begin import startup

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import starts
from common.arguments import Parser
from common.run_folder import BadRun, find_checkpoint

PROMPT = [1, 2, 3, 4]
WARM = 16  # tokens before the clock starts


def ours(checkpoint, tokens):
    """Returns tokens per second of processor time, which the kernel counts for the process."""
    command = [starts.ROOT / "generate", "--checkpoint", checkpoint, "--as-tokens", "--prompt-tokens",
               ",".join(map(str, PROMPT)), "--temperature", 0, "--dtype", "float", "--sample-tokens", WARM + tokens]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
                          env=os.environ | {"OMP_NUM_THREADS": "1"}) as child:
        def spent_after(numbers):
            while numbers:
                byte = child.stdout.read(1)
                if not byte:
                    raise ValueError("./generate ended early")
                numbers -= byte == b" "
            with open(f"/proc/{child.pid}/stat", encoding="ascii") as file:
                fields = file.read().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

        begin = spent_after(len(PROMPT) + WARM)
        return tokens / (spent_after(tokens) - begin)


class LlamaCpp:
    def __init__(self, path):
        import xllamacpp
        settings = xllamacpp.CommonParams()
        settings.model.path, settings.n_ctx, settings.n_parallel = path, 1024, 1
        settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
        self.server = xllamacpp.Server(settings)

    def rate(self, tokens):
        self.spent(WARM)
        return tokens / (self.spent(WARM + tokens) - self.spent(WARM))

    def spent(self, tokens):
        began = time.process_time()
        self.server.handle_completions({"prompt": PROMPT, "temperature": 0, "cache_prompt": False, "ignore_eos": True,
                                        "n_predict": tokens})
        return time.process_time() - began


def main():
    parser = Parser(__doc__)
    parser.add_argument("run", help="a run or a checkpoint")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    checkpoint = find_checkpoint(args.run)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.gguf")
        subprocess.run([sys.executable, starts.ROOT / "scripts" / "export_gguf.py", checkpoint, "--out", path, "--type",
                        "f32"], check=True, stdout=subprocess.DEVNULL)
        llama = LlamaCpp(path)
        rates = [(ours(checkpoint, args.tokens), llama.rate(args.tokens)) for _ in range(args.repeats)]
    mine, theirs = (statistics.median(column) for column in zip(*rates))
    print(json.dumps({"bench": "generate", "tokens_per_cpu_second": round(mine, 1), "llama_cpp": round(theirs, 1),
                      "ratio": round(statistics.median(a / b for a, b in rates), 2)}), flush=True)
    os._exit(0)  # llama.cpp's threads would keep the process


if __name__ == "__main__":
    sys.exit(startup.exit_code(main, {BadRun: 2, ValueError: 1, subprocess.CalledProcessError: 1}))
