"""scripts/compare.py and scripts/experiments/significance.py:  dev/run_tests.py test/scripts/test_compare.py"""

import json
import math
import os
import re
import sys
import tracemalloc
from unittest import mock

from common import run_folder
from testing import RUN_STEPS, Case, change_json, needs, read_json, write_run, write_shard, write_tokenizer

from experiments import figures, groups, runs, significance, tables


def write_new_run(folder, optimizer="adamw", seed=1, content="c0ffee", share=0.9, val="beef", tokenizer="t1",
                  vocabulary=257, bits=None, channels=64, changes=(), lr=0.01, text="one", text_bytes=1000,
                  experiment_options=None, **rest):
    """Writes a finished run as current builds do, with "experiment" in config.json. `text`: the validation text."""
    options = {"optimizer": optimizer, "lr": lr, **(experiment_options or {})}
    experiment = {"program": "train_gpt2", "options": options, "steps": RUN_STEPS, "eval_windows": 4, "init_from": "",
                  "model": {"layers": 2, "channels": channels, "vocab_size": vocabulary},
                  "data": {"train": [{"content": content, "share": share}, {"content": "d", "share": 1 - share}],
                           "val": val, "vocab_size": vocabulary, "delimiter": 1, "tokenizer": tokenizer}}
    data = {"train": [{"path": "a/t_train_000000.bin", "tokens": 100, "content": content, "source": 0}],
            "val": [{"path": "a/t_val_000000.bin", "tokens": 10, "content": val, "source": 0}],
            "vocab_size": vocabulary, "delimiter": 1, "tokenizer": tokenizer}
    if text:
        beginnings = {str(size): f"{text} {size}" for size in range(480, text_bytes + 1, 32)}
        data["val_text"] = {"bytes": text_bytes, "beginnings": beginnings}
    config = {"experiment": experiment, "seed": seed, "changes": list(changes), "model": experiment["model"]}
    evals = {"val_bytes": 40, "val_bits_per_byte": bits} if bits else None
    path = write_run(folder, optimizer, seed, config=config, evals=evals, **rest) / "config.json"
    options = read_json(path)["options"] | {"data": f"d/a/:{share:.1f},d/b:{1 - share:.1f}"}
    change_json(path, options=options, data=data)
    return folder


