"""Checks README and docs:  make test-docs

Runs every command in them, with tiny sizes, in a folder that has the data and runs that they name. NOT_RUN lists the
commands that cannot run here, with the reason; any other command must succeed. Goals of make that take seconds run;
all others are planned with `make -n`, which fails if a goal, or a file that it needs, does not exist. Links, paths and
flags must exist.
"""

import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import unittest

from rank_runs import LAUNCHER
from testing import (
    BUILD,
    ROOT,
    Case,
    header,
    missing,
    missing_for_ranks,
    needs,
    temporary_folder,
    write_shard,
    write_tokenizer,
)

PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "test/README.md")),
         *sorted((ROOT / "docs").glob("*.md"))]
RUNNERS = (r"\./train_", r"\./generate", "python3? ", r"\.venv/", "scripts/", "make ", "mpirun", "torchrun", "sbatch",
           "timeout", "build/", "transformers ", "vllm ", "lm_eval ", "curl ", "podman", "pip ")
COMMAND = re.compile(rf"(\$ )?((?:[A-Z_]+=\S+ +)*(?:{'|'.join(RUNNERS)}).*)")

BACKEND = "cuda" if BUILD.name.startswith("cuda") else "cpu"
PROGRAMS = [*(path.stem for path in ROOT.glob("train_*.cu")), "generate"]
NOT_RUN = {  # the beginning of a command: why
    "python3 scripts/launch/local.py": "needs GPUs", "build/cuda-model/": "needs what nvcc built",
    "LD_LIBRARY_PATH=": "the same", "SIMT_ORDER=": "the same",
    "CUDA_ORDER=": "the same", "CUDA_DEVICE=": "the same", "CUDA_STRICT=": "the same",
    "scripts/setup.sh dev": "installs",
    "python3 scripts/prepare.py fineweb": "needs a network", "python3 scripts/prepare.py fetch": "the same",
    "sbatch": "needs a Slurm cluster",
    "torchrun --nproc-per-node 2 scripts/teon_torch_examples": "test_teon_torch_package.py runs it where torch is",
    "torchrun": "needs GPUs", "python3 scripts/reproduce.py": "test_reproduce.py runs it",
    "transformers serve": "a server", "vllm serve": "a server on a GPU", "curl": "needs a network or the server",
    "lm_eval": "test_lm_eval.py runs it",
    "python3 scripts/prepare.py verify datasets/english": "shows a folder that is damaged",
    "python3 scripts/export_gguf.py": "test_readers.py runs it where llama.cpp is", ".venv/bin/pip": "installs",
    "pip install ./scripts": "test_teon_torch_package.py does it",
    "pip install nvidia": "installs",
    "python3 scripts/teon_torch_example": "test_teon_torch_package.py runs it where torch is",
    "podman": "needs a container engine; test/machines.sh runs the image's steps",
    "timeout -s KILL": "test_prepare_killed.py kills it at every moment"}
MADE = ("make help", "make check-layers", "make compile_commands.json")  # the others are planned
SIZES = {"--model": "tiny", "--seq-len": "32", "--batch-tokens": "64", "--steps": "4", "--eval-tokens": "64",
         "--layers": "2", "--channels": "32", "--heads": "2", "--ffn": "64", "--vocab-size": None, "--tokens": None,
         "--epochs": None, "--sample-tokens": "4", "--sample-every": "2"}


def commands_of(page):
    """Returns the commands in a page's code blocks, with continued lines joined and without comments."""
    fenced, lines = False, []
    for line in page.read_text().splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            text = line.strip()
            if lines and lines[-1].endswith("\\"):
                lines[-1] = lines[-1][:-1] + text
            elif match := COMMAND.fullmatch(text):
                lines.append(match[2])
    return [re.split(r"\s{3,}(?![\w./]*=)|\s+#\s", line)[0] if " -d " not in line else line for line in lines]


def make_commands():
    """Returns the make commands of all pages, in code blocks and in sentences, with the pages that have them."""
    found = {}
    for page in PAGES:
        inline = re.findall(r"`((?:[A-Z_]+=\S+ )*make(?: [^`]+)?)`", page.read_text().replace("\n", " "))
        for command in [*commands_of(page), *inline]:
            words = shlex.split(command)
            while words and re.match(r"[A-Z_]+=", words[0]):
                words.append(words.pop(0))
            if words[0] == "make" and not any("..." in word for word in words):
                found.setdefault(" ".join(words), (words[1:], set()))[1].add(page.name)
    return found


def reason_not_to_run(command):
    return next((why for start, why in NOT_RUN.items() if command.startswith(start)), None)


