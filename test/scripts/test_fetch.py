"""prepare.py fetch, from a stand-in of the Hugging Face Hub:  dev/run_tests.py test/scripts/test_fetch.py"""

import functools
import hashlib
import http.server
import json
import re
import threading

import numpy as np
from testing import BPE, Case, needs, read_json, write_shard

REPOSITORY = "kjj0/fineweb10B-gpt2"
END = 50256


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers as the hub does for one data set, whose files it reads from a folder. Sends at most `limit` bytes of a
    file, and notes what it was asked for."""

    def __init__(self, folder, state, *how):
        self.hub, self.state = folder, state
        super().__init__(*how)

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_GET(self):
        path = self.path.partition("?")[0]
        if path == f"/api/datasets/{REPOSITORY}/tree/main":
            files = [{"type": "file", "oid": "0" * 40, "size": file.stat().st_size, "path": file.name}
                     for file in sorted(self.hub.iterdir())]
            return self.answer(200, json.dumps(files).encode(), Content_Type="application/json")
        found = re.fullmatch(f"/datasets/{REPOSITORY}/resolve/[^/]+/([^/]+)", path)
        if not found or not (self.hub / found[1]).exists():
            return self.answer(404)
        data = (self.hub / found[1]).read_bytes()
        begin = int((re.search(r"bytes=(\d+)-", self.headers.get("Range") or "") or [0, 0])[1])
        if self.command == "GET":
            self.state["asked"].append((found[1], begin))
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X_Repo_Commit": "1" * 40,
                   "Content_Length": len(data) - begin, "Accept_Ranges": "bytes"}
        if begin:
            headers["Content_Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        end = begin + self.state.get("limit", len(data))
        self.answer(206 if begin else 200, data[begin:end], **headers)
        self.close_connection = True

    do_HEAD = do_GET


@needs("numpy", "huggingface_hub", "tiktoken", data=[BPE])
class FetchTest(Case):
    def setUp(self):
        super().setUp()
        hub, numbers = self.folder / "hub", np.random.default_rng(1)
        hub.mkdir()
        for name in ("val_000000", "train_000001", "train_000002", "train_000003"):
            tokens = numbers.integers(0, END, 3000)
            tokens[::500] = END
            write_shard(hub / f"fineweb_{name}.bin", tokens.tolist())
        (hub / "README.md").write_text("about")
        self.state = {"asked": []}
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Hub, hub, self.state))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.environment = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_address[1]}",
                            "HF_HOME": self.folder / "home", "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1",
                            "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}

    def fetch(self, *words, expect=0):
        return self.run_script("prepare.py", "fetch", "fineweb10B", "--out", "data", "--bpe-dir", BPE, *words,
                               expect=expect, **self.environment)

    def test_shards_come_with_manifest_and_tokenizer(self):
        done = self.fetch("--shards", 2)
        self.assertIn("3 shards (train 6,000 tokens, val 3,000 tokens) with ids of gpt2, 18 documents", done.stdout)
        manifest = read_json(self.folder / "data" / "manifest.json")
        for shard in manifest["shards"]:
            data = (self.folder / "hub" / shard["file"]).read_bytes()
            self.assertEqual((self.folder / "data" / shard["file"]).read_bytes(), data)
            self.assertEqual((shard["bytes"], shard["sha256"]), (len(data), hashlib.sha256(data).hexdigest()))
        self.assertEqual({shard["file"] for shard in manifest["shards"]},
                         {f"fineweb_{name}.bin" for name in ("val_000000", "train_000001", "train_000002")})
        self.assertIn("as in the manifest", self.run_script("prepare.py", "verify", "data").stdout)
        asked = len(self.state["asked"])
        self.assertIn("already complete", self.fetch("--shards", 2).stdout)
        self.assertEqual(len(self.state["asked"]), asked)
        self.assertIn("complete with 2 shards for training, not 3", self.fetch("--shards", 3, expect=2).stderr)

    def test_an_interrupted_fetch_keeps_whole_files(self):
        self.state["limit"] = 2000
        self.assertIn("the same command goes on where this ended", self.fetch("--shards", 1, expect=1).stderr)
        self.state.pop("limit")
        self.fetch("--shards", 1)
        (self.folder / "data" / "manifest.json").unlink()
        self.state["asked"].clear()
        (self.folder / "data" / "fineweb_train_000001.bin").write_bytes(b"cut off")
        self.fetch("--shards", 1)
        self.assertEqual({name for name, _ in self.state["asked"]}, {"fineweb_train_000001.bin"})

    def test_what_cannot_be_fetched_is_one_sentence(self):
        self.assertIn("--shards 4: kjj0/fineweb10B-gpt2 has 3 shards for training", self.fetch("--shards", 4,
                                                                                               expect=2).stderr)
        (self.folder / "data").mkdir(exist_ok=True)
        (self.folder / "data" / "mine_train_000001.bin").write_bytes(b"")
        self.assertIn("has mine_train_000001.bin beside the shards to fetch", self.fetch("--shards", 1,
                                                                                         expect=2).stderr)
        self.environment["HF_ENDPOINT"] = "http://127.0.0.1:9"
        error = self.fetch("--shards", 1, expect=1).stderr
        self.assertIn("cannot list kjj0/fineweb10B-gpt2 on the Hugging Face Hub", error)
        self.assertIn("without a network, bring the .bin files in a folder and type prepare.py adopt", error)
        self.assertEqual(error.count("\n"), 1, error)
