#include "train/loop.h"

#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/tokenizer_files.h"
#include "checkpoint/weights.h"
#include "model/decoder.h"
#include "runtime/context.h"
#include "train/guard.h"
#include "train/reducer.h"
#include "train/samples.h"
#include "train/saver.h"
#include "train/stop.h"
#include "train/trainer.h"

namespace teon {

namespace {

using json = nlohmann::ordered_json;

LoaderOptions loader_options(const Setup& s, bool training, const Comm& comm) {
    LoaderOptions l;
    l.B = s.run.B;
    l.T = s.run.T;
    l.vocab_size = s.config.V;
    l.shuffle = training && s.options.shuffle;
    l.seed = s.options.seed;
    l.document_mask = s.options.document_mask;
    l.delimiter = s.delimiter;
    l.rank = comm.rank();
    l.ranks = comm.size();
    return l;
}

// Ranks above 0 keep a log only if asked to.
std::string metrics_path(const Options& o, int rank) {
    if (rank == 0) return o.out + "/metrics.jsonl";
    return o.rank_logs ? fmt::format("{}/metrics.rank{}.jsonl", o.out, rank) : "";
}

// What must not differ between ranks; folders may.
nlohmann::json common_to_ranks(nlohmann::json run) {
    for (const char* key : {"out", "data", "val-data"}) run["options"].erase(key);
    return run;
}

bool due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

class TrainingLoop {
public:
    TrainingLoop(const ModelFamily& family, const Setup& setup, const DeviceInfo& device)
        : s_(setup),
          o_(setup.options),
          run_(run_json(family, setup)),
          ctx_(o_.comm_timeout),
          loader_(s_.train_shards, loader_options(s_, true, *ctx_.comm)),
          metrics_(metrics_path(o_, ctx_.comm->rank())),
          console_(s_.steps, o_.log_every, decoder_flops_per_token(s_.config, s_.run.T), device.peak_bf16_flops),
          stop_(o_.time_limit),
          model_(make_decoder(s_.config, s_.run, ctx_)),
          optimizer_(model_->params(), o_.optimizer, ctx_),
          trainer_(*model_, optimizer_, loader_,
                   {s_.steps, o_.batch_tokens, s_.micro_steps, o_.grad_clip, o_.skip_spikes, o_.optimizer, o_.schedule},
                   ctx_),
          saver_(s_, *model_, optimizer_, ctx_, metrics_, console_) {
        if (ctx_.comm->rank() > 0 && o_.rank_logs) {  // rank 0 has made the folder before it met the others
            const std::string path = fmt::format("{}/rank{}.log", o_.out, ctx_.comm->rank());
            CHECK(::dup2(open_for_append(path).descriptor(), ::fileno(stdout)) >= 0, "{}: {}", path,
                  std::strerror(errno));
        }
        ctx_.linalg.set_autotune(o_.autotune);
        check_equal_on_all_ranks(common_to_ranks(run_).dump(), "options or data", ctx_);
        if (!s_.val_shards.empty())
            val_loader_ = std::make_unique<Loader>(s_.val_shards, loader_options(s_, false, *ctx_.comm));
        if (o_.sample_every > 0 && ctx_.comm->rank() == 0)
            samples_ = std::make_unique<Samples>(o_.out, tokenizer_folder(s_.train_shards.front().path), s_.config,
                                                 model_->params(), o_.sampling, s_.delimiter, o_.seed, ctx_);
        console_.note(fmt::format("{:<12}{}\n{}{:<12}{}\n", "device", device.name, setup_report(s_), "run", o_.out));
    }

    void begin() {
        metrics_.truncate_after(0);
        model_->params().initialize(o_.seed, ctx_.stream);
        if (o_.init_from.empty()) return;
        const bool folder = std::filesystem::is_directory(o_.init_from);
        load_weights(model_->params(), SafetensorsFile(folder ? o_.init_from + "/model.safetensors" : o_.init_from),
                     ctx_.stream);
    }

