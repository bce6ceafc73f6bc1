#!/usr/bin/env python3
"""Shows the state of a run: progress, time left, a plot of the loss.

    scripts/watch.py runs/gpt2-small-teon-20260101-120000
    scripts/watch.py runs                                      the newest run in this folder

On a terminal it updates the state until the run's last step (Ctrl-C to leave). Without a terminal, or with --once, it
prints the state once.
"""

if __name__ == "__main__":
    from common import startup

    startup.begin()

import math
import os
import statistics
import sys
import time

from common.arguments import Parser, decimal
from common.live import Live, clipped, duration, progress_bar
from common.run_folder import BadRun, find_runs, is_done, open_run, recent
from common.startup import printable

BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values, width):
    """Draws the means of `width` consecutive parts of the values as bars, scaled from the smallest to the largest."""
    values = list(filter(math.isfinite, values))
    count = min(width, len(values))
    if not count:
        return ""
    cuts = [i * len(values) // count for i in range(count + 1)]
    means = [statistics.fmean(values[begin:end]) for begin, end in zip(cuts, cuts[1:])]
    low, high = min(means), max(means)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0
    return "".join(BLOCKS[round((mean - low) * scale)] for mean in means)


def number(value, form):
    return "not finite" if value is None else format(value, form)


def view(run, config, metrics, width):
    """Returns the state as lines of text."""
    total = config["run"]["steps"]
    steps, evals, events = map(metrics.of_kind, ("step", "eval", "event"))
    out = [f"run    {run}"]
    if not steps:
        return [*map(printable, out), "step   none yet"]
    last, free = steps[-1], max(10, width - 42)
    ms, rate = (recent(steps, field) or 0 for field in ("ms", "tokens_per_s"))
    left = "done" if last["step"] >= total else f"{duration((total - last['step']) * ms / 1000)} left"
    share = min(1.0, last["step"] / total) if total > 0 else 0
    out.append(f"step   {last['step']}/{total} {progress_bar(share, min(40, free))} {100 * share:.0f}% {left}")
    out.append(f"loss   {number(last['loss'], '.4f')} {sparkline(steps.column('loss'), min(60, free))}")
    if evals:
        finite = [e for e in evals if e["val_loss"] is not None]
        lowest = min(finite, key=lambda e: e["val_loss"], default=evals[-1])
        out.append(f"val    {number(evals[-1]['val_loss'], '.4f')} (perplexity {number(evals[-1]['val_ppl'], '.2f')}) "
                   f"at step {evals[-1]['step']}"
                   + (f"; lowest {lowest['val_loss']:.4f} at step {lowest['step']}" if lowest is not evals[-1] else ""))
    out.append(f"speed  {ms:.0f} ms/step, {rate:,.0f} tokens/s, {last['tokens']:,} tokens, "
               f"lr {number(last['lr'], '.2e')}")
    for event in events[-3:]:
        out.append(f"event  step {event['step']}: {event['event']}: {event['reason']}")
    return list(map(printable, out))


def newest_run(folder):
    """Returns the folder if it is a run, otherwise the run in it whose log was written last, or the folder."""
    if os.path.exists(os.path.join(folder, "config.json")) or not os.path.isdir(folder):
        return folder
    logs = {run: os.path.join(run, "metrics.jsonl") for run in find_runs(folder)}
    return max((run for run, log in logs.items() if os.path.exists(log)), default=folder,
               key=lambda run: os.path.getmtime(logs[run]))


def main():
    parser = Parser(__doc__)
    parser.add_argument("run", help="the run's folder, or a folder of runs")
    parser.add_argument("--once", action="store_true", help="print the state once")
    parser.add_argument("--interval", type=decimal(0.01, 86400), default=1.0, metavar="SECONDS",
                        help="time between updates (default 1)")
    options = parser.parse_args()
    run = newest_run(options.run)
    config, metrics = open_run(run)
    live = Live(on=sys.stdout.isatty() and not options.once)
    while True:
        text = view(run, config, metrics, live.width())
        live.draw(text)
        if not live.on:
            print("\n".join(clipped(text, live.width())))
        if not live.on or is_done(config, metrics):
            return 0
        time.sleep(options.interval)
        metrics.update()


if __name__ == "__main__":
    sys.exit(startup.exit_code(main, {BadRun: 1}))
