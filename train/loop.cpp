#include "train/loop.h"

#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/out_of_memory.h"
#include "base/text.h"
#include "checkpoint/tokenizer_files.h"
#include "checkpoint/weights.h"
#include "model/decoder.h"
#include "runtime/context.h"
#include "runtime/linalg_library.h"
#include "train/algorithms.h"
#include "train/evaluation.h"
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
    if (training) l.mixture = s.train.mixture;
    l.document_mask = s.options.document_mask;
    l.delimiter = s.train.delimiter;
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
    for (const char* key : {"out", "data", "val-data", "algorithms", "init-from"}) run["options"].erase(key);
    return run;
}

nlohmann::json described(nlohmann::json run, const nlohmann::json& changes) {
    run["changes"] = changes;
    return run;
}

bool due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

// What make() gives, whose memory is for `what`. Where that is not there although it was planned, the error says what was
// planned, and which flags make it less.
template <typename Make>
auto held(const char* what, const Setup& s, Make&& make) {
    try {
        return make();
    } catch (const OutOfMemory& error) {
        throw Error(fmt::format("{}: {}; {} are planned in all: {}", what, error.what(),
                                bytes_text(static_cast<double>(s.memory_bytes())), memory_advice(s)));
    }
}

class TrainingLoop {
public:
    TrainingLoop(const ModelFamily& family, const Setup& setup, const DeviceInfo& device, Context& context,
                 const nlohmann::json& changes, StopRequest& stop)
        : s_(setup),
          o_(setup.options),
          run_(described(run_json(family, setup), changes)),
          device_(device.name),
          ctx_(context),
          stop_(stop),
          loader_(s_.train.shards, loader_options(s_, true, *ctx_.comm)),
          console_(s_.steps, o_.log_every, decoder_flops_per_token(s_.config, s_.run.T), device.peak_bf16_flops),
          model_(held("weights, gradients and activations", s_, [&] { return make_decoder(s_.config, s_.run, ctx_); })),
          optimizer_(held("optimizer state", s_, [&] { return Optimizer(model_->params(), o_.optimizer, ctx_); })),
          trainer_(*model_, optimizer_, loader_, trainer_options(device), ctx_),
          saver_(held("copy that checkpoints are written from", s_,
                      [&] { return Saver(s_, *model_, optimizer_, ctx_, metrics_, console_); })) {
        check_equal_on_all_ranks(common_to_ranks(run_).dump(), "options or data", ctx_);
        if (!s_.val.shards.empty()) {
            val_loader_ = std::make_unique<Loader>(s_.val.shards, loader_options(s_, false, *ctx_.comm));
            evaluator_.emplace(*model_, *val_loader_, s_.run.B, s_.run.T, s_.eval_windows, ctx_);
            if (ctx_.comm->rank() == 0)
                val_bytes_ =
                    text_bytes(s_.val, tokenizer_folder(s_.val.shards.front().path), s_.run.T, s_.eval_windows);
        }
        if (o_.sample_every > 0 && ctx_.comm->rank() == 0)
            samples_ = std::make_unique<Samples>(o_.out, tokenizer_folder(s_.train.shards.front().path), s_.config,
                                                 model_->params(), o_.sampling, s_.train.delimiter, o_.seed, ctx_);
    }

    ~TrainingLoop() {
        stop_.end();
        ctx_.give_up = [] { return false; };
    }

    // The state to begin with. Nothing is written; what cannot work has failed by the end of it.
    void load(const std::optional<ResumePoint>& resume) {
        report(resume);
        if (o_.autotune) read_algorithms();
        if (resume) {
            const TrainingState& state = resume->state;
            read_tensors(resume->found.folder, model_->params(), optimizer_.state(), ctx_.stream);
            loader_.seek(state.next_sample);
            saved_step_ = state.step;
            trainer_.restore(state.step, state.control, state.next_sample);
        } else {
            model_->params().initialize(o_.seed, ctx_.stream);
            if (o_.adopted)  // open_model() has verified it
                load_weights(model_->params(), SafetensorsModel(o_.adopted->folder), ctx_.stream);
        }
        check_same_on_all_ranks(model_->params(), ctx_);
    }

    // From here on the run's folder is written, and a signal finds something to save.
    void open(const std::optional<ResumePoint>& resume) {
        const int rank = ctx_.comm->rank();
        stop_.begin(o_.time_limit, rank == 0);
        ctx_.give_up = [this] { return !stop_.reason().empty(); };
        if (rank > 0 && o_.rank_logs) {
            const std::string path = fmt::format("{}/rank{}.log", o_.out, rank);
            CHECK(::dup2(open_for_append(path), ::fileno(stdout)) >= 0, "{}: {}", path, std::strerror(errno));
        }
        const int64_t step = trainer_.steps_done();
        if (rank == 0) clear_remains(o_.out, resume);
        if (o_.autotune) search_algorithms();
        const std::string path = metrics_path(o_, rank);
        const std::optional<LogPosition> saved = resume && rank == 0 ? resume->state.log : std::nullopt;
        const MetricsFile::Opened log = path.empty() ? MetricsFile::Opened() : metrics_.open(path, step, saved);
        tell(step, "log_damaged", log.damage);
        evaluation_missing_ = resume && !rank_0_says(log.evaluated) && evaluation_due(step);
        tell(step, "config_replaced", o_.config_fault);
        if (!resume) return;
        for (const auto& [folder, fault] : resume->found.passed_over) tell(step, "checkpoint_passed_over", fault);
        if (step < s_.steps) tell(step, "resumed", resume->found.folder);
        tell(step, "log_cut", log.cut);
        for (const nlohmann::json& change : run_["changes"])
            if (change["step"] == step) tell(step, change["event"], change["reason"]);
        saver_.resumed_at(step);
    }

