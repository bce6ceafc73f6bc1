"""Teon on several ranks (gloo, CPU): FSDP2, HSDP, tensor parallelism, DDP, owners' state, checkpoints and errors. Each
case is a function of teon_torch_ranks.py or teon_torch_models_ranks.py, run by as many processes as it has ranks."""
import os
import subprocess
import sys

from testing import ROOT, Case, needs

WORKER = ROOT / "test/scripts/teon_torch_ranks.py"
MODELS_WORKER = ROOT / "test/scripts/teon_torch_models_ranks.py"


class RanksTest(Case):
    def start_ranks(self, case, ranks, worker, environment):
        store = self.folder / f"{case}-{ranks}-{len(list(self.folder.iterdir()))}"
        path = os.pathsep.join(filter(None, [str(ROOT / "scripts"), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path, **environment}
        return [subprocess.Popen([sys.executable, worker, str(rank), str(ranks), store, case], text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
                for rank in range(ranks)]

    def run_ranks(self, case, ranks, worker=WORKER, **environment):
        processes = self.start_ranks(case, ranks, worker, environment)
        outputs = []
        try:
            for process in processes:
                outputs.append(process.communicate(timeout=600)[0])
        finally:
            for process in processes:
                process.kill()
        for process, output in zip(processes, outputs):
            self.assertEqual(process.returncode, 0, f"{case} on {ranks} ranks: {output[-3000:]}")

    @needs("torch")
    def test_random_placements_equal_one_process(self):
        for ranks in (2, 3, 4):
            self.run_ranks("steps_equal_one_process", ranks)

    @needs("torch")
    def test_replicas_divide_the_work(self):
        self.run_ranks("replicated", 3)

    @needs("torch")
    def test_only_owners_have_state(self):
        self.run_ranks("owner_only", 3)

    @needs("torch", "transformers")
    def test_fsdp2(self):
        self.run_ranks("fsdp2", 4)

    @needs("torch", "transformers")
    def test_hybrid_and_tensor_parallel(self):
        self.run_ranks("hybrid", 4)

    @needs("torch")
    def test_ranks_that_differ_are_refused(self):
        self.run_ranks("disagreements", 3)

    @needs("torch")
    def test_same_bits(self):
        self.run_ranks("same_bits", 4)

    @needs("torch", "transformers")
    def test_checkpoints_on_another_number_of_ranks(self):
        for mode, ranks in (("fsdp2", 3), ("optimizer", 2)):
            folder = str(self.folder / f"checkpoint-{mode}")
            self.run_ranks("checkpoint_save", ranks, MODE=mode, CHECKPOINT=folder)
            for other, count in (("fsdp2", 2), ("none", 1), ("optimizer", 3)):
                self.run_ranks("checkpoint_load", count, MODE=other, CHECKPOINT=folder)

    @needs("torch", "transformers")
    def test_random_models_on_every_mesh(self):
        for ranks in (1, 2, 3, 4):  # 4 ranks: also 2 x 2
            self.run_ranks("random_models", ranks, MODELS_WORKER)

    @needs("torch", "transformers")
    def test_each_rank_has_its_share_of_the_state(self):
        for ranks in (2, 4):
            self.run_ranks("state_bytes", ranks, MODELS_WORKER)

    @needs("torch", "transformers")
    def test_training_loops(self):
        self.run_ranks("training_loop", 2, MODELS_WORKER)

    @needs("torch", "transformers", "peft")
    def test_lora(self):
        self.run_ranks("lora", 2, MODELS_WORKER)

    @needs("torch")
    def test_gradients_that_are_placed_otherwise(self):
        self.run_ranks("gradients", 3, MODELS_WORKER)

    @needs("torch")
    def test_a_rank_that_ends_stops_the_others(self):
        for where in ("before", "gather", "scatter", "stopped"):
            with self.subTest(where):
                saved = self.folder / f"saved-{where}"
                saved.mkdir()
                *others, last = self.start_ranks("killed", 3, MODELS_WORKER, {"WHERE": where, "SAVED": str(saved)})
                try:
                    for process in others:
                        output = process.communicate(timeout=600)[0]
                        self.assertEqual(process.returncode, 3, output[-3000:])
                        self.assertIn("the step failed:", output)
                finally:
                    last.kill()
                    last.communicate()
                # The worker compared what it saved with one process's weights.
                self.assertEqual(sorted(path.name for path in saved.iterdir()),
                                 [f"step-{step}-rank-{rank}" for step in (1, 2) for rank in (0, 1, 2)])