    void resume(const ResumePoint& point) {
        const TrainingState& state = point.state;
        const bool evaluated = rank_0_says(metrics_.truncate_after(state.step));
        for (const auto& [folder, fault] : point.found.passed_over) {
            console_.note(fmt::format("passed over {}: {}", folder, fault));
            metrics_.event(state.step, "checkpoint_passed_over", fault);
        }
        if (ctx_.comm->rank() == 0) clear_remains(o_.out, point.found);
        console_.note(fmt::format("resuming from {}", point.found.folder));
        metrics_.event(state.step, "resumed", point.found.folder);
        read_tensors(point.found.folder, model_->params(), optimizer_.state(), ctx_.stream);
        loader_.seek(state.next_sample);
        next_sample_ = state.next_sample;
        saver_.resumed_at(state.step);
        trainer_.restore(state.step, state.control);
        if (!evaluated && evaluation_due(state.step)) evaluate_now();
    }

    void run() {
        std::string stop;
        if (o_.check_ranks) check_same_on_all_ranks(model_->params(), ctx_);
        while (trainer_.steps_done() < s_.steps && stop.empty()) {
            if (trainer_.steps_done() + 1 == o_.profile_steps.first) begin_profile();
            step();
            if (trainer_.steps_done() == o_.profile_steps.second) end_profile();
            saver_.report(false, trainer_.steps_done());
            if (o_.check_ranks) check_same_on_all_ranks(model_->params(), ctx_);
            const int64_t step = trainer_.steps_done();
            stop = skipped_too_often_ ? "skipped updates" : stop_reason();
            const bool save = step == s_.steps || !stop.empty() || due(o_.checkpoint_every, step);
            const bool diagnose = due(o_.diagnose_every, step), evaluate = evaluation_due(step),
                       sample = due(o_.sample_every, step);
            if (save || diagnose || evaluate || sample) log(trainer_.finish());
            if (diagnose) report_alignment();
            // Before the evaluation, so that nothing is lost in there.
            if (save) save_now(o_.checkpoint_sync || !stop.empty());
            if (evaluate && stop.empty()) evaluate_now();
            if (sample && samples_) sample_now();
        }
        log(trainer_.finish());
        saver_.report(true, trainer_.steps_done());
        CHECK(saver_.fault().empty(), "the last checkpoint could not be written: {}", saver_.fault());
        CHECK(!skipped_too_often_, "the last {} updates were skipped (--max-skipped {}); the last good state is in {}",
              trainer_.control().skipped_in_row, o_.max_skipped, o_.out + "/" + checkpoint_name(trainer_.steps_done()));
        if (!stop.empty() && trainer_.steps_done() < s_.steps)
            console_.note(
                fmt::format("stopped by {} after step {}; continue with --resume", stop, trainer_.steps_done()));
    }

    Comm& comm() { return *ctx_.comm; }

private:
    bool evaluation_due(int64_t step) const { return val_loader_ && (due(o_.eval_every, step) || step == s_.steps); }

    // Where a step cannot be taken (its data vanished) the steps before it are saved: nothing of it has reached the
    // weights.
    void step() {
        try {
            log(trainer_.step());
            next_sample_ = loader_.next_sample();
        } catch (const Error&) {
            if (ctx_.comm->size() == 1) save_before_failing();  // several ranks would have to save together
            throw;
        }
    }

    void begin_profile() {
        log(trainer_.finish());
        profiler_.emplace(ctx_.stream);
    }

    // A profile that cannot be written is no reason to end a run.
    void end_profile() {
        if (!profiler_) return;  // resumed between the first and the last step
        const Profile profile = profiler_->result();
        profiler_.reset();
        const auto [first, last] = o_.profile_steps;
        const std::string path = o_.out + "/profile.txt";
        console_.note(fmt::format("profile of steps {} to {}, all of it in {}\n{}", first, last, path,
                                  profile_table(profile, last - first + 1, 12)));
        if (ctx_.comm->rank() > 0) return;
        try {
            write_file_atomically(path, profile_table(profile, last - first + 1));
        } catch (const Error& error) { console_.note(error.what()); }
    }

    void save_before_failing() {
        try {
            log(trainer_.finish());
            saver_.report(true, trainer_.steps_done());
            if (trainer_.steps_done() > saver_.newest()) save_now(true);
        } catch (const Error& error) {  // the first error is the one that the run ends with
            console_.note(fmt::format("nor could step {} be saved: {}", trainer_.steps_done(), error.what()));
        }
    }

