#include "train/trainer.h"

#include <algorithm>

#include "kernels/ops.h"

namespace teon {

namespace {

// A step in flight.
struct Slot {
    Event begin, optimizer_begin, end;
    PinnedBuffer<float> loss_sum{1};
    PinnedBuffer<StepControl> control{1};
    StepMetrics metrics;
};

}  // namespace

struct Trainer::Impl {
    Model& model;
    Optimizer& optimizer;
    Loader& loader;
    TrainerOptions o;
    Context& ctx;
    Buffer<float> losses;                    // of one micro-batch
    Buffer<float> sums{2};                   // loss sum of the step; squared gradient norm
    Buffer<StepControl> control{1};
    Buffer<std::byte> scratch{static_cast<int64_t>(reduce_scratch_bytes())};
    Slot slots[2];
    int64_t done = 0, returned = 0;
    StepControl last;                        // of the step returned last

    Impl(Model& m, Optimizer& opt, Loader& l, const TrainerOptions& options, Context& context)
        : model(m),
          optimizer(opt),
          loader(l),
          o(options),
          ctx(context),
          losses(options.batch_tokens / options.micro_steps / context.comm->size()) {
        zero(reinterpret_cast<std::byte*>(control.data()), sizeof(StepControl), ctx.stream);
    }

    void queue_step() {
        Slot& slot = slots[done % 2];
        StepMetrics& m = slot.metrics;
        m = {};
        m.step = done + 1;
        m.tokens = m.step * o.batch_tokens;
        const double factor = lr_factor(o.schedule, done, o.steps);
        m.lr = factor * o.optimizer.lr;
        slot.begin.record(ctx.stream);

        ParamStore& params = model.params();
        params.zero_grad(ctx.stream);
        const float grad_scale = 1.0f / static_cast<float>(o.batch_tokens);
        for (int micro = 0; micro < o.micro_steps; ++micro) {
            const Batch batch = loader.next(ctx.stream);
            m.data_wait_ms += loader.wait_ms();
            model.forward_backward(losses.data(), batch, grad_scale);
            reduce_sum(sums.data(), scratch.data(), losses.data(), losses.size(), micro > 0, ctx.stream);
        }
        ctx.comm->all_reduce_sum(params.grad_all(), params.table().size(), ctx.stream);
        ctx.comm->all_reduce_sum(sums.data(), 1, ctx.stream);

        slot.optimizer_begin.record(ctx.stream);
        reduce_sum_squares(sums.data() + 1, scratch.data(), params.grad_all(), params.table().size(), false, ctx.stream);
        step_control(control.data(), sums.data() + 1, sums.data(), o.grad_clip, o.skip_spikes, o.optimizer.beta1,
                     o.optimizer.beta2, ctx.stream);
        optimizer.step(params, control.data(), static_cast<float>(factor), ctx);
        download(slot.loss_sum.data(), sums.data(), 1, ctx.stream);
        download(slot.control.data(), control.data(), 1, ctx.stream);
        slot.end.record(ctx.stream);
        ++done;
    }

    StepMetrics read_back() {
        Slot& slot = slots[returned % 2];
        slot.end.synchronize();
        StepMetrics m = slot.metrics;
        m.loss = static_cast<double>(slot.loss_sum[0]) / static_cast<double>(o.batch_tokens);
        last = slot.control[0];
        m.grad_norm = last.grad_norm;
        m.skip = last.skip;
        m.skipped_in_row = last.skipped_in_row;
        m.loss_z = last.loss_z;
        m.grad_norm_z = last.grad_norm_z;
        m.ms = Event::milliseconds(slot.begin, slot.end);
        m.optimizer_ms = Event::milliseconds(slot.optimizer_begin, slot.end);
        m.tokens_per_s = static_cast<double>(o.batch_tokens) / m.ms * 1000;
        ++returned;
        return m;
    }
};

Trainer::Trainer(Model& model, Optimizer& optimizer, Loader& loader, const TrainerOptions& options, Context& context)
    : impl_(std::make_unique<Impl>(model, optimizer, loader, options, context)) {}
Trainer::~Trainer() = default;

std::optional<StepMetrics> Trainer::step() {
    impl_->queue_step();
    if (impl_->done - impl_->returned < 2) return std::nullopt;
    return impl_->read_back();
}

std::optional<StepMetrics> Trainer::finish() {
    if (impl_->returned == impl_->done) return std::nullopt;
    return impl_->read_back();
}

int64_t Trainer::steps_done() const { return impl_->done; }
const StepControl& Trainer::control() const { return impl_->last; }

void Trainer::restore(int64_t done, const StepControl& control) {
    impl_->done = impl_->returned = done;
    impl_->last = control;
    upload(impl_->control.data(), &impl_->last, 1, impl_->ctx.stream);
    impl_->ctx.stream.synchronize();
}

EvalResult evaluate(Model& model, Loader& loader, int B, int64_t windows, Context& context) {
    Buffer<float> losses, sum(1);
    Buffer<std::byte> scratch(static_cast<int64_t>(reduce_scratch_bytes()));
    EvalResult result;
    loader.seek(0);
    for (int64_t seen = 0; seen < windows; seen += B) {
        Batch batch = loader.next(context.stream);
        batch.B = static_cast<int>(std::min<int64_t>(B, windows - seen));  // the rest of the last batch is not counted
        const int64_t n = static_cast<int64_t>(batch.B) * batch.T;
        if (losses.size() == 0) losses = Buffer<float>(n);
        model.forward(losses.data(), batch);
        reduce_sum(sum.data(), scratch.data(), losses.data(), n, seen > 0, context.stream);
        result.tokens += n;
    }
    float total = 0;
    download(&total, sum.data(), 1, context.stream);
    context.stream.synchronize();
    result.loss = static_cast<double>(total) / static_cast<double>(result.tokens);
    return result;
}

}  // namespace teon
