"""What plans expect, and that runs agree with them:  dev/run_tests.py test/programs/test_plan.py"""

import math
import random
import re

from common import toml
from testing import BUILD, ROOT, Case, RunCase, as_flags, write_shards

# "2.72k", "4.14M" and what "step 126.7 ms (112.4 to 142.9), 4.14M tokens/s (3.67M to 4.67M)" says in them.
UNITS = {"": 1, "k": 1e3, "M": 1e6}


def number(text):
    return float(text.rstrip("kM")) * UNITS[text[-1] if text[-1] in "kM" else ""]


class ExpectedTime(Case):
    def plan(self, program, gpu, **flags):
        words = as_flags({f"--{name.replace('_', '-')}": value for name, value in flags.items()})
        return self.call(BUILD / program, "--plan-for", gpu, "--memory", "900Gi", *words).stdout

    def speed(self, *plan, **flags):
        """Returns (least, expected, most) tokens/s."""
        text = self.plan(*plan, **flags)
        found = re.search(r"\n  step .* ms \(.*\), (\S+) tokens/s \((\S+) to (\S+)\)", text)
        self.assertTrue(found, text)
        return [number(found[i]) for i in (2, 1, 3)]

    def published(self):
        """Yields the published steps, each with the plan's speed for our step of the same model."""
        with open(ROOT / "bench/published_steps.toml", "rb") as file:
            table = toml.load(file)
        for point in table["step"]:
            m, ranks = table["model"][point["model"]], point["W"]
            flags = {"layers": m["L"], "channels": m["C"], "heads": m["NH"], "ffn": m["F"], "vocab_size": m["V"],
                     "seq_len": point["T"], "micro_batch": point["B"], "ranks": ranks,
                     "batch_tokens": ranks * point["S"] * point["B"] * point["T"], "recompute": "none",
                     "optimizer": "adamw", "shard": "optimizer", "grad_comm_dtype": "bf16"}  # as both programs do
            program = "train_gpt2"
            if point["program"] == "llmq":
                program, flags["kv_heads"] = "train_llama", m["NKV"]
            yield point, [speed / ranks for speed in self.speed(program, point["gpu"].lower(), **flags)]

    def test_published_steps_are_within_the_range_of_two_standard_deviations(self):
        errors, spreads = [], set()
        for point, (least, expected, most) in self.published():
            with self.subTest(source=point["source"]):
                self.assertTrue(least <= point["tokens_per_s"] <= most, (least, point["tokens_per_s"], most))
            errors.append(math.log(expected / point["tokens_per_s"]))
            spreads.add(round(math.log(most / least) / 2, 2))
        self.assertGreaterEqual(len(errors), 10)
        (spread,) = spreads
        deviation = math.sqrt(sum(e * e for e in errors) / len(errors))
        self.assertTrue(1.9 * deviation <= spread <= 2.3 * deviation, (2 * deviation, spread))

    def test_the_page_and_the_readme_state_what_plans_expect(self):
        text = lambda speed: f"{speed / 1000:.1f}k"
        rows = ["| | GPU | measured, tokens/s per GPU | expected | error |", "|---|---|---|---|---|"]
        errors = []
        for point, (least, expected, most) in self.published():
            measured, ranks = point["tokens_per_s"], f", {point['W']} GPUs" if point["W"] > 1 else ""
            errors.append(expected / measured - 1)
            rows.append(f"| {point['program']}, {point['model']}{ranks} | {point['gpu']} | {text(measured)} | "
                        f"{text(expected)} ({text(least)} to {text(most)}) | {errors[-1]:+.0%} |")
        table, page = "\n".join(rows), (ROOT / "docs/distributed.md").read_text(encoding="utf-8")
        self.assertTrue(table in page, f"docs/distributed.md should have\n{table}")
        readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
        self.assertIn(f"it meets within {min(errors):+.0%} to {max(errors):+.0%} ", readme)
        for gpus in (1, 8):
            plan = self.call(BUILD / "train_gpt2", "--config", ROOT / "experiments/recipes/gpt2_124m.toml",
                             "--plan-for", "h100", "--ranks", gpus).stdout
            speed, least, most = re.search(r"\n  step .* ms \(.*\), (\S+) tokens/s \((\S+) to (\S+)\)", plan).groups()
            speed, least, most = (re.sub(r"[\d.]+", lambda n: f"{float(f'{float(n[0]):.2g}'):g}", text)
                                  for text in (speed, least, most))
            self.assertIn(f"{speed} ({least} to {most}) {'tokens/s on one H100' if gpus == 1 else 'on eight'}", readme)

    def test_the_exchange_is_the_part_that_is_not_hidden(self):
        """GPT-2 124M: 8 ranks over NVLink, more ranks over a network. Half the bytes take half the time."""
        def exchange(gpu="h100", batch_tokens=2**20, **flags):
            text = self.plan("train_gpt2", gpu, micro_batch=16, batch_tokens=batch_tokens, **flags)
            found = re.search(r"exchange, (\S+) GB/s, not hidden +(\S+) ms", text)
            return found and (float(found[1]), float(found[2]))

        self.assertIsNone(exchange())
        rate, of_8 = exchange(ranks=8, shard="optimizer")
        outside = 4 * (50304 + 1024) * 768 + 4 * 121 * 768  # embeddings; norms and biases are about 121 C
        self.assertEqual(rate, 300)
        self.assertAlmostEqual(of_8, 1e3 * 7 / 8 * (outside + 2 * 124.5e6) / 300e9, delta=0.02)
        self.assertAlmostEqual(exchange(ranks=8, shard="optimizer", bandwidth=150)[1], 2 * of_8, delta=0.02)
        rate, of_64 = exchange(ranks=64, shard="optimizer")
        self.assertEqual(rate, 40)
        self.assertGreater(of_64, 300 / 40 * of_8)
        # The exchange of layers' weights is hidden too. Weights outside of layers are sent once, their gradients for
        # each micro-batch.
        of_all = [exchange(batch_tokens=micro * 2**17, ranks=8, shard="all")[1] for micro in (1, 2, 8)]
        self.assertLess(of_all[0], of_8)
        self.assertAlmostEqual(of_all[2] - of_all[0], 7 * (of_all[1] - of_all[0]), delta=0.05)
        self.assertLess(exchange(ranks=64, shard="optimizer", grad_comm_dtype="bf16")[1], of_64)
        self.assertEqual(exchange("a100", ranks=2)[0], 200)

    def test_offloading_makes_7b_fit_80_gib_and_3b_24(self):
        def plan(model, *flags, expect=0):
            return self.call(BUILD / "train_llama", "--plan-for", "h100", "--model", model, *flags, expect=expect)

        for model, memory in (("7b", []), ("3b", ["--memory", "24Gi"])):
            for optimizer in ("adamw", "muon"):
                with self.subTest(model=model, optimizer=optimizer):
                    flags = [*memory, "--optimizer", optimizer]
                    self.assertIn("give --offload optimizer", plan(model, *flags, expect=2).stderr)
                    text = plan(model, *flags, "--offload", "optimizer").stdout
                    host = text.split("memory of the host, pinned")[1]
                    self.assertRegex(host, r"^.*\n  weights, float masters .*\n  optimizer state ")
                    ms = re.search(r"(?m)^  offloaded state over PCIe +(\d+\.\d\d) ms$", text)
                    self.assertTrue(ms, text)
                    if model == "3b":  # its head size of 80 has no flash attention, so no other time is known
                        self.assertIn(f"\n  PCIe allows at most {2**19 / float(ms[1]):.2f}k tokens/s\n", text)

    def test_copies_of_activations_are_hidden_up_to_the_time_of_a_pass(self):
        flags = {"micro_batch": 8, "batch_tokens": 2**19, "optimizer": "adamw"}

        def step(**more):
            text = self.plan("train_llama", "h100", model="7b", **flags, **more)
            times = {name: float(ms) for name, ms in re.findall(r"(?m)^  (\S.*?) +(\S+) ms(?: of .*)?$", text)}
            each_way = re.search(r"activations, PCIe, not hidden .* ms of (\S+) ms each way", text)
            return times, each_way and float(each_way[1]), float(re.search(r"\n  step (\S+) ms", text)[1])

        _, none, kept = step(recompute="none")
        self.assertIsNone(none)
        for policy, blocks in (("none", 5), ("none", 24), ("block", 30)):
            times, each_way, total = step(recompute=policy, offload="activations", offload_blocks=blocks)
            if policy == "block":  # each block's input, of 4096 channels
                self.assertAlmostEqual(each_way, 1e3 * 2**19 * 2 * 4096 * blocks / 42e9, delta=0.01)
            computes = sum(times[name] for name in ("products", "attention", "other passes over memory"))
            forward, backward = computes / 3, 2 * computes / 3 + times.get("recomputation", 0)
            late = sum(max(0, each_way - pass_ * 30 / 32) for pass_ in (forward, backward))
            self.assertAlmostEqual(times["activations, PCIe, not hidden"], late, delta=0.1)
            self.assertAlmostEqual(total, kept + late + times.get("recomputation", 0), delta=0.2)
            self.assertEqual(late > 0, blocks == 24)

    def test_the_parts_of_a_step(self):
        def times(**flags):
            text = self.plan("train_llama", "h200", model="1b", micro_batch=8, batch_tokens=2**18, **flags)
            return dict(re.findall(r"(?m)^  (\S.*?) +(\S+) ms$", text)), text

        of_none, text = times(recompute="none", optimizer="adamw")
        self.assertEqual(list(of_none), ["products", "attention", "other passes over memory", "update"])
        total = float(re.search(r"\n  step (\S+) ms", text)[1])
        self.assertAlmostEqual(sum(map(float, of_none.values())), total, delta=0.1)
        of_block, _ = times(recompute="block", optimizer="muon")
        self.assertGreater(float(of_block["update"]), float(of_none["update"]))
        self.assertAlmostEqual(float(of_block["recomputation"]) / float(of_block["products"]), 1 / 3, delta=0.1)
        # Rows of 1024 see 512 keys on average, with a window of 128 of them 120.
        of_window, _ = times(recompute="none", optimizer="adamw", window=128)
        self.assertEqual(of_window["products"], of_none["products"])
        share = float(of_window["attention"]) / float(of_none["attention"])
        self.assertTrue(120 / 512 < share < 1, share)
        self.assertEqual(times(recompute="none", optimizer="adamw", window=1024)[0], of_none)
        _, text = times(dtype="float")
        self.assertIn("expected time of a step: known only for --dtype bf16 with flash attention", text)


