"""The rows of the first hour: one JSON object for each check or measurement, written as it comes, and the facts of the
machine that each carries."""

import ctypes
import json
import os
import re
import subprocess
import sys
import threading
import time

BAD = ("failed", "hang", "error stays")
LIBRARIES = {"cuda": ("cudart", "cudaRuntimeGetVersion"), "driver_cuda": ("cudart", "cudaDriverGetVersion"),
             "cublaslt": ("cublasLt", None), "nccl": ("nccl", "ncclGetVersion")}


def output_of(*words, limit=30):
    try:
        result = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=limit,
                                stdin=subprocess.DEVNULL, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""


def ask_library(path, function):
    """Returns the version that the library at `path` reports, as text. Runs in a process of its own."""
    library = ctypes.CDLL(path)
    if function is None:
        library.cublasLtGetVersion.restype = ctypes.c_size_t
        return str(library.cublasLtGetVersion())
    version = ctypes.c_int()
    return str(version.value) if getattr(library, function)(ctypes.byref(version)) == 0 else ""


def library_versions(program):
    """Returns {"cuda": "13000", ...} of the libraries that the program is linked with, as they report it."""
    listed = dict(re.findall(r"lib(\w+)\.so\S* => (/\S+)", output_of("ldd", program)))
    versions = {}
    for key, (name, function) in LIBRARIES.items():
        if name in listed:
            asks = f"import sys; sys.path.insert(0, {os.path.dirname(os.path.dirname(__file__))!r}); " \
                   f"from first_hour.rows import ask_library; print(ask_library({listed[name]!r}, {function!r}))"
            versions[key] = output_of(sys.executable, "-c", asks, limit=60)
    return versions


def smi(fields, *flags):
    """Returns the answers of nvidia-smi for the first visible GPU, or blanks."""
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    line = output_of("nvidia-smi", f"--id={gpu}", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits",
                     *flags).split("\n")[0]
    answers = [word.strip() for word in line.split(",")] if line else []
    return dict(zip(fields, answers if len(answers) == len(fields) else [""] * len(fields)))


def machine_facts(program):
    """What every row carries: GPU, driver, libraries and commit."""
    gpu = smi(["name", "driver_version", "clocks.max.sm", "clocks.max.mem", "power.limit", "memory.total"])
    version = output_of(program, "--version", limit=60)
    return {"gpu": gpu["name"] or "none", "driver": gpu["driver_version"], **library_versions(program),
            "commit": version.splitlines()[-1] if version else "unknown",
            "limits": {"sm_mhz": gpu["clocks.max.sm"], "mem_mhz": gpu["clocks.max.mem"], "watt": gpu["power.limit"],
                       "memory_mib": gpu["memory.total"]}}


def fault_of_driver(facts):
    """Returns why no kernel can run with this driver, or "". Versions are 1000 times CUDA's major version, and more."""
    needs, has = (int(facts.get(key) or 0) for key in ("cuda", "driver_cuda"))
    if "driver_cuda" not in facts or has // 1000 >= needs // 1000:
        return ""
    if has == 0:
        return "there is no NVIDIA driver here: nvidia-smi must list a GPU (in a container: --gpus all)"
    return f"the driver is for CUDA {has // 1000}, the programs need {needs // 1000}: update the driver, or build " \
           f"with CUDA {has // 1000}"


class Clocks:
    """Samples the GPU's clocks, power, temperature and used memory twice a second."""

    FIELDS = {"clocks.sm": "sm_mhz", "clocks.mem": "mem_mhz", "power.draw": "watt", "temperature.gpu": "celsius",
              "memory.used": "used_mib"}

    def __init__(self):
        self.now, self.used = {}, []  # used: (when nvidia-smi was asked, MiB)
        if self.sample():
            threading.Thread(target=self.keep_sampling, daemon=True).start()

    def sample(self):
        """Returns whether there is a GPU."""
        asked = time.monotonic()
        answers = smi(list(self.FIELDS))
        if not answers["clocks.sm"]:
            return False
        self.now = {short: answers[name] for name, short in self.FIELDS.items()}
        if answers["memory.used"].isdigit():
            self.used.append((asked, int(answers["memory.used"])))
        return True

    def keep_sampling(self):
        while self.sample():
            time.sleep(0.5)

    def used_since(self, start):
        """The most MiB in use at a time since `start`, less what was in use when this call began; 0 if unknown."""
        most = max((mib for asked, mib in self.used if asked >= start), default=0)
        return max(0, most - self.used[0][1]) if self.used else 0


class Rows:
    """Three files of a folder: rows.jsonl, log.txt (what the programs printed) and report.md. Rows of this commit and
    GPU that the folder has already are not measured again."""

    def __init__(self, folder, facts, again=False):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.facts, self.clocks, self.closed = folder, facts, Clocks(), False
        self.lock = threading.Lock()
        self.path = folder / "rows.jsonl"
        self.all = []
        for line in self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []:
            try:
                self.all.append(json.loads(line))
            except ValueError:
                continue  # half a line, of a call that was killed
        self.done = {(row["stage"], row["name"]): row for row in self.mine()
                     if not (again and row["outcome"] in BAD)}
        self.file = open(self.path, "a", encoding="utf-8")
        if self.all and not self.path.read_bytes().endswith(b"\n"):
            self.file.write("\n")
        self.log = open(folder / "log.txt", "ab", buffering=0)

    def mine(self):
        """The rows of this commit and GPU, the newest of each name."""
        same = ("gpu", "commit")
        newest = {(row["stage"], row["name"]): row for row in self.all
                  if all(row["on"][key] == self.facts[key] for key in same)}
        return list(newest.values())

    def has(self, stage, name):
        return (stage, name) in self.done

    def add(self, stage, name, outcome, seconds=0.0, detail="", **figures):
        with self.lock:
            if self.closed:  # the time of this call is over: what was running is run by the next call
                return None
            row = {"stage": stage, "name": name, "outcome": outcome, "seconds": round(seconds, 3), "detail": detail,
                   **figures, "clocks": self.clocks.now, "on": self.facts}
            self.done[stage, name] = row
            self.all.append(row)
            self.file.write(json.dumps(row) + "\n")
            self.file.flush()
            os.fsync(self.file.fileno())
            print(f"{stage}  {outcome:11} {seconds:7.1f} s  {name}{detail and ': ' + detail[:200]}", flush=True)
            return row

    def write_log(self, text):
        self.log.write(text.encode())