    void log(const std::optional<StepMetrics>& m) {
        if (!m) return;
        metrics_.write(*m);
        console_.step(*m);
        if (const std::optional<GuardEvent> event = guard_event(*m, o_.warn_spikes)) {
            metrics_.event(m->step, event->name, event->reason);
            console_.note(fmt::format("step {}: {}: {}", m->step, event->name, event->reason));
        }
        stop_agreed_ |= m->stop;
        skipped_too_often_ = o_.max_skipped > 0 && m->skipped_in_row >= o_.max_skipped;
    }

    void evaluate_now() {
        optimizer_.check_finite(ctx_);
        const int64_t step = trainer_.steps_done(), tokens = step * o_.batch_tokens;
        const EvalResult e = evaluate(*model_, *val_loader_, s_.run.B, s_.eval_windows, ctx_);
        metrics_.write(json{{"kind", "eval"},
                            {"step", step},
                            {"tokens", tokens},
                            {"val_loss", e.loss},
                            {"val_ppl", std::exp(e.loss)},
                            {"val_tokens", e.tokens}});
        console_.note(fmt::format("eval {} | val loss {:.4f} | perplexity {:.3f} | {} tokens", step, e.loss,
                                  std::exp(e.loss), e.tokens));
    }

    // A sample that cannot be had is no reason to end a run.
    void sample_now() {
        try {
            console_.note(fmt::format("sample {} | {}", trainer_.steps_done(), samples_->write(trainer_.steps_done())));
        } catch (const Error& error) {
            console_.note(fmt::format("sample {} failed: {}", trainer_.steps_done(), error.what()));
        }
    }

    // Several ranks stop after the same step: the one in whose metrics each of them finds that one of them wanted to.
    std::string stop_reason() {
        const std::string own = stop_.reason();
        if (ctx_.comm->size() == 1) return own;
        if (!own.empty()) trainer_.request_stop();
        return !stop_agreed_ ? "" : own.empty() ? "another rank" : own;
    }

    bool rank_0_says(bool own) {
        Buffer<float> shared(1);
        float value = own ? 1.0f : 0.0f;
        upload(shared.data(), &value, 1, ctx_.stream);
        ctx_.comm->broadcast(shared.data(), DType::f32, {{0, 1, 0}}, ctx_.stream);
        ctx_.comm->join(ctx_.stream);
        download(&value, shared.data(), 1, ctx_.stream);
        ctx_.stream.synchronize();
        return value != 0;
    }

    void report_alignment() {
        for (const Alignment& a : optimizer_.diagnose(ctx_))
            metrics_.write(json{{"kind", "diagnose"},
                                {"step", trainer_.steps_done()},
                                {"role", name_of(a.role)},
                                {"layers", {a.layer_a, a.layer_b}},
                                {"left", a.left},
                                {"right", a.right},
                                {"norm_ratio", a.norm_ratio}});
    }

    // The state after the last step, whose metrics are logged: so a checkpoint never precedes the lines up to its step.
    // Nothing is saved of an optimizer with a stack that stopped learning.
    void save_now(bool wait) {
        optimizer_.check_finite(ctx_);
        const int64_t step = trainer_.steps_done();
        saver_.save({step, step * o_.batch_tokens, next_sample_, trainer_.control(), run_}, wait);
    }

    const Setup& s_;
    const Options& o_;
    const nlohmann::json run_;
    Context ctx_;
    Loader loader_;
    std::unique_ptr<Loader> val_loader_;
    MetricsFile metrics_;
    Console console_;
    StopRequest stop_;
    std::unique_ptr<Model> model_;
    std::unique_ptr<Samples> samples_;  // rank 0's, with --sample-every
    Optimizer optimizer_;
    Trainer trainer_;
    Saver saver_;
    int64_t next_sample_ = 0;  // after the last step
    bool skipped_too_often_ = false, stop_agreed_ = false;
    std::optional<Profiler> profiler_;  // between --profile-steps
};

}  // namespace

void run_training(const ModelFamily& family, const Setup& setup, const DeviceInfo& device,
                  const std::optional<ResumePoint>& resume) {
    TrainingLoop loop(family, setup, device);
    try {
        if (resume)
            loop.resume(*resume);
        else
            loop.begin();
        loop.run();
    } catch (const std::exception& error) {
        loop.comm().fail(error.what());
        throw;
    }
}

}  // namespace teon
