#!/usr/bin/env python3
"""Predicts a GPU step of GPT-2 124M from counts, without a GPU:  make predict

    bench/model_gpu.py                        the step on each machine of model_gpu.toml
    bench/model_gpu.py --markdown             the same for docs/gpu_step.md (ranks, calibrate: for their pages)
    bench/model_gpu.py --gelu-fusion          the step of a run with this flag
    bench/model_gpu.py ranks                  the step on 8 GPUs: exchange over NVLink, Newton-Schulz of a rank
    bench/model_gpu.py rates                  the fitted rates for --plan-for: > plan/gpu_rates.h
    bench/model_gpu.py calibrate              published measurements, the predictions for them, and the fitted rates
    bench/model_gpu.py check build/cuda-check    fail if a kernel exceeds the counts of model_gpu_counts.json
    bench/model_gpu.py count build/cuda-check FILE ...    write model_gpu_counts.json, with FILEs of CUDA_COUNTS
                                                          (make counts)

gpu_rules.py converts counts to times, compiled_counts.py counts instructions in the compiled code, and calibration.py
fits the rates to measured_gpu.toml and determines the error there: a range is two standard deviations to either side.
--first-proposals predicts a run without --autotune: no product splits its sum, and symmetric_product_pays() chooses
between our kernel and the library for a symmetric product.
"""

if __name__ == "__main__":
    import os
    import sys

    sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "scripts"))
    import startup

    startup.begin()

import argparse
import json
import math
import statistics
import subprocess
import sys

import calibration
import compiled_counts
import gpu_rules
import toml  # calibration finds it
from compiled_counts import COUNTS, TABLE


def load(path=TABLE, counts=COUNTS, points=None):
    """(table with the fitted rates, counts, fit) of the committed files."""
    with open(path, "rb") as file:
        table = toml.load(file)
    counts = json.loads(counts.read_text(encoding="utf-8")) if counts.exists() else {}
    fitted = calibration.fit(table, counts, points or calibration.load())
    return calibration.with_rates(table, *fitted[:4]), counts, fitted


def ranged(fitted, value, digits=1, unit="", kind="step"):
    low, high = calibration.interval(fitted, value, kind)
    return f"{value:.{digits}f}{unit} ({low:.{digits}f} to {high:.{digits}f}{unit})"


def kind_of(row):
    return "attention" if row.name.startswith(("attention forward", "attention backward")) else "step"


def print_table(head, lines, markdown):
    if markdown:
        print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
        print("\n".join("| " + " | ".join(line) + " |" for line in lines))
        return
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]
    for line in [head, *lines]:
        print(line[0].ljust(widths[0]) + "".join("  " + cell.rjust(w) for cell, w in zip(line[1:], widths[1:])))


