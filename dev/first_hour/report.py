"""Stage e of the first hour: the report. Each measurement stands beside its limit: the bytes or FLOPs of an operation
at the data sheet's rates, or the time of a step that --plan-for expects. What falls furthest short comes first."""

import collections
import functools
import re
import statistics

from common.written_files import replacing

from first_hour.rows import BAD, output_of

FURTHEST = 15


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]) + "\n"


def version(number):
    """13010 as 13.1 (CUDA), 130100 as 13.1.0 (cuBLASLt)."""
    if not number.isdigit():
        return number or "?"
    n = int(number)
    return f"{n // 10000}.{n // 100 % 100}.{n % 100}" if n >= 100000 else f"{n // 1000}.{n % 1000 // 10}"


def measured_on(row):
    """Driver, CUDA, cuBLASLt, commit and clocks of a row, for its last column."""
    on, clocks = row["on"], row["clocks"]
    commit = re.search(r"\((.*)\)", on["commit"])
    return (f"{on['driver'] or '?'} / {version(on.get('cuda', ''))} / {version(on.get('cublaslt', ''))} / "
            f"{commit[1] if commit else on['commit']} / {clocks.get('sm_mhz', '?')} MHz, {clocks.get('watt', '?')} W")


MEASURED_ON = "driver / CUDA / cuBLASLt / commit / clocks"


def yes_and_no(rows):
    words = {"passed": "yes", "skipped": "-"}
    lines = [[row["name"], words.get(row["outcome"], f"**no**: {row['outcome']}"), row["detail"][:160]]
             for row in rows if row["stage"] == "a"]
    return "## What works\n\n" + table(["", "", ""], lines) if lines else ""


def faults(rows):
    bad = [row for row in rows if row["outcome"] in BAD]
    lines = [[row["stage"], row["outcome"], row["name"], row["detail"][:300].replace("|", "/")] for row in bad]
    counts = collections.Counter((row["stage"], row["outcome"]) for row in rows)
    text = ", ".join(f"{stage}: {n} {outcome}" for (stage, outcome), n in sorted(counts.items()))
    return (f"## Faults\n\n{text}\n\n" + (table(["stage", "", "name", ""], lines) if lines else "None.\n"))


def parity(rows):
    lines = [[row["name"], row["outcome"], row["detail"]] for row in rows if row["stage"] == "c"]
    return "## Losses beside PyTorch's\n\n" + table(["", "", ""], lines) if lines else ""


@functools.cache  # the report is written after each stage
def expected_speed(plan, gpu, programs):
    """Tokens/s that --plan-for expects of a run, or None if it does not know the GPU."""
    program, *flags = plan
    known = re.search(r"^  --plan-for (\S+)", output_of(f"{programs}/{program}", "--help-all", limit=60), re.M)
    name = next((name for name in known[1].split("|") if name in gpu.lower().replace(" ", "")), None) if known else None
    if name is None:
        return None
    output = output_of(f"{programs}/{program}", *flags, "--plan-for", name, limit=60)
    found = re.search(r"([0-9.]+)([kM]?) ?tokens/s", output[output.find("expected time of a step"):])
    return float(found[1]) * {"": 1, "k": 1e3, "M": 1e6}[found[2]] if found else None


def by_title(rows, key):
    """The rows of stage d with figures `key`, by title over all rounds."""
    groups = collections.OrderedDict()
    for row in rows:
        if key in row:
            groups.setdefault(row["of"], []).append(row)
    return groups