    // The signal that has ended it before its last step, else 0.
    int run() {
        std::string stop = ctx_.comm->size() == 1 ? stop_.reason() : "";
        if (evaluation_missing_ && stop.empty()) stop = evaluate_now();
        while (trainer_.steps_done() < s_.steps && stop.empty()) {
            if (trainer_.steps_done() + 1 == o_.profile_steps.first) begin_profile();
            step();
            if (trainer_.steps_done() == o_.profile_steps.second) end_profile();
            saver_.report(false, trainer_.steps_done());
            if (o_.check_ranks) check_same_on_all_ranks(model_->params(), ctx_);
            const int64_t step = trainer_.steps_done();
            const bool kept = step == s_.steps || due(o_.checkpoint_every, step), interim = clock_says_save() && !kept,
                       save = kept || interim, diagnose = due(o_.diagnose_every, step), evaluate = evaluation_due(step),
                       sample = due(o_.sample_every, step);
            if (save || diagnose || evaluate || sample) log(trainer_.finish());
            stop = skipped_too_often_ ? "skipped updates" : stop_reason();
            if (trainer_.given_up()) break;
            if (diagnose) report_alignment();
            if (save) save_now(o_.checkpoint_sync, interim);  // before the evaluation, so that nothing is lost in there
            if (evaluate && stop.empty()) stop = evaluate_now();
            if (sample && samples_ && stop.empty()) stop = sample_now();
        }
        log(trainer_.finish());
        if (trainer_.steps_done() > saved_step_) save_now(true);
        saver_.report(true, trainer_.steps_done());
        CHECK(!skipped_too_often_, "the last {} updates were skipped (--max-skipped {}); {}",
              trainer_.control().skipped_in_row, o_.max_skipped, last_good_state());
        CHECK(saver_.fault().empty(), "the last checkpoint could not be written: {}", saver_.fault());
        metrics_.sync();
        if (stop.empty()) return 0;
        if (trainer_.steps_done() < s_.steps)
            console_.note(
                fmt::format("stopped by {} after step {}; continue with --resume", stop, trainer_.steps_done()));
        if (ctx_.comm->size() > 1) rank_0_says(true);  // no rank ends as if it had failed before rank 0 has saved
        return stop_.signal();
    }

private:
    TrainerOptions trainer_options(const DeviceInfo& device) {
        return {s_.steps,       o_.batch_tokens, s_.micro_steps, o_.grad_clip,
                o_.skip_spikes, o_.optimizer,    o_.schedule,    o_.graphs.value_or(device.is_gpu),
                device.is_gpu};
    }

    bool evaluation_due(int64_t step) const { return evaluator_ && (due(o_.eval_every, step) || step == s_.steps); }

    void report(const std::optional<ResumePoint>& resume) {
        if (resume && resume->state.step >= s_.steps) {
            console_.note(
                fmt::format("{} is done: all {} steps. --steps N makes it longer where its --schedule is constant "
                            "(docs/checkpoints.md); --init-from {} begins another run with its weights",
                            o_.out, s_.steps, o_.out));
            return;
        }
        console_.note(fmt::format("{:<12}{}; products by {}\n{}{:<12}{}\n", "device", device_, linalg_library().name,
                                  setup_report(s_), "run", o_.out));
        if (o_.resume && !resume) console_.note(fmt::format("there is no run in {} yet: this one begins", o_.out));
        if (o_.adopted && !o_.adopted->unused.empty()) console_.note(unused_text(*o_.adopted));
    }

    // An event, on the terminal and in the log; nothing if there is no reason.
    void tell(int64_t step, const std::string& event, const std::string& reason) {
        if (reason.empty()) return;
        console_.note(event == "resumed" ? "resuming from " + reason : fmt::format("{}: {}", event, reason));
        metrics_.event(step, event, reason);
    }

    std::string last_good_state() const {
        try {
            const std::optional<int64_t> good = newest_good_checkpoint(o_.out);
            return good ? "the last good state is in " + o_.out + "/" + checkpoint_name(*good)
                        : "there is no checkpoint of a step before them";
        } catch (const ReadError& error) { return error.what(); }
    }

