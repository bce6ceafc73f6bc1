#include "train/saver.h"

#include "base/text.h"
#include "checkpoint/tokenizer_files.h"
#include "files/json.h"
#include "model/family.h"
#include "runtime/cuda/named_range.h"
#include "train/ranks.h"

namespace teon {

namespace {

CheckpointPlan checkpoint_plan(const RunPlan& p, MetricsFile& metrics) {
    const Options& o = p.options;
    CheckpointPlan plan;
    plan.run_folder = o.out;
    plan.sync_log = [&metrics] { metrics.sync(); };
    Json config = hf_config(*p.family, p.config, p.train.delimiter);
    if (o.adopted) {  // the adopted model keeps its begin and end tokens
        const TextLimits& limits = o.adopted->limits;
        if (limits.begin >= 0) config["bos_token_id"] = limits.begin;
        if (limits.end.size() == 1) config["eos_token_id"] = limits.end[0];
        if (limits.end.size() > 1) config["eos_token_id"] = Json::array_of(limits.end);
    }
    const Json begin = config["bos_token_id"];
    plan.extra_files = tokenizer_files(tokenizer_folder(p.train.shards.front().path), p.config.max_T,
                                       begin.is_whole() ? begin.get<int>() : -1);
    plan.config = json_text(config, {.indent = 2, .in_order = true}) + "\n";
    plan.keep_last = o.keep_last;
    plan.keep_every = o.keep_every;
    return plan;
}

}  // namespace

Saver::Saver(const RunPlan& run, Model& model, Optimizer& optimizer, Context& context, MetricsFile& metrics,
             Console& console, StopRequest& stop)
    : o_(run.options),
      model_(model),
      optimizer_(optimizer),
      ctx_(context),
      metrics_(metrics),
      console_(console),
      stop_(stop) {
    if (context.comm->rank() == 0)
        writer_ = std::make_unique<CheckpointWriter>(checkpoint_plan(run, metrics), model.params(), optimizer.state());
}

void Saver::save(const TrainingState& state, std::optional<double> best, bool wait) {
    this->wait();
    const NamedRange range("checkpoint");
    // Weights and state of several ranks, or in host memory, are collected in the memory of the gradients, which the
    // next step overwrites. The host waits for a copy from host memory to host memory, never for one from a device.
    const ParamStore& params = model_.params();
    float* gradients = params.gradients().data<float>();
    const int64_t window = params.gradients().layout().size();
    std::function<const float*(int64_t, int64_t)> collected;  // empty: one device has everything
    std::vector<StateTensor> tensors = optimizer_.masters(params);
    for (StateTensor& t : optimizer_.state()) tensors.push_back(std::move(t));
    if (ctx_.comm->size() > 1 || params.offloads())
        collected = [&](int64_t begin, int64_t end) {
            optimizer_.collect_state(tensors, begin, end, gradients, ctx_);
            return gradients;
        };
    if (writer_) {
        writer_->save(state, ctx_.stream, collected, window, best);
    } else {
        for_each_window(elements_of(tensors), window, collected);
    }
    // The gaps between gradients count in the norm, and no step writes them.
    if (collected) zero(gradients, window, ctx_.stream);
    if (wait) this->wait();
}

void Saver::wait() {
    on_rank_0(ctx_, [&] { report(true); });
}

void Saver::mark_best(int64_t step, double loss) {
    on_rank_0(ctx_, [&] {
        report(true);
        const std::string fault = writer_ ? writer_->mark_best(step, loss) : "";
        if (!fault.empty()) console_.note(fault);
    });
}

void Saver::remove_old(int64_t step) {
    const std::string fault = writer_ ? writer_->remove_old(step) : "";
    if (!fault.empty()) console_.note(fault);
}

void Saver::report(bool wait) {
    const std::optional<SaveResult> saved = writer_ ? writer_->result(wait) : std::nullopt;
    if (!saved) return;
    fault_ = saved->fault;
    if (!fault_.empty()) {
        // Of the checkpoint's step, not of the step that is queued, which ranks may yet abort.
        metrics_.event(saved->step, "checkpoint_failed", fault_);
        console_.note(fmt::format("checkpoint of step {} failed: {}", saved->step, fault_));
        CHECK(!o_.stop_on_save_error, "{}; the checkpoints before it are whole (--on-save-error stop)", fault_);
        return;
    }
    stop_.expect_save(saved->seconds);
    console_.note(fmt::format("checkpoint {} | {} | {:.1f} s{}", saved->folder,
                              bytes_text(static_cast<double>(saved->bytes)), saved->seconds,
                              saved->warning.empty() ? "" : " | " + saved->warning));
}

}  // namespace teon