def steps(rows, gpu, programs):
    """(table, [(share of the limit, name)]) of whole steps."""
    torch = {title: statistics.median(r["torch"]["tokens_per_s"] for r in group)
             for title, group in by_title(rows, "torch").items()}
    lines, shares = [], []
    for title, group in by_title(rows, "train").items():
        speeds = [row["train"]["tokens_per_s"] for row in group]
        speed, row = statistics.median(speeds), group[-1]
        peer, expected = torch.get(title.split(", --")[0]), expected_speed(tuple(row["train"]["plan"]), gpu, programs)
        figures = row["train"]
        lines.append([title, f"{speed:.0f}", f"{min(speeds):.0f} to {max(speeds):.0f}",
                      f"{figures['mfu']:.1f}%" if figures["mfu"] else "-", f"{figures['optimizer_ms']:.1f}",
                      f"{expected:.0f}" if expected else "-", f"{speed / expected:.2f}" if expected else "-",
                      f"{peer:.0f}" if peer else "not run", f"{speed / peer:.2f}" if peer else "-",
                      f"{figures['planned']}, {figures['measured_mib'] / 1024:.2f} GiB", measured_on(row)])
        if expected:
            shares.append((speed / expected, f"{title}: {speed:.0f} tokens/s of {expected:.0f} expected"))
    head = ["run", "tokens/s", "range", "MFU", "optimizer, ms", "--plan-for", "of it", "compiled PyTorch", "ratio",
            "memory planned, measured", MEASURED_ON]
    return ("## Whole steps\n\n" + table(head, lines) if lines else ""), shares


def limits_of(device, operations):
    """The GPU's limits: FLOP/s by the data sheet, bytes/s as copied. Those of an H200 if there is no GPU, or if the
    program failed before it copied."""
    copies = [o["bytes"] / o["ms"] * 1000 for o in operations if o["name"] == "copy" and o.get("ms")]
    if not copies:
        return {"name": "H200 (data sheet)", "flops": device["h200_flops"], "bytes": device["h200_bytes"]}
    peak = device["peak_bf16_flops"]
    return {"name": ("data sheet" if peak else "an H200's arithmetic") + " and measured copy",
            "flops": peak or device["h200_flops"], "bytes": copies[-1]}


def limit_ms(operation, limits):
    """(milliseconds at the limits, "arithmetic" or "memory")."""
    ms = {"arithmetic": 1000 * operation["flops"] / limits["flops"],
          "memory": 1000 * operation["bytes"] / limits["bytes"]}
    bound = max(ms, key=ms.get)
    return ms[bound], bound


def attention_table(operations, torch):
    """TFLOP/s for the FLOPs of the causal half: 2 products forward, 5 backward."""
    ms = {(o["HS"], o["T"], o["pass"], o["method"]): o["ms"] for o in [*operations, *torch] if o.get("ms")}
    shapes = list(dict.fromkeys((o["HS"], o["T"], o["pass"], o["flops"]) for o in operations))
    methods = list(dict.fromkeys(o["method"] for o in [*operations, *torch]))
    lines = []
    for HS, T, which, flops in shapes:
        speed = {m: flops / ms[HS, T, which, m] / 1e9 for m in methods if (HS, T, which, m) in ms}
        best = max((s for m, s in speed.items() if m.startswith("PyTorch")), default=None)
        lines.append([which, T, HS, f"{flops / 1e9:.1f}"]
                     + [f"{speed[m]:.0f}" if m in speed else "not run" for m in methods]
                     + [f"{speed['flash'] / best:.2f}" if best and "flash" in speed else "not run"])
    head = ["pass", "T", "HS", "GFLOP"] + [f"{m}, TFLOP/s" for m in methods] + ["flash / best of PyTorch"]
    return "## Causal attention, bf16, 16384 tokens of 1024 channels\n\n" + table(head, lines) if lines else ""


MICRO_BATCHES = 8  # of 64 x 1024 tokens in a step
ONCE_A_STEP = ("AdamW", "gradient norm")


