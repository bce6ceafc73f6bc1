#include "train/run.h"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <thread>

#include "generation/generate.h"
#include "kernels/attention_flash.h"
#include "options/command_line.h"
#include "options/version.h"
#include "runtime/linalg_library.h"
#include "train/evaluation.h"
#include "train/loop.h"
#include "train/run_folder.h"

namespace teon {

namespace {

using json = nlohmann::ordered_json;

std::string default_run_folder(const Options& o) {
    std::time_t now = std::time(nullptr);
    char stamp[32];
    std::strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", std::localtime(&now));
    return fmt::format("runs/{}-{}-{}", o.model, name_of(o.optimizer.method), stamp);
}

json shards_json(const std::vector<ShardInfo>& shards) {
    json list = json::array();
    for (const ShardInfo& s : shards)
        list.push_back({{"path", s.path}, {"tokens", s.tokens}, {"content", s.content}, {"source", s.source}});
    return list;
}

json mixture_json(const DataSet& data) {
    json list = json::array();
    for (size_t i = 0; i < data.mixture.size(); ++i)
        list.push_back({{"source", data.sources[i]}, {"share", data.mixture[i]}});
    return list;
}

std::optional<DType> storage_named(std::string_view name) {
    for (DType dtype : {DType::f32, DType::bf16})
        if (name == name_of(dtype)) return dtype;
    return std::nullopt;
}

json config_json(const ModelFamily& family, const Setup& s, const DeviceInfo& device, const nlohmann::json& changes) {
    const DecoderConfig& c = s.config;
    json model = {{"family", c.family}, {"preset", c.preset}, {"parameters", s.params.logical_size()}};
    model.update(run_json(family, s)["model"]);
    json stacks = json::array();
    for (const Stack& stack : s.optimizer_plan.stacks) {
        json rows = json::array();
        for (int row : stack.rows) rows.push_back(s.params[row].name);
        stacks.push_back({{"role", name_of(stack.role)},
                          {"m", stack.m},
                          {"n", stack.n},
                          {"mode", stack.mode},
                          {"form", name_of(stack.form)},
                          {"flops", stack.flops},
                          {"parameters", rows}});
    }
    json memory = json::object();
    for (const auto* part : {&s.memory, &s.host_memory})
        for (const auto& [name, bytes] : *part) memory[name] = bytes;
    return {{"program", family.program()},
            {"version", source_version()},
            {"device",
             {{"name", device.name},
              {"backend", backend_name()},
              {"memory_bytes", device.total_bytes},
              {"products", linalg_library().name}}},
            {"storage", {{"dtype", name_of(s.run.dtype)}, {"reason", s.dtype_reason}}},
            {"options", options_json(family, s.options)},
            {"model", model},
            {"seed", s.options.seed},
            {"experiment", experiment_json(family, s)},
            {"changes", changes},
            {"run",
             {{"steps", s.steps},
              {"micro_batch", s.run.B},
              {"micro_steps", s.micro_steps},
              {"ranks", s.placement.ranks},
              {"attention", name_of(s.run.attention)},
              {"recompute", name_of(s.run.recompute)},
              {"eval_windows", s.eval_windows}}},
            {"memory_bytes", memory},
            {"data",
             {{"train", shards_json(s.train.shards)},
              {"val", shards_json(s.val.shards)},
              {"mixture", mixture_json(s.train)},
              {"vocab_size", s.train.vocab_size},
              {"delimiter", s.train.delimiter},
              {"tokenizer", s.train.tokenizer}}},
            {"stacks", stacks}};
}

// What a run may plan with. Several ranks must come to the same plan, so they go by what their devices have in all, not
// by what happens to be free; ranks on CPUs share their machine's memory.
int64_t usable_bytes(const DeviceInfo& device, const Launch& launch) {
    if (launch.size == 1) return static_cast<int64_t>(0.94 * static_cast<double>(device.free_bytes));
    return static_cast<int64_t>(0.9 * static_cast<double>(device.total_bytes)) /
           (device.is_gpu ? 1 : launch.local_size);
}

// What a run that resumes takes from its checkpoint, as far as the flags leave it open.
void go_on_as(Options& o, const TrainingState& state, int ranks) {
    if (o.micro_batch == 0 && state.run.value("ranks", 1) == ranks) o.micro_batch = state.run.value("micro_batch", 0);
    o.schedule.warmup_steps = state.run.value("warmup_steps", int64_t{-1});
    if (o.adopted) o.adopted->content = state.run.value("init_from", "");
    if (!o.dtype) o.dtype = storage_named(state.run.value("/options/dtype"_json_pointer, ""));
}

// The signal that has ended the run, else 0.
int run(const ModelFamily& family, int argc, const char* const* argv, StopRequest& stop) {
    const Launch launch = launch_from_environment();
    if (launch.rank > 0)
        CHECK(std::freopen("/dev/null", "w", stdout), "/dev/null cannot be opened");  // rank 0 speaks for all
    // Before rank 0 reads a thing in the run's folder it is the only one there.
    std::optional<RunFolder> folder;
    std::optional<Options> options = parse_options(family, argc, argv, [&](const Options& o) {
        if (launch.rank == 0 && !o.plan_only && !o.eval_only) folder.emplace(o.out);
    });
    if (!options) return 0;
    // --plan-only plans for an H100 of 80 GB, unless told otherwise.
    constexpr int64_t kPlanBytes = int64_t{80} << 30;
    constexpr int kPlanPlaces = 132;
    const bool cuda = std::string_view(backend_name()) == "cuda";
    if (options->plan_only) {
        adopt_model(*options, family, "", nullptr);
        fmt::print("{}", setup_report(make_setup(family, *options,
                                                 {cuda, options->memory ? options->memory : kPlanBytes, options->ranks,
                                                  cuda ? kPlanPlaces : 0})));
        return 0;
    }
    if (options->eval_only) {
        evaluate_only(family, *options);
        return 0;
    }
    // Rank 0 decides where the run begins.
    std::optional<ResumePoint> resume;
    if (launch.rank == 0) {
        if (options->out.empty()) options->out = default_run_folder(*options);
        if (!folder) folder.emplace(options->out);
        if (options->resume) resume = find_resume_point(options->out);
    }
    std::string checkpoint = resume ? resume->found.folder : "";
    if (launch.rank > 0 && options->resume)  // as far as this rank sees them now
        if (const std::vector<int64_t> steps = list_checkpoints(options->out); !steps.empty())
            checkpoint = options->out + "/" + checkpoint_name(steps.back());
    adopt_model(*options, family, checkpoint, resume ? &resume->state : nullptr);
    if (resume) go_on_as(*options, resume->state, launch.size);
    constexpr int64_t kAnyBytes = INT64_MAX / 2;
    const Setup planned = make_setup(family, *options, {cuda, kAnyBytes, launch.size});
    if (resume) check_unchanged(family, resume->state, planned);
    CHECK(device_count() > 0, "no usable GPU was found; build with BACKEND=cpu to run on the CPU");
    set_device_of(launch);  // usage errors come before any device is touched
    const DeviceInfo device = device_info();
    Context context(options->comm_timeout);
    try {
        resume = resume_point_of_rank_0(options->out, std::move(resume), context);
        if (resume) go_on_as(*options, resume->state, launch.size);
        const std::string out = text_of_rank_0(options->out, context);
        if (options->out.empty()) options->out = out;
        const std::string dtype = text_of_rank_0(std::string(name_of(planned.run.dtype)), context);
        if (launch.rank > 0) options->dtype = storage_named(dtype);  // machines differ in what suits them
        const int64_t usable = options->memory ? options->memory : usable_bytes(device, launch);
        const Setup setup =
            make_setup(family, *options, {device.is_gpu, usable, launch.size, flash_attention_one_pass_places(device)});
        if (options->verify_data && launch.rank == 0)
            for (const DataSet* data : {&setup.train, &setup.val})
                if (!data->shards.empty()) verify_content(*data);
        TrainingStart start;
        start.resume = resume;
        start.changes = resume ? check_unchanged(family, resume->state, setup) : nlohmann::json::array();
        start.open_folder = [&] {
            if (folder) {
                folder->create(resume.has_value());
                const std::string path = setup.options.out + "/config.json";
                if (!setup.options.config_fault.empty()) std::rename(path.c_str(), (path + ".damaged").c_str());
                write_file_atomically(path, config_json(family, setup, device, start.changes).dump(2) + "\n");
            }
            check_same_folder(setup.options.out, context);
        };
        return run_training(family, setup, device, context, start, stop);
    } catch (const std::exception& error) {
        context.comm->fail(error.what());
        throw;
    }
}

// What all ranks would say is said once: the others give rank 0 time, in which its end ends them. More of it for usage
// errors, which all ranks find, and no harm is done by waiting.
void report_error(const ModelFamily& family, const std::exception& error) {
    std::string rank;
    try {
        if (const Launch launch = launch_from_environment(); launch.rank > 0) {
            rank = fmt::format("rank {}: ", launch.rank);
            const bool usage = dynamic_cast<const UsageError*>(&error) != nullptr;
            std::this_thread::sleep_for(std::chrono::seconds(usage ? 10 : 1));
        }
    } catch (const UsageError&) {  // then that is the error
    }
    fmt::print(stderr, "{}", error_line(family.program(), rank + error.what()));
}

}  // namespace

int train_main(const ModelFamily& family, int argc, const char* const* argv) {
    try {
        StopRequest stop;
        if (run(family, argc, argv, stop) != SIGINT) return 0;
        std::fflush(nullptr);
        end_by_signal(SIGINT);
    } catch (const UsageError& error) {
        report_error(family, error);
        return 2;
    } catch (const std::exception& error) {
        report_error(family, error);
        return 1;
    }
}

}  // namespace teon
