#include "train/loop.h"

#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "base/text.h"
#include "checkpoint/tokenizer_files.h"
#include "checkpoint/weights.h"
#include "files/json.h"
#include "files/rehearsal.h"
#include "model/decoder.h"
#include "options/command_line.h"
#include "plan/description.h"
#include "plan/memory.h"
#include "plan/report.h"
#include "plan/step_time.h"
#include "runtime/context.h"
#include "runtime/linalg/library.h"
#include "train/best.h"
#include "train/console.h"
#include "train/evaluation.h"
#include "train/guard.h"
#include "train/inputs.h"
#include "train/ranks.h"
#include "train/run_folder.h"
#include "train/samples.h"
#include "train/saver.h"
#include "train/stop.h"
#include "train/trainer.h"

namespace teon {

namespace {

// Ranks above 0 keep a log only if asked to.
std::string metrics_path(const Options& o, int rank) {
    if (rank == 0) return o.out + "/metrics.jsonl";
    return o.rank_logs ? fmt::format("{}/metrics.rank{}.jsonl", o.out, rank) : "";
}

// The part of a run's description that must be equal on all ranks; folders may differ.
Json common_to_ranks(Json run) {
    for (const char* key : {"out", "data", "val-data", "init-from"}) run["options"].erase(key);
    return run;
}

Json description(const RunPlan& plan, const Json& changes) {
    Json run = run_json(plan);
    run["changes"] = changes;
    return run;
}

constexpr int64_t kRises = 3;  // so many evaluations in a row above the lowest are no accident

bool due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

// Returns make()'s result. If memory runs out although it was planned, throws Error naming what was allocated, the
// planned total and the flags that lower it.
template <typename Make>
auto allocate(const char* what, const RunPlan& plan, Make&& make) {
    try {
        return make();
    } catch (const OutOfMemory& error) {
        throw Error(fmt::format("{}: {}; {} are planned in all: {}", what, error.what(),
                                bytes_text(static_cast<double>(memory_bytes(plan))), memory_advice(plan)));
    }
}

class TrainingLoop {
public:
    TrainingLoop(const RunPlan& plan, const DeviceInfo& device, Context& context, const Json& changes,
                 StopRequest& stop)
        : plan_(plan),
          o_(plan.options),
          run_(description(plan, changes)),
          device_(device.name),
          ctx_(context),
          stop_(stop),
          loader_(plan_.train.shards, loader_options(plan_, true, ctx_.comm->rank())),
          console_(plan_.steps, o_.log_every, peak_tokens_per_s(plan_, device.peak_bf16_flops)),
          model_(allocate(
              "weights, gradients and activations", plan_,
              [&] { return make_decoder(plan_.config, plan_.run, ctx_, shard_of(plan_, ctx_.comm->rank())); })),
          optimizer_(allocate(
              "optimizer state", plan_,
              [&] { return Optimizer(model_->params(), plan_.optimizer_plan, plan_.placement, o_.optimizer, ctx_); })),
          trainer_(*model_, optimizer_, loader_, trainer_options(device), ctx_),
          saver_(allocate("copy that checkpoints are written from", plan_,
                          [&] { return Saver(plan_, *model_, optimizer_, ctx_, metrics_, console_, stop_); })) {
        check_equal_on_all_ranks(json_text(common_to_ranks(run_)), "options or data", ctx_);
        if (!plan_.val.shards.empty()) {
            val_loader_ = std::make_unique<Loader>(plan_.val.shards, loader_options(plan_, false, ctx_.comm->rank()));
            evaluator_.emplace(*model_, *val_loader_, plan_.run.B, plan_.run.T, plan_.eval_windows, ctx_);
            if (ctx_.comm->rank() == 0)
                val_text_ = text_size(plan_.val, tokenizer_folder(plan_.val.shards.front().path), plan_.run.T,
                                      plan_.eval_windows);
        }
        if (o_.sample_every > 0 && ctx_.comm->rank() == 0)
            samples_ =
                std::make_unique<Samples>(o_.out, tokenizer_folder(plan_.train.shards.front().path), plan_.config,
                                          model_->params(), o_.sampling, plan_.train.delimiter, o_.seed, ctx_);
    }

    ~TrainingLoop() {
        stop_.end();
        ctx_.give_up = [] { return false; };
    }