def kernel_table(kernels, torch, limits):
    """The kernels of one micro-batch: time, limit and share of all kernels' time in a step."""
    in_step = lambda o: o["count"] * (1 if o["name"] in ONCE_A_STEP else MICRO_BATCHES) * o["ms"]
    total = sum(in_step(o) for o in kernels if o.get("ms")) or None
    peers = {o["name"]: o["ms"] for o in torch}
    lines = []
    for o in kernels:
        if not o["count"]:
            continue
        limit, bound = limit_ms(o, limits)
        peer = peers.get(o["name"])
        lines.append([o["name"], o["count"], f"{o['flops'] / 1e9:.1f}" if o["flops"] else "-",
                      f"{o['bytes'] / 1e6:.0f}", bound, f"{1000 * limit:.0f}"]
                     + ([f"{1000 * o['ms']:.0f}", f"{100 * limit / o['ms']:.0f}%",
                         f"{100 * in_step(o) / total:.1f}%"]
                        if o.get("ms") else ["not run"] * 3) + [f"{1000 * peer:.0f}" if peer else "-"])
    head = ["kernel", "times", "GFLOP", "MB", "bound by", f"limit, us, {limits['name']}", "us", "of the limit",
            "share of a step", "compiled PyTorch, us"]
    title = "## Kernels of one micro-batch of GPT-2 124M, 64 x 1024 tokens, bf16 (bytes: each operand moved once)\n\n"
    return title + table(head, lines) if lines else ""


def operations(rows):
    """(tables, [(share of the limit, name)]) of attention and kernels."""
    device = next((row["device"] for row in rows if "device" in row), None)
    measured = [row["operation"] for row in rows if row.get("operation")]
    if device is None or not measured:
        return "", []
    torch = [o for row in rows for o in row.get("operations", [])]
    limits = limits_of(device, measured)
    shares = []
    for o in measured:
        if o.get("ms") and o["name"] != "copy" and o.get("method") in (None, "flash"):
            limit, bound = limit_ms(o, limits)
            shares.append((limit / o["ms"],
                           f"{o['name']}: {1000 * o['ms']:.0f} us, limit {1000 * limit:.0f} by {bound}"))
    kind = lambda objects, name: [o for o in objects if o["kind"] == name]
    on = next((measured_on(row) for row in reversed(rows) if row.get("operation")), "")
    return (attention_table(kind(measured, "attention"), kind(torch, "attention")) + "\n"
            + kernel_table(kind(measured, "kernel"), kind(torch, "kernel"), limits)
            + f"\nMeasured on ({MEASURED_ON}): {on}\n"), shares


def counters(rows):
    lines = [[row["name"].removeprefix("ncu: "),
              *[f"{row['ncu'][key]:.1f}" if key in row["ncu"] else "-" for key in ("us", "sm_percent", "dram_percent")]]
             for row in rows if row.get("ncu")]
    head = ["kernel", "us by ncu", "% of the multiprocessors' peak", "% of the memory's peak"]
    return "## Counters\n\n" + table(head, lines) if lines else ""


def furthest(shares):
    lines = [[f"{share:.2f}", name] for share, name in sorted(shares)[:FURTHEST]]
    return "## Furthest from its limit\n\n" + table(["of the limit", ""], lines) if lines else ""


def report(call):
    """Writes report.md."""
    rows = call.rows.mine()
    facts = call.rows.facts
    whole, step_shares = steps(rows, facts["gpu"], call.options.build)
    parts, operation_shares = operations(rows)
    toy = "Toy sizes on a modelled GPU or a CPU: nothing below is a measurement.\n\n"
    note = toy if call.options.size == "toy" else ""
    head = (f"# {facts['gpu']}\n\n{note}driver {facts['driver'] or '?'}, CUDA {version(facts.get('cuda', ''))} "
            f"(driver's {version(facts.get('driver_cuda', ''))}), cuBLASLt {version(facts.get('cublaslt', ''))}, NCCL "
            f"{facts.get('nccl') or '-'}, {facts['commit']}; at most {facts['limits']['sm_mhz'] or '?'} MHz, "
            f"{facts['limits']['watt'] or '?'} W\n")
    sections = [head, furthest([*step_shares, *operation_shares]), faults(rows), yes_and_no(rows), parity(rows), whole,
                parts, counters(rows)]
    text = "\n".join(section for section in sections if section.strip())
    with replacing(call.rows.folder / "report.md") as file:
        file.write(text)