    // Where a step cannot be taken (its data vanished) the steps before it are saved: nothing of it has reached the
    // weights.
    void step() {
        try {
            log(trainer_.step());
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
            if (trainer_.steps_done() > saved_step_) save_now(true);
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
        save_agreed_ |= m->save;
        skipped_too_often_ = o_.max_skipped > 0 && m->skipped_in_row >= o_.max_skipped;
    }

    // Why the run is to stop, if an evaluation had to be given up for that: then a resumed run makes up for it.
    std::string evaluate_now() {
        optimizer_.check_finite(ctx_);
        const int64_t step = trainer_.steps_done(), tokens = step * o_.batch_tokens;
        const std::optional<EvalResult> result = evaluator_->run();
        if (!result) {
            stop_agreed_ = true;
            return stop_reason();
        }
        const EvalResult& e = *result;
        json line = {{"kind", "eval"}, {"step", step}, {"tokens", tokens}};
        line.update(evaluation_json(e, val_bytes_));
        metrics_.write(line);
        console_.note(fmt::format("eval {} | {}", step, evaluation_text(e, val_bytes_)));
        return "";
    }

    // A sample that cannot be had is no reason to end a run. Why the run is to stop, of one rank.
    std::string sample_now() {
        try {
            const std::string text = samples_->write(trainer_.steps_done());
            if (!text.empty()) console_.note(fmt::format("sample {} | {}", trainer_.steps_done(), text));
        } catch (const Error& error) {
            console_.note(fmt::format("sample {} failed: {}", trainer_.steps_done(), error.what()));
        }
        return ctx_.comm->size() == 1 ? stop_.reason() : "";
    }

    // Several ranks stop after the same step: before one that was given up, or after the one in whose metrics each of
    // them finds that one of them wanted to.
    std::string stop_reason() {
        const std::string own = stop_.reason();
        if (ctx_.comm->size() == 1) return own;
        if (!own.empty()) trainer_.request_stop();
        return !stop_agreed_ && !trainer_.given_up() ? "" : own.empty() ? "another rank" : own;
    }

    // Several ranks go by rank 0's clock: they save after the step in whose metrics each finds that it was time.
    bool clock_says_save() {
        const std::chrono::duration<double, std::ratio<60>> since = StopRequest::Clock::now() - saved_at_;
        const bool now = o_.checkpoint_minutes > 0 && since.count() >= o_.checkpoint_minutes;
        if (ctx_.comm->size() == 1) return now;
        if (now && ctx_.comm->rank() == 0 && !std::exchange(save_requested_, true)) trainer_.request_save();
        return std::exchange(save_agreed_, false);
    }

    // Each rank keeps its own choices.
    void read_algorithms() {
        const int rank = ctx_.comm->rank();
        algorithms_.emplace((o_.algorithms.empty() ? o_.out + "/algorithms.jsonl" : o_.algorithms) +
                                (rank > 0 ? fmt::format(".rank{}", rank) : ""),
                            device_, linalg_library().name);
    }

    void search_algorithms() {
        ctx_.linalg.search_algorithms(algorithms_->known(), [this](const AlgorithmChoice& c) {
            algorithms_->add(c);
            console_.note(
                fmt::format("algorithm of {}: {:.3f} ms, the first proposal's {:.3f}", c.product, c.ms, c.first_ms));
        });
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
    void save_now(bool wait, bool interim = false) {
        optimizer_.check_finite(ctx_);
        const int64_t step = trainer_.steps_done();
        saved_step_ = step;
        saved_at_ = StopRequest::Clock::now();
        save_requested_ = false;
        saver_.save({step, step * o_.batch_tokens, trainer_.next_sample(), trainer_.control(), interim,
                     metrics_.position(), run_},
                    wait);
    }

    const Setup& s_;
    const Options& o_;
    const nlohmann::json run_;
    const std::string device_;
    Context& ctx_;
    StopRequest& stop_;
    Loader loader_;
    std::unique_ptr<Loader> val_loader_;
    MetricsFile metrics_;
    Console console_;
    std::optional<AlgorithmFile> algorithms_;  // with --autotune
    std::unique_ptr<Model> model_;
    std::optional<Evaluator> evaluator_;  // where there is validation data
    std::optional<int64_t> val_bytes_;    // of text in it, where that is known
    std::unique_ptr<Samples> samples_;    // rank 0's, with --sample-every
    Optimizer optimizer_;
    Trainer trainer_;
    Saver saver_;
    int64_t saved_step_ = 0;                                               // of the last save that was begun
    StopRequest::Clock::time_point saved_at_ = StopRequest::Clock::now();  // then, or when training began
    bool skipped_too_often_ = false, stop_agreed_ = false, save_agreed_ = false, save_requested_ = false,
         evaluation_missing_ = false;
    std::optional<Profiler> profiler_;  // between --profile-steps
};

}  // namespace

int run_training(const ModelFamily& family, const Setup& setup, const DeviceInfo& device, Context& context,
                 const TrainingStart& start, StopRequest& stop) {
    TrainingLoop loop(family, setup, device, context, start.changes, stop);
    loop.load(start.resume);
    start.open_folder();
    loop.open(start.resume);
    return loop.run();
}

}  // namespace teon
