"""The Makefile's number of compilers, interruption, and goals:  dev/run_tests.py test/dev/test_makefile.py"""

import json
import os
import re
import shlex
import shutil
import signal
import time
import unittest

from testing import PATIENCE, ROOT, Case, temporary_folder, write_program

SOURCES = [path.name for path in ROOT.iterdir() if path.suffix == ".cu" or path.name in
           "base cpu runtime files kernels model optim data options checkpoint generation plan train test "
           "gpusim".split()]
# Stands for the compiler: notes how many run at once, and makes the object.
COMPILER = """#!/bin/bash
for word; do [ "$earlier" = -o ] && out=$word; earlier=$word; done
[ -n "$out" ] || exit 0
touch "$NOTES/running.$$"
ls "$NOTES" | grep -c running >>"$NOTES/counts"
sleep 0.05
rm "$NOTES/running.$$"
touch "$out"
"""
# Writes half of the object and waits. If a signal came while a program of bash's was about to end, bash would go on:
# there is none.
SLOW_COMPILER = """#!/bin/bash
for word; do [ "$earlier" = -o ] && out=$word; earlier=$word; done
[ -n "$out" ] || exit 0
echo half >"$out"
: >"$NOTES/running"
exec sleep 600
"""
# Stands for g++ on a machine without Catch2: finds the preprocessor's other headers.
WITHOUT_CATCH2 = """#!/bin/bash
PATH=${PATH#*:}  # without this program's folder
[[ "$*" == *"-E -P"* ]] || exec g++ "$@"
sed "s/<catch/<no_catch/g" | g++ "$@"
"""


class MakeCase(Case):
    def setUp(self):
        super().setUp()
        self.outer = {name: value for name, value in os.environ.items() if not re.match("MAKE|SETUP$", name)}

    def checkout(self, *paths, name="checkout"):
        """Makes a folder of links to parts of this one."""
        here = self.folder / name
        here.mkdir(parents=True)
        for path in ("Makefile", "dev", "scripts", "CHANGELOG.md", *paths):
            (here / path).symlink_to(ROOT / path)
        return here


class ContinuousIntegrationTest(MakeCase):
    def test_without_mpi_it_fails_by_name(self):
        """A machine that has no mpirun and cannot install it."""
        here = self.folder / "checkout"
        (here / ".ci").mkdir(parents=True)
        shutil.copy2(ROOT / ".ci/run", here / ".ci/run")
        for name in ("checkout/scripts/setup.sh", "bin/make"):
            write_program(self.folder / name, f"#!/bin/bash\nexit {1 if name.endswith('setup.sh') else 0}\n")
        for name in ("bash", "dirname", "mkdir", "grep", "tail", "tee"):
            (self.folder / "bin" / name).symlink_to(shutil.which(name))
        result = self.call(here / ".ci/run", "cuda", expect=1, PATH=self.folder / "bin")
        self.assertEqual(result.stdout, "CI needs MPI: mpirun was not found and could not be installed\n")


