"""Helpers for the Python tests: a folder for each test, functions that run programs, and files of data and runs.

dev/run_tests.py puts this folder on Python's path:  import testing
"""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import io
import json
import os
import pathlib
import re
import runpy
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("TEON_BUILD", "build/cpu")
# Whether programs for GPUs run on the modelled GPU (docs/modelled_gpu.md), where MPI joins the ranks. Tests then take
# ten to fifty times as long.
MODELLED = BUILD.name == "cuda-model"
ON_GPUS = BUILD.name.startswith("cuda") and not MODELLED
SCRIPTS = ROOT / "scripts"
DEV = ROOT / "dev"
DATA = ROOT.parent / "shared" / "data"  # texts that are not part of this repository
BPE = DATA / "gpt2_bpe"
sys.path[:0] = [str(SCRIPTS), str(DEV)]
# Seconds for a program that must end by itself. It ends a test that hangs, with the programs that it started, before
# dev/run_tests.py does; no program takes nearly as long, however busy the machine is. Waits that end no program have no
# limit of their own.
PATIENCE = 600
STATE = ("model.safetensors", "optimizer/state.safetensors")  # the files of a checkpoint with all trained numbers


def script_path(name):
    return next((path for path in (SCRIPTS / name, DEV / name) if path.exists()), SCRIPTS / name)


def missing(*packages):
    return [package for package in packages if importlib.util.find_spec(package) is None]


def needs(*packages, data=()):
    """Skips a test or a class by name if a Python package or a file is missing."""
    absent = missing(*packages) + [os.path.relpath(path, ROOT) for path in data if not os.path.exists(path)]
    return unittest.skipIf(absent, f"needs {', '.join(absent)}")


def needs_torch(version, *packages):
    """As needs(), for tests of what torch has since this version."""
    def numbers(text):
        return [int(number) for number in re.findall(r"\d+", text.partition("+")[0])]
    if missing("torch") or numbers(importlib.metadata.version("torch")) >= numbers(version):
        return needs("torch", *packages)
    return unittest.skip(f"needs torch {version}")


def gpus():
    """Returns the number of GPUs of this machine."""
    try:
        return len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.splitlines())
    except OSError:
        return 0


def missing_for_ranks():
    """Returns what this machine or build lacks to run two ranks, or None."""
    if ON_GPUS:
        return "needs two GPUs" if gpus() < 2 else None
    libraries = subprocess.run(["ldd", BUILD / "train_gpt2"], capture_output=True, text=True).stdout
    if shutil.which(os.environ.get("MPIRUN", "mpirun")) and "libmpi" in libraries:
        return None
    return "needs a program built with MPI, and mpirun (libopenmpi-dev, openmpi-bin)"


def of_program(errors):
    """Returns a program's standard error without the line that the modelled GPU writes first."""
    return re.sub(r"(?m)^This is a model of .*\n", "", errors)


def as_flags(values):
    """Returns {"--layers": 2} as the words of a command line."""
    return [word for pair in values.items() for word in pair]


def temporary_folder(add_cleanup):
    folder = tempfile.TemporaryDirectory()
    add_cleanup(folder.cleanup)
    return pathlib.Path(folder.name)