def shrink(words):
    """Returns a training command with the sizes of SIZES."""
    at, kept = 1, [words[0]]
    while at < len(words):
        if words[at] in SIZES:
            at += 2
        else:
            kept.append(words[at])
            at += 1
    if "--eval-only" in words:
        return kept
    return kept + [word for flag, value in SIZES.items() if value and (not flag.startswith("--sample") or flag in words)
                   for word in (flag, value)]


class CommandsTest(Case):
    @classmethod
    def setUpClass(cls):
        cls.folder = temporary_folder(cls.addClassCleanup)
        for name in ("scripts", "dev", "bench", "test", "experiments", "Makefile"):
            if (ROOT / name).exists():
                (cls.folder / name).symlink_to(ROOT / name)
        for program in PROGRAMS:
            (cls.folder / program).symlink_to(BUILD / program)
        (cls.folder / ".venv" / "bin").mkdir(parents=True)
        (cls.folder / ".venv" / "bin" / "python").symlink_to(sys.executable)
        shard = cls.folder / "datasets" / "fineweb10B"
        for number, split in enumerate(("val", "train")):
            write_shard(shard / f"fineweb_{split}_{number:06d}.bin", [i * i % 251 for i in range(1000)])
        (shard / "manifest.json").write_text('{"vocab_size": 257, "delimiter": 256}')
        write_tokenizer(shard / "tokenizer", [*(bytes([byte]) for byte in range(256)), b""], 256, "bytes")
        question = [65535, 2 * 14, 0, 1, 2, 2, 65, 66, 2, 67, 68, 2, 69, 70]
        (cls.folder / "hellaswag_val.bin").write_bytes(header(20240522, 1, 1)
                                                       + struct.pack(f"<{len(question)}H", *question))
        (cls.folder / "hellaswag_val.jsonl").write_text('{"ctx": "a", "endings": ["b", "c"], "label": 0}\n')
        corpus = cls.folder / "corpus"
        corpus.mkdir()
        (corpus / "tinyshakespeare.txt").write_text("First Citizen:\nSpeak.\n" * 50)
        (corpus / "english_train.jsonl").write_text('{"text": "some text"}\n' * 50)
        cls.given = {path.name for path in cls.folder.iterdir()}
        cls().run_words([*shrink(["./train_gpt2", "--data", "datasets/fineweb10B"]), "--out", "runs/NAME"])

    def run_words(self, words, **environment):
        return self.call(*words, **{"OMP_NUM_THREADS": 1, "MPLBACKEND": "agg", **environment}).stdout

    def words_of(self, command, earlier):
        """Returns the words of the command, with tiny sizes. `earlier` has the page's training commands by their --out,
        for commands that abbreviate one by `...`."""
        words = shlex.split(command, comments=True)
        if "--" in words:
            cut = words.index("--")
            return [*self.words_of(shlex.join(words[:cut]), earlier), "--", *shrink(words[cut + 1:])]
        if words[0] == "mpirun":
            return [*LAUNCHER, "-np", "2",
                    *self.words_of(shlex.join(words[next(i for i, word in enumerate(words) if "/" in word):]),
                                    earlier)]
        if words[0].startswith("./train"):
            out = words[words.index("--out") + 1] if "--out" in words else None
            if words[1:3] == ["--data", "..."]:
                words[2] = "datasets/fineweb10B"
            if "..." in words:
                before = earlier.get(out, ["--data", "datasets/fineweb10B"])
                at = words.index("...")
                words[at:at + 1] = [w for w in before if w not in ("--out", out)]
            elif out:
                earlier[out] = words[1:]
            words = shrink(words)
        if words[0].endswith(("python3", "bin/python")):
            words[0] = sys.executable
        elif words[0].startswith("scripts/") and words[0].endswith(".py"):
            words.insert(0, sys.executable)
        if words[1:2] == ["scripts/prepare.py"] and words[-1] == "...":
            words[-1:] = ["--tokenizer", "bytes", "--out", "datasets/english"]
        if "--bpe-dir" in words:  # GPT-2's files are not part of this repository
            at = words.index("--bpe-dir")
            words[at:at + 2] = ["--tokenizer", "bytes"]
        if words[1:2] == ["scripts/sweep.py"] and any(word.endswith(".toml") for word in words):
            words.append("--dry-run")
        return words

    def test_every_command_runs(self):
        needs = {"scripts/prepare.py": ("numpy", "pyarrow", "tqdm"), "train:2048": ("tokenizers",),
                 "scripts/follow.py": ("tensorboardX",), "scripts/inspect_checkpoint.py": ("numpy",),
                 "scripts/hellaswag.py": ("numpy",)}
        ran = 0
        for page in PAGES:
            earlier, absent = {}, set()  # absent: the folders of commands that could not be run
            for command in commands_of(page):
                if reason_not_to_run(command) or re.match(r"([A-Z_]+=\S+ +)*make\b", command):
                    continue
                with self.subTest(page=page.name, command=command):
                    environment = {}
                    while match := re.match(r"([A-Z_]+)=(\S+) +", command):
                        environment[match[1]] = match[2]
                        command = command[match.end():]
                    words = self.words_of(command, earlier)
                    if any(missing(*libraries) for script, libraries in needs.items() if script in words) \
                            or {"wandb", "mlflow"} & set(words) or absent & set(words):
                        absent.update(words[words.index("--out") + 1:][:1] if "--out" in words else ())
                        continue
                    if words[0] == "mpirun" and missing_for_ranks():
                        continue
                    if words[0].startswith("build/"):
                        words[0] = str(ROOT / words[0])
                    self.assertNotIn("...", words)
                    if "dev/run_tests.py" in words:
                        continue  # it is running this test
                    if words[0].startswith("./train_") and not {"--out", "--eval-only", "--plan-only"} & set(words):
                        words += ["--out", f"runs/{page.stem}-{ran}"]  # two runs may begin in the same second
                    self.run_words(words, **environment)
                    ran += 1
        self.assertGreater(ran, 15)
        made = {path.name for path in self.folder.iterdir()} - self.given
        for name in sorted(made | {"corpus", "datasets", "exported"}):
            self.assert_ignored_by_git(name)

    def assert_ignored_by_git(self, name):
        """Checks that a folder which the commands make is not part of the checkout, nor of a commit of all files."""
        if shutil.which("git") and (ROOT / ".git").exists():
            done = subprocess.run(["git", "-C", ROOT, "check-ignore", "-q", f"{name}/file"])
            self.assertEqual(done.returncode, 0, f"{name}: .gitignore lacks it")

    @needs("numpy", "pyarrow", "tqdm", "tokenizers")
    def test_the_commands_that_the_demo_prints_at_its_end_run(self):
        script = (ROOT / "scripts/demo.sh").read_text()
        flags = re.search(r"^flags=\((.*)\)$", script, re.M)[1].replace('"$steps"', "500")
        text = re.search(r"<<END\n(.*)\nEND\n", script, re.S)[1]
        commands = [line.strip() for line in text.replace("$model", "gpt2").replace("${flags[*]}", flags).splitlines()
                    if line.startswith("    ")]
        self.assertEqual([command.split()[0] for command in commands], ["python3", "./train_gpt2", "./generate"])
        (self.folder / "FILE.txt").write_text((ROOT / "experiments/shakespeare.txt").read_text()[:50000])
        for command in commands:
            self.assertNotRegex(command, "[$]")
            output = self.run_words(self.words_of(command.replace("datasets/mine", "datasets/demo")
                                                  .replace("runs/mine", "runs/demo"), {}))
        self.assertIn("The", output)

    def test_every_flag_exists(self):
        known = set()
        for program in PROGRAMS:
            known.update(re.findall(r"--[a-z][\w-]*", self.run_words([f"./{program}", "--help-all"])))
        for script in [*ROOT.glob("scripts/*.py"), *ROOT.glob("scripts/*.sh"), *ROOT.glob("scripts/launch/*"),
                       *ROOT.glob("bench/*.py"), *ROOT.glob("dev/*.py"),
                       *ROOT.glob("scripts/*/*.py"), ROOT / "test/programs/soak.py",
                       ROOT / "gpusim/model-gpu", ROOT / "gpusim/foreign/foreign.py"]:
            known.update(re.findall(r"--[a-z][\w-]*", script.read_text()))
        removed = (ROOT / "options/removed.cpp").read_text()  # CHANGELOG.md names them
        known.update(f"--{key}" for key in re.findall(r'^    {"([a-z-]+)",', removed, re.M))
        foreign = {"--follow-tags", "--tool", "--nproc-per-node", "--no-python", "--nodes", "--mpi", "--dtype",
                   "--served-model-name", "--model_args", "--tasks", "--batch_size", "--device", "--logdir", "--target",
                   "--create-dirs", "--rm", "--no-compress", "--depth", "--bind-to",
                   "--allow-run-as-root", "--cache-type-k", "--cache-type-v",
                   "--flash-attn"}
        for page in PAGES:
            for flag in sorted(set(re.findall(r"(?<![\w-])--[a-z][\w-]*", page.read_text())) - known - foreign):
                self.fail(f"{page.name}: {flag} is no flag of any program or script")