    // Loads the initial state and writes nothing. A run that cannot work fails here at the latest.
    void load(const std::optional<ResumePoint>& resume) {
        report(resume);
        if (resume) {
            const TrainingState& state = resume->state;
            read_tensors(resume->checkpoint.folder, model_->params(), optimizer_.state(), ctx_.stream);
            loader_.seek(state.next_sample);
            saved_step_ = state.step;
            trainer_.restore(state.step, state.control, state.next_sample);
        } else {
            model_->params().initialize(o_.seed, ctx_.stream);
            if (o_.adopted)  // open_model() verified it
                load_weights(model_->params(), SafetensorsModel(o_.adopted->folder), ctx_.stream);
        }
        check_same_on_all_ranks(model_->params(), ctx_);
    }

    // Opens the log. From here on the run writes to its folder, and a signal makes it save.
    void open(const std::optional<ResumePoint>& resume) {
        const int rank = ctx_.comm->rank();
        stop_.begin(o_.time_limit, rank == 0);
        if (const std::optional<double> job = stop_.job_s(); job && o_.time_limit == 0)
            console_.note(
                fmt::format("the Slurm job ends in {}: the run saves and ends a minute and two saves earlier "
                            "(--time-limit sets another time)",
                            duration_text(*job)));
        ctx_.give_up = [this] { return !stop_.reason().empty(); };
        if (rank > 0 && o_.rank_logs) {
            const std::string path = fmt::format("{}/rank{}.log", o_.out, rank);
            CHECK(::dup2(open_for_append(path), ::fileno(stdout)) >= 0, "{}: {}", path, std::strerror(errno));
        }
        const int64_t step = trainer_.steps_done();
        if (rank == 0) try_disk();
        const std::string path = metrics_path(o_, rank);
        const std::optional<LogPosition> saved = resume && rank == 0 ? resume->state.log : std::nullopt;
        const MetricsFile::Opened log = path.empty() ? MetricsFile::Opened() : metrics_.open(path, step, saved);
        if (rank == 0) clear_remains(o_.out, resume);
        diagnosis_missing_ = resume && !agree(log.diagnosed) && due(o_.diagnose_every, step);
        evaluation_missing_ = resume && !agree(log.evaluated) && evaluation_due(step);
        best_ = best_of(resume ? BestLoss{resume->state.best} : BestLoss(), log.evaluations);
        report_status("running", "");
        record(step, "config_replaced", o_.config_fault);
        if (!resume) return;
        for (const auto& [folder, fault] : resume->checkpoint.passed_over)
            record(step, "checkpoint_passed_over", fault);
        if (step < plan_.steps) record(step, "resumed", resume->checkpoint.folder);
        record(step, "log_cut", log.cut);
        for (const Json& change : run_["changes"].items())
            if (change["step"] == step)
                record(step, change["event"].get<std::string>(), change["reason"].get<std::string>());
        // A kill may have come before either. Nothing is removed before the best one is marked.
        if (o_.keep_best && best_.step > 0) saver_.mark_best(best_.step, best_.loss);
        saver_.remove_old(step);
    }

    // Trains. Returns the exit status as run_training() does.
    int run() {
        std::string stop = ctx_.comm->size() == 1 ? stop_.reason() : "";
        if (diagnosis_missing_ && stop.empty()) report_alignment();
        if (evaluation_missing_ && stop.empty()) stop = evaluate_now();
        if (stop.empty()) stop = out_of_patience();  // so did the run before
        while (trainer_.steps_done() < plan_.steps && stop.empty()) {
            if (trainer_.steps_done() + 1 == o_.profile_steps.first) begin_profile();
            step();
            if (trainer_.steps_done() == o_.profile_steps.second) end_profile();
            saver_.report();
            if (o_.check_ranks) check_same_on_all_ranks(model_->params(), ctx_);
            const int64_t step = trainer_.steps_done();
            const bool save_permanently = (step == plan_.steps && o_.checkpoint_end) || due(o_.checkpoint_every, step);
            const bool save_interim = !save_permanently && clock_says_save();
            const bool save = save_permanently || save_interim;
            const bool diagnose = due(o_.diagnose_every, step);
            const bool evaluate = evaluation_due(step);
            const bool sample = due(o_.sample_every, step);
            if (save || diagnose || evaluate || sample) log(trainer_.finish());
            stop = skipped_in_row_ > 0 ? "skipped updates" : stop_reason();
            if (trainer_.aborted()) break;
            if (save) save_now(o_.checkpoint_sync, save_interim);  // first, because the rest may fail or be killed
            if (diagnose) report_alignment();
            evaluation_missing_ = evaluate;
            if (evaluate && stop.empty()) stop = evaluate_now();
            if (sample && samples_ && stop.empty()) stop = sample_now();
        }
        log(trainer_.finish());
        const bool save_at_end = o_.checkpoint_end || trainer_.steps_done() < plan_.steps;
        if (save_at_end && trainer_.steps_done() > saved_step_) save_now(true);
        saver_.wait();
        CHECK(skipped_in_row_ == 0, "{} updates in a row were skipped (--max-skipped {}); {}", skipped_in_row_,
              o_.max_skipped, last_good_state());
        CHECK(saver_.fault().empty(), "the last checkpoint could not be written: {}", saver_.fault());
        metrics_.sync();
        if (const std::string losses = last_losses(); !losses.empty()) console_.note(losses);
        const std::string patience = out_of_patience();
        const bool done = trainer_.steps_done() >= plan_.steps && !evaluation_missing_;  // --resume evaluates
        const bool stopped = !done && patience.empty();
        if (stopped && trainer_.steps_done() > 0 && !stop_.reason().empty())
            console_.note(fmt::format("saved {}", stop_.delay()));
        if (!stop.empty() && !done)
            console_.note(fmt::format("stopped by {} after step {}; continue with --resume{}", stop,
                                      trainer_.steps_done(), patience.empty() ? "" : " and a larger --patience, or 0"));
        report_status(stopped ? "stopped" : "finished", done ? "" : stop);
        if (stop.empty()) return 0;
        if (ctx_.comm->size() > 1) agree(true);  // so that no rank ends before rank 0 has saved, as if it had failed
        if (stop_.signal() == SIGINT) return -SIGINT;
        return stopped && ctx_.comm->rank() == 0 ? o_.exit_when_stopped : 0;
    }

