"""What docs/comparing.md, "Recipes elsewhere", says of other programs' rates, clipping and AdamW, beside them. What is
not installed is skipped by name:  test/torch_tests.sh muons"""
import math
import os
import unittest

from testing import needs

os.environ["KERAS_BACKEND"] = "torch"
try:
    import torch
except ImportError:
    torch = None

PEAK, WARMUP, STEPS, LEAST = 1e-3, 10, 100, .1


def ours(update, least=LEAST):
    """The rate of an update, counted from 1 (optim/schedule.h; test/optim/test_schedule.cpp asserts it)."""
    if update <= WARMUP:
        return PEAK * update / WARMUP
    done = (update - 1 - WARMUP) / (STEPS - WARMUP)
    return PEAK * (least + (1 - least) * (1 + math.cos(math.pi * done)) / 2)


def of_scheduler(make):
    """Returns the rates at which torch's optimizer makes its updates."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    scheduler, rates = make(optimizer), []
    for update in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step(update + 1) if "timm" in type(scheduler).__module__ else scheduler.step()
    return rates


def first_step_of_adamw(rule, gradient):
    """Returns how far a weight of 0 moves, in units of the rate."""
    p = torch.nn.Parameter(torch.zeros(1))
    p.grad = torch.tensor([gradient])
    rule([p]).step()
    return -p.item() / 1e-3


@needs("torch")
class RecipesTest(unittest.TestCase):
    def assert_one_idle(self, rates, least=LEAST):
        """One idle update, then our warm-up; from the end of the warm-up our rates at the same updates."""
        self.assertEqual(len(rates), STEPS)
        for update, rate in enumerate(rates, 1):
            expected = ours(update, least) if update > WARMUP else (update - 1) / WARMUP * PEAK
            self.assertAlmostEqual(float(rate), expected, delta=1e-7 * PEAK + 1e-9, msg=f"update {update}")

    @needs("transformers")
    def test_transformers(self):
        from transformers import get_cosine_schedule_with_warmup, get_cosine_with_min_lr_schedule_with_warmup
        self.assert_one_idle(of_scheduler(lambda o: get_cosine_schedule_with_warmup(o, WARMUP, STEPS)), 0)
        self.assert_one_idle(of_scheduler(
            lambda o: get_cosine_with_min_lr_schedule_with_warmup(o, WARMUP, STEPS, min_lr_rate=LEAST)))

    @needs("timm")
    def test_timm(self):
        from timm.scheduler import CosineLRScheduler
        self.assert_one_idle(of_scheduler(lambda o: CosineLRScheduler(
            o, STEPS - WARMUP, lr_min=LEAST * PEAK, warmup_t=WARMUP, warmup_prefix=True)))
        hidden = of_scheduler(lambda o: CosineLRScheduler(o, STEPS, lr_min=LEAST * PEAK, warmup_t=WARMUP))
        self.assertAlmostEqual(hidden[WARMUP] / PEAK, .978, delta=.001)  # the warm-up hides a part of the cosine

    @needs("optax")
    def test_optax(self):
        import optax
        schedule = optax.warmup_cosine_decay_schedule(0, PEAK, WARMUP, STEPS, LEAST * PEAK)
        self.assert_one_idle([schedule(k) for k in range(STEPS)])
        clipped, _ = optax.clip_by_global_norm(1.0).update([torch.ones(1).numpy()], optax.EmptyState())
        self.assertEqual(float(clipped[0][0]), 1)  # c / n, without 1e-6

    @needs("keras")
    def test_keras(self):
        import keras
        schedule = keras.optimizers.schedules.CosineDecay(0.0, STEPS - WARMUP, LEAST, warmup_target=PEAK,
                                                          warmup_steps=WARMUP)
        self.assert_one_idle([schedule(k) for k in range(STEPS)])

    @needs("keras")
    def test_epsilon_of_keras_is_not_corrected(self):
        import keras
        rule = keras.optimizers.AdamW(1e-3, weight_decay=0, beta_2=.999, epsilon=1e-8)
        weight = keras.Variable([0.0])
        rule.apply([keras.ops.convert_to_tensor([1e-8])], [weight])
        corrected = 1e-8 / (1e-8 + 1e-8 / math.sqrt(1 - .999))
        self.assertAlmostEqual(-float(weight.numpy()[0]) / 1e-3, corrected, delta=1e-4)

    def test_torchs_adamw(self):
        moved = first_step_of_adamw(lambda ps: torch.optim.AdamW(ps, lr=1e-3, eps=1e-8, weight_decay=0), 1e-8)
        self.assertAlmostEqual(moved, .5, delta=1e-4)

    def test_torchs_clipping_adds_1e_6(self):
        p = torch.nn.Parameter(torch.zeros(1))
        p.grad = torch.ones(1)
        norm = torch.nn.utils.clip_grad_norm_([p], 1.0)
        self.assertEqual(norm.item(), 1)  # the norm before clipping
        self.assertLess(p.grad.item(), 1)
        self.assertAlmostEqual(p.grad.item(), 1 / (1 + 1e-6), delta=1e-7)

    @needs("deepspeed")
    def test_deepspeed(self):
        from deepspeed.runtime.lr_schedules import WarmupCosineLR
        rates = of_scheduler(lambda o: WarmupCosineLR(
            o, STEPS, warmup_num_steps=WARMUP, warmup_min_ratio=0, cos_min_ratio=LEAST))
        self.assertEqual(rates[:2], [0, 0])
        for update in range(WARMUP + 2, STEPS + 1):
            self.assertAlmostEqual(rates[update - 1], ours(update), delta=1e-7 * PEAK)
        self.assertAlmostEqual(rates[9] / PEAK, math.log(9) / math.log(10), delta=1e-5)  # logarithmic