class TextTest(Case):
    def test_every_command_runs_or_has_a_reason_not_to(self):
        used = set()
        for page in PAGES:
            for command in commands_of(page):
                used.update(start for start in NOT_RUN if command.startswith(start))
        self.assertEqual(set(NOT_RUN) - used - {start for start in NOT_RUN if "reproduce" in start}, set())

    def test_links_and_paths_exist(self):
        folders = "|".join(sorted(path.name for path in ROOT.iterdir()
                                  if path.is_dir() and path.name[0] != "." and path.name not in
                                  ("build", "runs", "datasets")))
        for page in PAGES:
            text = page.read_text()
            for link in re.findall(r"\]\((?!http)([^)#]+)", text):
                self.assertTrue((page.parent / link).exists(), f"{page.name}: {link}")
            for path in re.findall(rf"`((?:{folders})/[\w./*-]*)`", text):
                if re.search(r"(^|/|_)op\.", path):  # stands for any operation
                    continue
                self.assertTrue(any(ROOT.glob(path.rstrip("/"))) or any(ROOT.glob(path + ".*")), f"{page.name}: {path}")

    def test_tables_fit_100_columns(self):
        for page in PAGES:
            for line in [] if page.name in ("REPRODUCTION.md", "modelled_gpu.md") else page.read_text().splitlines():
                shown = re.sub(r"\]\([^)]*\)", "]", line)  # a link as its text
                if line.startswith("|") and not re.search(r"\| [\d,]+( of [\d,]+)? \| \d+ \|$", line):  # soak.py's
                    self.assertLessEqual(len(shown), 100, f"{page.name}: {line}")

    def test_pages_that_sources_name_exist(self):
        for pattern in ("*.cu", *(f"{depth}/*.{kind}" for depth in ("*", "*/*")
                                  for kind in ("h", "cpp", "cu", "sh", "py"))):
            for path in ROOT.glob(pattern):
                if path.relative_to(ROOT).parts[0] not in ("build", "runs", "test"):
                    for name in re.findall(r"(?<![\w<])((?:docs/)?[A-Za-z_]+\.md)\b", path.read_text(errors="replace")):
                        self.assertTrue((ROOT / name).exists() or (path.parent / name).exists()
                                        or name in ("compare.md", "report.md"),
                                        f"{path}: {name}")

    def test_the_citation_has_the_required_fields(self):
        text = (ROOT / "CITATION.cff").read_text()
        for key in ("cff-version: 1.2.0", "message: ", "title: ", "authors:", "references:"):
            self.assertIn(f"\n{key}", f"\n{text}")
        self.assertIn("arXiv:2601.23261", text)
        if not missing("yaml"):
            import yaml
            self.assertEqual(len(yaml.safe_load(text)["references"][0]["authors"]), 8)

    @unittest.skipUnless(shutil.which("make"), "needs make")
    def test_goals_of_make_run_or_can_be_planned(self):
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "TEON"))}
        commands = make_commands()
        self.assertGreater(len(commands), 15)
        for command, (words, pages) in commands.items():
            with self.subTest(command=command, pages=sorted(pages)):
                plan = [] if command.startswith(MADE) else ["-n"]
                self.call("make", *plan, "-C", ROOT, "SETUP=0", f"BACKEND={BACKEND}", *words, env=environment)

    def test_the_supported_systems_are_the_same_everywhere(self):
        for name in ("README.md", "CONTRIBUTING.md", "docs/tutorial.md", "scripts/setup.sh", "Containerfile"):
            text = re.sub(r"[\s#]+", " ", (ROOT / name).read_text())
            self.assertIn("Debian 12 or 13 or Ubuntu 22.04 or 24.04, on x86-64", text, name)
        images = re.findall(r'image: "(?:debian|ubuntu):([\d.]+)"', (ROOT / ".github/workflows/ci.yml").read_text())
        self.assertEqual(images, ["12", "13", "22.04", "24.04"])
        rows = re.findall(r"^(\w+) +\| (\w+) ", (ROOT / "test/machines.sh").read_text(), re.M)
        self.assertEqual(rows[:4], [("debian12", "bookworm"), ("debian13", "trixie"), ("ubuntu22", "jammy"),
                                    ("ubuntu24", "noble")])

    def test_the_version_is_the_changelogs(self):
        found = re.search(r"^## ([0-9.]+)", (ROOT / "CHANGELOG.md").read_text(), re.M)[1]
        self.assertRegex((ROOT / "CITATION.cff").read_text(), rf"(?m)^version: {re.escape(found)}$")
        self.assertIn(found, self.run_program("--version").stdout)
