#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/integer.h"
#include "kernels/reduce.h"
#include "kernels/step_control.h"
#include "runtime/cuda/named_range.h"
#include "train/gatherer.h"
#include "train/reducer.h"

namespace teon {

namespace {

// How many ranks request what in a step, as floats, which ranks can sum.
struct RequestCounts {
    float stop = 0, aborted = 0, save = 0;
};
constexpr int64_t kRequestFloats = sizeof(RequestCounts) / sizeof(float);

// A step in flight.
struct Slot {
    explicit Slot(int ranks) : loss_sums(ranks) {}
    Event begin, backward_end, exchange_end, optimizer_begin, end;
    PinnedBuffer<float> loss_sum{1};
    PinnedBuffer<float> loss_sums;            // of each rank
    PinnedBuffer<RequestCounts> requests{1};  // this rank's, then those of all ranks
    PinnedBuffer<StepControl> control{1};
    StepMetrics metrics;
    int64_t next_sample = 0;  // after it
};

// The graph of forward and backward passes of a batch in one of the buffers that the loader uses in turn.
struct MicroStep {
    Batch batch;
    bool accumulate;
    Graph graph;
};

}  // namespace

struct Trainer::Impl {
    Model& model;
    Optimizer& optimizer;
    Loader& loader;
    TrainerOptions o;
    Context& ctx;
    Buffer<float> losses;     // of one micro-batch
    Buffer<float> sums{2};    // loss sum of the step; squared gradient norm
    Buffer<float> loss_sums;  // of each rank in the step
    Buffer<RequestCounts> requests{1};
    Buffer<StepControl> control{1};
    Buffer<std::byte> scratch{static_cast<int64_t>(reduce_scratch_bytes())};
    Reducer reducer;
    Gatherer gatherer;
    Slot slots[2];
    std::vector<MicroStep> micro_steps;
    std::optional<Graph> update;
    // Whether a whole step has been queued: its kernels are loaded, its workspaces resized, its products chosen.
    bool warm = false;
    bool stop = false, save = false, aborted = false;
    int64_t done = 0, returned = 0;
    StepControl last;         // of the step whose metrics were returned last
    int64_t next_sample = 0;  // after it
    PinnedBuffer<float> no_loss{1};

    Impl(Model& m, Optimizer& opt, Loader& l, const TrainerOptions& options, Context& context)
        : model(m),
          optimizer(opt),
          loader(l),
          o(options),
          ctx(context),
          losses(options.batch_tokens / options.micro_steps / context.comm->size()),
          loss_sums(context.comm->size()),
          reducer(m.params(), opt.placement(), context, options.grad_comm_dtype),
          gatherer(m.params(), opt.placement(), context),
          slots{Slot(context.comm->size()), Slot(context.comm->size())} {
        zero(reinterpret_cast<std::byte*>(control.data()), sizeof(StepControl), ctx.stream);
        no_loss[0] = NAN;
    }

    // Returns false if the step was aborted and this is the only rank.
    bool queue_step() {
        Slot& slot = slots[done % 2];
        StepMetrics& m = slot.metrics;
        m = {};
        m.step = done + 1;
        m.tokens = m.step * o.batch_tokens;
        const double factor = lr_factor(o.schedule, done, o.steps);
        m.lr = factor * o.optimizer.lr;
        slot.begin.record(ctx.stream);

        float* loss_sum = loss_sums.data() + ctx.comm->rank();
        int micro = 0;
        for (; micro < o.micro_steps && (!ctx.give_up() || reducer.every_micro_step()); ++micro) {
            const Batch batch = loader.next(ctx.stream);
            m.data_wait_ms += loader.wait_ms();
            queue_micro_step(batch, micro > 0, micro + 1 == o.micro_steps);
        }
        slot.next_sample = loader.next_sample();
        slot.backward_end.record(ctx.stream);
        slot.requests[0] = {.stop = stop ? 1.0f : 0.0f, .save = std::exchange(save, false) ? 1.0f : 0.0f};
        if (ctx.give_up()) {
            if (ctx.comm->size() == 1) return false;
            // The other ranks wait for these gradients. A loss that is not finite keeps every rank from updating.
            if (micro < o.micro_steps) reducer.ready_all();
            upload(loss_sum, no_loss.data(), 1, ctx.stream);
            slot.requests[0] = {.aborted = 1.0f};
        }
        exchange(slot, loss_sum);
        slot.exchange_end.record(ctx.stream);
        reducer.sum_squares(sums.data() + 1, scratch.data());

        slot.optimizer_begin.record(ctx.stream);
        step_control(control.data(), sums.data() + 1, sums.data(), static_cast<float>(factor), o.grad_clip,
                     o.skip_spikes, o.optimizer.beta1, o.optimizer.beta2, ctx.stream);
        queue_update();
        download(slot.loss_sum.data(), sums.data(), 1, ctx.stream);
        download(slot.loss_sums.data(), loss_sums.data(), loss_sums.size(), ctx.stream);
        download(slot.requests.data(), requests.data(), 1, ctx.stream);
        download(slot.control.data(), control.data(), 1, ctx.stream);
        slot.end.record(ctx.stream);
        ++done;
        warm = true;
        return true;
    }

    // Whether work is replayed from graphs: not while the profiler times kernels. Work that involves other ranks is
    // never replayed, because the communicator watches each of its operations with its own events.
    bool replays() const { return o.graphs && warm && !ctx.stream.profiler(); }

