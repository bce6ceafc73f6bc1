"""Runs that are resumed, and what they begin with:  dev/run_tests.py test/programs/test_resume.py"""

import json
import math
import os
import random
import re
import shutil
import struct

import testing
from resuming import ResumeCase, damage
from testing import BUILD, STATE, needs, read_json, write_shard, write_shards


def write_as_if_saved(checkpoint, name, content):
    """Replaces a file of a checkpoint and its entry in the manifest."""
    import xxhash

    (checkpoint / name).write_bytes(content)
    manifest = read_json(checkpoint / "manifest.json")
    del manifest["xxh3"]
    entry = next(f for f in manifest["files"] if f["path"] == name)
    entry["xxh3"], entry["bytes"] = xxhash.xxh3_64_hexdigest(content), len(content)
    manifest["xxh3"] = xxhash.xxh3_64_hexdigest(json.dumps(manifest, separators=(",", ":")).encode())
    (checkpoint / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


class ResumeTest(ResumeCase):
    def test_every_optimizer_resumes_to_the_same_bits(self):
        for name, *flags in (["lion"], ["normuon", "--cautious-weight-decay"],
                             ["teon", "--neuron-norm", "--ortho-per-head"]):
            with self.subTest(optimizer=name, flags=flags):
                flags = ["--optimizer", name, *flags, "--checkpoint-every", 6]
                self.train("whole", *flags, steps=18)
                self.resume(6, *flags, steps=18)
                self.remove("whole", "cut")

    @needs("xxhash")
    def test_a_momentum_that_is_not_finite_is_never_saved(self):
        flags = ["--optimizer", "teon", "--checkpoint-every", 2, "--resume"]
        self.train("a", *flags, steps=4)
        shutil.rmtree(self.checkpoint("a", 4))
        checkpoint, name = self.checkpoint("a", 2), "optimizer/state.safetensors"
        tensors = testing.read_tensors(checkpoint / name)
        momentum = next(key for key in tensors if key.endswith("attn.q.weight.momentum"))
        dtype, shape, data = tensors[momentum]
        bad = {momentum: (dtype, shape, struct.pack("<f", math.nan) + data[4:])}
        testing.write_tensors(checkpoint / name, tensors | bad)
        write_as_if_saved(checkpoint, name, (checkpoint / name).read_bytes())
        result = self.train("a", *flags, steps=4, expect=1)
        self.assertRegex(result.stderr, r"^train_gpt2: error: the momentum of \S+q\S* .* is not finite.*\n$")
        self.assertEqual(self.checkpoints("a"), ["step_00000002"])

    @needs("xxhash")
    def test_a_mixture_of_an_older_version_continues_in_its_order(self):
        rng = random.Random(2)
        for name, count in (("a", 1000), ("b", 3000)):
            write_shards(self.folder / name, *([rng.randrange(64) for _ in range(n)] for n in (count, 200)))
        flags = ["--checkpoint-every", 10, "--val-data", self.data]
        how = {"data": f"{self.folder / 'a'}:1,{self.folder / 'b'}:1", "steps": 40}
        note = "keeps its order of the mixture"
        self.assertNotIn(note, self.train("run", *flags, **how).stdout)
        new = self.losses("run")
        self.cut("run", 10)
        state = read_json(self.checkpoint("run", 10) / "trainer.json")
        self.assertIs(state["run"]["data"].pop("mixture_in_turn"), True)
        # As version 0.2 wrote it, with a list of the shards.
        state["run"]["data"]["train"] = [{key: shard[key] for key in ("tokens", "content")} | {"share": 0.5}
                                         for shard in self.config("run")["data"]["train"]]
        write_as_if_saved(self.checkpoint("run", 10), "trainer.json", json.dumps(state).encode())
        self.assertIn(note, " ".join(self.train("run", *flags, "--resume", **how).stdout.split()))
        older = self.losses("run")
        self.assertEqual(older[:10], new[:10])
        self.assertNotEqual(older[10:], new[10:])
        self.cut("run", 20)
        self.assertIn(note, " ".join(self.train("run", *flags, "--resume", **how).stdout.split()))  # later ones, too
        self.assertEqual(self.losses("run"), older)

    @needs("xxhash")
    def test_a_run_of_a_version_without_ns_dtype_continues_in_its_type(self):
        flags = ["--optimizer", "muon", "--dtype", "bf16", "--checkpoint-every", 10]
        was = "f16" if BUILD.name.startswith("cuda") else "float"
        self.train("whole", *flags, "--ns-dtype", was)
        self.train("run", *flags, "--ns-dtype", was)
        self.cut("run", 10)
        state = read_json(self.checkpoint("run", 10) / "trainer.json")
        self.assertEqual(state["run"]["options"].pop("ns-dtype"), was)
        write_as_if_saved(self.checkpoint("run", 10), "trainer.json", json.dumps(state).encode())
        config = read_json(self.folder / "run" / "config.json")
        del config["options"]["ns-dtype"]
        (self.folder / "run" / "config.json").write_text(json.dumps(config))
        text = self.train("run", *flags, "--resume").stdout
        self.assertRegex(text, rf"\nNS dtype +{was} ")
        self.assertEqual(self.trained("run"), self.trained("whole"))
        self.assertIn('--ns-dtype "bf16" (was', self.refused("run", *flags, "--ns-dtype", "bf16", "--resume"))

    def test_dropout_has_the_same_bits_on_resume_with_graphs_recomputation_and_offloading(self):
        shape = self.SHAPE | {"--layers": 4}
        flags = ["--dropout", 0.2, "--optimizer", "teon", "--checkpoint-every", 10]
        self.train("whole", *flags, steps=20, shape=shape)
        self.train("none", *flags[2:], steps=20, shape=shape)
        self.assertNotEqual(self.losses("whole")[0], self.losses("none")[0])
        for out, *more in (["graphs", "--graphs", "on"], ["block", "--recompute", "block"],
                           ["cheap", "--recompute", "cheap", "--offload", "activations", "--offload-blocks", 2],
                           ["same"]):
            with self.subTest(out):
                self.train(out, *flags, *more, steps=20, shape=shape)
                shutil.rmtree(self.checkpoint(out, 20))
                self.train(out, "--resume", shape={}, steps=20)
                self.assert_same_run("whole", out, 20)
        self.assertIn("dropout 0.1 (was 0.2)", self.refused("same", "--dropout", 0.1, "--resume", shape={}, steps=20))
        # Without the flag, a run is what it was before there was one.
        self.train("zero", *flags[2:], "--dropout", 0, steps=20, shape=shape)
        self.assert_same_run("none", "zero", 20)

    def test_a_window_has_the_same_bits_on_resume_with_recomputation_and_stays(self):
        shape = self.SHAPE | {"--layers": 3}
        flags = ["--window", 5, "--optimizer", "teon", "--checkpoint-every", 10]
        self.train("whole", *flags, steps=20, shape=shape)
        self.assertEqual(self.config("whole")["model"]["window"], 5)
        self.train("none", *flags[2:], steps=20, shape=shape)
        self.assertNotEqual(self.losses("whole")[0], self.losses("none")[0])
        for out, *more in (["block", "--recompute", "block"], ["same"]):
            with self.subTest(out):
                self.train(out, *flags, *more, steps=20, shape=shape)
                shutil.rmtree(self.checkpoint(out, 20))
                self.train(out, "--resume", shape={}, steps=20)
                self.assert_same_run("whole", out, 20)
        self.assertIn("window 6 (was 5)", self.refused("same", "--window", 6, "--resume", shape={}, steps=20))
        # A window of the whole sequence is none, and the model of --init-from has its own.
        self.train("wide", *flags[2:], "--window", shape["--seq-len"], steps=20, shape=shape)
        self.assertEqual(self.losses("wide"), self.losses("none"))
        self.train("tuned", "--init-from", self.folder / "whole", steps=2, shape={})
        self.assertEqual(self.config("tuned")["model"]["window"], 5)
        self.assertIn("the model of --init-from has 5", self.refused("x", "--init-from", self.folder / "whole",
                                                                     "--window", 4, shape={}, steps=2))

    def test_checkpoints_by_the_clock_are_written_and_replaced(self):
        result = self.train("a", "--plan-only", steps=3000)
        self.assertIn("checkpoints at the end, after 30 minutes without one (replaced by the next)", result.stdout)
        flags = ["--checkpoint-minutes", "1e-5", "--checkpoint-every", 70]
        result = self.train("a", *flags, steps=140)
        self.assertGreater(result.stdout.count("\ncheckpoint "), 10)
        self.assertEqual(self.checkpoints("a"), ["step_00000070", "step_00000140"])
        self.train("b", "--checkpoint-minutes", 0, steps=140)
        self.assert_same_run("a", "b", 140)

    def test_a_run_without_a_checkpoint_at_its_end_saves_the_others_and_when_it_is_stopped(self):
        result = self.train("run", "--checkpoint-end", "off", "--checkpoint-every", 16)
        self.assertEqual(self.checkpoints("run"), ["step_00000016", "step_00000032"])
        self.assertIn("none at the end, every 16 steps", result.stdout)
        process = self.start_run("stopped", "--checkpoint-end", "off", steps=10**6)
        self.wait_for("stopped")
        process.terminate()
        self.assertIn("stopped by SIGTERM", process.communicate()[0])
        self.assertEqual(len(self.checkpoints("stopped")), 1)

    def test_a_run_ends_at_its_time_limit(self):
        result = self.train("run", "--time-limit", "1s", steps=10**6)
        step = int(re.search(r"\nstopped by time limit 1s after step (\d+)", result.stdout)[1])
        self.assertEqual(self.checkpoints("run"), [f"step_{step:08}"] if step else [])

    def test_bf16_with_shuffled_epochs_and_spike_guard_resumes_exactly(self):
        flags = ["--dtype", "bf16", "--skip-spikes", 3, "--optimizer", "teon", "--checkpoint-every", 17]
        self.train("whole", *flags, steps=60)
        self.resume(17, *flags, steps=60)

    def test_fp8_resumes_to_the_same_bits(self):
        shape = self.SHAPE | {"--channels": 64, "--vocab-size": 64}
        for recompute in ("none", "block"):
            with self.subTest(recompute):
                flags = ["--dtype", "bf16", "--matmul-dtype", "fp8", "--optimizer", "teon", "--checkpoint-every", 10,
                         "--recompute", recompute]
                self.train("whole", *flags, steps=20, shape=shape)
                self.resume(10, shape={}, steps=20)
                self.remove("whole", "cut")

    def test_offloading_changes_no_result_and_can_begin_on_resume(self):
        shape = self.SHAPE | {"--layers": 5}
        some = ["activations", "--offload-blocks"]
        for optimizer, offload, *more in (["adamw", ["optimizer"]],
                                          ["muon", [*some, 2], "--diagnose-every", 10, "--recompute", "block"],
                                          ["teon", ["all", "--offload-blocks", 3], "--neuron-norm"],
                                          ["lion", [*some, 1], "--graphs", "on", "--recompute", "cheap"]):
            for dtype in ("bf16", "float"):
                with self.subTest(optimizer=optimizer, dtype=dtype):
                    flags = ["--optimizer", optimizer, *more, "--dtype", dtype, "--checkpoint-every", 10]
                    self.train("off", *flags, steps=20, shape=shape)
                    self.train("on", *flags, "--offload", *offload, steps=20, shape=shape)
                    self.assert_same_run("off", "on", 20)
                    self.resume(10, "--offload", "none", of="on", shape={}, steps=20)
                    for run in ("on", "cut"):
                        self.assertEqual(self.diagnoses(run), self.diagnoses("off"))
                    self.remove("off", "on", "cut")
        self.assertIn("--offload-blocks 1: of 2 layers the last 2 stay on the device; at most 0 can be offloaded",
                      self.refused("few", "--offload", "activations", "--offload-blocks", 1))

    def test_graphs_change_no_result_and_can_begin_on_resume(self):
        flags = ["--optimizer", "teon", "--checkpoint-every", 15]
        self.train("whole", *flags, "--graphs", "off")
        self.resume(15, *flags, "--graphs", "on", "--profile-steps", "30:31")

    def test_options_that_must_not_change(self):
        self.train("run", "--dtype", "float")
        before = (self.folder / "run" / "metrics.jsonl").read_bytes()
        shard = self.data / "t_train_000000.bin"
        for flags, words in ((["--seed", 5], "--seed 5 (was 1337)"), (["--dtype", "bf16"], "--dtype"),
                             (["--layers", 3], "layers"), (["--micro-batch", 4], "micro_batch 4 (was 2)"),
                             (["--steps", 41], "steps 41 (was 40;")):
            with self.subTest(flags):
                self.assertIn(words, self.refused("run", "--resume", *flags))
        self.assertEqual((self.folder / "run" / "metrics.jsonl").read_bytes(), before)
        write_shard(shard, [1] * 19999)
        self.assertIn("training shards", self.refused("run", "--resume"))

    def test_resuming_a_finished_run_does_nothing(self):
        self.train("run")
        before = self.trained("run")
        self.train("run", "--resume", "--eval-every", 3, "--log-every", 2)  # these may change
        self.assertEqual(self.trained("run"), before)
        self.assertEqual(self.checkpoints("run"), ["step_00000040"])

    def test_init_from_starts_with_the_given_weights(self):
        self.train("run")
        last = self.checkpoint("run", 40)
        for source in (last, last / "model.safetensors"):
            out = f"from-{source.name}"
            self.train(out, "--init-from", source, "--lr", 0, "--weight-decay", 0)
            self.assert_same_checkpoint("run", out, 40, ["model.safetensors"])
        self.assertIn("nothing", self.refused("none", "--init-from", "nothing"))

    def test_init_from_reads_the_whole_configuration_and_flags_must_not_contradict_it(self):
        """Covers settings of config.json that no shape flag has: a LLaMA with a rotary base of 500000 must not continue
        with 10000."""
        def train(out, *flags, expect=0):
            return self.run_program("--data", self.data, "--out", self.folder / out, *flags, program="train_llama",
                                    expect=expect)

        # Uses SHAPE's micro-batch, because products of other sizes may sum in another order.
        still = ["--lr", 0, "--weight-decay", 0, "--steps", 1, "--eval-tokens", 64, "--batch-tokens", 64,
                 "--micro-batch", 2]
        shape = testing.as_flags(self.SHAPE)
        train("a", *shape, "--rope-base", 500000, "--rope-scaling", 2, "--norm-eps", 0.001, "--steps", 3)
        source = self.checkpoint("a", 3)
        files = [(source / name).read_bytes() for name in ("config.json", "model.safetensors")]
        for name, flags in (("b", []), ("c", ["--seq-len", 8]),
                            ("d", [*shape, "--rope-base", 5e5, "--norm-eps", 1e-3])):
            train(name, "--init-from", self.folder / "a" if name == "b" else source, *flags,
                  *(still if name != "d" else still[:6]))
            saved = self.checkpoint(name, 1)
            self.assertEqual([(saved / file).read_bytes() for file in ("config.json", STATE[0])], files, name)
        self.assertEqual(self.metrics("a")[-1]["val_loss"], self.metrics("b")[-1]["val_loss"])  # the same model
        for flags in (["--layers", 3], ["--channels", 32], ["--heads", 1], ["--ffn", 99], ["--vocab-size", 65],
                      ["--norm-eps", 1e-5], ["--rope-base", 10000], ["--rope-scaling", 1], ["--seq-len", 32],
                      ["--model", "60m"]):
            error = train("x", "--init-from", source, *still, *flags, expect=2).stderr
            self.assertIn(flags[0], error)
            self.assertIn("the model of --init-from has", error)
        config = json.loads(files[0])
        (source / "manifest.json").unlink()
        for key, value in (("rope_scaling", {"rope_type": "llama3", "factor": 8}), ("hidden_act", "relu"),
                           ("attention_bias", "yes"), ("model_type", "gpt2")):
            (source / "config.json").write_text(json.dumps({**config, key: value}))
            self.assertIn(f"{source}/config.json", train("x", "--init-from", source, *still, expect=2).stderr)
        self.assertFalse((self.folder / "x").exists())

    def test_too_many_skipped_updates_end_the_run_and_keep_the_last_good_state(self):
        # Decoupled weight decay of 10 at a learning rate of 100 multiplies weights by -999 in each step, so that the
        # loss is soon not finite.
        error = self.refused("bad", "--lr", 100, "--weight-decay", 10, "--schedule", "constant", "--warmup-ratio", 0,
                             "--checkpoint-every", 1, "--keep-last", 2, "--max-skipped", 8, expect=1)
        skipped = [m["step"] for m in self.events("bad", "update_skipped")]
        self.assertIn(len(skipped), (8, 9))  # a step is queued before the one before it is known
        good = f"step_{skipped[0] - 1:08}"
        self.assertIn(f"{len(skipped)} updates in a row were skipped (--max-skipped 8); the last good state is in "
                      f"{self.folder / 'bad' / good}", error)
        self.assertEqual(len(self.checkpoints("bad")), 3)
        self.assertEqual(self.checkpoints("bad")[0], good)
        # Its weights are finite.
        self.train("again", "--init-from", self.folder / "bad" / good, "--max-skipped", 3, expect=1)

    def test_too_many_skipped_updates_end_the_run_although_the_next_one_is_not_skipped(self):
        """A GPU has queued the next step before it knows."""
        steps, rng = 120, random.Random(4)  # of 64 tokens, without shuffling
        tokens = [i % 2 for i in range(64 * steps + 1)]
        tokens[64 * 99:64 * 101] = [rng.randrange(2, 64) for _ in range(2 * 64)]  # steps 100 and 101
        write_shards(self.data, tokens, [0, 1] * 100)
        result = self.train("run", "--lr", 0.003, "--shuffle", "off", "--skip-spikes", 8, "--max-skipped", 2,
                            steps=steps, expect=1)
        self.assertEqual([m["step"] for m in self.events("run", "update_skipped")], [100, 101])
        self.assertIn("2 updates in a row were skipped (--max-skipped 2)", result.stderr)
        self.assertLess(self.metrics("run", "step")[-1]["step"], 103)

    def test_weights_that_are_not_finite_are_not_begun_with(self):
        self.train("run")
        last = self.checkpoint("run", 40)
        weights = bytearray((last / "model.safetensors").read_bytes())
        weights[-4:] = struct.pack("<f", float("nan"))
        (self.folder / "nan.safetensors").write_bytes(weights)
        shutil.copy(last / "config.json", self.folder)
        error = self.refused("bad", "--init-from", self.folder / "nan.safetensors")
        self.assertRegex(error, r"^train_gpt2: error: \S*nan.safetensors: tensor '\S+' is not finite\b.*\n$")
        self.assertFalse((self.folder / "bad").exists())  # so the corrected start needs no other folder
        damage(last / "model.safetensors")
        for command in (self.command("bad", "--init-from", last),
                        [BUILD / "train_gpt2", "--eval-only", "--init-from", last, "--val-data", self.data],
                        [BUILD / "generate", "--checkpoint", last, "--prompt-tokens", 1]):
            with self.subTest(command=command):
                self.assertIn("model.safetensors: its content changed", self.error_of(*command))
        self.assertFalse((self.folder / "bad").exists())

    @needs("numpy")
    def test_inspect_prints_state_and_tensors_and_finds_damage(self):
        self.train("run", "--optimizer", "muon")
        result = self.run_script("inspect_checkpoint.py", self.folder / "run")
        for words in ("step 40 of 40", "40 applied, 0 skipped", "transformer.h.1.mlp.c_fc.weight",
                      "h.1.attn.q.weight.momentum"):
            self.assertIn(words, result.stdout)
        state = self.checkpoint("run", 40) / "optimizer" / "state.safetensors"
        state.write_bytes(state.read_bytes()[:-4] + struct.pack("<f", float("nan")))
        self.assertIn("1 not finite", self.run_script("inspect_checkpoint.py", state, expect=1).stdout)

    def test_a_refused_start_changes_nothing_and_a_failed_one_does_not_block_the_next(self):
        process = self.start_run("live", steps=10**6)
        self.wait_for("live")
        before = (self.folder / "live" / "config.json").read_bytes()
        for flags in ([], ["--resume"], ["--resume", "--lr", 5]):
            self.assertIn(f"another process is writing it (process {process.pid} on ",
                          self.refused("live", *flags, expect=1, steps=10**6))
        self.assertEqual((self.folder / "live" / "config.json").read_bytes(), before)
        (self.folder / "live" / "lock").unlink()
        (self.folder / "live" / "config.json").write_text("{")  # no other process may read it
        self.assertIn("another process", self.refused("live", "--resume", steps=10**6, expect=1))
        (self.folder / "live" / "config.json").write_bytes(before)
        process.kill()
        process.communicate()
        self.train("live", steps=20)  # killed before its first checkpoint, so it starts again
        self.assertEqual([m["step"] for m in self.metrics("live", "step")], list(range(1, 21)))
        before = (self.folder / "live" / "metrics.jsonl").read_bytes()
        self.assertIn("already holds a run", self.refused("live"))
        self.assertEqual((self.folder / "live" / "metrics.jsonl").read_bytes(), before)
        write_shard(self.data / "t_val_000000.bin", [99] * 200)  # outside the vocabulary: found while reading
        self.train("failed", expect=1)
        self.assertFalse((self.folder / "failed").exists())

    def test_a_run_into_the_root_is_refused(self):
        before = sorted(os.listdir("/"))
        for out in ("/", "//", "/."):
            for flags in ([], ["--resume"]):
                with self.subTest(out, flags=flags):
                    command = [word if word != self.folder / "root" else out for word in self.command("root", *flags)]
                    self.assertIn(out, command)
                    self.assertRegex(self.error_of(*command), r"--out /\S*: is a folder with other files \(\S+\)")
        self.assertEqual(sorted(os.listdir("/")), before)

    def test_a_folder_without_a_run_is_named(self):
        self.assertIn(f"--resume: there is no run in {self.folder / 'misspelt'}; check --out",
                      self.error_of(BUILD / "train_gpt2", "--resume", "--out", self.folder / "misspelt"))
        self.assertFalse((self.folder / "misspelt").exists())
        begun = self.train("new", "--resume", steps=2).stdout
        self.assertIn(f"there is no run in {self.folder / 'new'} yet: this one begins", begun)

    def test_a_run_is_extended_where_its_schedule_allows_it(self):
        flags = ["--schedule", "constant", "--warmup-ratio", 0.25, "--checkpoint-every", 10]
        self.train("a", *flags, steps=20)
        self.assertIn("--warmup-steps 6 (was null)", self.refused("a", "--resume", "--warmup-steps", 6, steps=20))
        result = self.train("a", *flags, "--resume", steps=40)
        self.assertIn("the run ends after 40 steps instead of 20", result.stdout)
        rates = [m["lr"] for m in self.metrics("a", "step")]
        for i in range(5):
            self.assertAlmostEqual(rates[i], rates[-1] * (i + 1) / 5, delta=1e-12)  # the warmup of the 20
        self.assertEqual(rates[5:], rates[-1:] * 35)
        done = self.train("a", *flags, "--resume", steps=40).stdout  # and once more, with nothing to do
        self.assertRegex(done, r"\A.*/a is done: all 40 steps\. .*\n\Z")
        self.assertIn("steps 30 (was 40; 40 are done", self.refused("a", *flags, "--resume", steps=30))

    def test_a_longer_run_keeps_a_warmup_of_no_steps(self):
        flags = ["--schedule", "constant", "--warmup-ratio", 0.02, "--checkpoint-every", 2]  # .4 of 20 steps, 4 of 200
        self.train("a", *flags, steps=20)
        self.cut("a", 2)
        self.train("a", *flags, "--resume", steps=200)
        rates = [m["lr"] for m in self.metrics("a", "step")]
        self.assertEqual(rates, rates[-1:] * 200)

    def test_a_run_that_holds_its_peak_is_extended_before_the_decay(self):
        for schedule in ("constant-linear", "constant-sqrt"):
            flags = ["--schedule", schedule, "--constant-ratio", 0.5, "--warmup-ratio", 0.25, "--checkpoint-every", 10]
            decayed, held = f"{schedule}-decayed", f"{schedule}-held"
            self.train(decayed, *flags, steps=40)
            shutil.copytree(self.folder / decayed, self.folder / held)
            self.assertIn("only before the decay", self.refused(decayed, *flags, "--resume", steps=80))
            self.cut(held, 20)
            result = self.train(held, *flags, "--resume", steps=80)
            self.assertIn("the decay begins after step 40 instead of 20", result.stdout)
            rates = [m["lr"] for m in self.metrics(held, "step")]
            self.assertEqual(rates[9:41], rates[9:10] * 32)
            self.assertLess(rates[41], rates[40])
            self.assertEqual(len(rates), 80)

    def test_a_single_rank_does_not_wait_for_others(self):
        self.train("run", steps=5)
        self.assertEqual([m["comm_wait_ms"] for m in self.metrics("run", "step")], [0] * 5)