def report(table, counts, fitted, searched, markdown, gelu_fusion):
    machines, shape = list(table["machine"]), table["shape"]
    by_machine = {name: gpu_rules.predict(table, counts, name, searched, gelu_fusion=gelu_fusion) for name in machines}
    first = by_machine[machines[0]]
    lines = []
    for i, row in enumerate(first):
        times = max(rows[i].times for rows in by_machine.values())
        if not times:
            continue
        low, high = calibration.interval(fitted, 1000 * row.times * row.seconds, kind_of(row))
        lines.append([row.name, f"{times:g}", f"{row.flops / 1e9:.1f}" if row.flops else "-",
                      f"{row.bytes / 1e6:.0f}", f"{row.minimum / 1e6:.0f}",
                      f"{row.instructions:.1f}" if row.instructions else "-",
                      *(f"{1000 * rows[i].times * rows[i].seconds:.2f}" if rows[i].times else "-"
                        for rows in by_machine.values()),
                      f"{low:.2f} to {high:.2f}" if row.times else "-", f"{1000 * row.times * row.limit:.2f}"])
    totals = [gpu_rules.total(rows) for rows in by_machine.values()]
    limit = gpu_rules.total(first, "limit")
    speed = lambda seconds: gpu_rules.tokens_per_second(shape, seconds) / 1000
    launches = sum(row.times * row.launches for row in first)
    wide = lambda name, cells, last: [name, "", "", "", "", "", *cells, "", last]
    lines += [wide(f"micro-step, {launches:.0f} launches", [ranged(fitted, 1000 * t) for t in totals],
                   f"{1000 * limit:.1f}"),
              wide("tokens/s", [ranged(fitted, speed(t), 0, "k") for t in totals], f"{speed(limit):.0f}k"),
              wide("share of the limit", [f"{gpu_rules.total(rows, 'limit') / t:.0%}"
                                          for rows, t in zip(by_machine.values(), totals)], "")]
    print_table(["", "times", "GFLOP", "MB", "MB, minimum", "instructions", *(f"{name}, ms" for name in machines),
                 f"range, {machines[0]}", "limit, ms"], lines, markdown)
    print(f"\nA micro-step of {shape['B']} x {shape['T']} tokens; ms: all its launches together; "
          f"limit: {machines[0]}'s, at minimum bytes;\n"
          "instructions: per element or, of attention, per mma. Not measured.\n")
    updates = {name: gpu_rules.newton_schulz(table, counts, name) for name in machines}
    us = lambda seconds: f"{1e6 * seconds:.0f}" if seconds else "-"
    lines = [[row.name, str(row.times), f"{row.flops / 1e9:.1f}"]
             + [f"{us(rows[i].kernel)}, {us(rows[i].library)}" for rows in updates.values()]
             for i, row in enumerate(updates[machines[0]])]
    lines.append(["all as chosen, ms", "", ""] + [ranged(fitted, 1000 * gpu_rules.update_seconds(rows, searched), 2)
                                                  for rows in updates.values()])
    lines.append(["all by the library, ms", "", ""] + [
        ranged(fitted, 1000 * sum(row.times * row.library for row in rows), 2) for rows in updates.values()])
    print_table(["Newton-Schulz", "times", "GFLOP", *(f"{name}, us: ours, library" for name in machines)], lines,
                markdown)


