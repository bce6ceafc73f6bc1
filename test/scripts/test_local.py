"""scripts/launch/local.py:  dev/run_tests.py test/scripts/test_local.py"""

import signal
import sys
import time

from testing import SCRIPTS, Case

# Records that it runs and which signal it gets. Ends when the file "end" exists or its launcher has ended.
RANK = """
import os, signal, sys, time
rank, launcher = os.environ["RANK"], os.getppid()
def note(number, _):
    open("got" + rank, "w").write(str(number))
    sys.exit(3)
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    if signal.getsignal(number) != signal.SIG_IGN: signal.signal(number, note)
open("ready" + rank, "w").close()
while not os.path.exists("end") and os.getppid() == launcher: time.sleep(0.02)
"""


class LocalTest(Case):
    def launch(self, *before):
        process = self.start(*before, sys.executable, SCRIPTS / "launch" / "local.py", "-n", 2, sys.executable, "-c",
                             RANK, start_new_session=True)
        while not all((self.folder / f"ready{rank}").exists() for rank in (0, 1)):
            time.sleep(0.02)
        return process

    def test_signals_reach_every_rank(self):
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            with self.subTest(signal=number.name):
                process = self.launch()
                process.send_signal(number)
                errors = process.communicate()[1]
                self.assertEqual(process.returncode, 3, errors)
                for rank in (0, 1):
                    self.assertEqual((self.folder / f"got{rank}").read_text(), str(number.value))
                    (self.folder / f"ready{rank}").unlink()

    def test_a_signal_during_the_start_reaches_every_rank(self):
        rank = "[ $RANK != 0 ] || kill -TERM $PPID; sleep 60; touch survived$RANK"
        patient = "import local, sys; local.GRACE = 600; sys.exit(local.main())"
        process = self.start(sys.executable, "-c", patient, "-n", 16, "sh", "-c", rank,
                             PYTHONPATH=f"{SCRIPTS}:{SCRIPTS / 'launch'}")
        self.assertEqual(process.wait(), 128 + signal.SIGTERM)
        self.assertFalse(list(self.folder.glob("survived*")))

    def test_only_a_second_ctrl_c_kills_ranks_that_save(self):
        saves = """
import os, signal, time
rank, got = os.environ["RANK"], []
for number in (signal.SIGTERM, signal.SIGINT): signal.signal(number, lambda number, _: got.append(number))
open("ready" + rank, "w").close()
while not got: time.sleep(0.02)
open("saving" + rank, "w").close()
while not os.path.exists("end"): time.sleep(0.02)
open("saved" + rank, "w").close()
"""
        for numbers, status in (([signal.SIGTERM] * 3, 0), ([signal.SIGTERM, signal.SIGINT], 0),
                                ([signal.SIGINT] * 2, 128 + signal.SIGKILL)):
            with self.subTest(numbers):
                process = self.start(sys.executable, SCRIPTS / "launch" / "local.py", "-n", 2, sys.executable, "-c",
                                     saves)
                for name in ("ready", "saving"):
                    while len(list(self.folder.glob(name + "?"))) < 2:
                        time.sleep(0.02)
                    process.send_signal(numbers[name == "saving"])
                for number in numbers[2:]:
                    process.send_signal(number)
                time.sleep(0.5)
                if not status:
                    (self.folder / "end").touch()
                errors = process.communicate()[1]
                self.assertEqual(process.returncode, status, errors)
                self.assertEqual(len(list(self.folder.glob("saved?"))), 0 if status else 2)
                for path in self.folder.iterdir():
                    path.unlink()

    def test_a_missing_command_is_named(self):
        done = self.call(sys.executable, SCRIPTS / "launch" / "local.py", "-n", 2, "./none", expect=2)
        self.assertIn("local.py: error: cannot run ./none: No such file or directory", done.stderr)

    def test_an_ignored_hangup_stays_ignored(self):
        process = self.launch("nohup")
        process.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        self.assertIsNone(process.poll())
        (self.folder / "end").touch()
        self.assertEqual(process.wait(), 0)
        self.assertFalse(list(self.folder.glob("got*")))