@unittest.skipUnless(shutil.which("make"), "needs make")
class GoalsTest(MakeCase):
    def test_an_interrupted_make_leaves_no_half_made_object(self):
        # A shell starts commands in the background with SIGINT ignored, which make would inherit.
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))
        here, compiler = self.checkout("base"), write_program(self.folder / "compiler", SLOW_COMPILER)
        make = self.start("make", "-C", here, "SETUP=0", "BACKEND=cpu", "JOBS=2", f"CXX={compiler}",
                          "build/cpu/base/hash.cpp.o", "build/cpu/base/text.cpp.o", env=self.outer | {
                              "NOTES": str(self.folder)}, start_new_session=True)
        while not (self.folder / "running").exists():
            self.assertIsNone(make.poll())
            time.sleep(0.05)
        os.killpg(make.pid, signal.SIGINT)  # as a terminal does
        output, errors = make.communicate(timeout=PATIENCE)
        self.assertNotEqual(make.returncode, 0)
        self.assertEqual([*here.glob("build/cpu/base/*.o"), *here.glob("build/cpu/base/*.gch")], [])
        for line in (output + errors).splitlines():
            self.assertRegex(line, r"make: |^  cpu  ")

    @unittest.skipUnless(shutil.which("g++"), "needs g++")
    def test_programs_are_built_without_catch2(self):
        write_program(self.folder / "bin/g++", WITHOUT_CATCH2)
        compiler = write_program(self.folder / "compiler", COMPILER)
        here = self.checkout(*SOURCES)
        command = ("make", "-C", here, "BACKEND=cpu", f"CXX={compiler}")
        environment = self.outer | {"NOTES": str(self.folder), "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                                    "CCACHE_DISABLE": "1"}
        self.call(*command, "all", env=environment)
        self.assertTrue((here / "build/cpu/generate").exists())
        refused = self.call(*command, "build/cpu/tests", env=environment, expect=2)
        self.assertIn("setup: missing: catch2", refused.stderr)

    def test_another_mpi_compiles_two_files_and_links_again(self):
        compiler = write_program(self.folder / "compiler", COMPILER)
        mpicc = write_program(self.folder / "mpicc", "#!/bin/sh\necho cc -I/nowhere/include -L/nowhere -lmpich\n")
        here = self.checkout(*SOURCES)
        outputs = [self.call("make", "-C", here, "SETUP=0", "BACKEND=cpu", f"CXX={compiler}", f"MPICC={mpi}",
                             "build/cpu/generate", env=self.outer | {"NOTES": str(self.folder)}).stdout
                   for mpi in ("none", mpicc, mpicc)]
        self.assertIn("  cpu  without MPI: MPICC=none\n", outputs[0])
        self.assertIn(f"  cpu  with an MPI whose mpi.h is not found ({mpicc})\n", outputs[1])
        self.assertEqual(re.findall(r"(?m)^  cpu  (?:\d+ of \d+  )?(\S+)$", outputs[1]),
                         ["cpu/nccl.cpp", "runtime/cuda/exchange.cpp", "generate"])
        self.assertNotIn("  cpu  ", outputs[2])
        self.assertIn("-L/nowhere -Wl,-rpath,/nowhere -lmpich", (here / "build/cpu/libs").read_text())

    @unittest.skipUnless(shutil.which("g++"), "needs g++")
    def test_a_change_compiles_only_what_it_reaches_and_every_file_is_counted(self):
        here = self.checkout()
        for folder in ("base", "train", "kernels"):
            (here / folder).mkdir()
        (here / "base/precompiled.h").write_text("#include <cmath>\n")
        (here / "train/shared.h").write_text("#pragma once\ninline int shared() { return 1; }\n")
        (here / "kernels/alone.cu").write_text("int alone() { return 1; }\n")
        for name in "abc":
            (here / f"train/{name}.cpp").write_text(
                f'#include "train/shared.h"\nint {name}() {{ return shared(); }}\n')

        def compiled(*words):
            """Makes the objects, and returns the files that were compiled."""
            goals = [f"build/cpu/{path.relative_to(here)}.o" for path in sorted(here.glob("*/*.c*")) if path.exists()]
            result = self.call("make", "-C", here, "SETUP=0", "BACKEND=cpu", *words, *goals, env=self.outer)
            lines = [re.fullmatch(r"  cpu  (\d+) of (\d+)(?:, \d+ (?:s|min) left)?  (\S+)", line)
                     for line in result.stdout.splitlines() if line.startswith("  cpu  ")]
            self.assertEqual([(int(line[1]), int(line[2])) for line in lines],
                             [(i + 1, len(lines)) for i in range(len(lines))])
            return sorted(line[3] for line in lines)

        everything = ["base/precompiled.h", "kernels/alone.cu", *(f"train/{name}.cpp" for name in "abc")]
        self.assertEqual(compiled("JOBS=2"), everything)
        self.assertEqual(compiled(), [])
        (here / "train/b.cpp").write_text("int b() { return 2; }\n")
        self.assertEqual(compiled(), ["train/b.cpp"])
        (here / "train/shared.h").write_text("#pragma once\ninline int shared() { return 2; }\n")
        self.assertEqual(compiled("-j"), ["train/a.cpp", "train/c.cpp"])
        (here / "train/d.cpp").write_text("int d() { return 2; }\n")
        self.assertEqual(compiled(), ["train/d.cpp"])
        (here / "train/c.cpp").unlink()
        self.assertEqual(compiled(), [])
        everything[-1] = "train/d.cpp"
        self.assertEqual(compiled("MARCH=-march=x86-64-v2"), everything)
        self.assertEqual(compiled("MARCH=-march=x86-64-v2", "OPT=-O2"), everything)
        self.assertEqual(compiled("MARCH=-march=x86-64-v2", "OPT=-O2", "CXX=nice g++"), everything)

    def test_nvcc_and_the_other_files_have_one_cxx_compiler(self):
        """g++-12, typed or because an nvcc (an imitation) refuses g++; a compiler that it refuses compiles nothing."""
        here = self.checkout(*SOURCES)
        write_program(self.folder / "toolkit/bin/nvcc", """#!/bin/bash
            [ "$1" = --version ] && { echo 'Cuda compilation tools, release 12.0, V12.0.1'; exit; }
            [ "$2" = g++-12 ] && exit
            echo 'error: #error -- unsupported GNU version! gcc versions later than 12 are not supported!'; exit 1""")
        write_program(self.folder / "bin/g++-12", '#!/bin/bash\nexec g++ "$@"\n')
        write_program(self.folder / "bin/getconf", "#!/bin/bash\necho glibc 2.36\n")  # which CUDA 12 compiles with
        environment = {**self.outer, "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
                       "CUDA_HOME": self.folder / "toolkit", "NVCC_WORKS": self.folder / "nvcc_works"}
        command = ["make", "-C", here, "BACKEND=cuda", "SETUP=0", "build/cuda/kernels/fill.cu.o",
                   "build/cuda/base/text.cpp.o"]
        for words in ([], ["CXX=g++-12"], ["CXX=ccache g++-12"]):
            with self.subTest(words):
                commands = self.call(*command, "-n", *words, env=environment).stdout
                self.assertRegex(commands, "kernels/fill.cu .*/toolkit/bin/nvcc -ccbin g\\+\\+-12 ")
                self.assertRegex(commands, "base/text.cpp (ccache )?g\\+\\+-12 @")
        result = self.call(*command, "CXX=g++", env=environment, expect=2)
        self.assertIn("find_cuda: CUDA 12.0 permits g++ up to 12, and g++ is ", result.stderr)
        self.assertNotIn("fill.cu", result.stdout)

    def test_compile_commands_name_every_file_once(self):
        here = self.checkout(*(path.name for path in ROOT.iterdir() if path.is_dir() and list(path.glob("*.cpp"))),
                             "test", "train_gpt2.cu")
        self.call("make", "-C", here, "SETUP=0", "BACKEND=cpu", "compile_commands.json", env=self.outer)
        entries = json.loads((here / "compile_commands.json").read_text())
        files = [entry["file"] for entry in entries]
        self.assertEqual(len(files), len(set(files)))
        self.assertTrue({"base/hash.cpp", "train_gpt2.cu", "test/model/test_family.cpp"} <= set(files))
        for entry in entries:
            self.assertEqual(entry["directory"], str(here))
            self.assertEqual(shlex.split(entry["command"])[-2:], ["-c", entry["file"]])


@unittest.skipUnless(shutil.which("make"), "needs make")
class JobsTest(MakeCase):
    def most_at_once(self, *words):
        """Returns how many compilers `make WORDS` runs at once for the objects of two folders, and how many in all."""
        notes = temporary_folder(self.addCleanup)
        compiler = write_program(notes / "compiler", COMPILER)
        here = self.checkout("base", "data", name=notes / "checkout")
        goals = [f"build/cpu/{path.relative_to(ROOT)}.o" for part in ("base", "data")
                 for path in sorted((ROOT / part).glob("*.cpp"))]
        self.call("make", "-C", here, *words, "SETUP=0", "BACKEND=cpu", f"CXX={compiler}", *goals,
                  env=self.outer | {"NOTES": str(notes)})
        counts = [int(line) for line in (notes / "counts").read_text().split()]
        return max(counts), len(counts), len(goals)

    def test_an_unlimited_j_starts_no_more_compilers_than_jobs(self):
        for words in (["-j", "JOBS=2"], ["--jobs", "JOBS=3"], ["JOBS=2"]):
            most, runs, goals = self.most_at_once(*words)
            self.assertEqual(runs, goals + 1)  # and base/precompiled.h
            self.assertLessEqual(most, int(words[-1][-1]), words)

    def test_jobs_are_at_least_one_and_at_most_one_per_core(self):
        listed = self.call("make", "-C", ROOT, "-pn", "help", "SETUP=0", expect=None).stdout
        jobs = [line.split()[-1] for line in listed.splitlines() if line.startswith("JOBS :=")]
        self.assertTrue(jobs and 1 <= int(jobs[0]) <= os.cpu_count(), jobs)
