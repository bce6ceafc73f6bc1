"""scripts/reproduce.py on experiments of a few seconds:  dev/run_tests.py test/scripts/test_reproduce.py"""
import dataclasses
import fcntl
import json
import math
import os
import pathlib
import random
import re
import shutil
import tempfile
from unittest import mock

from testing import ROOT, Case, end_by_skipped_updates, missing, needs, temporary_folder, write_run

from experiments import Fault, paper, paper_figures, paper_runs, paper_tables, report, tables

SCALES = """
[cpu]
about = "seconds"
seeds = 2
headline_seeds = 2
grid = [0.5, 1]
vocabulary = { train_gpt2 = "bytes" }
source = ["none"]
eval_every = 5
eval_tokens = 256
diagnose_every = 5
[cpu.models.a]
model = "tiny"
layers = 2
channels = 32
heads = 2
seq-len = 16
batch-tokens = 64
steps = 10
rates = { adamw = 0.004, muon = 0.02, teon = 0.02 }
"""
TABLE = """
order = {order}
title = "Title {order}"
place = "Table {order}"
claim = "Teon is better"
program = "train_gpt2"
models = ["a", "b"]
flags = {{ weight-decay = 0.1, teon-k = 2 }}
[[rows]]
name = "Muon"
flags = {{ optimizer = "muon" }}
paper = {{ a = 30.0 }}
[[rows]]
name = "Teon"
flags = {{ optimizer = "teon"{flags} }}
against = "Muon"
paper = {{ a = 27.0 }}
"""


