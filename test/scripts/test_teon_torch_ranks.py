"""Teon on several ranks (gloo, CPU): FSDP2, HSDP, tensor parallelism, DDP, owners' state, checkpoints and errors. Each
case is a function of a worker, teon_torch_*ranks.py, run by as many processes as it has ranks."""
import os
import subprocess
import sys

from testing import PATIENCE, ROOT, Case, needs, needs_torch

WORKER = ROOT / "test/scripts/teon_torch_ranks.py"
MODELS_WORKER = ROOT / "test/scripts/teon_torch_models_ranks.py"
CHECKPOINT_WORKER = ROOT / "test/scripts/teon_torch_checkpoint_ranks.py"
FSDP2 = "2.9"  # the first torch whose FSDP2 averages gradients on CPUs


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
                outputs.append(process.communicate(timeout=PATIENCE)[0])
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

    @needs_torch(FSDP2, "transformers")
    def test_fsdp2(self):
        self.run_ranks("fsdp2", 4)

    @needs_torch(FSDP2, "transformers")
    def test_hybrid_and_tensor_parallel(self):
        self.run_ranks("hybrid", 4)

    @needs_torch(FSDP2)
    def test_fsdp2_after_tensor_parallelism_on_one_dimension(self):
        self.run_ranks("strided_shards", 4)

    @needs("torch")
    def test_ranks_that_differ_are_refused(self):
        self.run_ranks("disagreements", 3)

    @needs("torch")
    def test_same_bits(self):
        self.run_ranks("same_bits", 4)

    def save_and_load(self, mode, ranks, others):
        """Saves on ranks with a mode, and continues with each of others: (mode, ranks)."""
        folder = str(self.folder / f"checkpoint-{mode}-{ranks}")
        self.run_ranks("save", ranks, CHECKPOINT_WORKER, MODE=mode, CHECKPOINT=folder)
        for other, count in others:
            with self.subTest(f"{mode} on {ranks} ranks, then {other} on {count}"):
                self.run_ranks("load", count, CHECKPOINT_WORKER, MODE=other, CHECKPOINT=folder)

    @needs_torch(FSDP2, "transformers", "safetensors")
    def test_saved_by_fsdp2_on_4_ranks_and_loaded_on_1_2_and_3(self):
        self.save_and_load("fsdp2", 4, [("fsdp2", 1), ("fsdp2", 2), ("fsdp2", 3)])

    @needs_torch(FSDP2, "transformers", "safetensors")
    def test_saved_by_fsdp2_and_loaded_in_other_ways(self):
        self.save_and_load("fsdp2", 2, [("plain", 1), ("zero1", 3), ("ddp", 2), ("hsdp", 4)])

    @needs_torch(FSDP2, "transformers", "safetensors")
    def test_saved_by_ddp_and_loaded_by_fsdp2(self):
        self.save_and_load("ddp", 2, [("fsdp2", 3)])
        self.save_and_load("zero1", 2, [("fsdp2", 3), ("plain", 1)])

    @needs_torch(FSDP2, "transformers", "safetensors")
    def test_a_whole_state_of_rank_0(self):
        self.run_ranks("whole_state", 3, CHECKPOINT_WORKER)

    @needs_torch(FSDP2, "transformers", "safetensors")
    def test_states_of_the_single_file_continue(self):
        for ranks in (1, 2, 3):
            self.run_ranks("single_file_state", ranks, CHECKPOINT_WORKER)

    @needs("torch", "transformers", "safetensors")
    def test_a_state_of_other_owners_is_refused(self):
        self.run_ranks("other_owners", 2, CHECKPOINT_WORKER)

    @needs_torch(FSDP2, "transformers")
    def test_random_models_on_every_mesh(self):
        for ranks in (1, 2, 3, 4):  # 4 ranks: also 2 x 2
            self.run_ranks("random_models", ranks, MODELS_WORKER)

    @needs_torch(FSDP2, "transformers")
    def test_each_rank_has_its_share_of_the_state(self):
        for ranks in (2, 4):
            self.run_ranks("state_bytes", ranks, MODELS_WORKER)

    @needs_torch(FSDP2, "transformers")
    def test_training_loops(self):
        self.run_ranks("training_loop", 2, MODELS_WORKER)

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
                        output = process.communicate(timeout=PATIENCE)[0]
                        self.assertEqual(process.returncode, 3, output[-3000:])
                        self.assertIn("the step failed:", output)
                finally:
                    last.kill()
                    last.communicate()
                # The worker compared what it saved with one process's weights.
                self.assertEqual(sorted(path.name for path in saved.iterdir()),
                                 [f"step-{step}-rank-{rank}" for step in (1, 2) for rank in (0, 1, 2)])
