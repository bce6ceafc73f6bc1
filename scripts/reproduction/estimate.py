"""Estimates the cost of cells: time, memory, disk. Sizes come from the program's --plan-only."""
import dataclasses
import os
import re
import subprocess

from reproduction import plan

BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@dataclasses.dataclass
class Cost:
    cells: int
    parameters: float
    tokens: float       # of one cell
    memory: float       # bytes on one device
    disk: float         # bytes of one cell's folder: weights, masters, optimizer state of one checkpoint

    def hours(self, tflops):
        """Returns the hours of all cells on one device that sustains this rate: 6 FLOPs per parameter and token,
        without attention."""
        return self.cells * 6 * self.parameters * self.tokens / (tflops * 1e12) / 3600


def of_model(program, model, vocabulary, cells):
    flags = [word for k, v in model.flags.items() for word in (f"--{k}", f"{v:g}" if isinstance(v, float) else str(v))]
    size = {"gpt2": 50257, "llama2": 32000, "bytes": 257}.get(vocabulary) or int(vocabulary.split(":")[1])
    words = [os.path.join(plan.ROOT, program), *flags, "--vocab-size", str(size), "--optimizer", "muon", "--dtype",
             "bf16", "--plan-only"]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise plan.Fault(f"{' '.join(words)}: {done.stderr.strip() or 'failed'}")

    def number(pattern):
        return re.search(pattern, done.stdout, re.MULTILINE)

    parameters = float(number(r"^parameters\s+(\d+)").group(1))
    total = number(r"^\s+total\s+([\d.]+) (\w+)")
    state = number(r"optimizer state\s+([\d.]+) (\w+)")
    tokens = float(model.flags.get("tokens", 0)) or float(model.flags["steps"]) * model.flags["batch-tokens"]

    def in_bytes(match):
        return float(match.group(1)) * BYTES[match.group(2)]

    return Cost(cells, parameters, tokens, in_bytes(total), 8 * parameters + in_bytes(state))


def cells_of(table, scale):
    """Returns {model name: number of cells}: the grid with one seed, and all seeds at two rates; shared cells count
    once."""
    grid, seeds = len(scale.grid), table.seeds(scale)
    each = seeds if grid == 1 else grid + 2 * (seeds - 1)
    return {model.name: each * len(table.rows) for model in table.models_at(scale)}