    // Writes status.json. A fault does not end the run.
    void report_status(const char* state, const std::string& reason) {
        if (ctx_.comm->rank() > 0) return;
        try {
            write_status(
                o_.out,
                {{"state", state}, {"step", trainer_.steps_done()}, {"steps", plan_.steps}, {"reason", reason}});
        } catch (const Error& error) { console_.note(error.what()); }
    }

private:
    TrainerOptions trainer_options(const DeviceInfo& device) {
        return {plan_.steps,  o_.batch_tokens,    plan_.micro_steps,
                o_.grad_clip, o_.grad_comm_dtype, o_.skip_spikes,
                o_.optimizer, o_.schedule,        o_.graphs.value_or(device.is_gpu),
                device.is_gpu};
    }

    bool evaluation_due(int64_t step) const { return evaluator_ && (due(o_.eval_every, step) || step == plan_.steps); }

    void report(const std::optional<ResumePoint>& resume) {
        if (resume && resume->state.step >= plan_.steps) {
            console_.note(
                fmt::format("{} is done: all {} steps. --steps N makes it longer where its --schedule is constant "
                            "(docs/checkpoints.md); --init-from {} begins another run with its weights",
                            o_.out, plan_.steps, o_.out));
            return;
        }
        console_.note(fmt::format("{:<12}{}; products by {}\n{}{:<12}{}\n", "device", device_, linalg_library().name,
                                  plan_report(plan_), "run", o_.out));
        if (o_.resume && !resume) console_.note(fmt::format("there is no run in {} yet: this one begins", o_.out));
        if (o_.adopted)
            for (const std::string& note : notes_on(*o_.adopted)) console_.note(note);
        if (o_.adopted && !resume && o_.adopted->dropout > 0 && !o_.fields.contains("dropout"))
            console_.note(fmt::format("{}: was trained with dropout {}, this run has none; --dropout {} keeps it",
                                      o_.adopted->folder, o_.adopted->dropout, o_.adopted->dropout));
    }

    // Throws UsageError if no checkpoint can be saved in the run's folder.
    void try_disk() {
        const std::string no_links = rehearse_save(o_.out);
        if (!o_.keep_best) return;
        check_best_link(o_.out);
        if (!no_links.empty())
            console_.note(fmt::format("{}: the disk refuses symbolic links ({}): {} alone names the best checkpoint",
                                      o_.out, no_links, kBestFile));
    }

    // Logs and prints an event unless the reason is empty.
    void record(int64_t step, const std::string& event, const std::string& reason) {
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

    // If the step fails (for example because its data vanished), saves the state after the previous step, which the
    // weights still hold.
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

    // A profile that cannot be written does not end the run.
    void end_profile() {
        if (!profiler_) return;  // the run resumed between the first and the last profiled step
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
            saver_.wait();
            if (trainer_.steps_done() > saved_step_) save_now(true);
        } catch (const Error& error) {  // noted only: the run ends with the first error
            console_.note(fmt::format("nor could step {} be saved: {}", trainer_.steps_done(), error.what()));
        }
    }

