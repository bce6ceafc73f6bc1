#include "train/run.h"

#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>

#include "model/decoder.h"
#include "runtime/context.h"
#include "train/log.h"
#include "train/setup.h"
#include "train/trainer.h"
#include "train/version.h"

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
    for (const ShardInfo& s : shards) list.push_back({{"path", s.path}, {"tokens", s.tokens}});
    return list;
}

json config_json(const ModelFamily& family, const Setup& s, const DeviceInfo& device) {
    const DecoderConfig& c = s.config;
    json stacks = json::array();
    for (const Stack& stack : s.optimizer_plan.stacks) {
        json rows = json::array();
        for (int row : stack.rows) rows.push_back(s.params[row].name);
        stacks.push_back({{"role", name_of(stack.role)}, {"m", stack.m}, {"n", stack.n}, {"mode", stack.mode},
                          {"form", name_of(stack.form)}, {"flops", stack.flops}, {"parameters", rows}});
    }
    json memory = json::object();
    for (const auto& [name, bytes] : s.memory) memory[name] = bytes;
    return {{"program", family.program},
            {"version", source_version()},
            {"device", {{"name", device.name}, {"backend", backend_name()}, {"memory_bytes", device.total_bytes}}},
            {"options", options_json(family, s.options)},
            {"model", {{"family", c.family}, {"preset", c.preset}, {"layers", c.L}, {"channels", c.C}, {"heads", c.NH},
                       {"kv_heads", c.NKV}, {"ffn", c.F}, {"vocab_size", c.V}, {"context", c.max_T},
                       {"parameters", s.params.logical_size()}}},
            {"run", {{"steps", s.steps}, {"micro_batch", s.run.B}, {"micro_steps", s.micro_steps},
                     {"recompute", name_of(s.run.recompute)}, {"eval_windows", s.eval_windows}}},
            {"memory_bytes", memory},
            {"data", {{"train", shards_json(s.train_shards)}, {"val", shards_json(s.val_shards)}}},
            {"stacks", stacks}};
}

LoaderOptions loader_options(const Setup& s, bool training, const Comm& comm) {
    LoaderOptions l;
    l.B = s.run.B;
    l.T = s.run.T;
    l.vocab_size = s.config.V;
    l.shuffle = training && s.options.shuffle;
    l.seed = s.options.seed;
    l.document_mask = s.options.document_mask;
    l.delimiter = s.delimiter;
    if (training) {
        l.rank = comm.rank();
        l.ranks = comm.size();
    }
    return l;
}

void report_eval(const EvalResult& e, int64_t step, int64_t tokens, Console& console, MetricsFile& metrics) {
    metrics.write(json{{"kind", "eval"}, {"step", step}, {"tokens", tokens}, {"val_loss", e.loss},
                       {"val_ppl", std::exp(e.loss)}, {"val_tokens", e.tokens}});
    console.note(fmt::format("eval {} | val loss {:.4f} | perplexity {:.3f} | {} tokens", step, e.loss, std::exp(e.loss), e.tokens));
}

void report_alignment(const std::vector<Alignment>& measurements, int64_t step, MetricsFile& metrics) {
    for (const Alignment& a : measurements)
        metrics.write(json{{"kind", "diagnose"}, {"step", step}, {"role", name_of(a.role)}, {"layers", {a.layer_a, a.layer_b}},
                           {"left", a.left}, {"right", a.right}, {"norm_ratio", a.norm_ratio}});
}

void train(const ModelFamily& family, Setup& s, const DeviceInfo& device) {
    Options& o = s.options;
    if (o.out.empty()) o.out = default_run_folder(o);
    Context context;
    Loader loader(s.train_shards, loader_options(s, true, *context.comm));
    std::unique_ptr<Loader> val_loader;
    if (!s.val_shards.empty()) val_loader = std::make_unique<Loader>(s.val_shards, loader_options(s, false, *context.comm));
    create_run_folder(o.out);
    write_file_atomically(o.out + "/config.json", config_json(family, s, device).dump(2) + "\n");
    MetricsFile metrics(o.out + "/metrics.jsonl");
    Console console(s.steps, o.log_every, decoder_flops_per_token(s.config, s.run.T), device.peak_bf16_flops);
    console.note(fmt::format("{:<12}{}\n{}{:<12}{}\n", "device", device.name, setup_report(s), "run", o.out));

    std::unique_ptr<Model> model = make_decoder(s.config, s.run, context);
    model->params().initialize(o.seed, context.stream);
    Optimizer optimizer(model->params(), o.optimizer, context);
    Trainer trainer(*model, optimizer, loader,
                    {s.steps, o.batch_tokens, s.micro_steps, o.grad_clip, o.optimizer, o.schedule}, context);
    auto log = [&](const std::optional<StepMetrics>& m) {
        if (!m) return;
        metrics.write(*m);
        console.step(*m);
    };
    auto due = [](int64_t every, int64_t step) { return every > 0 && step % every == 0; };
    for (int64_t step = 1; step <= s.steps; ++step) {
        log(trainer.step());
        if (due(o.diagnose_every, step)) report_alignment(optimizer.diagnose(context), step, metrics);
        if (val_loader && (due(o.eval_every, step) || step == s.steps)) {
            log(trainer.finish());
            report_eval(evaluate(*model, *val_loader, s.run.B, s.eval_windows, context), step, step * o.batch_tokens, console, metrics);
        }
    }
    log(trainer.finish());
    context.stream.synchronize();
}

int run(const ModelFamily& family, int argc, const char* const* argv) {
    std::optional<Options> options = parse_options(family, argc, argv);
    if (!options) return 0;
    constexpr int64_t kPlanBytes = int64_t{80} << 30;  // --plan-only plans for a device of 80 GB unless told otherwise
    const bool cuda = std::string_view(backend_name()) == "cuda";
    if (options->plan_only) {
        fmt::print("{}", setup_report(make_setup(family, *options, {cuda, options->memory ? options->memory : kPlanBytes})));
        return 0;
    }
    make_setup(family, *options, {cuda, kPlanBytes});  // usage errors come before any device is touched
    CHECK(device_count() > 0, "no usable GPU was found; build with BACKEND=host to run on the CPU");
    const DeviceInfo device = device_info();
    const int64_t usable = options->memory ? options->memory : static_cast<int64_t>(0.94 * static_cast<double>(device.free_bytes));
    Setup setup = make_setup(family, *options, {device.is_gpu, usable});
    train(family, setup, device);
    return 0;
}

}  // namespace

int train_main(const ModelFamily& family, int argc, const char* const* argv) {
    try {
        return run(family, argc, argv);
    } catch (const UsageError& error) {
        fmt::print(stderr, "{}: error: {}\n", family.program, error.what());
        return 2;
    } catch (const std::exception& error) {
        fmt::print(stderr, "{}: error: {}\n", family.program, error.what());
        return 1;
    }
}

}  // namespace teon
