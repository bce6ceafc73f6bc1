"""scripts/reproduce.py on experiments of a few seconds:  scripts/run_tests.py test/scripts/test_reproduce.py"""
import dataclasses
import fcntl
import json
import math
import os
import pathlib
import random
import re
import shutil
import sys
import tempfile
from unittest import mock

from testing import ROOT, SCRIPTS, Case, missing, needs, temporary_folder, write_run

from experiments import Fault, paper, paper_figures, paper_runs, paper_tables, report, tables

SCALES = """
[tiny]
about = "seconds"
seeds = 2
headline_seeds = 2
grid = [0.5, 1]
vocabulary = { train_gpt2 = "bytes" }
source = ["none"]
eval_every = 5
eval_tokens = 256
diagnose_every = 5
[tiny.models.a]
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
        other = SCALES.replace("[tiny", "[other").replace("models.a", "models.c")
        (cls.folder / "scales.toml").write_text(SCALES + other)
        (cls.folder / "elsewhere.toml").write_text(TABLE.format(order=3, flags="").replace('"a", "b"', '"c"'))
        (cls.folder / "one.toml").write_text(TABLE.format(order=1, flags=""))
        (cls.folder / "two_controls.toml").write_text(TABLE.format(order=2, flags=", teon-mode = 2"))
        rng = random.Random(3)
        text = "".join(rng.choice("abcdefgh ,.\n") for _ in range(40000))
        (cls.folder / "text.txt").write_text(text)

    def command(self, *words):
        return [sys.executable, SCRIPTS / "reproduce.py", *words, "--experiments", self.folder, "--out",
                self.folder / "runs", "--datasets", self.folder / "data", "--text", self.folder / "text.txt",
                "--report", self.folder / "page.md"]

    def reproduce(self, *words):
        return self.call(*self.command(*words)).stdout

    def load(self):
        scale = paper.load_scales(self.folder)["tiny"]
        return paper_runs.Runs(scale, self.folder / "runs",
                         paper_runs.Data(scale, self.folder / "data")), paper.load_tables(self.folder)

    @needs("numpy", "pyarrow", "tqdm", "matplotlib")
    def test_a_table_is_run_once_and_shown(self):
        self.reproduce("run", "one")
        made = sorted(self.folder.glob("runs/tiny/a/*"))
        # AdamW's grid, for the rate of parameters that are not matrices; the grids and second seeds of Muon and Teon.
        self.assertGreaterEqual(len(made), 2 + 4 + 2)
        times = {f: f.stat().st_mtime_ns for f in self.folder.glob("runs/tiny/a/*/metrics.jsonl")}
        again = self.reproduce("run", "one")
        self.assertEqual(times, {f: f.stat().st_mtime_ns for f in self.folder.glob("runs/tiny/a/*/metrics.jsonl")})
        self.assertRegex(again, r"Teon .* 27\.00 +-10\.0%")

        # The other table shares Muon's cells.
        self.reproduce("run", "two_controls")
        new = [f for f in self.folder.glob("runs/tiny/a/*") if f not in made]
        self.assertTrue(new and all("teon-mode_2" in f.name for f in new), new)

        # The results file suffices. Cells of another engine, or with other options, are named.
        results = self.folder / "runs" / "tiny" / "results.jsonl"
        lines = results.read_text().splitlines()
        at = next(i for i, line in enumerate(lines) if re.match(r'{"cell":"a/optimizer_teon-lr\S*seed_2"', line))
        self.assertRegex(json.loads(lines[at])["engine"], "^[0-9a-f]{12}$")
        for change, said in (({"engine": "0123456789ab"}, "0123456789ab"), ({"options": {"seed": 3}}, "other options")):
            changed = json.dumps(json.loads(lines[at]) | change)
            results.write_text("\n".join([*lines[:at], changed, *lines[at + 1:]]) + "\n")
            self.assertIn(said, self.reproduce("table", "one"))
        results.write_text("\n".join(lines) + "\n")
        shutil.move(self.folder / "runs" / "tiny" / "a", self.folder / "gone")
        whole = self.reproduce("run", "one")
        self.assertNotIn("a/optimizer", whole)
        self.assertFalse((self.folder / "runs" / "tiny" / "a").exists())
        self.assertNotRegex(whole, "other bits|other options")
        # A finished cell that is not yet in the results file is not trained again.
        shutil.move(self.folder / "gone", self.folder / "runs" / "tiny" / "a")
        results.write_text("\n".join(lines[:at] + lines[at + 1:]) + "\n")
        self.reproduce("run", "one")
        self.assertEqual(times, {f: f.stat().st_mtime_ns for f in times})
        self.assertEqual(sorted(results.read_text().splitlines()), sorted(lines))
        # A cell of another engine is named if it has finished, and starts again if it has not.
        cell = self.folder / "runs" / "tiny" / json.loads(lines[at])["cell"]
        begun = pathlib.Path(f"{cell}.json")
        other = json.dumps(json.loads(begun.read_text()) | {"engine": "0123456789ab"})
        for whole in (True, False):
            begun.write_text(other)
            if not whole:
                shutil.rmtree(cell / "step_00000010")
                metrics = (cell / "metrics.jsonl").read_text().splitlines(keepends=True)
                (cell / "metrics.jsonl").write_text("".join(metrics[:2]))
            results.write_text("\n".join(lines[:at] + lines[at + 1:]) + "\n")
            self.assertEqual("0123456789ab" in self.reproduce("run", "one"), whole)
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
        state, all_tables = self.load()
        state.results = {}
        text = paper_tables.render(all_tables[0], state)
        self.assertEqual(text.count(paper_tables.NOT_RUN), 2)
        measured = paper_tables.measure(all_tables[0], state)
        self.assertEqual({answer for *_, answer in paper_tables.verdict(all_tables[0], measured)},
                         {paper_tables.NOT_RUN})
        if missing("matplotlib"):
            self.error_of(*self.command("report"))
        else:
            self.assertIsNone(paper_figures.draw("training", all_tables[0], state, self.folder / "pictures"))

    def cell(self, state, table, seed=1):
        return paper.cell_of(table, table.row("Muon"), state.scale.models["a"], 0.02, 0.004, seed)

    def test_a_run_of_another_process_is_not_removed(self):
        state, all_tables = self.load()
        cell = self.cell(state, all_tables[0], seed=7)
        folder = pathlib.Path(cell.folder(state.out))
        folder.mkdir(parents=True)
        self.addCleanup(shutil.rmtree, folder)
        engine = os.open(folder, os.O_RDONLY)
        self.addCleanup(os.close, engine)
        fcntl.flock(engine, fcntl.LOCK_EX)
        state.data.prepare, state.may_run, state.say = lambda program: None, True, lambda *_, **__: None
        with self.assertRaisesRegex(Fault, "another process is writing it"):
            state.result(cell)

    @staticmethod
    def run_cell(command, flags, folder):
        """Replaces the engine: Teon diverges at every rate, and Muon at its initial rate of 0.02. At AdamW's lower
        rate, 0.002, the disk is full."""
        path = write_run(pathlib.Path(folder), flags["optimizer"], int(flags["seed"]), config={"device": {"name": "x"}},
                         **{"max-skipped": 2}) / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        if flags["optimizer"] == "teon" or flags["lr"] == "0.02":
            event = {"kind": "event", "event": "update_skipped", "reason": "-"}
            path.write_text("".join(lines[:2]) + "".join(json.dumps(event | {"step": step}) + "\n" for step in (1, 2)))
        elif flags["lr"] == "0.002":
            path.write_text("".join(lines[:2]))
        else:
            return 0
        return 1

    def test_a_diverged_cell_is_recorded_and_a_failed_one_is_not(self):
        out = pathlib.Path(tempfile.mkdtemp(dir=self.folder))

        def load():
            scale = self.load()[0].scale
            state = paper_runs.Runs(scale, out, paper_runs.Data(scale, out), say=lambda *_, **__: None)
            state.data.prepare = lambda program: None
            return state

        table, state = self.load()[1][0], load()
        state.may_run = True
        with mock.patch("experiments.cells.run_cell", self.run_cell):
            state.everything(table)
            self.assertEqual(len(state.failed), 1)  # all other cells need AdamW's rate
            self.assertIn("lr_0.002-", state.failed[0])
            self.assertEqual(load().loss(paper.cell_of(*paper.adamw_row("train_gpt2"), state.scale.models["a"], 0.002,
                                                      None, 1)), None)
        path = pathlib.Path(state.path)
        record = json.loads(path.read_text().splitlines()[0])
        name = record["cell"].replace("0.004", "0.002")
        path.write_text(path.read_text() + json.dumps(record | {"cell": name}) + "\n"  # the disk has space again
                        + '{"cell":"a/')  # and is full again
        state = load()
        state.may_run = True
        with mock.patch("experiments.cells.run_cell", self.run_cell):
            state.everything(table)
        self.assertEqual(state.failed, [])
        shutil.rmtree(out / "tiny" / "a")  # later commands read only the results
        for again in (state, load()):
            muon, teon = paper_tables.measure(table, again)
            self.assertEqual((muon.rate, paper_tables.text_of_perplexity(muon.best)), (0.01, "9.03 ± 0.00"))
            self.assertEqual(paper_tables.text_of_perplexity(teon.best), "diverged")
            self.assertEqual([answer for *_, answer in paper_tables.verdict(table, [muon, teon])], ["diverged"])
            self.assertRegex(paper_tables.render(table, again), r"\| Teon \| 0\.01 .*\| diverged \|")
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
            return paper_runs.Data(scale, str(folder / "data"), *([str(path)] for path in texts),
                                   say=lambda *_, **__: None)

        data(a).prepare("train_gpt2")
        data(a).prepare("train_gpt2")
        for other, key in ((data(b), "inputs"), (data(a, b), "val_tokens")):
            with self.assertRaisesRegex(Fault, f"data/tiny-bytes: not the data of this command; .*{key}: "):
                other.prepare("train_gpt2")
        a.unlink()
        data(a).prepare("train_gpt2")  # it is still complete

    def test_validation_texts_get_the_tokenizer_of_the_training_texts(self):
        for name, tokenizer in (("gpt2", "gpt2"), ("llama2", "llama2"), ("bytes", "bytes"),
                                ("train:300", "d/tiny-train300/tokenizer/tokenizer.json")):
            scale = dataclasses.replace(self.load()[0].scale, vocabulary={"train_gpt2": name})
            with mock.patch("subprocess.run") as prepare:
                prepare.return_value.returncode = 0
                paper_runs.Data(scale, "d", ["a.txt"], ["b.txt"], say=lambda *_, **__: None).prepare("train_gpt2")
            words = [call.args[0] for call in prepare.call_args_list]
            self.assertEqual([w[w.index("--tokenizer") + 1] for w in words], [name, tokenizer])

    def test_a_damaged_results_file_is_named(self):
        bad = self.folder / "bad.jsonl"
        for text in ("{", "[]", '{"cell":"a"}'):
            bad.write_text(text + "\n")
            self.assertIn("bad.jsonl:1: not a result", self.error_of(*self.command("list", "--results", bad)))
        bad.write_text("{")  # its writing was interrupted: the cell counts as not run
        self.assertIn("0 of 2 rows", self.reproduce("list", "--results", bad))

    def load_with_losses(self, muon, teon):
        """Returns Runs and tables; every cell of the first table has finished, with these losses (one per seed) at the
        grid's best rate."""
        state, all_tables = self.load()
        table, model = all_tables[0], state.scale.models["a"]
        state.results = {}

        def finish(cell, loss):
            name = state.name(cell)
            state.results[name] = paper_runs.Result(name, "", {"seed": cell.seed}, "", "", 1, 1, 0.5,
                                              [[i, loss] for i in range(1, 11)], [[10, loss]], [])

        for factor in state.scale.grid:
            for name, losses in (("Muon", muon), ("Teon", teon)):
                for seed, loss in enumerate(losses, 1):
                    finish(paper.cell_of(table, table.row(name), model, model.rates["muon"] * factor, 0.004, seed),
                           loss + (factor != 1))
            adamw = paper.cell_of(*paper.adamw_row("train_gpt2"), model, model.rates["adamw"] * factor, None, 1)
            finish(adamw, 3.0 + (factor != 1))  # sets the rate of the parameters that are not matrices
        return state, all_tables

    @needs("matplotlib")
    def test_an_infinite_perplexity_is_shown(self):
        state, (table, *_) = self.load_with_losses((2.0, 2.5), (800.0, 800.4))
        _, teon = paper_tables.measure(table, state)
        self.assertEqual(paper_tables.text_of_perplexity(teon.best), "over 1e304")
        self.assertRegex(paper_tables.render(table, state), r"\| over 1e304 \| \+inf%, \+inf% to \+inf% \|")
        row = dataclasses.replace(table.rows[1], paper_variance={"a": 1.0})
        muon = dataclasses.replace(table.rows[0], paper_variance={"a": 1.0})
        rendered = paper_tables.render(dataclasses.replace(table, variance=True, rows=[muon, row]), state)
        self.assertRegex(rendered, r"\| over 1e304 \|  \|")
        self.assertRegex(rendered, r"\| Muon \| .* ± .* \| 11\.4885 \|.* 30\.00 \| 1\.0000 \|")
        for name in ("training", "validation", "rates", "time", "forest"):
            self.assertTrue(paper_figures.draw(name, table, state, self.folder / "pictures"), name)

    @needs("matplotlib")
    def test_training_curves_show_every_method_with_the_default_orthogonalizer(self):
        state, (table, *_) = self.load_with_losses((2.0, 2.5), (1.9, 2.38))
        svd = dataclasses.replace(table.row("Muon"), name="SVD", flags={"optimizer": "muon", "ortho": "svd"})
        shown = []
        with mock.patch("experiments.figures.save_figure", lambda figure, *_: shown.append(figure)):
            paper_figures.draw("training", dataclasses.replace(table, rows=[*table.rows, svd]), state, self.folder)
        self.assertEqual([[line.get_label() for line in axis.lines] for axis in shown[0].axes], [["Muon", "Teon"]])

    @needs("matplotlib")
    def test_curves_are_differences_to_muon(self):
        state, (table, *_) = self.load_with_losses((2.0, 2.5), (1.9, 2.38))
        shown = []
        with mock.patch("experiments.figures.save_figure", lambda figure, *_: shown.append(figure)):
            paper_figures.draw("validation", table, state, self.folder)
            paper_figures.draw("rates", table, state, self.folder)
        of = {line.get_label(): line for line in shown[0].axes[0].lines}
        self.assertEqual(set(of["Muon"].get_ydata()), {0})
        # Pairs of one seed: -10 and -12 per cent in the exponent.
        self.assertAlmostEqual(of["Teon"].get_ydata()[-1], 50 * (math.expm1(-0.1) + math.expm1(-0.12)))
        of = {line.get_label(): line for line in shown[1].axes[0].lines}
        # The tuning seed's losses: 1.9 and 2.9 for Teon, 2.0 and 3.0 for Muon.
        self.assertAlmostEqual(min(of["Teon"].get_ydata()), 0)
        self.assertAlmostEqual(min(of["Muon"].get_ydata()), 100 * math.expm1(0.1))
        styles = [(line.get_linestyle(), line.get_marker(), line.get_color()) for line in (of["Teon"], of["Muon"])]
        for teon, muon in zip(*styles):
            self.assertNotEqual(teon, muon)  # each alone tells them apart

    def test_models_are_named_by_their_own_size(self):
        scales = paper.load_scales(ROOT / "experiments")
        by_id = {table.id: table for table in paper.load_tables(ROOT / "experiments")}
        for table, model, name in (("gpt_controls", "gpt-1m", "GPT-2, 1.35M parameters"),
                                   ("llama_controls", "llama-2m", "LLaMA, 1.84M parameters")):
            cpu = scales["cpu"]
            self.assertEqual(paper_figures.title_of(by_id[table], cpu, cpu.models[model]), name)
        full = scales["full"]
        self.assertEqual(paper_figures.title_of(by_id["gpt"], full, full.models["gpt-small"]), "gpt-small")

    @needs("matplotlib")
    def test_differences_to_muon_and_colours(self):
        state, all_tables = self.load_with_losses((2.0, 2.5), (1.9, 2.38))
        table = all_tables[0]
        teon = paper_tables.measure(table, state)[1]
        self.assertEqual((teon.against_best.method, teon.against_best.n), ("pairs", 2))
        self.assertAlmostEqual(teon.against_best.difference, -0.11)
        self.assertRegex(paper_tables.render(table, state), r"\| -10\.4%, -21\.1% to \+1\.7% \|")
        path = paper_figures.draw("forest", table, state, self.folder / "pictures")
        self.assertGreater(pathlib.Path(path).stat().st_size, 5000)
        # Two tables in one figure. The verdict on a row that the paper lacks is lower, higher or not decided.
        own = dataclasses.replace(table, rows=[table.rows[0], dataclasses.replace(table.rows[1], paper={})])
        self.assertGreater(pathlib.Path(paper_figures.plot_controls([table, own], state, self.folder / "c.png"))
                           .stat().st_size, 5000)
        found = paper_tables.measure(own, state)
        for p, difference, said in ((0.01, -0.11, "lower"), (0.01, 0.11, "higher"), (0.5, -0.11, "not decided")):
            found[1].against_best.p, found[1].against_best.difference = p, difference
            (_, claimed, answer), = paper_tables.verdict(own, found)
            self.assertEqual((claimed, answer.split(" (")[0]), ("-", said))
        for other in paper.load_tables(ROOT / "experiments"):
            of = paper_figures.colors(other)
            self.assertEqual(len(set(of.values())), len(of), other.id)
            for name, color in of.items():
                known = paper_figures.COLORS
                self.assertEqual(known.get(name.removesuffix(", PolarExpress"),
                                           color if color not in known.values() else None), color, (other.id, name))

    def test_the_projects_tables_are_complete(self):
        folder = ROOT / "experiments"
        scales, all_tables = paper.load_scales(folder), paper.load_tables(folder)
        self.assertEqual(set(scales), {"tiny", "cpu", "small", "full"})
        for table in all_tables:
            at = {s.name: {m.name for m in table.models_at(s)} for s in scales.values() if table.models_at(s)}
            self.assertIn(set(at), ({"tiny", "small", "full"}, {"cpu"}), table.id)
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
                            (["run", "elsewhere"], "at scale tiny; it has some at other"),
                            (["all", "--estimate", "--tflops", "0"], "--tflops: '0' is not a number from"),
                            (["all", "--estimate", "--tflops", "nan"], "--tflops: 'nan' is not a number from")):
            self.assertIn(part, self.error_of(*self.command(*words)))
        self.assertIn(f"{self.folder}: Is a directory",
                      self.error_of(*self.command("list", "--results", self.folder), expect=1))
        bad = self.folder / "[bad]"
        bad.mkdir()
        (bad / "scales.toml").write_text(SCALES)
        self.assertIn("[bad]: no table has a model at scale tiny",
                      self.run_script("reproduce.py", "list", "--experiments", bad, expect=2).stderr)
        (bad / "one.toml").write_text(TABLE.format(order=1, flags="").replace("claim", "clam"))
        self.assertIn("clam: not known; claim: missing",
                      self.run_script("reproduce.py", "list", "--experiments", bad, expect=2).stderr)

    @needs("matplotlib")
    def test_training_is_compared_with_the_muon_of_the_default_orthogonalizer(self):
        done = self.run_script("reproduce.py", "figure", "gpt", "training", "--results",
                               ROOT / "experiments/tiny_results.jsonl", "--out", self.folder)  # the first Muon is You's
        self.assertEqual(done.stdout, f"{self.folder}/tiny/figures/gpt-training.png\n")

    def test_the_documented_results_are_those_of_the_result_files(self):
        page = (ROOT / "docs/REPRODUCTION.md").read_text()
        scales, all_tables = paper.load_scales(ROOT / "experiments"), paper.load_tables(ROOT / "experiments")
        for name in ("tiny", "cpu"):
            state = paper_runs.Runs(scales[name], self.folder, paper_runs.Data(scales[name], self.folder),
                                    ROOT / f"experiments/{name}_results.jsonl")
            for table in (table for table in all_tables if table.models_at(state.scale)):
                verdicts = paper_tables.verdict(table, paper_tables.measure(table, state))
                lines = ([" | ".join(line) for line in verdicts] if name == "tiny" else
                         paper_tables.render(table, state).splitlines()
                         + tables.as_markdown(*report.alignment(table, state)).splitlines()[2:])
                for line in lines:
                    self.assertIn(line, page, table.id)
