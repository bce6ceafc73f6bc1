"""experiments/recipes/*.toml: the programs accept them, and they equal the paper's runs:
dev/run_tests.py test/scripts/test_recipes.py"""
import math
import re

from common import toml
from testing import ON_GPUS, ROOT, Case, write_shard

from experiments import paper

RECIPES = sorted((ROOT / "experiments" / "recipes").glob("*.toml"))


class RecipesTest(Case):
    def setUp(self):
        super().setUp()
        (self.folder / "experiments").symlink_to(ROOT / "experiments")

    def test_each_recipes_program_accepts_it(self):
        self.assertEqual(len(RECIPES), 8)
        for path in RECIPES:
            with self.subTest(path.name):
                program, name = re.search(r"^#   \./(\S+) --config (\S+)$", path.read_text(), re.MULTILINE).groups()
                self.assertEqual(ROOT / name, path)
                recipe = toml.loads(path.read_text())
                for split, number in (("val", 0), ("train", 1)):
                    write_shard(self.folder / recipe["data"] / f"fineweb_{split}_{number:06d}.bin", range(20000))
                done = self.run_program("--config", name, "--plan-only", "--memory", "80Gi",
                                        program=program)
                self.assertEqual(done.stderr, "")
                steps = recipe.get("steps", round(recipe.get("tokens", 0) / recipe["batch-tokens"]))
                self.assertRegex(done.stdout, rf"length +{steps} steps")
                if ON_GPUS:
                    continue  # its plans are for the GPU of this machine
                planned = re.findall(r"([\d.]+) GiB with (?:--micro-batch )?(\d+)", path.read_text())
                of_gpus = [] if recipe["optimizer"] == "adamw" else ["--ns-dtype", "f16"]
                self.assertEqual(len(planned), 2)
                for total, batch in planned:
                    done = self.run_program("--config", name, "--micro-batch", batch, "--plan-only",
                                            "--memory", "80Gi", *of_gpus,
                                            program=program)
                    shown = re.search(r"^ +total +([\d.]+) GiB$", done.stdout, re.MULTILINE).group(1)
                    self.assertEqual(f"{float(shown):.1f}", total)

    def test_each_recipe_is_planned_for_a_gpu_without_its_data(self):
        for path in RECIPES:
            with self.subTest(path.name):
                program = re.search(r"^#   \./(\S+) --config", path.read_text(), re.MULTILINE).group(1)
                plan = self.run_program("--config", path, "--plan-for", "h100", program=program).stdout
                self.assertRegex(plan, r"(?m)^note +datasets/\S+: no such file or folder.*: planned without data")
                self.assertRegex(plan, r"\nthe whole run\n  time +\S+ hours \(\S+ to \S+\) on 1 h100, not measured\n"
                                       r"  speed +\S+ tokens/s, \S+% MFU\n  data +\S+ GiB on disk if .*\n"
                                       r"  checkpoints +at most 2 x \S+ .iB = \S+ GiB on disk\n")

    def test_the_stated_time_is_the_one_that_a_plan_expects(self):
        path = ROOT / "experiments/recipes/gpt2_124m.toml"
        stated = re.search(r"# Time: (\S+ hours \(.*\)) on one H200, as --plan-for h200 expects", path.read_text())[1]
        plan = self.run_program("--config", path, "--plan-for", "h200").stdout
        self.assertIn(f"\n  time          {stated} on 1 h200, not measured\n", plan)

    def test_recipes_of_the_paper_equal_the_runs_of_reproduce(self):
        models = paper.load_scales(ROOT / "experiments")["full"].models
        tables = {table.id: table.row("Teon, PolarExpress") for table in paper.load_tables(ROOT / "experiments")
                  if table.id in ("gpt", "llama")}
        for path in RECIPES:
            model = models.get(path.stem.replace("_", "-"))
            if model is None:
                self.assertEqual(path.stem, "gpt2_124m")  # the recipe of llm.c, not of the paper
                continue
            text = path.read_text()
            recipe, row = toml.loads(text), tables[path.stem.split("_")[0]]
            for flag, value in (model.flags | row.flags).items():
                self.assertEqual(recipe[flag], value, f"{path.name}: {flag}")
            self.assertEqual(recipe["lr"], model.rates["teon"], path.name)
            self.assertEqual(recipe["adamw-lr"], model.adamw_beside or model.rates["adamw"], path.name)
            perplexity, loss = map(float, re.search(r"perplexity (\S+), a loss of (\S+)", text).groups())
            self.assertEqual(perplexity, row.paper[model.name], path.name)
            self.assertAlmostEqual(loss, math.log(perplexity), delta=.005)

    def test_published_shards_are_accepted_unchanged(self):
        tokens = [50256 if i % 97 == 0 else i * i % 50257 for i in range(3000)]
        write_shard(self.folder / "datasets/fineweb10B/fineweb_val_000000.bin", tokens)
        write_shard(self.folder / "datasets/fineweb10B/fineweb_train_000001.bin", tokens)
        done = self.run_program("--config", "experiments/recipes/gpt2_124m.toml", "--out", "run", "--model", "tiny",
                                "--layers", 1, "--channels", 32, "--heads", 1, "--seq-len", 32, "--dtype", "float",
                                "--batch-tokens", 64, "--eval-tokens", 64, "--steps", 2)
        self.assertIn("vocabulary 50257", done.stdout)