def rank_shape(table, ranks):
    """The step of table["shape"] on `ranks` GPUs, with fewer micro-steps on each."""
    shape = table["shape"]
    if ranks < 1 or shape["S"] % ranks:
        sys.exit(f"model_gpu: error: --ranks {ranks}: must divide the step's {shape['S']} micro-steps")
    return {**shape, "W": ranks, "S": shape["S"] // ranks}


def rank_figures(table, counts, fitted, machine, shape, owners, batch):
    """{description: figure as text} of a step on several GPUs."""
    ranks, link = shape["W"], table["machine"][machine]["link"]
    rows = gpu_rules.predict(table, counts, machine, shape=shape)
    seconds = lambda name: shape["S"] * sum(row.times * row.seconds for row in rows if name in row.name)
    exchanged = seconds("to their owners") + seconds("from their owners")
    step, alone = shape["S"] * gpu_rules.total(rows), shape["S"] * gpu_rules.total(
        gpu_rules.predict(table, counts, machine))
    layers = 4 * (shape["P"] - (shape["Vp"] + shape["T"]) * shape["C"])
    update = gpu_rules.update_seconds(gpu_rules.newton_schulz(table, counts, machine))
    longest = max(gpu_rules.update_seconds(gpu_rules.newton_schulz(table, counts, machine, owned, batch))
                  for owned in owners)
    ms = lambda value, digits=1: ranged(fitted, 1000 * value, digits)
    speed = lambda value: ranged(fitted, shape["B"] * shape["T"] * shape["S"] * ranks / value / 1e6, 2)
    return {"a rank's micro-steps and update, without exchange": ms(step - exchanged),
            "gradients of layers, during the backward pass": f"{1000 * layers * (ranks - 1) / ranks / link:.2f}",
            "gradients of embeddings": f"{1000 * seconds('to their owners'):.2f}",
            "weights": f"{1000 * seconds('from their owners'):.2f}",
            "step, AdamW": ms(step),
            "million tokens/s of all": speed(step),
            f"of {ranks} times one GPU": f"{alone / step:.1%}",
            "Newton-Schulz, all stacks on one GPU": ms(update, 2),
            "Newton-Schulz, the rank that takes longest": ms(longest, 2),
            "step, Teon": ms(step + longest),
            "million tokens/s of all, Teon": speed(step + longest),
            f"of {ranks} times one GPU, Teon": f"{(alone + update / ranks) / (step + longest):.1%}"}


def report_ranks(table, counts, fitted, ranks, markdown):
    machines, shape, (owners, batch) = list(table["machine"]), rank_shape(table, ranks), gpu_rules.placed(table, ranks)
    figures = [rank_figures(table, counts, fitted, name, shape, owners, batch) for name in machines]
    print_table([f"ms, {ranks} GPUs", *machines], [[what, *(of[what] for of in figures)] for what in figures[0]],
                markdown)
    print(f"\n{shape['B'] * shape['T'] * shape['S'] * ranks} tokens a step. Not measured.\n")
    m = table["machine"][machines[0]]
    busy = lambda tiles: f"{tiles}, {tiles / (gpu_rules.rounds(tiles, m) * m['multiprocessors']):.0%}"
    products = lambda *of_rank: gpu_rules.newton_schulz(table, counts, machines[0], *of_rank)
    longest = max(owners, key=lambda owned: gpu_rules.update_seconds(products(owned, batch)))
    of_rank = {}
    for row in products(longest, batch):
        of_rank.setdefault(row.name, row)  # a last launch may have fewer stacks
    lines = []
    for row in products():
        stack = row.name.split(":")[0]
        lines.append([row.name, str(sum(owned[stack] for owned in owners)), busy(row.tiles), str(longest[stack]),
                      str(batch[stack]), busy(of_rank[row.name].tiles) if row.name in of_rank else "-"])
    print_table([f"tiles of a launch, share of {m['multiprocessors']} multiprocessors that they keep busy", "stacks",
                 "one GPU", "stacks of the rank that takes longest", "in a launch", "that rank"], lines, markdown)


def report_calibration(table, counts, fitted, points, markdown):
    sets = {name: calibration.check(calibration.with_rates(table, rates["rates"], rates["half_k"], rates["overlap"]),
                                    counts, points) for name, rates in points["rules"].items()}
    sets["fitted"] = fitted.checked
    percent = lambda point: f"{point.predicted / point.measured - 1:+.0%}"
    lines = []
    for i, point in enumerate(fitted.checked):
        low, high = calibration.interval(fitted, point.predicted, "attention" if point.kind == "attention" else "step")
        number = lambda value: f"{value / 1000:.1f}k" if value >= 10000 else f"{value:.0f}"
        lines.append([f"{point.program}, {point.what}" + ("" if point.fits else " (not fitted)"), point.gpu,
                      f"{number(point.measured)} {point.unit}", *(percent(checked[i]) for checked in sets.values()),
                      f"{number(low)} to {number(high)}", point.source])
    for kind in dict.fromkeys(point.kind for point in fitted.checked):
        chosen = [[point for point in checked if point.kind == kind and point.fits] for checked in sets.values()]
        for what, mean in (("mean error", statistics.mean),
                           ("root of mean square", lambda errors: math.sqrt(statistics.mean(e * e for e in errors)))):
            lines.append([f"{kind}, {what}", "", "", *(
                f"{math.expm1(mean([calibration.error(point) for point in group])):+.1%}" for group in chosen), "", ""])
    print_table(["", "GPU", "measured", *(f"error, {name}" for name in sets), "range, fitted", "source"], lines,
                markdown)
    rates = ", ".join(f"{name} {rate / 1e12:.0f}" for name, rate in fitted.rates.items())
    print(f"\nFitted: products {rates} TFLOP/s, half of it at K = {fitted.half_k:.0f}; overlap {fitted.overlap:.2f}, "
          f"with wgmma {fitted.wgmma_overlap:.2f};\n"
          f"two standard deviations: {2 * fitted.spread['step']:.3f} of a step's logarithm, "
          f"{2 * fitted.spread['attention']:.3f} of attention's.\n")
    report_attention(table, counts, fitted, points, markdown)


def report_attention(table, counts, fitted, points, markdown):
    """Prints the attention of a micro-step at our rates and at those of other programs."""
    lines, gpu, shape = [], "H100", table["shape"]
    for T in (1024, 8192):
        of_T = {**shape, "T": T, "B": shape["B"] * shape["T"] // T}
        product = 2 * of_T["B"] * of_T["NH"] * of_T["HS"] * T * T / 2
        rates = [calibration.attention_rates(points, name, gpu, T, of_T["HS"])
                 for name in ("cuDNN", "FlashAttention-3")]
        ours = sum(row.times * row.seconds for row in gpu_rules.predict(table, counts, gpu, shape=of_T)
                   if kind_of(row) == "attention")
        lines.append([str(T), ranged(fitted, 1000 * ours, kind="attention"),
                      *(f"{1000 * of_T['L'] * product * (2 / forward + 5 / backward) / 1e12:.1f}"
                        for forward, backward in rates)])
    print_table([f"attention of {shape['B'] * shape['T']} tokens, ms, {gpu}: T", "ours, predicted", "at cuDNN's rate",
                 "at FlashAttention-3's rate"], lines, markdown)


RATES = """\
// Rates of GPUs in bf16, fitted to published measurements (docs/gpu_step.md), for plan/step_time.h. Generated by
// bench/model_gpu.py rates > plan/gpu_rates.h
#pragma once

namespace teon {

// FLOP/s of matrix products at large K (half of it at K = kHalfK), FLOP/s of attention at large T (half of it at
// T = half_T), bytes/s of device memory, bytes/s sent over NVLink, and bytes/s over PCIe in each direction while both
// are busy.
struct GpuRates {
    double products, attention, half_T, memory, nvlink, pcie;
};
"""


def report_rates(table, counts, fitted):
    """Prints plan/gpu_rates.h. Attention's rate R T / (T + half_T) is that of our kernels at T = 1024 and at 16384."""
    print(f"{RATES}inline constexpr double kHalfK = {fitted.half_k:.0f};")
    for name, m in table["machine"].items():
        short, long = (1e-12 / calibration.ours_at(table, counts, name, "both", T, 64)[0] for T in (1024, 16384))
        slope = (short - long) / (1 / 1024 - 1 / 16384)
        least = long - slope / 16384
        print(f"inline constexpr GpuRates k{name} = {{{m['flops']:.3g}, {1 / least:.3g}, {slope / least:.0f}, "
              f"{m['bytes']:.3g}, {m['link']:.3g}, {m['pcie']:.3g}}};")
    print("\n}  // namespace teon")


def report_counts(command, build, executed, table, counts):
    if (tool := compiled_counts.find_tool()) is None:
        return print("SKIPPED: counting instructions needs cuobjdump (CUDA toolkit, or triton for this Python)")
    found = compiled_counts.count_all(table, build, tool, compiled_counts.load_executed(executed))
    if command == "count":
        merged = {kernel["name"]: compiled_counts.updated(counts.get(kernel["name"], {}),
                                                          found.get(kernel["name"], {}))
                  for kernel in compiled_counts.compiled(table)}
        return COUNTS.write_text(json.dumps(merged, indent=1) + "\n", encoding="utf-8")
    lines = compiled_counts.increases(counts, found)
    print("\n".join(lines) or f"{len(found)} kernels have no more instructions and accesses than {COUNTS.name} says")
    if lines:
        sys.exit(f"model_gpu: more than {compiled_counts.GROWTH - 1:.0%} above the committed counts; if this is "
                 f"intended: bench/model_gpu.py count {build}")
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--first-proposals", action="store_true", help="predict a run without --autotune")
    parser.add_argument("--gelu-fusion", action="store_true")
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("ranks").add_argument("--ranks", type=int, default=8, help="GPUs (default 8)")
    commands.add_parser("rates")
    commands.add_parser("calibrate")
    for name in ("check", "count"):
        command = commands.add_parser(name)
        command.add_argument("build", help="folder of nvcc's object files")
        command.add_argument("executed", nargs="*", help="files of CUDA_COUNTS")
    args = parser.parse_args()
    points = calibration.load()
    table, counts, fitted = load(points=points)
    if args.command is None:
        return report(table, counts, fitted, not args.first_proposals, args.markdown, args.gelu_fusion)
    if args.command == "ranks":
        return report_ranks(table, counts, fitted, args.ranks, args.markdown)
    if args.command == "rates":
        return report_rates(table, counts, fitted)
    if args.command == "calibrate":
        return report_calibration(table, counts, fitted, points, args.markdown)
    return report_counts(args.command, args.build, args.executed, table, counts)


if __name__ == "__main__":
    sys.exit(startup.exit_code(main, {subprocess.CalledProcessError: 1, ValueError: 1}))
