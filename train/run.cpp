#include "train/run.h"

#include <fmt/core.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <thread>

#include "base/standard_streams.h"
#include "base/text.h"
#include "files/json.h"
#include "options/command_line.h"
#include "options/parse_options.h"
#include "plan/description.h"
#include "plan/memory.h"
#include "plan/report.h"
#include "runtime/cuda/host_memory.h"
#include "runtime/cuda/known_gpus.h"
#include "train/eval_only.h"
#include "train/loop.h"
#include "train/ranks.h"
#include "train/run_folder.h"

namespace teon {

namespace {

std::string default_run_folder(const Options& o) {
    std::time_t now = std::time(nullptr);
    char stamp[32];
    std::strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", std::localtime(&now));
    return fmt::format("runs/{}-{}-{}", o.model, name_of(o.optimizer.method), stamp);
}

std::optional<DType> dtype_named(std::string_view name) {
    for (DType dtype : {DType::f32, DType::bf16, DType::f16})
        if (name == name_of(dtype)) return dtype;
    return std::nullopt;
}

bool is_cuda() { return std::string_view(backend_name()) == "cuda"; }

// Sets what a resumed run takes from its checkpoint unless a flag gives it.
void resume_as(Options& o, const TrainingState& state, int ranks) {
    const Json& run = state.run;
    const Json& options = run["options"];
    if (run.value("ranks", 1) == ranks) {
        if (o.micro_batch == 0) o.micro_batch = run.value("micro_batch", 0);
        if (run["head_rows"].is_whole()) o.head_rows = run["head_rows"].get<int>();
    }
    o.schedule.warmup_steps = run.value("warmup_steps", int64_t{-1});
    if (o.adopted) o.adopted->content = run.value("init_from", "");
    if (!o.dtype) o.dtype = dtype_named(options.value("dtype", ""));
    // Version 0.2.0 had no --ns-dtype.
    if (!o.ns_dtype) o.ns_dtype = dtype_named(options.value("ns-dtype", is_cuda() ? "f16" : "float"));
    o.mixture_in_turn = run["data"].value("mixture_in_turn", false);
    // Defaults that another version may choose differently.
    if (o.batch_tokens == 0) o.batch_tokens = options.value("batch-tokens", int64_t{0});
    const Json& rate = options["adamw-lr"];
    if (!o.adamw_lr && rate.is_number()) o.adamw_lr = rate.get<float>();
}

std::string gpu_names() {
    std::vector<std::string> names;
    for (const KnownGpu& gpu : known_gpus()) names.push_back(gpu.name);
    return joined(names, ", ");
}

// Without --plan-for, plans for this build's backend with an H100's 80 GiB. --memory replaces the device's memory.
void print_plan(const ModelFamily& family, Options options) {
    adopt_model(options, family, std::nullopt);
    const KnownGpu* const gpu_row = known_gpu(options.plan_for);
    const DeviceInfo* const gpu = gpu_row ? &gpu_row->device : nullptr;
    const int64_t usable = gpu ? usable_bytes(*gpu, options.ranks, options.ranks) : int64_t{80} << 30;
    RunPlan plan = plan_run(family, options, gpu || is_cuda(), options.ranks);
    if (gpu) check_device(plan.run, *gpu);
    plan_memory(plan, options.memory ? options.memory : usable, gpu_row ? &gpu_row->rates : nullptr);
    if (gpu)
        print_output(
            fmt::format("{:<12}{}\n", "device",
                        wrapped(fmt::format("{}: {} multiprocessors, {} of memory, {:.0f} TFLOP/s in bf16", gpu->name,
                                            gpu->multiprocessors, bytes_text(static_cast<double>(gpu->total_bytes)),
                                            gpu->peak_bf16_flops / 1e12),
                                12, text_width())));
    else
        print_output(fmt::format("{:<12}{} with {} (--memory)\n{:<12}{}\n", "device",
                                 is_cuda() ? "a GPU" : "a CPU, for which this program is built,",
                                 bytes_text(static_cast<double>(options.memory ? options.memory : usable)), "",
                                 wrapped("--plan-for h100 plans a GPU; known are " + gpu_names(), 12, text_width())));
    print_output(plan_report(plan));
}

// Plans the run, which resumes from start.resume if that is set. Sets start.changes.
RunPlan plan_training(const ModelFamily& family, Options options, TrainingStart& start, int ranks) {
    adopt_model(options, family, start.resume);
    if (start.resume) resume_as(options, start.resume->state, ranks);
    RunPlan plan = plan_run(family, options, is_cuda(), ranks);
    start.changes = start.resume ? check_unchanged(plan, start.resume->state) : Json::array();
    return plan;
}

// Trains on this rank. Returns the exit status, or minus the signal that is to end the process.
int train(const ModelFamily& family, Options options, std::optional<RunFolder>& folder, const Launch& launch,
          StopRequest& stop) {
    std::optional<Context> opened;
    const auto open_device = [&] {
        require_device();
        set_device_of(launch);
        opened.emplace(options.comm_timeout);
        opened->stream.set_kernels(options.kernels);
    };
    // Several ranks meet first, because NCCL waits for rank 0 only briefly, and rank 0 may have a large checkpoint to
    // read. One rank finds usage errors before it needs a device.
    if (launch.size > 1) open_device();
    try {
        TrainingStart start;
        RunPlan plan;
        if (launch.rank == 0) {
            if (options.out.empty()) options.out = default_run_folder(options);
            if (!folder) folder.emplace(options.out);
            if (options.resume) start.resume = find_resume_point(options.out);
            plan = plan_training(family, options, start, launch.size);
        }
        if (!opened) open_device();
        Context& context = *opened;
        // The other ranks plan once rank 0 has told them the folder, the types and the checkpoint.
        const std::string out = broadcast_from_rank_0(options.out, context);
        const std::string dtype = broadcast_from_rank_0(std::string(name_of(plan.run.dtype)), context);
        const std::string ns_dtype =
            broadcast_from_rank_0(std::string(name_of(plan.options.optimizer.ns_dtype)), context);
        if (options.out.empty()) options.out = out;
        start.resume = resume_point_of_rank_0(options.out, std::move(start.resume), context);
        if (launch.rank > 0) {
            CHECK_USAGE(!options.given_flags.count("--dtype") || !options.dtype || options.dtype == dtype_named(dtype),
                        "--dtype {}: rank 0 stores {}; give all ranks the same", name_of(*options.dtype), dtype);
            options.dtype = dtype_named(dtype);
            if (!options.ns_dtype) options.ns_dtype = dtype_named(ns_dtype);
            plan = plan_training(family, options, start, launch.size);
        }
        const DeviceInfo device = device_info();
        check_device(plan.run, device);
        const KnownGpu* const gpu_row = known_gpu(device.name);
        plan_memory(plan, options.memory ? options.memory : usable_bytes(device, launch.size, launch.local_size),
                    gpu_row ? &gpu_row->rates : nullptr);
        check_host_memory(plan, launch.local_size, host_bytes_available());
        check_equal_on_all_ranks(options.verify_data ? "on" : "off", "--verify-data", context);
        if (options.verify_data)
            on_rank_0(context, [&] {
                for (const DataSet* data : {&plan.train, &plan.val})
                    if (!data->shards.empty()) verify_content(*data);
            });
        start.open_folder = [&] {
            if (folder) {
                folder->create(start.resume.has_value());
                const std::string path = options.out + "/config.json";
                if (!options.config_fault.empty()) std::rename(path.c_str(), (path + ".damaged").c_str());
                write_file_atomically(
                    path, json_text(config_json(plan, device, start.changes), {.indent = 2, .in_order = true}) + "\n");
            }
            check_same_folder(options.out, context);
        };
        return run_training(plan, device, context, start, stop);
    } catch (const std::exception& error) {
        const int status = dynamic_cast<const UsageError*>(&error) ? 2 : 1;
        if (opened) opened->comm->fail(message_of(error), status);
        throw;
    }
}

// Returns the exit status, or minus the signal that is to end the process.
int run(const ModelFamily& family, int argc, const char* const* argv, StopRequest& stop) {
    const Launch launch = launch_from_environment();
    if (launch.rank > 0)
        CHECK(std::freopen("/dev/null", "w", stdout), "/dev/null cannot be opened");  // only rank 0 prints
    std::optional<RunFolder> folder;  // rank 0's, locked before anything in it is read
    const std::optional<Options> options = parse_options(family, argc, argv, [&](const Options& o) {
        if (launch.rank == 0 && !o.plan_only && !o.eval_only) folder.emplace(o.out);
    });
    if (!options) return 0;
    if (!options->plan_only && !options->eval_only) return train(family, *options, folder, launch, stop);
    options->plan_only ? print_plan(family, *options) : evaluate_only(family, *options);
    return 0;
}

// Prints the error. Ranks above 0 wait first: they mostly have the same error as rank 0, and the launcher ends them
// when rank 0 ends. They wait longer after a usage error, when waiting does no harm.
void report_error(const ModelFamily& family, const std::exception& error) {
    std::string rank;
    try {
        if (const Launch launch = launch_from_environment(); launch.rank > 0) {
            rank = fmt::format("rank {}: ", launch.rank);
            const bool usage = dynamic_cast<const UsageError*>(&error) != nullptr;
            std::this_thread::sleep_for(std::chrono::seconds(usage ? 10 : 1));
        }
    } catch (const UsageError&) {  // the environment is the error that is reported
    }
    print_error(error_line(family.program(), rank + message_of(error)));
}

}  // namespace

int train_main(const ModelFamily& family, int argc, const char* const* argv) {
    try {
        prepare_process();
        StopRequest stop;
        const int status = run(family, argc, argv, stop);
        if (status >= 0) return status;
        std::fflush(nullptr);
        end_by_signal(-status);
    } catch (const UsageError& error) {
        report_error(family, error);
        return 2;
    } catch (const std::exception& error) {
        report_error(family, error);
        return 1;
    }
}

}  // namespace teon