    // Queues the forward and backward passes of a micro-batch, which give its losses and gradients of the step's mean
    // loss. Of the last micro-batch, or of each one, the gradients are reduced as they become ready.
    void queue_micro_step(const Batch& batch, bool accumulate, bool last) {
        const NamedRange range("micro-batch");
        const bool each = reducer.every_micro_step();
        const bool communicates = each || (last && ctx.comm->size() > 1);
        const auto queue = [&] {
            std::function<void(int)> on_grads_ready;
            if (communicates) on_grads_ready = [&](int layer) { reducer.ready(layer, accumulate); };
            model.forward_backward(losses.data(), batch, 1.0f / static_cast<float>(o.batch_tokens), accumulate && !each,
                                   on_grads_ready);
            reduce_sum(loss_sums.data() + ctx.comm->rank(), scratch.data(), losses.data(), losses.size(), accumulate,
                       ctx.stream);
        };
        if (!replays() || communicates) return queue();
        auto micro_step = std::find_if(micro_steps.begin(), micro_steps.end(), [&](const MicroStep& m) {
            return m.batch == batch && m.accumulate == accumulate;
        });
        if (micro_step == micro_steps.end())
            micro_step = micro_steps.insert(micro_step, {batch, accumulate, Graph(ctx.stream, queue)});
        micro_step->graph.launch(ctx.stream);
    }

    void queue_update() {
        const NamedRange range("update");
        gatherer.invalidate();
        const auto queue = [&] { optimizer.step(model.params(), control.data(), ctx); };
        if (!replays() || ctx.comm->size() > 1 || optimizer.step_waits()) return queue();
        if (!update) update.emplace(ctx.stream, queue);
        update->launch(ctx.stream);
    }

    // Finishes reducing the gradients, gathers the losses of all ranks and counts their requests. Sums losses in the
    // order of ranks.
    void exchange(Slot& slot, const float* loss_sum) {
        const NamedRange range("exchange");
        Comm& comm = *ctx.comm;
        upload(requests.data(), slot.requests.data(), 1, ctx.stream);
        comm.all_gather(loss_sums.data(), loss_sum, 1, DType::f32, ctx.stream);
        comm.all_reduce_sum(reinterpret_cast<float*>(requests.data()), kRequestFloats, ctx.stream);
        reducer.finish();
        reduce_sum(sums.data(), scratch.data(), loss_sums.data(), loss_sums.size(), false, ctx.stream);
    }

    // Waits for the oldest step whose metrics were not returned. Returns nullopt if a rank aborted it.
    std::optional<StepMetrics> read_back() {
        Slot& slot = slots[returned % 2];
        slot.end.synchronize();
        const RequestCounts requested = slot.requests[0];
        if (requested.aborted > 0) {  // with the steps queued after it
            aborted = true;
            ctx.stream.synchronize();
            done = returned;
            return std::nullopt;
        }
        StepMetrics m = slot.metrics;
        m.loss = static_cast<double>(slot.loss_sum[0]) / static_cast<double>(o.batch_tokens);
        last = slot.control[0];
        m.grad_norm = last.grad_norm;
        m.skip = last.skip;
        m.skipped_in_row = last.skipped_in_row;
        m.loss_z = last.loss_z;
        m.grad_norm_z = last.grad_norm_z;
        m.stop = requested.stop > 0;
        m.save = requested.save > 0;
        const int ranks = ctx.comm->size();
        for (int r = 0; r < ranks && ranks > 1 && m.faulty_rank < 0; ++r)
            if (!std::isfinite(slot.loss_sums[r])) m.faulty_rank = r;
        m.ms = Event::milliseconds(slot.begin, slot.end);
        if (ctx.comm->size() > 1) m.comm_wait_ms = Event::milliseconds(slot.backward_end, slot.exchange_end);
        m.optimizer_ms = Event::milliseconds(slot.optimizer_begin, slot.end);
        m.tokens_per_s = static_cast<double>(o.batch_tokens) / m.ms * 1000;
        next_sample = slot.next_sample;
        ++returned;
        return m;
    }
};

Trainer::Trainer(Model& model, Optimizer& optimizer, Loader& loader, const TrainerOptions& options, Context& context)
    : impl_(std::make_unique<Impl>(model, optimizer, loader, options, context)) {}
Trainer::~Trainer() = default;

std::optional<StepMetrics> Trainer::step() {
    if (!impl_->queue_step()) {
        std::optional<StepMetrics> before = finish();
        impl_->aborted = true;
        return before;
    }
    if (impl_->done - impl_->returned < (impl_->o.ahead ? 2 : 1)) return std::nullopt;
    return impl_->read_back();
}

std::optional<StepMetrics> Trainer::finish() {
    if (impl_->returned == impl_->done) return std::nullopt;
    return impl_->read_back();
}

int64_t Trainer::steps_done() const { return impl_->done; }
void Trainer::request_stop() { impl_->stop = true; }
void Trainer::request_save() { impl_->save = true; }
bool Trainer::aborted() const { return impl_->aborted; }
const StepControl& Trainer::control() const { return impl_->last; }
int64_t Trainer::next_sample() const { return impl_->next_sample; }

void Trainer::restore(int64_t done, const StepControl& control, int64_t next_sample) {
    impl_->done = impl_->returned = done;
    impl_->last = control;
    impl_->next_sample = next_sample;
    upload(impl_->control.data(), &impl_->last, 1, impl_->ctx.stream);
    impl_->ctx.stream.synchronize();
}

}  // namespace teon