    void log(const std::optional<StepMetrics>& m) {
        if (!m) return;
        metrics_.write(*m);
        console_.step(*m);
        last_loss_ = m->loss;
        if (const std::optional<GuardEvent> event = guard_event(*m, o_.warn_spikes)) {
            metrics_.event(m->step, event->name, event->reason);
            console_.note(fmt::format("step {}: {}: {}", m->step, event->name, event->reason));
        }
        stop_agreed_ |= m->stop;
        save_agreed_ |= m->save;
        if (o_.max_skipped > 0 && m->skipped_in_row >= o_.max_skipped) skipped_in_row_ = m->skipped_in_row;
    }

    // Evaluates and logs the result. If the evaluation was aborted, returns why the run stops; a resumed run then
    // evaluates first. Otherwise returns an empty string.
    std::string evaluate_now() {
        optimizer_.check_finite(ctx_);
        const int64_t step = trainer_.steps_done();
        const int64_t tokens = step * o_.batch_tokens;
        const std::optional<EvalResult> result = evaluator_->run();
        if (!result) {
            stop_agreed_ = true;
            return stop_reason();
        }
        const EvalResult& e = *result;
        Json line = {{"kind", "eval"}, {"step", step}, {"tokens", tokens}};
        line.update(evaluation_json(e, val_text_));
        metrics_.write(line);
        evaluation_missing_ = false;
        const bool best = best_.count({step, e.loss});
        console_.note(fmt::format("eval {} | {}{}", step, evaluation_text(e, val_text_),
                                  best && (o_.keep_best || o_.patience > 0) ? " | lowest so far" : ""));
        last_val_loss_ = e.loss;
        if (best && o_.keep_best) keep_best();
        if (best_.since == kRises && best_.step > 0 && !std::exchange(rise_noted_, true))
            record(step, "validation_rises", rise_text());
        const std::string stop = out_of_patience();
        if (!stop.empty()) metrics_.event(step, "out_of_patience", stop);
        return stop;
    }

    // "lowest 4.9580 at step 100, 3 evaluations ago; --keep-best keeps it; --dropout and --patience may help"
    std::string rise_text() const {
        std::vector<std::string> ways;
        if (plan_.config.dropout == 0) ways.emplace_back("--dropout");
        if (o_.patience == 0) ways.emplace_back("--patience");
        return fmt::format("lowest {:.4f} at step {}, {} evaluations ago; {}{}", best_.loss, best_.step, kRises,
                           o_.keep_best ? "it is kept" : "--keep-best keeps it",
                           ways.empty() ? "" : fmt::format("; {} may help", joined(ways, " and ")));
    }

    // "loss 2.1034 in training, 5.8980 in validation; the lowest was 4.9580 at step 100, kept in RUN/best"; empty if
    // nothing was trained and evaluated.
    std::string last_losses() const {
        if (std::isnan(last_loss_) || std::isnan(last_val_loss_)) return "";
        std::string text = fmt::format("loss {:.4f} in training, {:.4f} in validation", last_loss_, last_val_loss_);
        if (best_.loss < last_val_loss_)
            text += fmt::format("; the lowest was {:.4f} at step {}{}", best_.loss, best_.step,
                                o_.keep_best ? fmt::format(", kept in {}/{}", o_.out, kBestLink) : "");
        return text;
    }

    // Every rank has evaluated the same loss and decides the same.
    std::string out_of_patience() const {
        return trainer_.steps_done() < plan_.steps ? best_.out_of_patience(o_.patience) : "";
    }

    // Keeps the checkpoint of this step, which has just been evaluated. If it was not due, the next best one replaces
    // it.
    void keep_best() {
        if (saved_step_ == trainer_.steps_done())
            saver_.mark_best(saved_step_, best_.loss);
        else
            save_now(o_.checkpoint_sync, /*interim=*/true, /*best=*/true);
    }

    // Returns the lowest loss of the checkpoint's evaluations and of the log's after them, since the validation data
    // changed. Only rank 0 knows them.
    BestLoss best_of(BestLoss best, const std::vector<LoggedEvaluation>& evaluations) {
        int64_t changed = -1;
        for (const Json& change : run_["changes"].items())
            if (change["event"] == "validation_changed") changed = change["step"].get<int64_t>();
        if (best.last <= changed) best = {};
        for (const LoggedEvaluation& e : evaluations)
            if (e.step > changed) best.count(e);
        const std::string text = broadcast_from_rank_0(json_text(to_json(best)), ctx_);
        return {best_evaluation(parse_json(text, "rank 0"), "rank 0")};
    }