class ReproduceTest(Case):
    @classmethod
    def setUpClass(cls):
        cls.folder = temporary_folder(cls.addClassCleanup)
        other = SCALES.replace("[cpu", "[other").replace("models.a", "models.c")
        (cls.folder / "scales.toml").write_text(SCALES + other)
        (cls.folder / "elsewhere.toml").write_text(TABLE.format(order=3, flags="").replace('"a", "b"', '"c"'))
        (cls.folder / "one.toml").write_text(TABLE.format(order=1, flags=""))
        (cls.folder / "two_controls.toml").write_text(TABLE.format(order=2, flags=", teon-mode = 2"))
        rng = random.Random(3)
        text = "".join(rng.choice("abcdefgh ,.\n") for _ in range(40000))
        (cls.folder / "text.txt").write_text(text)

    COMMON = ("--experiments", ".", "--out", "runs", "--datasets", "data", "--text", "text.txt", "--report", "page.md")

    def reproduce(self, *words):
        return self.run_here("reproduce.py", *self.COMMON, *words).stdout

    def refused(self, *words, expect=2):
        return self.error_here("reproduce.py", *self.COMMON, *words, expect=expect)

    def load(self, out=None, experiments=None, scale="cpu", results=""):
        """Returns the Runs of a scale and the tables."""
        scale = paper.load_scales(experiments or self.folder)[scale]
        data = paper_runs.Data(scale, self.folder / "data")
        state = paper_runs.Runs(scale, out or self.folder / "runs", data, results)
        return state, paper.load_tables(experiments or self.folder)

    @needs("numpy", "pyarrow", "tqdm", "matplotlib")
    def test_a_table_is_run_once_and_shown(self):
        top = self.folder / "runs/cpu"

        def times():
            return {f: f.stat().st_mtime_ns for f in top.glob("a/*/metrics.jsonl")}

        self.reproduce("run", "one")
        made, before = set(top.glob("a/*")), times()
        # AdamW's grid, for the rate of parameters that are not matrices; the grids and second seeds of Muon and Teon.
        self.assertGreaterEqual(len(before), 2 + 4 + 2)
        self.assertRegex(self.reproduce("run", "one"), r"Teon .* 27\.00 +-10\.0%")
        self.assertEqual(times(), before)

        # The other table shares Muon's cells.
        self.reproduce("run", "two_controls")
        new = set(top.glob("a/*")) - made
        self.assertTrue(new and all("teon-mode_2" in f.name for f in new), new)

        # The results file suffices. Cells of another engine, or with other options, are named.
        results, before = top / "results.jsonl", times()
        lines = results.read_text().splitlines(keepends=True)
        at = next(i for i, line in enumerate(lines) if re.match(r'{"cell":"a/optimizer_teon-lr\S*seed_2"', line))
        record, without = json.loads(lines[at]), lines[:at] + lines[at + 1:]
        self.assertRegex(record["engine"], "^[0-9a-f]{12}$")
        for change, said in (({"engine": "0123456789ab"}, "0123456789ab"), ({"options": {"seed": 3}}, "other options")):
            results.write_text("".join(without) + json.dumps(record | change) + "\n")
            self.assertIn(said, self.reproduce("table", "one"))
        results.write_text("".join(lines))
        shutil.move(top / "a", self.folder / "gone")
        self.assertNotRegex(self.reproduce("run", "one"), "a/optimizer|other bits|other options")
        self.assertFalse((top / "a").exists())
        # A finished cell that is not yet in the results file is not trained again.
        shutil.move(self.folder / "gone", top / "a")
        results.write_text("".join(without))
        self.reproduce("run", "one")
        self.assertEqual(times(), before)
        self.assertEqual(sorted(results.read_text().splitlines(keepends=True)), sorted(lines))
        # A cell of another engine is named if it has finished, and starts again if it has not.
        cell = top / record["cell"]
        begun = pathlib.Path(f"{cell}.json")
        other = json.dumps(json.loads(begun.read_text()) | {"engine": "0123456789ab"})
        for is_finished in (True, False):
            begun.write_text(other)
            if not is_finished:
                shutil.rmtree(cell / "step_00000010")
                metrics = (cell / "metrics.jsonl").read_text().splitlines(keepends=True)
                (cell / "metrics.jsonl").write_text("".join(metrics[:2]))
            results.write_text("".join(without))
            self.assertEqual("0123456789ab" in self.reproduce("run", "one"), is_finished)
        self.assertEqual([json.loads(line)["evals"] for line in sorted(results.read_text().splitlines())],
                         [json.loads(line)["evals"] for line in sorted(lines)])

        self.reproduce("report")
        text = (self.folder / "page.md").read_text()
        self.assertIn("b: not at this scale", text)
        self.assertIn("](figures/controls.png)", text)
        self.assertRegex(text, r"(?s)## Title 2.*At Muon's best rate, in perplexity: a at 0\.0\d: Muon \S+ ± \S+\.\n")
        self.assertRegex(text, r"\n\| a \| left \| 0\.\d\d \|")
        for picture in re.findall(r"\]\((figures/.*?\.png)\)", text):
            self.assertTrue((self.folder / picture).stat().st_size > 1000, picture)
        self.assertIn("2 of 2 rows", self.reproduce("list").splitlines()[0])

    def test_rows_that_have_not_run_are_marked(self):
        state, (table, *_) = self.load()
        state.results = {}
        measured = paper_tables.measure(table, state)
        self.assertEqual(paper_tables.render(measured, state).count(paper_tables.NOT_RUN), 2)
        self.assertEqual({answer for *_, answer in paper_tables.verdict(measured)}, {paper_tables.NOT_RUN})
        if missing("matplotlib"):
            self.refused("report")
        else:
            for name in paper_figures.FIGURES:
                self.assertIsNone(paper_figures.draw(name, measured, self.folder / "pictures"), name)

    def test_a_run_of_another_process_is_not_removed(self):
        state, (table, *_) = self.load()
        model = state.scale.models["a"]
        cell = table.method(table.row("Muon"), model, 0.004).cell(0.02, 7)
        folder = pathlib.Path(state.out, cell.name)
        folder.mkdir(parents=True)
        self.addCleanup(shutil.rmtree, folder)
        engine = os.open(folder, os.O_RDONLY)
        self.addCleanup(os.close, engine)
        fcntl.flock(engine, fcntl.LOCK_EX)
        state.data.prepare, state.may_run = lambda program: None, True
        with self.assertRaisesRegex(Fault, "another process is writing it"):
            state.result(cell)

    @staticmethod
    def run_cell(command, flags, folder):
        """Replaces the engine: Teon diverges at every rate, and Muon at its initial rate of 0.02. At AdamW's lower
        rate, 0.002, the disk is full."""
        run = write_run(pathlib.Path(folder), flags["optimizer"], int(flags["seed"]), config={"device": {"name": "x"}})
        if flags["optimizer"] == "teon" or flags["lr"] == "0.02":
            end_by_skipped_updates(run)
        elif flags["lr"] == "0.002":
            (run / "metrics.jsonl").write_text("")
        else:
            return 0
        return 1

    def test_a_diverged_cell_is_recorded_and_a_failed_one_is_not(self):
        out = pathlib.Path(tempfile.mkdtemp(dir=self.folder))

        def run():
            state, (table, *_) = self.load(out)
            state.data.prepare, state.may_run = lambda program: None, True
            with mock.patch("experiments.cells.run_cell", self.run_cell):
                return state, paper_tables.measure(table, state)

        state, _ = run()
        self.assertEqual(len(state.failed), 1)  # all other cells need AdamW's rate
        self.assertIn("lr_0.002-", state.failed[0])
        path = pathlib.Path(state.path)
        record = json.loads(path.read_text().splitlines()[0])
        name = record["cell"].replace("0.004", "0.002")
        self.assertNotIn(f'"{name}"', path.read_text())
        path.write_text(path.read_text() + json.dumps(record | {"cell": name}) + "\n"  # the disk has space again
                        + '{"cell":"a/')  # and is full again
        state, measured = run()
        self.assertEqual(state.failed, [])
        shutil.rmtree(out / "cpu" / "a")  # later commands read only the results
        again, (table, *_) = self.load(out)
        for muon, teon in (measured, paper_tables.measure(table, again)):
            self.assertEqual((muon.rate, paper_tables.text_of_perplexity(muon.best)), (0.01, "9.03 ± 0.00"))
            self.assertEqual(paper_tables.text_of_perplexity(teon.best), "diverged")
            self.assertEqual([answer for *_, answer in paper_tables.verdict([muon, teon])], ["diverged"])
            self.assertRegex(paper_tables.render([muon, teon], again), r"\| Teon \| 0\.01 .*\| diverged \|")
        one = dataclasses.replace(muon.best[0], diverged=True)
        self.assertEqual(paper_tables.text_of_perplexity([muon.best[1], one]), "9.03, 1 diverged")

    def test_the_training_loss_of_skipped_updates_is_not_counted(self):
        self.assertEqual(paper_runs.mean_loss([{"loss": 2.0}, {"loss": None}, {"loss": 3.0}]), 2.5)
        self.assertIsNone(paper_runs.mean_loss([{"loss": None}]))

    @needs("numpy", "pyarrow", "tqdm")
    def test_data_of_other_texts_are_refused(self):
        scale, folder = self.load()[0].scale, pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        a, b = folder / "a.txt", folder / "b.txt"
        a.write_text("some text " * 50)
        b.write_text("other text " * 50)

        def data(*texts):
            return paper_runs.Data(scale, str(folder / "data"), *([str(path)] for path in texts))

        data(a).prepare("train_gpt2")
        data(a).prepare("train_gpt2")
        for other, key in ((data(b), "inputs"), (data(a, b), "val_tokens")):
            with self.assertRaisesRegex(Fault, f"data/cpu-bytes: not the data of this command; .*{key}: "):
                other.prepare("train_gpt2")
        a.unlink()
        data(a).prepare("train_gpt2")  # it is still complete

    def test_validation_texts_get_the_tokenizer_of_the_training_texts(self):
        for name, tokenizer in (("gpt2", "gpt2"), ("llama2", "llama2"), ("bytes", "bytes"),
                                ("train:300", "d/cpu-train300/tokenizer/tokenizer.json")):
            scale = dataclasses.replace(self.load()[0].scale, vocabulary={"train_gpt2": name})
            with mock.patch("subprocess.run") as prepare:
                prepare.return_value.returncode = 0
                paper_runs.Data(scale, "d", ["a.txt"], ["b.txt"]).prepare("train_gpt2")
            words = [call.args[0] for call in prepare.call_args_list]
            self.assertEqual([w[w.index("--tokenizer") + 1] for w in words], [name, tokenizer])

    def test_a_damaged_results_file_is_named(self):
        bad = self.folder / "bad.jsonl"
        for text in ("{", "[]", '{"cell":"a"}'):
            bad.write_text(text + "\n")
            self.assertIn("bad.jsonl:1: not a result", self.refused("list", "--results", bad))
        bad.write_text("{")  # its writing was interrupted: the cell counts as not run
        self.assertIn("0 of 2 rows", self.reproduce("list", "--results", bad))

    def measure(self, muon, teon, **changes):
        """Returns the first table's rows, and Runs. Every cell has finished, with these losses (one per seed) at the
        grid's best rate. `changes`: to the table."""
        state, (table, *_) = self.load()
        model, state.results = state.scale.models["a"], {}

        def finish(method, rate, seed, loss):
            name = method.cell(rate, seed).name
            state.results[name] = paper_runs.Result(name, "", {"seed": seed}, "", "", 1, 1, 0.5,
                                              [[i, loss] for i in range(1, 11)], [[10, loss]], [])

        for factor in state.scale.grid:
            for name, losses in (("Muon", muon), ("Teon", teon)):
                for seed, loss in enumerate(losses, 1):
                    method = table.method(table.row(name), model, 0.004)
                    finish(method, model.rates["muon"] * factor, seed, loss + (factor != 1))
            # Sets the rate of the parameters that are not matrices.
            adamw = paper.Method("train_gpt2", model, {"optimizer": "adamw"})
            finish(adamw, model.rates["adamw"] * factor, 1, 3.0 + (factor != 1))
        return paper_tables.measure(dataclasses.replace(table, **changes), state), state

    def axes_of(self, name, measured):
        """Returns the axes of a figure."""
        shown = []
        with mock.patch("experiments.figures.save_figure", lambda figure, *_: shown.append(figure)):
            paper_figures.draw(name, measured, self.folder)
        return shown[0].axes

    @needs("matplotlib")
    def test_an_infinite_perplexity_is_shown(self):
        measured, state = self.measure((2.0, 2.5), (800.0, 800.4))
        self.assertEqual(paper_tables.text_of_perplexity(measured[1].best), "over 1e304")
        self.assertRegex(paper_tables.render(measured, state), r"\| over 1e304 \| \+inf%, \+inf% to \+inf% \|")
        for name in ("training", "validation", "rates", "time", "forest"):
            self.assertTrue(paper_figures.draw(name, measured, self.folder / "pictures"), name)
        rows = [dataclasses.replace(m.row, paper_variance={"a": 1.0}) for m in measured]
        rendered = paper_tables.render(*self.measure((2.0, 2.5), (800.0, 800.4), variance=True, rows=rows))
        self.assertRegex(rendered, r"\| over 1e304 \|  \|")
        self.assertRegex(rendered, r"\| Muon \| .* ± .* \| 11\.4885 \|.* 30\.00 \| 1\.0000 \|")

    @needs("matplotlib")
    def test_curves_are_differences_to_muon(self):
        measured, _ = self.measure((2.0, 2.5), (1.9, 2.38))
        svd = dataclasses.replace(measured[0], row=dataclasses.replace(
            measured[0].row, name="SVD", flags={"optimizer": "muon", "ortho": "svd"}))
        for axis in self.axes_of("training", [svd, *measured]):  # not the first Muon, but the default orthogonalizer's
            self.assertEqual([line.get_label() for line in axis.lines], ["Muon", "Teon"])
        of = {line.get_label(): line for line in self.axes_of("validation", measured)[0].lines}
        self.assertEqual(set(of["Muon"].get_ydata()), {0})
        # Pairs of one seed: -10 and -12 per cent in the exponent.
        self.assertAlmostEqual(of["Teon"].get_ydata()[-1], 50 * (math.expm1(-0.1) + math.expm1(-0.12)))
        of = {line.get_label(): line for line in self.axes_of("rates", measured)[0].lines}
        # The tuning seed's losses: 1.9 and 2.9 for Teon, 2.0 and 3.0 for Muon.
        self.assertAlmostEqual(min(of["Teon"].get_ydata()), 0)
        self.assertAlmostEqual(min(of["Muon"].get_ydata()), 100 * math.expm1(0.1))
        styles = [(line.get_linestyle(), line.get_marker(), line.get_color()) for line in (of["Teon"], of["Muon"])]
        for teon, muon in zip(*styles):
            self.assertNotEqual(teon, muon)  # each alone tells them apart

    def test_models_are_named_by_their_own_size(self):
        for table, title in (("gpt_controls", "GPT-2, 1.35M parameters"),
                             ("llama_controls", "LLaMA, 1.84M parameters")):
            state, all_tables = self.load(self.folder, ROOT / "experiments", "cpu")
            (m, *_) = paper_tables.measure(next(t for t in all_tables if t.id == table), state)
            self.assertEqual(paper_figures.title_of(m), title)
            paper.plan_of.cache_clear()
            with mock.patch("experiments.paper.ROOT", str(self.folder)):  # without programs
                self.assertEqual(paper_figures.title_of(m), m.model.name)

    @needs("matplotlib")
    def test_differences_to_muon_and_colours(self):
        measured, state = self.measure((2.0, 2.5), (1.9, 2.38))
        teon = measured[1]
        self.assertEqual((teon.against_best.method, teon.against_best.n), ("pairs", 2))
        self.assertAlmostEqual(teon.against_best.difference, -0.11)
        self.assertRegex(paper_tables.render(measured, state), r"\| -10\.4%, -21\.1% to \+1\.7% \|")
        # The verdict on a row that the paper lacks is lower, higher or not decided.
        teon.row = dataclasses.replace(teon.row, paper={})
        for p, difference, said in ((0.01, -0.11, "lower"), (0.01, 0.11, "higher"), (0.5, -0.11, "not decided")):
            teon.against_best.p, teon.against_best.difference = p, difference
            (_, claimed, answer), = paper_tables.verdict(measured)
            self.assertEqual((claimed, answer.split(" (")[0]), ("-", said))
        for other in paper.load_tables(ROOT / "experiments"):
            of, known = paper_figures.colors(other), paper_figures.COLORS
            self.assertEqual(len(set(of.values())), len(of), other.id)
            for name, color in of.items():
                self.assertEqual(known.get(name.removesuffix(", PolarExpress"),
                                           color if color not in known.values() else None), color, (other.id, name))

    def test_the_projects_tables_are_complete(self):
        folder = ROOT / "experiments"
        scales, all_tables = paper.load_scales(folder), paper.load_tables(folder)
        self.assertEqual(set(scales), {"cpu", "small", "full"})
        for table in all_tables:
            at = {s.name: {m.name for m in table.models_at(s)} for s in scales.values() if table.models_at(s)}
            self.assertIn(set(at), ({"small", "full"}, {"cpu"}), table.id)
            self.assertEqual(set(table.models), set.union(*at.values()), table.id)
        # The programs have each flag.
        for program in {t.program for t in all_tables}:
            shown = self.call(ROOT / program, "--help-all").stdout
            flags = {f for t in all_tables if t.program == program for r in t.rows
                     for f in {*t.flags, *r.flags, *(k for m in r.model_flags.values() for k in m)}}
            flags |= {f for s in scales.values() for m in s.models.values() for f in m.flags}
            for flag in flags:
                self.assertIn(f"--{flag}", shown, program)

    def test_bad_calls_are_one_line(self):
        for words, part in ((["run"], "name a table"), (["table", "three"], "no such table"),
                            (["list", "--scale", "huge"], "--scale huge"),
                            (["run", "elsewhere"], "at scale cpu; it has some at other"),
                            (["all", "--estimate", "--tflops", "0"], "--tflops: '0' is not a number from"),
                            (["all", "--estimate", "--tflops", "nan"], "--tflops: 'nan' is not a number from")):
            self.assertIn(part, self.refused(*words))
        self.assertIn(f"{self.folder}: Is a directory", self.refused("list", "--results", self.folder, expect=1))
        bad = self.folder / "[bad]"
        bad.mkdir()
        (bad / "scales.toml").write_text(SCALES)
        self.assertIn("[bad]: no table has a model at scale cpu",
                      self.refused("list", "--experiments", bad))
        (bad / "one.toml").write_text(TABLE.format(order=1, flags="").replace("claim", "clam"))
        self.assertIn("clam: not known; claim: missing",
                      self.refused("list", "--experiments", bad))

    @needs("matplotlib")
    def test_a_figure_is_drawn_from_records(self):
        done = self.run_here("reproduce.py", "figure", "gpt_controls", "training", "--results",
                             ROOT / "experiments/cpu_results.jsonl", "--out", self.folder)
        self.assertEqual(done.stdout, f"{self.folder}/cpu/figures/gpt_controls-training.png\n")

    def test_the_documented_results_are_those_of_the_result_files(self):
        page = (ROOT / "docs/REPRODUCTION.md").read_text()
        state, all_tables = self.load(self.folder, ROOT / "experiments", results=ROOT / "experiments/cpu_results.jsonl")
        for table in (table for table in all_tables if table.models_at(state.scale)):
            measured = paper_tables.measure(table, state)
            if any(m.rate is None for m in measured):
                continue  # some rows have not run
            for line in (paper_tables.render(measured, state).splitlines()
                         + tables.as_markdown(*report.alignment(measured)).splitlines()[2:]):
                self.assertIn(line, page, table.id)