class CompareTest(Case):
    def write(self, name, optimizer="adamw", seed=1, **how):
        return write_new_run(self.folder / name, optimizer, seed, **how)

    def compare(self, *words, plots=False, expect=0):
        """Runs compare.py, by default without plots, which are slow. The result's `rows` and `methods` are the tables
        of compare.md, a dict for each line."""
        modules = {} if plots else {"matplotlib": None}
        with mock.patch.dict(sys.modules, modules), mock.patch.dict(os.environ, COLUMNS="150"):
            done = self.run_here("compare.py", "--out", "out", *words, expect=expect)
        done.stderr = re.sub("compare.py: no plots: matplotlib is not installed.*\n", "", done.stderr)
        tables, page = [], self.folder / "out/compare.md"
        for line in page.read_text().splitlines() if page.exists() else []:
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if cells[0] in ("run", "method"):
                tables.append((cells, []))
            elif line.startswith("| "):
                tables[-1][1].append(dict(zip(tables[-1][0], cells)))
        done.rows, done.methods = ([rows for _, rows in tables] + [[], []])[:2]
        return done

    def labels(self, *names):
        """Returns the labels of the rows in the order of the runs' names."""
        return [g.label for g in groups.group_runs(runs.read_runs([str(self.folder / name) for name in names])[0])]

    def test_seeds_share_a_row_with_mean_and_deviation(self):
        for seed, last in ((1, 2.0), (2, 2.2), (3, 2.4)):
            write_run(self.folder / f"a{seed}", seed=seed, losses=(4, 3, 2.5, last))
            write_run(self.folder / f"b{seed}", "teon", seed=seed, losses=(4, 3, 2.5, last - 1))
        result = self.compare("a*", "b*")
        lines = result.stdout.splitlines()
        self.assertRegex(lines[1], r"^adamw +3 +2\.2000 ± 0\.2000")
        self.assertRegex(lines[2], r"^teon +3 +1\.2000 ± 0\.2000 .* -1\.0000 .* 3 pairs ")
        self.assertRegex(result.stdout, r"\nadamw .* 20\.0%")  # optimizer share
        self.assertEqual((result.rows[1]["val loss"], result.rows[1]["seeds"]), ("1.2000 ± 0.2000", "3"))

    def test_the_page_has_tables_curves_and_pictures_in_one_file(self):
        write_run(self.folder / "a", losses=(4, 3, 2.5, 2))
        write_run(self.folder / "b", "teon", losses=(4, 3, 2.5, 1))
        write_run(self.folder / "c", "muon", losses=(4, 3, 2.5, 1.5))
        log = self.folder / "c" / "metrics.jsonl"
        log.write_text("".join(log.read_text().splitlines(keepends=True)[:20]))
        done = self.compare("a", "b", "c")
        self.assertIn("One seed each: another seed may turn", done.stdout)
        self.assertIn("mean of the second half: q 1.20.", done.stdout)
        text = (self.folder / "out" / "compare.html").read_text()
        self.assertEqual(text.count("<polyline"), 3)
        self.assertIn("c, so far", text)
        self.assertNotRegex(text, r"(src|href)=\"(?!data:)|https?://")
        write_run(self.folder / "a2", seed=2)
        self.assertNotIn("One seed each", self.compare("a", "a2", "b").stdout)

    def test_runs_in_progress_show_their_curve_so_far(self):
        write_run(self.folder / "a")
        log = self.folder / "a" / "metrics.jsonl"
        log.write_text("".join(log.read_text().splitlines(keepends=True)[:20]))
        done = self.compare("a", expect=1)
        self.assertRegex(done.stdout, r"5 to 15 steps; a: a, so far|5 to 10 steps; a: a, so far")
        self.assertIn("no finished run among these", done.stderr)

    def test_labels_name_the_differences(self):
        off, on = {"teon-rms-match": False, "lr-scale": {}}, {"teon-rms-match": True, "lr-scale": {"q": 0.5}}
        later = [{}, {"dropout": 0.0}, {"dropout": 0.1}]  # a run of 0.2.0 had no dropout and no option for it
        for name, options, labels in (("rate", [{"lr": 0.01}, {"lr": 0.02}], ["teon lr=0.01", "teon lr=0.02"]),
                                      ("off", [off, on], ["teon", "teon teon-rms-match lr-scale=q=0.5"]),
                                      ("later", later, ["teon dropout=0", "teon dropout=0.1"])):
            for number, values in enumerate(options):
                write_run(self.folder / name / str(number), "teon", number, **values)
            self.assertEqual(self.labels(name), labels)

    def test_labels_are_short(self):
        for name, channels, layers in (("x", 64, 2), ("y", 128, 6)):
            path = self.write(name, channels=channels, experiment_options={"note": name * 50}) / "config.json"
            experiment = read_json(path)["experiment"]
            experiment["model"]["layers"] = layers
            change_json(path, experiment=experiment)
        self.assertEqual(self.labels("x", "y"), [f"adamw note={'x' * 19}...{'x' * 18} channels=64",
                                                 f"adamw note={'y' * 19}...{'y' * 18} channels=128"])

    def test_null_for_optional_fields(self):
        path = self.write("a") / "config.json"
        experiment = read_json(path)["experiment"] | dict.fromkeys(("options", "model", "data"))
        change_json(path, experiment=experiment, **dict.fromkeys(["seed", "changes", "model", "storage"]))
        self.assertEqual(self.labels("a"), ["adamw"])

    def test_steps_tokens_and_time_to_a_target(self):
        run = runs.read_run(write_run(self.folder / "a"))
        for found, expected in zip(groups.reach(run, 2.75), (12.5, 1250, 0.125)):
            self.assertAlmostEqual(found, expected)
        self.assertIsNone(groups.reach(run, 1.0))

    def test_a_duplicate_run_is_named_and_counted_once(self):
        for write in (write_run, write_new_run):
            for name, seed in (("a", 1), ("again", 1), ("b", 2)):
                write(self.folder / write.__name__ / name, "muon", seed=seed)
            done = self.compare(write.__name__)
            self.assertEqual([(row["run"], row["seeds"]) for row in done.rows], [("muon", "2")])
            self.assertRegex(done.stderr, "left out: .*again: the experiment and seed 1 of .*/a; counted once")

    def test_another_experiment_gets_another_row(self):
        for number, change in enumerate(({}, {"share": 0.1}, {"content": "f00d"}, {"channels": 96},
                                         {"optimizer": "teon"}, {"optimizer": "lion"})):
            for seed in (1, 2):
                self.write(f"{number}-{seed}", seed=seed, **change)
        done = self.compare("[0-9]*")
        self.assertEqual((done.stderr, [row["seeds"] for row in done.rows]), ("", ["2"] * 6))
        labels = [row["run"] for row in done.rows]
        self.assertIn("data=a:0.1,b:0.9", labels[1])
        self.assertRegex(labels[2], "data=a:0.9,b:0.1#[0-9a-f]{6}$")
        self.assertIn("channels=96", labels[3])
        self.assertNotIn("lr", " ".join(labels))

    def test_a_run_of_a_version_before_0_2_is_named_and_omitted(self):
        write_run(self.folder / "new")
        write_run(self.folder / "old", config={"experiment": None})
        done = self.compare("old", "new", expect=1)
        self.assertIn("left out: old: does not record its experiment, as versions before 0.2 did not; ", done.stderr)
        self.assertEqual(len(done.rows), 1)

    def test_runs_with_different_tokenizers_are_compared_by_bits_per_byte(self):
        for seed in (1, 2):
            self.write(f"bytes{seed}", seed=seed, bits=2.0 + seed / 10)
            self.write(f"bpe{seed}", seed=seed, bits=1.5 + seed / 10, tokenizer="t2", vocabulary=4096, val="other",
                       losses=(9, 8, 7, 6))
        done = self.compare("bytes*", "bpe*")
        self.assertNotIn("perplexity", done.rows[0])
        self.assertEqual([row["bits/byte"][:6] for row in done.rows], ["2.1500", "1.6500"])
        self.assertIn("vocab_size=4096", done.rows[1]["run"])
        self.assertEqual(done.rows[1]["vs first"], "-0.5000")
        self.assertIn("bits per byte, as tokenizers differ", done.stdout)
        self.write("padded", vocabulary=320, tokenizer="")  # the same tokens: the same content
        self.assertIn("val loss", self.compare("bytes*", "padded").rows[0])
        self.write("silent", tokenizer="t3", vocabulary=99, val="silent")
        self.assertRegex(self.compare("bytes*", "silent", expect=1).stderr,
                         "silent: has another tokenizer than .*; losses per token cannot be compared")

    def test_with_other_tokenizers_only_runs_validated_on_the_same_text_are_compared(self):
        self.write("first", bits=2.1)
        other = {"bits": 1.6, "tokenizer": "t2", "vocabulary": 4096, "val": "x"}
        self.write("same", **other, text_bytes=985)     # the last window ends earlier
        self.write("another", "muon", **other, text="two")
        self.write("shorter", "teon", **other, text_bytes=970)
        self.write("unknown", "lion", **other, text=None)
        done = self.compare("first", "same", "another", "shorter", "unknown", expect=1)
        self.assertEqual([row["bits/byte"] for row in done.rows], ["2.1000", "1.6000"])
        for name, reason in (("another", "it was validated on other text than first"),
                             ("shorter", "it was validated on 970 bytes of text, first on 1,000, without white space"),
                             ("unknown", "unknown does not record the text that it was validated on")):
            self.assertIn(f"left out: {name}: has another tokenizer than first, and {reason}\n", done.stderr)

    SWEEP = {"muon": {0.01: 2.5, 0.02: 2.2, 0.04: 2.3}, "teon": {0.01: 2.4, 0.02: 2.2, 0.04: 2.1}}

    def write_sweep(self, seeds=(1, 2)):
        for optimizer, losses in self.SWEEP.items():
            for lr, loss in losses.items():
                for seed in seeds:
                    self.write(f"s/{optimizer}-{lr}-{seed}", optimizer, seed, lr=lr,
                               losses=(4, 3, 2.9, loss + seed / 100), experiment_options={"adamw-lr": lr})

    def test_after_a_sweep_each_method_is_at_its_best_rate(self):
        self.write_sweep()
        done = self.compare("s")
        self.assertEqual([[row[k] for k in ("method", "rates", "best rate", "lies inside", "seeds")]
                          for row in done.methods],
                         [["muon", "0.01 to 0.04 (3)", "0.02", "yes", "2"],
                          ["teon", "0.01 to 0.04 (3)", "0.04", "no: the highest", "2"]])
        # 2.1 against 2.2, in pairs of one seed.
        self.assertEqual((done.methods[1]["vs first"], done.methods[1]["test"]), ("-0.1000", "2 pairs"))
        self.assertIn("The best rate of teon is an end of its rates", done.stdout)
        self.assertEqual(self.compare("s/muon-0.01-1", "s/teon-0.02-1").methods, [])  # one rate each

    def test_a_diverged_rate_bounds_its_method(self):
        self.write_sweep(seeds=(1,))
        self.write("s/teon-high", "teon", lr=0.08, losses=(4, None, None, None), experiment_options={"adamw-lr": 0.08})
        done = self.compare("s", expect=1)
        self.assertIn("teon-high: the validation loss of step 10 is not finite", done.stderr)
        self.assertRegex(done.stdout, r"\nteon +0\.01 to 0\.08 \(4\) +0\.04 +yes ")
        self.assertIn("Diverged: teon at 0.08.", done.stdout)

    def test_the_baseline_comes_first(self):
        self.write_sweep()
        for name, row in (("teon", "teon lr=0.04"), ("muon lr=0.02", "muon lr=0.02"),
                          ("s/muon-0.01-2", "muon lr=0.01")):
            self.assertEqual(self.compare("s", "--baseline", name).rows[0]["run"], row)
        self.assertIn("error: --baseline soap: no run of this folder, row or optimizer; the rows are muon lr=0.01, ",
                      self.compare("s", "--baseline", "soap", expect=2).stderr)

    @mock.patch.dict(sys.modules, matplotlib=None)
    def test_the_output_is_beside_the_runs(self):
        self.write_sweep(seeds=(1,))
        for names in (["s"], ["s/muon-0.01-1"], ["s/muon-0.01-1", "s/teon-0.01-1"]):
            for top in ("", self.folder):
                self.run_here("compare.py", *(os.path.join(top, name) for name in names))
                (self.folder / "s/compare/compare.md").unlink()

    def test_what_a_glob_finds_beside_the_runs_of_a_sweep_is_ignored(self):
        self.write_sweep(seeds=(1,))
        (self.folder / "s/muon-0.01-1.json").write_text('{"program": "train_gpt2", "flags": {}, "config": ""}')
        (self.folder / "s/compare").mkdir()
        (self.folder / "s/compare/compare.md").touch()
        self.assertEqual(self.compare(*sorted((self.folder / "s").iterdir())).stderr, "")
        (self.folder / "s/list.json").write_text("{}")
        self.assertIn("list.json: no such folder", self.compare(*(self.folder / "s").iterdir(), expect=1).stderr)

    def test_runs_below_a_folder_and_its_links_are_found_once(self):
        self.write("elsewhere/muon", "muon")
        self.write("elsewhere/more/teon", "teon")
        self.write("runs/below/adamw")
        top = self.folder / "runs"
        (top / "below/compare").mkdir()                                  # the output of an earlier comparison
        (top / "linked-run").symlink_to(self.folder / "elsewhere/muon")
        (top / "linked-folder").symlink_to(self.folder / "elsewhere/more")
        (top / "self").symlink_to(top)                                   # a cycle
        (top / "twice").symlink_to(top / "below/adamw")
        self.write("runs/.trash/lion")                                   # hidden, as below of every other folder
        self.write("runs/below/.ipynb_checkpoints/lion")
        for pattern in ("runs", "runs/*"):
            done = self.compare(pattern)
            self.assertEqual(done.stderr, "")
            self.assertEqual(sorted(row["run"] for row in done.rows), ["adamw", "muon", "teon"])

    def test_runs_whose_bytes_are_not_the_texts_are_marked(self):
        for name, tokenizer, bytes_of in (("a", "t1", "source"), ("b", "t2", "tokens"), ("c", "t2", None)):
            path = self.write(name, bits=2.1, tokenizer=tokenizer, val=name, text="same") / "config.json"
            change_json(path, data=read_json(path)["data"] | ({"val_bytes_of": bytes_of} if bytes_of else {}))
        marked = re.findall(r"(\w+): its bytes are those that the tokens spell", self.compare(*"abc").stdout)
        self.assertEqual(marked, ["b", "c"])

    def test_a_run_without_bits_per_byte_is_omitted_if_they_are_compared(self):
        self.write("a", bits=2.1)
        self.write("b", seed=2)
        self.write("c", bits=1.6, tokenizer="t2", vocabulary=4096, val="other")
        done = self.compare(*"abc", expect=1)
        self.assertEqual([row["bits/byte"] for row in done.rows], ["2.1000", "1.6000"])
        self.assertRegex(done.stderr, "left out: b: was not evaluated in bits per byte, .* tokenizers differ")

    def test_changes_in_a_resumed_run_are_marked(self):
        change = {"step": 10, "event": "validation_changed", "reason": "another --val-data"}
        run = runs.read_run(self.write("a", changes=[change]))
        self.assertEqual([m["step"] for m in run.evals], [15, 20])
        self.assertIn("a: validation changed after step 10.", self.compare("a").stdout)

    def test_a_step_takes_at_most_100_bytes_of_memory(self):
        path = write_run(self.folder / "a") / "metrics.jsonl"
        line = json.loads(path.read_text().splitlines()[0])
        path.write_text("".join(json.dumps(line | {"step": step, "tokens": 100 * step, "loss": 5.0 + step, "mfu": 0.5})
                                + "\n" for step in range(1, 5001)))
        run_folder.Metrics(self.folder / "a")  # modules and caches
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        metrics = run_folder.Metrics(self.folder / "a")
        self.assertLess(tracemalloc.get_traced_memory()[1] / 5000, 100)
        steps = metrics.of_kind("step")
        self.assertEqual(len(steps), 5000)
        self.assertEqual((steps[-1]["step"], steps[-1]["tokens"], steps[-1]["loss"]), (5000, 500000, 5005.0))

    def test_skipped_updates_are_marked(self):
        path = write_run(self.folder / "a") / "metrics.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            if line["kind"] == "step" and line["step"] in (3, 9):
                line["loss"] = None
        event = {"kind": "event", "event": "update_skipped", "reason": "non-finite gradient"}
        lines[6:6] = [event | {"step": 6}]                               # its loss is finite
        path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, event | {"step": 3}]))
        done = self.compare("a")
        self.assertEqual((done.rows[0]["val loss"], done.stderr), ("2.2000", ""))
        self.assertIn("a: 3 updates skipped.", done.stdout)

    def test_runs_of_one_seed_are_pairs(self):
        noise, gain = (0.0, 0.5, 1.0, -0.3), (0.010, 0.012, 0.008, 0.011)
        for seed in range(4):
            write_run(self.folder / f"a{seed}", "muon", seed=seed, losses=(4, 3, 2.5, 2 + noise[seed]))
            # In the opposite order of names: seeds make pairs, and not the positions in a list.
            write_run(self.folder / f"b{9 - seed}", "teon", seed=seed, losses=(4, 3, 2.5, 2 + noise[seed] - gain[seed]))
            write_run(self.folder / f"d{seed}", "teon", seed=seed, layers=3)
        write_run(self.folder / "c8", "adamw", seed=8, losses=(4, 3, 2.5, 3.0))
        write_run(self.folder / "c9", "adamw", seed=9, losses=(4, 3, 2.5, 3.1))
        done = self.compare("a*", "b*", "c*")
        of = {row["run"]: row for row in done.rows}
        self.assertEqual((of["teon"]["test"], of["teon"]["vs first"]), ("4 pairs", "-0.0102"))
        # Mean .01025, deviation .001708, t(.025, 3) = 3.1824: .01025 -+ .00272.
        self.assertEqual(of["teon"]["95% interval"], "-0.0130 to -0.0075")
        self.assertLess(float(of["teon"]["p"].replace("<", "")), 0.01)
        self.assertEqual(of["adamw"]["test"], "Welch")
        self.assertGreater(float(of["adamw"]["p"]), 0.01)
        self.assertEqual(done.stdout.count("Holm"), 1)
        self.assertIn("Student's t test on pairs of one seed or Welch's", done.stdout)
        self.assertIn("2 comparisons", done.stdout)
        # Runs with different initial weights are not pairs, even with the same seed.
        self.assertEqual(self.compare("a*", "d*").rows[1]["test"], "Welch")

    def test_t_tests_against_known_values(self):
        # t = 1 with 4 degrees of freedom: 0.373901; t = 2.776445 with 4: 0.05 (tables of Student's distribution).
        for t, p in ((1.0, 0.373901), (2.776445, 0.05)):
            a = [0.0, 1.0, 2.0]
            found = significance.welch(a, [x + t * math.sqrt(2 / 3) for x in a])
            self.assertAlmostEqual(found.p, p, places=5)
            # Differences of mean 3 and deviation 1, -1, 1, -1, 0 times c have t = 3 sqrt(5) / c.
            c = 3 * math.sqrt(5) / t
            found = significance.paired([3 + c * x for x in (1, -1, 1, -1, 0)])
            self.assertAlmostEqual(found.p, p, places=5)
        self.assertAlmostEqual(found.low, 0, places=4)  # a 95% interval ends at zero if p is .05
        self.assertAlmostEqual(found.high, 6, places=4)
        for freedom, t in ((1, 12.7062), (4, 2.776445), (30, 2.042272)):
            self.assertAlmostEqual(significance.student_t(0.05, freedom), t, places=3)
        for t in (0.0, 0.5, 3.0, 200.0):  # closed forms for 1 and 2 degrees of freedom
            self.assertAlmostEqual(significance.student_p(t, 1), 1 - 2 / math.pi * math.atan(t), delta=1e-9)
            self.assertAlmostEqual(significance.student_p(t, 2), 1 - t / math.sqrt(2 + t**2), delta=1e-9)
        # Welch's degrees of freedom lie between whole numbers. scipy 1.17: 2 * stats.t.sf and stats.t.ppf.
        for t, freedom, p in ((2, 1.2, 0.261334601373813), (20, 1.5, 0.008414988662220927), (12, 8.5, 1.2754376519e-6)):
            self.assertAlmostEqual(significance.student_p(t, freedom) / p, 1, delta=1e-5)
        self.assertAlmostEqual(significance.student_t(0.05, 1.2), 8.648826510748867, places=6)
        self.assertEqual(significance.welch([1e-170, 2e-170], [1e-170, 3e-170]).method, "Welch")  # squares underflow
        self.assertEqual([significance.paired(x).p for x in ([1.0, 1.0], [0.0, 0.0])], [0.0, 1.0])
        for found in (significance.paired([1.0]), significance.welch([1.0], [2.0, 3.0])):
            self.assertTrue(math.isnan(found.p) and math.isnan(found.low))

    def test_holms_correction(self):
        # Sorted .01 .03 .04 .5, times 4 3 2 1, never decreasing: .04, .09, .09 (not .08), .5.
        corrected = significance.holm([0.01, 0.04, float("nan"), 0.03, 0.5])
        for found, p in zip(corrected, (0.04, 0.09, None, 0.09, 0.5)):
            self.assertAlmostEqual(found, p) if p else self.assertTrue(math.isnan(found))

    def test_an_optimizer_has_its_colour(self):
        known = figures.COLORS
        for names in (["adamw", "muon", "teon"], ["teon", "muon lr=1", "muon"]):
            colors = figures.colors_of(names, known)
            self.assertEqual(len(set(colors.values())), 3)
            self.assertEqual((colors["muon"], colors["teon"]), (known["muon"], known["teon"]))

    def test_bad_runs_are_named_and_omitted(self):
        damages = {"good": lambda f: None, "cut": lambda f: f.write_text(f.read_text()[:-9]),
                   "short": lambda f: f.write_text("".join(f.read_text().splitlines(True)[:-8])),
                   "nan": lambda f: f.write_text(f.read_text().replace('"val_loss": 2.2', '"val_loss": null')),
                   "garbage": lambda f: f.write_text("{}\nnot json\n"), "gone": lambda f: f.unlink()}
        for name, damage in damages.items():
            damage(write_run(self.folder / name) / "metrics.jsonl")
        write_run(self.folder / "other", data={"train": [{"path": "x_train.bin", "tokens": 5}], "val": []})
        result = self.compare(*damages, "other", "absent", expect=1)
        for name, fault in (("cut", "unfinished"), ("short", "unfinished"), ("nan", "not finite"), ("garbage", "lacks"),
                            ("gone", "missing"), ("other", "other data"), ("absent", "no such folder")):
            self.assertRegex(result.stderr, f"(?m)^compare.py: left out: {name}.*{fault}")
        self.assertEqual([(row["run"], row["val loss"]) for row in result.rows], [("adamw", "2.2000")])
        result = self.compare("good", "cut", "short")  # being unfinished is not a fault
        self.assertEqual(len(result.stderr.splitlines()), 2)

    def test_numbers_of_diverged_runs(self):
        for seed in (1, 2):
            write_run(self.folder / f"a{seed}", seed=seed, losses=(4, 3, 2.5, 800 + seed))
        (row,) = self.compare("a*").rows
        self.assertEqual((row["val loss"], row["perplexity"]), ("801.5000 ± 0.7071", "over 1e304"))
        self.assertEqual(tables.mean_spread([3e38, 3.2e38]), "3.1e+38 ± 1.414e+37")
        self.assertEqual(tables.mean_spread([runs.perplexity(3e38)], 3), "over 1e304")
        self.assertEqual(tables.mean_spread([2.0, 2.5]), "2.2500 ± 0.3536")

    def test_wrong_calls_are_named(self):
        write_run(self.folder / "a")
        self.assertIn("--target: 'nan' is not a number", self.compare("a", "--target", "nan", expect=2).stderr)
        (self.folder / "file").touch()
        self.assertIn("compare.py: error: file/out: Not a directory\n",
                      self.compare("a", "--out", "file/out", expect=1).stderr)

    def test_a_wide_table_is_printed_in_parts(self):
        header, rows = ["run", *(f"column {i}" for i in range(20))], [["a", *"12345678901234567890"]]
        text = tables.as_text(header, rows)
        self.assertLessEqual(max(map(len, text.splitlines())), 100)
        self.assertEqual(re.findall(r"column \d+", text), header[1:])
        self.assertEqual([line.split()[0] for line in text.splitlines() if line], ["run", "a"] * 3)
        self.assertEqual(tables.as_text(["a", "b"], [["x" * 200, "y"]]).count("\n"), 1)
        with mock.patch.dict(os.environ, COLUMNS="80"):
            self.assertLessEqual(max(map(len, tables.as_text(header, rows).splitlines())), 80)

    @needs("matplotlib")
    def test_the_last_point_and_points_above_the_figure_are_marked(self):
        import matplotlib.figure
        for count in (1, 2, 12, 13, 100, 1001):
            at = figures.marked(count)
            self.assertEqual((at[0], at[-1]), (0, count - 1))
            self.assertLessEqual(len(at), 14)
        self.assertEqual(figures.marked(0), [])
        axis = matplotlib.figure.Figure().subplots()
        axis.plot([1, 2, 3, 4], [9, 5, 2, 1], color="red")
        axis.set_ylim(0, 4)
        figures.mark_cut_off(axis)
        (triangles,) = axis.lines[1:]
        self.assertEqual((list(triangles.get_xdata()), list(triangles.get_ydata())), ([1, 2], [4, 4]))
        self.assertEqual((triangles.get_marker(), triangles.get_color()), ("^", "red"))

    @needs("matplotlib")
    def test_plots(self):
        self.write_sweep()
        self.assertEqual(self.compare("s", plots=True).stderr, "")
        for name in ("loss.png", "rates.png", "alignment.png"):
            self.assertGreater((self.folder / "out" / name).stat().st_size, 5000)

    @needs("matplotlib")
    def test_a_curve_is_the_mean_over_seeds_with_a_band(self):
        self.write_sweep(seeds=(1, 3))
        rows = groups.group_runs(runs.read_runs([str(self.folder / "s")])[0])
        shown = []
        with mock.patch("experiments.figures.save_figure", lambda figure, *_: shown.append(figure)):
            figures.plot_losses(rows, "", False)
            figures.plot_rates(groups.methods_of(rows), "", False)
        steps, seconds = shown[0].axes  # tokens are the upper scale of the first
        self.assertEqual(len([line for line in steps.lines if line.get_label()[0] != "_"]), 6)
        line = next(line for line in steps.lines if line.get_label().startswith("muon lr=0.02: "))
        self.assertEqual([round(y, 9) for y in line.get_ydata()], [4, 3, 2.9, 2.22])
        self.assertEqual(len(steps.collections), 6)  # bands
        muon = next(line for line in shown[1].axes[0].lines if line.get_label().startswith("muon: best at 0.02"))
        self.assertEqual(list(muon.get_xdata()), [0.01, 0.02, 0.04])
        # Mean losses 2.52, 2.22, 2.32 against the best of all, 2.12: perplexities 49%, 10.5%, 22% higher.
        for found, loss in zip(muon.get_ydata(), (2.52, 2.22, 2.32)):
            self.assertAlmostEqual(found, 50 * sum(math.exp(loss + d - 2.12) - 1 for d in (-0.01, 0.01)), places=6)