class PlanAndRun(RunCase):
    SHAPE = {"--model": "tiny", "--layers": 2, "--channels": 16, "--heads": 2, "--vocab-size": 64, "--seq-len": 16,
             "--batch-tokens": 64, "--eval-tokens": 64}
    STEPS = 1
    # Each setting has some of these; most values alone are valid.
    CHOICES = [
        ["--model", "large", "--layers", 1024, "--channels", 16384],  # more than any machine's memory
        ["--memory", "140Mi"], ["--memory", "64Mi"], ["--memory", "1Gi"],
        ["--seq-len", 64], ["--seq-len", 30000], ["--batch-tokens", 100], ["--batch-tokens", 8], ["--micro-batch", 2],
        ["--micro-batch", 3], ["--vocab-size", 40], ["--vocab-size", 100], ["--heads", 3], ["--layers", 3],
        ["--optimizer", "teon", "--teon-roles", "mlp-gate"], ["--optimizer", "muon"], ["--lr-scale", "mlp-gate=2"],
        ["--patience", 3, "--eval-every", 0], ["--keep-best"], ["--document-mask"], ["--delimiter", 3],
        ["--sample-every", 1, "--prompt", "text"], ["--sample-every", 1, "--prompt-tokens", "7,70"],
        ["--sample-every", 1, "--prompt-tokens", 7], ["--sample-every", 1], ["--matmul-dtype", "fp8"],
        ["--dtype", "bf16"], ["--shuffle", "off"], ["--profile-steps", "1:2"], ["--recompute", "block"],
        ["--dropout", 0.1], ["--window", 8]]
    DATA = ["data", "data", "data", "data/t_train_000000.bin", "data:1,other:3", "short"]
    FOLDERS = ["new"] * 7 + ["used", "foreign", "file"]

    def setting(self, rng):
        """Returns flags at random, in which no flag comes twice."""
        flags = {}
        for choice in rng.sample(self.CHOICES, rng.choice([0, 1, 1, 1])):
            for flag, value in zip(choice, [*choice[1:], None]):
                if str(flag).startswith("--"):
                    flags[flag] = "on" if value is None or str(value).startswith("--") else value
        data = ",".join(str(self.folder / part) for part in rng.choice(self.DATA).split(","))
        return [word for pair in flags.items() for word in pair], data, rng.choice(self.FOLDERS)

    def test_a_plan_refuses_what_the_run_would_refuse_with_the_same_line(self):
        rng = random.Random(59)
        for name, tokens in (("data", 2000), ("other", 300), ("short", 5)):
            write_shards(self.folder / name, *([rng.randrange(64) for _ in range(n)] for n in (tokens, 200)))
        self.train("used", data=self.folder / "data")
        (self.folder / "foreign").mkdir()
        (self.folder / "foreign" / "notes.txt").write_text("mine")
        (self.folder / "file").write_text("mine")
        # The free memory differs between two calls.
        line = lambda done: re.sub(r"only [\d.]+ .iB are|of which [\d.]+ .iB", "only so many are", done.stderr)
        answers = []
        for i in range(30):
            flags, data, out = self.setting(rng)
            with self.subTest(flags=flags, data=data, out=out):
                command = self.command(f"new{i}" if out == "new" else out, *flags, data=data)
                plan = self.call(*command, "--plan-only", expect=None)
                run = self.call(*command, expect=None)
                self.assertEqual((plan.returncode, line(plan)), (run.returncode, line(run)))
                answers.append(line(run))
        refused = set(filter(None, answers))
        for word in ("needs", "--out", "data: no window", "--seq-len", "vocabulary"):
            self.assertTrue(any(word in answer for answer in refused), (word, refused))
        self.assertGreaterEqual(answers.count(""), 8)
        self.assertGreaterEqual(len(refused), 10)

    def test_the_price_of_a_run_is_its_gpu_hours_times_the_price_of_one(self):
        command = [BUILD / "train_gpt2", "--model", "small", "--steps", 20000, "--plan-for", "h100", "--ranks", 8,
                   "--memory", "80Gi"]
        plan = self.call(*command, "--price", 2.5).stdout
        hours = [float(x) for x in re.search(r", (\S+) GPU hours \((\S+) to (\S+)\)", plan).groups()]
        cost = re.search(r"\n  cost +(\S+) \((\S+) to (\S+)\) at 2.5 per GPU and hour\n", plan).groups()
        for hour, amount in zip(hours, cost):
            self.assertLess(abs(float(amount) / (2.5 * hour) - 1), 0.01)
        self.assertNotIn("cost", self.call(*command).stdout)
        self.assertIn("--price has no meaning without --plan-for", self.error_of(BUILD / "train_gpt2", "--price", 2))