    // Writes a sample. A failure does not end the run. Returns why the run stops if it is to stop and has one rank.
    std::string sample_now() {
        try {
            const std::string text = samples_->write(trainer_.steps_done());
            if (!text.empty()) console_.note(fmt::format("sample {} | {}", trainer_.steps_done(), text));
        } catch (const Error& error) {
            console_.note(fmt::format("sample {} failed: {}", trainer_.steps_done(), error.what()));
        }
        return ctx_.comm->size() == 1 ? stop_.reason() : "";
    }

    // Returns why the run stops, or an empty string. Several ranks stop after the same step: the last one before an
    // aborted step, or the one whose metrics carry the request.
    std::string stop_reason() {
        const std::string reason = stop_.reason();
        if (ctx_.comm->size() == 1) return reason;
        if (!reason.empty()) trainer_.request_stop();
        if (!stop_agreed_ && !trainer_.aborted()) return "";
        return reason.empty() ? "another rank" : reason;
    }

    // Whether --checkpoint-minutes have passed since the last save. Several ranks use rank 0's clock: they save after
    // the step whose metrics carry its request.
    bool clock_says_save() {
        const std::chrono::duration<double, std::ratio<60>> since = StopRequest::Clock::now() - saved_at_;
        const bool now = o_.checkpoint_minutes > 0 && since.count() >= o_.checkpoint_minutes;
        if (ctx_.comm->size() == 1) return now;
        if (now && ctx_.comm->rank() == 0 && !std::exchange(save_requested_, true)) trainer_.request_save();
        return std::exchange(save_agreed_, false);
    }

    // Returns rank 0's answer.
    bool agree(bool decision) { return !broadcast_from_rank_0(decision ? "yes" : "", ctx_).empty(); }

    void report_alignment() {
        std::vector<Json> lines;
        for (const Alignment& a : optimizer_.diagnose(ctx_))
            lines.push_back({{"kind", "diagnose"},
                             {"step", trainer_.steps_done()},
                             {"role", name_of(a.role)},
                             {"layers", Json::array({a.layer_a, a.layer_b})},
                             {"left", a.left_alignment},
                             {"right", a.right_alignment},
                             {"norm_ratio", a.norm_ratio}});
        metrics_.write_lines(lines);  // all or, after a kill, none
    }

    // Saves the state after the last step, whose metrics must have been logged: the log that a checkpoint refers to
    // then has every line up to its step. Throws Error instead if the optimizer's state is not finite.
    void save_now(bool wait, bool interim = false, bool best = false) {
        optimizer_.check_finite(ctx_);
        const int64_t step = trainer_.steps_done();
        saved_step_ = step;
        saved_at_ = StopRequest::Clock::now();
        save_requested_ = save_agreed_ = false;  // this save answers a request under way
        saver_.save({step, step * o_.batch_tokens, trainer_.next_sample(), trainer_.control(), interim,
                     metrics_.position(), best_, run_},
                    best ? std::optional(best_.loss) : std::nullopt, wait);
    }

    const RunPlan& plan_;
    const Options& o_;
    const Json run_;
    const std::string device_;
    Context& ctx_;
    StopRequest& stop_;
    Loader loader_;
    std::unique_ptr<Loader> val_loader_;
    MetricsFile metrics_;
    Console console_;
    std::unique_ptr<Model> model_;
    std::optional<Evaluator> evaluator_;  // if there is validation data
    std::optional<TextSize> val_text_;    // that is evaluated, if known
    BestLoss best_;
    double last_loss_ = std::nan(""), last_val_loss_ = std::nan("");
    bool rise_noted_ = false;
    std::unique_ptr<Samples> samples_;  // of --sample-every, on rank 0
    Optimizer optimizer_;
    Trainer trainer_;
    Saver saver_;
    int64_t saved_step_ = 0;                                               // of the last save that began
    StopRequest::Clock::time_point saved_at_ = StopRequest::Clock::now();  // when it began, or when training did
    int skipped_in_row_ = 0;  // how many skipped updates, once they reached --max-skipped; else 0
    bool stop_agreed_ = false, save_agreed_ = false, save_requested_ = false, diagnosis_missing_ = false,
         evaluation_missing_ = false;
    std::optional<Profiler> profiler_;  // during --profile-steps
};

}  // namespace

int run_training(const RunPlan& plan, const DeviceInfo& device, Context& context, const TrainingStart& start,
                 StopRequest& stop) {
    TrainingLoop loop(plan, device, context, start.changes, stop);
    loop.load(start.resume);
    start.open_folder();
    loop.open(start.resume);
    try {
        return loop.run();
    } catch (const std::exception& error) {
        loop.report_status("failed", message_of(error));
        throw;
    }
}

}  // namespace teon