class EngineTest(Case):
    """config.json as the engine writes it."""

    LETTERS = [bytes([byte]) for byte in range(256)] + [b""]  # 256: the delimiter

    def train(self, name, tokenizer, text):
        """Trains two steps on a text; `tokenizer`: the tokens after the bytes and the delimiter."""
        tokens, at = [256], 0
        while at < len(text):
            pair = next((t for t in tokenizer if text.startswith(t, at)), b"")
            tokens.append(257 + tokenizer.index(pair) if pair else text[at])
            at += len(pair) or 1
        folder = self.folder / f"{name}-data"
        write_shard(folder / "t_val_000000.bin", tokens)
        write_shard(folder / "t_train_000001.bin", [256, *text[::-1]])
        write_tokenizer(folder / "tokenizer", [*self.LETTERS, *tokenizer], 256, "sentencepiece")
        (folder / "manifest.json").write_text(json.dumps({
            "vocab_size": 257 + len(tokenizer), "delimiter": 256,
            "tokenizer": read_json(folder / "tokenizer" / "description.json")}))
        self.run_program("--data", folder, "--out", self.folder / name, "--model", "tiny", "--layers", 1, "--channels",
                         16, "--heads", 1, "--ffn", 32, "--seq-len", 16, "--batch-tokens", 64, "--steps", 2)
        return str(self.folder / name)

    def test_runs_of_two_tokenizers_are_compared_if_their_validation_text_is_the_same(self):
        text = b"".join(b"%d the other side " % i for i in range(200))
        bytes_run = self.train("bytes", [], text)
        words_run = self.train("words", [b" the", b"other ", b"side"], text)
        other_run = self.train("changed", [b" the", b"other ", b"side"], b"x" + text[1:])
        compared, faults = runs.read_runs([bytes_run, words_run, other_run])
        self.assertEqual([run.folder for run in compared], [bytes_run, words_run])
        self.assertEqual([str(fault) for fault in faults], [
            f"{other_run}: has another tokenizer than {bytes_run}, and it was validated on other text than "
            f"{bytes_run}"])