class Case(unittest.TestCase):
    """A test with its own folder, in which it starts programs. A class whose tests share a folder makes it itself."""

    folder = None

    def setUp(self):
        self.folder = self.folder or temporary_folder(self.addCleanup)

    def popen(self, command, env, variables, stdout=subprocess.PIPE, **how):
        environment = {k: str(v) for k, v in {**(os.environ if env is None else env), **variables}.items()}
        words = [word if isinstance(word, bytes) else str(word) for word in command]
        return subprocess.Popen(words, stdout=stdout, cwd=self.folder, env=environment, encoding="utf-8",
                                errors="replace", **how)

    def start(self, *command, env=None, stderr=subprocess.PIPE, start_new_session=False, **variables):
        """Starts a program, which ends with the test at the latest."""
        process = self.popen(command, env, variables, stderr=stderr, start_new_session=start_new_session)
        for pipe in filter(None, (process.stdout, process.stderr)):
            self.addCleanup(pipe.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def call(self, *command, expect=0, timeout=PATIENCE, env=None, preexec_fn=None, **variables):
        """Runs a program to its end, with these variables added to the environment, or to `env`. Fails unless the
        exit status is `expect` (None: any)."""
        with self.popen(command, env, variables, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                        preexec_fn=preexec_fn) as process:
            try:
                output, errors = process.communicate(timeout=timeout)
            except BaseException:
                process.kill()
                raise
        errors = of_program(errors)
        if expect is not None:
            self.assertEqual(process.returncode, expect, output[-4000:] + errors[-4000:])
        return subprocess.CompletedProcess(command, process.returncode, output, errors)

    def run_program(self, *flags, program="train_gpt2", **how):
        return self.call(BUILD / program, *flags, **how)

    def evaluate(self, *flags, **how):
        """Returns the figures that --eval-only prints."""
        return json.loads(self.run_program("--eval-only", *flags, **how).stdout.splitlines()[-1])

    def run_script(self, name, *words, **how):
        return self.call(sys.executable, script_path(name), *words, **how)

    def run_here(self, name, *words, expect=0):
        """Runs a script in this process, twenty times as fast as in its own."""
        output, errors, status = io.StringIO(), io.StringIO(), 0
        command = [str(script_path(name)), *map(str, words)]
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        with mock.patch.object(sys, "argv", command), contextlib.redirect_stdout(output), \
                contextlib.redirect_stderr(errors):
            try:
                runpy.run_path(command[0], run_name="__main__")
            except SystemExit as end:
                status = end.code or 0
        done = subprocess.CompletedProcess(command, status, output.getvalue(), errors.getvalue())
        if expect is not None:
            self.assertEqual(status, expect, done.stdout[-4000:] + done.stderr[-4000:])
        return done

    def error_here(self, name, *words, expect=2):
        """Returns the one line on standard error with which a script refuses to run in this process."""
        error = self.run_here(name, *words, expect=expect).stderr
        self.assertEqual(error.count("\n"), 1, error)
        return error

    def error_of(self, *command, expect=2, **how):
        """Returns the one line on standard error with which a program refuses to run."""
        error = self.call(*command, expect=expect, **how).stderr
        self.assertEqual(error.count("\n"), 1, error)
        return error


class RunCase(Case):
    """A test of training runs. Each run has a folder in the test's folder."""

    SHAPE = {}  # the flags of every run
    STEPS = 8
    PROGRAM = "train_gpt2"
    data = None  # None: the test's own folder

    def command(self, out, *flags, steps=None, shape=None, data=None, program=None):
        """Returns a training command. The given flags replace those of SHAPE."""
        values = {"--data": data or self.data or self.folder, **(self.SHAPE if shape is None else shape),
                  "--steps": steps or self.STEPS, "--out": self.folder / out}
        return [BUILD / (program or self.PROGRAM), *as_flags({k: v for k, v in values.items() if k not in flags}),
                *flags]

    def train(self, out, *flags, expect=0, steps=None, shape=None, data=None, program=None, **how):
        command = self.command(out, *flags, steps=steps, shape=shape, data=data, program=program)
        return self.call(*command, expect=expect, **how)

    def refused(self, out, *flags, expect=2, **how):
        """Returns the one line with which a run is refused."""
        return self.error_of(*self.command(out, *flags, **how), expect=expect)

    def start_run(self, out, *flags, **how):
        return self.start(*self.command(out, *flags, **how))

    def metrics(self, out, kind=None):
        lines = map(json.loads, (self.folder / out / "metrics.jsonl").read_text().splitlines())
        return [line for line in lines if kind in (None, line["kind"])]

    def diagnoses(self, out):
        return [{k: v for k, v in line.items() if k != "time"} for line in self.metrics(out, "diagnose")]

    def events(self, out, name):
        return [m for m in self.metrics(out, "event") if m["event"] == name]

    def losses(self, out):
        return [m["loss"] for m in self.metrics(out, "step")]

    def config(self, out):
        return read_json(self.folder / out / "config.json")

    def checkpoint(self, out, step):
        return self.folder / out / f"step_{step:08}"

    def checkpoints(self, out):
        return sorted(path.name for path in (self.folder / out).glob("step_*"))

    def cut(self, out, step):
        """Removes the checkpoints of a run after this step, as if it had been killed before it saved them."""
        for name in self.checkpoints(out):
            if int(name[5:13]) > step:
                shutil.rmtree(self.folder / out / name)

    def assert_same_checkpoint(self, a, b, step, files=STATE):
        """Compares files by their hashes; of a file of tensors that differs, names the tensors."""
        for file in files:
            paths = [self.checkpoint(run, step) / file for run in (a, b)]
            if len({hashlib.sha256(path.read_bytes()).digest() for path in paths}) == 1:
                continue
            if not file.endswith(".safetensors"):
                self.assertEqual(*(path.read_text() for path in paths), file)
            ours, theirs = map(read_tensors, paths)
            different = [name for name in sorted(ours.keys() | theirs.keys()) if ours.get(name) != theirs.get(name)]
            self.fail(f"{file} of {a} and {b} at step {step}: "
                      f"{', '.join(different[:5]) or 'the header'} differ{', and others' if different[5:] else ''}")


# ---- files


def failing_files(folder):
    """Compiles failing_files.c to a library in the folder, for LD_PRELOAD."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if not compiler:
        raise unittest.SkipTest("needs a C compiler")
    library = folder / "failing_files.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, ROOT / "test/support/failing_files.c", "-ldl"],
                   check=True)
    return library


def write_files(folder, files):
    """Writes {path below the folder: text}."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def write_program(path, text):
    """Writes an executable script and returns its path."""
    write_files(path.parent, {path.name: text})
    path.chmod(0o755)
    return path


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8"))


def change_json(path, **changes):
    path.write_text(json.dumps(read_json(path) | changes))


def learnable(count):
    """Returns tokens below 64. Each determines the next, except for an occasional jump."""
    tokens = [0]
    for i in range(count):
        tokens.append((tokens[-1] * 5 + 1 + (i % 13 == 0)) % 64)
    return tokens


def header(*words):
    """Returns the 1024 bytes of 32-bit numbers with which llm.c's files begin."""
    return struct.pack("<256i", *words, *[0] * (256 - len(words)))


def write_shard(path, tokens, magic=20240520, version=1, count=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header(magic, version, len(tokens) if count is None else count)
                     + struct.pack(f"<{len(tokens)}H", *tokens))


def write_shards(folder, train, val):
    write_shard(folder / "t_train_000000.bin", train)
    write_shard(folder / "t_val_000000.bin", val)


def write_tokenizer(folder, words, delimiter, kind="other"):
    """Writes a tokenizer of these words (bytes) as prepare.py does. Returns its description."""
    folder.mkdir(parents=True, exist_ok=True)
    table = header(20240328, 2, len(words), delimiter) + b"".join(bytes([len(word)]) + word for word in words)
    (folder / "tokens.bin").write_bytes(table)
    description = {"kind": kind, "vocab_size": len(words), "delimiter": delimiter,
                   "files": {"tokens.bin": hashlib.sha256(table).hexdigest()}}
    (folder / "description.json").write_text(json.dumps(description))
    return description


def read_tensors(path):
    """Returns {name: (dtype, shape, bytes)} of a safetensors file."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    tensors = json.loads(data[8:8 + size])
    tensors.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], data[8 + size:][slice(*t["data_offsets"])]) for name, t in tensors.items()}


def write_tensors(path, tensors):
    info, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        info[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(info).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data for _, _, data in tensors.values()))


RUN_STEPS = 20  # steps of the runs of write_run()


def write_run(folder, optimizer="adamw", seed=1, losses=(4.0, 3.0, 2.5, 2.2), data=None, config=None, evals=None,
              **options):
    """Writes a finished run for scripts to read. `config` and `evals`: additions to config.json and to evaluations."""
    folder.mkdir(parents=True, exist_ok=True)
    data = data or {"train": [{"path": "a/t_train_000000.bin", "tokens": 100}],
                    "val": [{"path": "a/t_val_000000.bin", "tokens": 10}]}
    options = {"optimizer": optimizer, "lr": 0.01, **options}
    experiment = {"program": "train_gpt2", "options": options, "steps": RUN_STEPS, "eval_windows": 4,
                  "data": {"train": data["train"], "val": str(data["val"])}}
    config = {"program": "train_gpt2", "experiment": experiment, **(config or {}),
              "options": {**options, "seed": seed, "out": str(folder)},
              "run": {"steps": RUN_STEPS, "eval_windows": 4}, "data": data}
    (folder / "config.json").write_text(json.dumps(config))
    lines = []
    for step in range(1, RUN_STEPS + 1):
        lines.append({"kind": "step", "step": step, "tokens": 100 * step, "loss": 5 - step / 10, "ms": 10.0,
                      "tokens_per_s": 1e4, "optimizer_ms": 2.0, "lr": 0.01})
        if step % 5 == 0:
            lines.append({"kind": "eval", "step": step, "tokens": 100 * step, "val_loss": losses[step // 5 - 1],
                          "val_ppl": 2.0, **(evals or {})})
            lines.append({"kind": "diagnose", "step": step, "role": "q", "layers": [0, 1], "left": 0.1, "right": 0.8,
                          "norm_ratio": 1.2})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def end_by_skipped_updates(run):
    """Ends a run of write_run() after its second step, as the engine does because of --max-skipped 2."""
    log, config = run / "metrics.jsonl", read_json(run / "config.json")
    change_json(run / "config.json", options=config["options"] | {"max-skipped": 2})
    event = {"kind": "event", "event": "update_skipped", "reason": "-"}
    log.write_text("".join([*log.read_text().splitlines(keepends=True)[:2],
                            *(json.dumps(event | {"step": step}) + "\n" for step in (1, 2))]))
