#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/cuda/named_range.h"

namespace teon {

Trainer::Trainer(Model& model, Optimizer& optimizer, Loader& loader, const TrainerOptions& options, Context& context)
    : model_(model),
      optimizer_(optimizer),
      loader_(loader),
      o_(options),
      ctx_(context),
      losses_(options.batch_tokens / options.micro_steps / context.comm->size()),
      loss_sums_(context.comm->size()),
      reducer_(model.params(), optimizer.placement(), context, options.grad_comm_dtype),
      gatherer_(model.params(), optimizer.placement(), context),
      slots_{Slot(context.comm->size()), Slot(context.comm->size())} {
    zero(reinterpret_cast<std::byte*>(control_.data()), sizeof(StepControl), ctx_.stream);
    no_loss_[0] = NAN;
}

// Returns false if the step was aborted and this is the only rank.
bool Trainer::queue_step() {
    Slot& slot = slots_[done_ % 2];
    StepMetrics& m = slot.metrics;
    m = {};
    m.step = done_ + 1;
    m.tokens = m.step * o_.batch_tokens;
    const double factor = lr_factor(o_.schedule, done_, o_.steps);
    m.lr = factor * o_.optimizer.lr;
    slot.begin.record(ctx_.stream);

    float* loss_sum = loss_sums_.data() + ctx_.comm->rank();
    int micro = 0;
    for (; micro < o_.micro_steps && (!ctx_.give_up() || reducer_.every_micro_step()); ++micro) {
        const Batch batch = loader_.next(ctx_.stream);
        m.data_wait_ms += loader_.wait_ms();
        queue_micro_step(batch, micro > 0, micro + 1 == o_.micro_steps);
    }
    slot.next_sample = loader_.next_sample();
    slot.backward_end.record(ctx_.stream);
    slot.requests[0] = {.stop = stop_ ? 1.0f : 0.0f, .save = std::exchange(save_, false) ? 1.0f : 0.0f};
    if (ctx_.give_up()) {
        if (ctx_.comm->size() == 1) return false;
        // The other ranks wait for these gradients. A loss that is not finite keeps every rank from updating.
        if (micro < o_.micro_steps) reducer_.ready_all();
        upload(loss_sum, no_loss_.data(), 1, ctx_.stream);
        slot.requests[0] = {.aborted = 1.0f};
    }
    exchange(slot, loss_sum);
    slot.exchange_end.record(ctx_.stream);
    reducer_.sum_squares(sums_.data() + 1, scratch_.data());

    slot.optimizer_begin.record(ctx_.stream);
    step_control(control_.data(), sums_.data() + 1, sums_.data(), static_cast<float>(factor), o_.grad_clip,
                 o_.skip_spikes, o_.optimizer.beta1, o_.optimizer.beta2, ctx_.stream);
    queue_update();
    download(slot.loss_sum.data(), sums_.data(), 1, ctx_.stream);
    download(slot.loss_sums.data(), loss_sums_.data(), loss_sums_.size(), ctx_.stream);
    download(slot.requests.data(), requests_.data(), 1, ctx_.stream);
    download(slot.control.data(), control_.data(), 1, ctx_.stream);
    slot.end.record(ctx_.stream);
    ++done_;
    warm_ = true;
    return true;
}

// Whether work is replayed from graphs: not while the profiler times kernels. Work that involves other ranks is never
// replayed, because the communicator watches each of its operations with its own events.
bool Trainer::replays() const { return o_.graphs && warm_ && !ctx_.stream.profiler(); }

// Queues the forward and backward passes of a micro-batch, which give its losses and gradients of the step's mean loss.
// Of the last micro-batch, or of each one, the gradients are reduced as they become ready.
void Trainer::queue_micro_step(const Batch& batch, bool accumulate, bool last) {
    const NamedRange range("micro-batch");
    const bool each = reducer_.every_micro_step();
    const bool communicates = each || (last && ctx_.comm->size() > 1);
    const auto queue = [&] {
        std::function<void(int)> on_grads_ready;
        if (communicates) on_grads_ready = [&](int layer) { reducer_.ready(layer, accumulate); };
        model_.forward_backward(losses_.data(), batch, 1.0f / static_cast<float>(o_.batch_tokens), accumulate && !each,
                                on_grads_ready);
        reduce_sum(loss_sums_.data() + ctx_.comm->rank(), scratch_.data(), losses_.data(), losses_.size(), accumulate,
                   ctx_.stream);
    };
    if (!replays() || communicates) return queue();
    auto micro_step = std::find_if(micro_steps_.begin(), micro_steps_.end(),
                                   [&](const MicroStep& m) { return m.batch == batch && m.accumulate == accumulate; });
    if (micro_step == micro_steps_.end())
        micro_step = micro_steps_.insert(micro_step, {batch, accumulate, Graph(ctx_.stream, queue)});
    micro_step->graph.launch(ctx_.stream);
}

void Trainer::queue_update() {
    const NamedRange range("update");
    gatherer_.invalidate();
    const auto queue = [&] { optimizer_.step(model_.params(), control_.data(), ctx_); };
    if (!replays() || ctx_.comm->size() > 1 || optimizer_.step_waits()) return queue();
    if (!update_) update_.emplace(ctx_.stream, queue);
    update_->launch(ctx_.stream);
}

// Finishes reducing the gradients, gathers the losses of all ranks and counts their requests. Sums losses in the order
// of ranks.
void Trainer::exchange(Slot& slot, const float* loss_sum) {
    const NamedRange range("exchange");
    Comm& comm = *ctx_.comm;
    upload(requests_.data(), slot.requests.data(), 1, ctx_.stream);
    comm.all_gather(loss_sums_.data(), loss_sum, 1, DType::f32, ctx_.stream);
    comm.all_reduce_sum(reinterpret_cast<float*>(requests_.data()), sizeof(RequestCounts) / sizeof(float), ctx_.stream);
    reducer_.finish();
    reduce_sum(sums_.data(), scratch_.data(), loss_sums_.data(), loss_sums_.size(), false, ctx_.stream);
}

// Waits for the oldest step whose metrics were not returned. Returns nullopt if a rank aborted it.
std::optional<StepMetrics> Trainer::read_back() {
    Slot& slot = slots_[returned_ % 2];
    slot.end.synchronize();
    const RequestCounts requested = slot.requests[0];
    if (requested.aborted > 0) {  // with the steps queued after it
        aborted_ = true;
        ctx_.stream.synchronize();
        done_ = returned_;
        return std::nullopt;
    }
    StepMetrics m = slot.metrics;
    m.loss = static_cast<double>(slot.loss_sum[0]) / static_cast<double>(o_.batch_tokens);
    last_ = slot.control[0];
    m.grad_norm = last_.grad_norm;
    m.skip = last_.skip;
    m.skipped_in_row = last_.skipped_in_row;
    m.loss_z = last_.loss_z;
    m.grad_norm_z = last_.grad_norm_z;
    m.stop = requested.stop > 0;
    m.save = requested.save > 0;
    const int ranks = ctx_.comm->size();
    for (int r = 0; r < ranks && ranks > 1 && m.faulty_rank < 0; ++r)
        if (!std::isfinite(slot.loss_sums[r])) m.faulty_rank = r;
    m.ms = Event::milliseconds(slot.begin, slot.end);
    if (ctx_.comm->size() > 1) m.comm_wait_ms = Event::milliseconds(slot.backward_end, slot.exchange_end);
    m.optimizer_ms = Event::milliseconds(slot.optimizer_begin, slot.end);
    m.tokens_per_s = static_cast<double>(o_.batch_tokens) / m.ms * 1000;
    next_sample_ = slot.next_sample;
    ++returned_;
    return m;
}

std::optional<StepMetrics> Trainer::step() {
    if (!queue_step()) {
        std::optional<StepMetrics> before = finish();
        aborted_ = true;
        return before;
    }
    if (done_ - returned_ < (o_.ahead ? 2 : 1)) return std::nullopt;
    return read_back();
}

std::optional<StepMetrics> Trainer::finish() {
    if (returned_ == done_) return std::nullopt;
    return read_back();
}

void Trainer::restore(int64_t done, const StepControl& control, int64_t next_sample) {
    done_ = returned_ = done;
    last_ = control;
    next_sample_ = next_sample;
    upload(control_.data(), &last_, 1, ctx_.stream);
    ctx_.stream.synchronize();
}

}  // namespace teon
