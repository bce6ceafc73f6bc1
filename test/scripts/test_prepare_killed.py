"""scripts/prepare.py continues after kills:  dev/run_tests.py test/scripts/test_prepare_killed.py"""

import json
import multiprocessing
import os
import signal
import sys

from preparing import PrepareCase, contents, run, some_texts, write_lines, write_parquet
from teon_data import documents, sources
from testing import read_json


class TestKilled(PrepareCase):

    def make_inputs(self, rows):
        self.rows = rows
        write_parquet(self.path("a.parquet"), some_texts(rows) + [None, b"\xff"] + some_texts(rows, seed=2))
        write_lines(self.path("b.jsonl.gz"), [json.dumps({"text": text}).encode() for text in some_texts(rows, seed=3)])

    def arguments(self, out, workers):
        """Returns the arguments of a run with several units and several shards, whose boundaries do not coincide."""
        return [self.path("a.parquet"), self.path("b.jsonl.gz"), "--tokenizer", "bytes", "--out", out, "--workers",
                str(workers), "--shard-tokens", str(250 * self.rows), "--unit-bytes", "3000"]

    def test_killed_at_every_rename_it_repeats_no_finished_work(self):
        self.make_inputs(6)
        printed, _ = self.prepare(*self.arguments(self.path("whole"), 1))
        units = self.units_made(printed)
        expected = contents(self.path("whole"))
        context = multiprocessing.get_context("fork")
        renames, finished = 0, False
        while not finished:
            for after in (False, True):
                out = self.path(f"{renames}-{after}")
                process = context.Process(target=run_until, args=(renames, after, self.arguments(out, 1)))
                process.start()
                process.join()
                finished = process.exitcode == 0
                if not finished:
                    self.assertEqual(process.exitcode, -signal.SIGKILL)
                    done = self.units_done(out, units)
                    printed, _ = self.prepare(*self.arguments(out, 3 if after else 1))
                    if done is not None and not after:  # three workers look for the end of a compressed file
                        self.assertEqual(self.units_made(printed), units - done, (renames, after))
                self.assertEqual(contents(out), expected, (renames, after))
            renames += 1
        self.assertGreater(renames, units)

    def test_killed_at_every_rename_with_a_validation_text_of_its_own(self):
        texts = some_texts(9)
        write_parquet(self.path("train.parquet"), texts + some_texts(9, seed=2))
        write_lines(self.path("dev.jsonl.gz"), [json.dumps({"text": text}).encode() for text in texts[:4] + ["other"]])

        def arguments(out):
            return [self.path("train.parquet"), "--val-from", self.path("dev.jsonl.gz"), "--tokenizer", "bytes",
                    "--out", out, "--shard-tokens", "900", "--unit-bytes", "1000", "--drop-validation-duplicates"]

        self.prepare(*arguments(self.path("whole")))
        expected, status, moment = contents(self.path("whole")), None, 0
        while status != 0:
            out = self.path(str(moment))
            process = multiprocessing.get_context("fork").Process(
                target=run_until, args=(moment, moment % 2 == 1, [*arguments(out), "--workers", "1"]))
            process.start()
            process.join()
            status = process.exitcode
            if status:
                self.assertEqual(status, -signal.SIGKILL)
                self.prepare(*arguments(out))
            self.assertEqual(contents(out), expected, moment)
            moment += 1
        self.assertGreater(moment, 10)

    def test_a_missing_part_is_made_again_and_later_parts_are_kept(self):
        self.make_inputs(60)

        def arguments(out, workers):  # no compressed file, whose end must be found first; no shard before the end
            return [*self.arguments(out, workers)[:1], *self.arguments(out, workers)[2:], "--shard-tokens", "1M"]

        printed, _ = self.prepare(*arguments(self.path("whole"), 1))
        units, out = self.units_made(printed), self.path("out")
        process = multiprocessing.get_context("fork").Process(target=run_until, args=(units, False, arguments(out, 1)))
        process.start()
        process.join()
        self.assertEqual(process.exitcode, -signal.SIGKILL)
        parts = sorted((out / ".prepare" / "parts").glob("*.part"))
        self.assertGreater(len(parts), 5)
        parts[1].unlink()
        parts[3].write_bytes(parts[3].read_bytes()[:-1])  # and an incomplete part
        printed, _ = self.prepare(*arguments(out, 2))
        self.assertEqual(self.units_made(printed), units - len(parts) + 2)
        self.assertEqual(contents(out), contents(self.path("whole")))

    @staticmethod
    def units_made(printed):
        return int(printed.splitlines()[1].split()[0])

    def units_done(self, out, units):
        """Returns the number of units that a killed run has finished, before the frontier and as parts after it, or
        None if the run is complete."""
        if out.joinpath("manifest.json").exists():
            return None
        work = out / ".prepare"
        if not work.joinpath("state.json").exists():
            return 0
        frontier = tuple(read_json(work / "state.json")["frontier"][:2])
        if frontier[0] == 2:  # behind both files
            return units
        file = sources.LocalSource([str(self.path("a.parquet"))]).files[0]
        in_first_file = len(list(sources.units(0, file.path, file, documents.ReadOptions("text", False, True, 3000))))
        names = [path.name[:15].split("_") for path in (work / "parts").glob("*.part")]
        return (frontier[1] + (in_first_file if frontier[0] else 0) +
                sum((int(file), int(unit)) >= frontier for file, unit in names))


def run_until(moment, after, arguments):
    """Runs prepare.py in this process, which is killed before or after the rename with the number `moment`, counted
    over all of its processes."""
    main, replace = os.getpid(), os.replace
    renames = multiprocessing.get_context("fork").Value("i", 0)

    def counted(source, target):
        with renames.get_lock():
            now = renames.value == moment
            renames.value += 1
        if now and not after:
            os.kill(main, signal.SIGKILL)
            signal.pause()
        replace(source, target)
        if now:
            os.kill(main, signal.SIGKILL)
            signal.pause()

    os.replace = counted
    sys.exit(run(*arguments)[0])
