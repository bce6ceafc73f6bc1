#include "train/run.h"

#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <optional>
#include <thread>

#include "base/gpus.h"
#include "base/standard_streams.h"
#include "base/text.h"
#include "files/json.h"
#include "options/command_line.h"
#include "options/parse_options.h"
#include "plan/description.h"
#include "plan/memory.h"
#include "plan/report.h"
#include "runtime/cuda/exchange.h"
#include "runtime/cuda/host_memory.h"
#include "train/eval_only.h"
#include "train/inputs.h"
#include "train/loop.h"
#include "train/ranks.h"
#include "train/run_folder.h"

namespace teon {

namespace {

std::string default_run_folder(const Options& o) {
    std::time_t now = std::time(nullptr);
    char stamp[32];
    std::strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", std::localtime(&now));
    const char* const job = std::getenv("SLURM_JOB_ID");  // jobs of an array begin in the same second
    return fmt::format("runs/{}-{}-{}{}", o.model, name_of(o.optimizer.method), stamp,
                       job ? fmt::format("-{}", job) : "");
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

// Checks the device and plans memory for it, which a plan and a run do alike. Returns the bytes that the run may use.
int64_t fit_to_device(RunPlan& plan, const DeviceInfo& device, int local_ranks) {
    check_device(plan.run, device);
    const int64_t given = plan.options.memory;
    const int64_t bytes = given ? given : usable_bytes(device, plan.ranks, local_ranks);
    const GpuModel* const gpu = known_gpu(device.name);
    plan_memory(plan, bytes, gpu ? &gpu->rates : nullptr);
    return bytes;
}

// Plans for this machine, or for the GPU of --plan-for: an H100 if the program is built for GPUs and there is none.
void print_plan(const ModelFamily& family, Options options) {
    if (!options.out.empty()) RunFolder::check(options.out);
    adopt_model(options, family, std::nullopt);
    if (options.plan_for.empty() && device_count() == 0) options.plan_for = "h100";
    const GpuModel* const gpu = known_gpu(options.plan_for);
    const DeviceInfo device = gpu ? device_of(gpu->sheet) : device_info();
    RunPlan plan = plan_run(family, options, device.is_gpu, options.ranks);
    const int64_t usable = fit_to_device(plan, device, options.ranks);
    if (!gpu) check_host_memory(plan, options.ranks, host_bytes_available());
    check_inputs(plan);
    if (!options.out.empty() && !options.resume) RunFolder::check_new(options.out);
    const auto size = [](auto bytes) { return bytes_text(static_cast<double>(bytes)); };
    const std::string text =
        gpu ? fmt::format("{}: {} multiprocessors, {} of memory, {:.0f} TFLOP/s in bf16", device.name,
                          device.multiprocessors, size(device.total_bytes), device.peak_bf16_flops / 1e12)
            : fmt::format("{}: this machine, with {} for the run (--memory); --plan-for plans a GPU: {}", device.name,
                          size(usable), joined(plan_names(), ", "));
    print_output(fmt::format("{:<12}{}\n{}", "device", wrapped(text, 12, text_width()), plan_report(plan)));
}

// Plans the run, which resumes from start.resume if that is set. Sets start.changes.
RunPlan plan_training(const ModelFamily& family, Options options, TrainingStart& start, int ranks) {
    adopt_model(options, family, start.resume);
    if (start.resume) resume_as(options, start.resume->state, ranks);
    RunPlan plan = plan_run(family, options, is_cuda(), ranks);
    start.changes = start.resume ? check_unchanged(plan, start.resume->state) : Json::array();
    return plan;
}

// What rank 0 decides for all: the run's folder, the types that its machine suggests, and the checkpoint from which the
// run continues (identity_of()).
struct Agreed {
    std::string out, dtype, ns_dtype, checkpoint;

    std::string text() const {
        return json_text({{"out", out}, {"dtype", dtype}, {"ns_dtype", ns_dtype}, {"checkpoint", checkpoint}});
    }
    static Agreed parse(const std::string& text) {
        const Json j = parse_json(text, "rank 0's plan");
        return {j.value("out", ""), j.value("dtype", ""), j.value("ns_dtype", ""), j.value("checkpoint", "")};
    }
};

// Plans on rank 0, whose folder is locked before anything in it is read.
RunPlan agree_on_rank_0(Agreed& agreed, const ModelFamily& family, Options options, TrainingStart& start,
                        std::optional<RunFolder>& folder, int ranks) {
    if (options.out.empty()) options.out = default_run_folder(options);
    if (!folder) folder.emplace(options.out);
    if (options.resume) start.resume = find_resume_point(options.out);
    RunPlan plan = plan_training(family, options, start, ranks);
    agreed = {options.out, std::string(name_of(plan.run.dtype)), std::string(name_of(plan.options.optimizer.ns_dtype)),
              identity_of(options.out, start.resume)};
    return plan;
}

// Plans on another rank.
RunPlan plan_from(const Agreed& agreed, const ModelFamily& family, Options options, TrainingStart& start,
                  const Launch& launch) {
    if (options.out.empty()) options.out = agreed.out;
    if (!agreed.checkpoint.empty()) start.resume = resume_point(options.out, agreed.checkpoint, launch.rank);
    const std::optional<DType> dtype = dtype_named(agreed.dtype);
    CHECK_USAGE(!options.given_flags.count("--dtype") || !options.dtype || options.dtype == dtype,
                "--dtype {}: rank 0 stores {}; give all ranks the same", name_of(*options.dtype), agreed.dtype);
    options.dtype = dtype;
    if (!options.ns_dtype) options.ns_dtype = dtype_named(agreed.ns_dtype);
    return plan_training(family, options, start, launch.size);
}

// Plans memory for the device, checks the machine and trains. Returns the exit status, or minus the signal that is to
// end the process.
int train_as_planned(RunPlan plan, TrainingStart& start, std::optional<RunFolder>& folder, const Launch& launch,
                     Context& context, StopRequest& stop) {
    const Options& o = plan.options;
    const DeviceInfo device = device_info();
    fit_to_device(plan, device, launch.local_size);
    check_host_memory(plan, launch.local_size, host_bytes_available());
    start.open_folder = [&] {
        if (folder) {
            folder->create(start.resume.has_value());
            const std::string path = o.out + "/config.json";
            if (!o.config_fault.empty()) std::rename(path.c_str(), (path + ".damaged").c_str());
            write_file_atomically(
                path, json_text(config_json(plan, device, start.changes), {.indent = 2, .in_order = true}) + "\n");
        }
        check_same_folder(o.out, context);
    };
    return run_training(plan, device, context, start, stop);
}

void open_device(std::optional<Context>& context, const Options& o, const Launch& launch) {
    require_device();
    set_device_of(launch);
    context.emplace(o.comm_timeout);
    context->stream.set_kernels(o.kernels);
}

// Trains on this rank. Returns the exit status, or minus the signal that is to end the process.
int train(const ModelFamily& family, const Options& options, std::optional<RunFolder>& folder, const Launch& launch,
          StopRequest& stop) {
    std::optional<Context> context;
    // Several ranks meet first, because NCCL waits for rank 0 only briefly, and rank 0 may have a large checkpoint to
    // read. One rank finds usage errors before it needs a device.
    if (launch.size > 1) open_device(context, options, launch);
    try {
        TrainingStart start;
        RunPlan plan;
        Agreed agreed;
        if (launch.rank == 0) plan = agree_on_rank_0(agreed, family, options, start, folder, launch.size);
        if (!context) open_device(context, options, launch);
        agreed = Agreed::parse(broadcast_from_rank_0(agreed.text(), *context));
        if (launch.rank > 0) plan = plan_from(agreed, family, options, start, launch);
        return train_as_planned(std::move(plan), start, folder, launch, *context, stop);
    } catch (const std::exception& error) {
        const int status = dynamic_cast<const UsageError*>(&error) ? 2 : 1;
        if (context) context->comm->fail(message_of(error), status);
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

// srun ends the other ranks by SIGTERM when one fails, and ends with the largest of their statuses. Call it in the main
// thread, which the system prefers to the one that waits for signals.
void end_with_2_by_sigterm() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    std::signal(SIGTERM, [](int) { _exit(2); });
    pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

// Prints the error and returns the status. Ranks mostly have the same error, which one is to print. Over MPI they agree
// which one, unless a rank does not come; else ranks above 0 wait for the launcher to end them when rank 0 ends. They
// wait longer after a usage error, when waiting does no harm.
int report_error(const ModelFamily& family, const std::exception& error, int status) {
    Launch launch;
    try {
        launch = launch_from_environment();
    } catch (const UsageError&) {  // the environment is the error that is reported
    }
    const std::string rank = launch.rank > 0 ? fmt::format("rank {}: ", launch.rank) : "";
    const std::string line = error_line(family.program(), rank + message_of(error));
    if (launch.size > 1) {
        const auto patience = std::chrono::seconds(status == 2 || launch.mpi ? 10 : 1);
        std::thread report_late([=] {
            std::this_thread::sleep_for(patience);
            print_error(line);
            std::_Exit(status);
        });
        if (launch.by == "srun" && status == 2) end_with_2_by_sigterm();
        const bool reported = report_over_mpi(launch, status, [&] { print_error(line); });
        if (!reported && launch.rank > 0) report_late.join();
        report_late.detach();
        if (reported) return status;
    }
    print_error(line);
    if (launch.by == "srun") std::this_thread::sleep_for(std::chrono::seconds(1));  // until the others wait
    return status;
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
    } catch (const UsageError& error) { return report_error(family, error, 2); } catch (const std::exception& error) {
        return report_error(family, error, 1);
    }
}

}  // namespace teon
