#include "train/setup.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "base/text.h"
#include "runtime/linalg_library.h"

namespace teon {

namespace {

namespace fs = std::filesystem;

// Flags may repeat what the model of --init-from is.
void check_agrees(const ModelFamily& family, const Options& o, const DecoderConfig& model) {
    const bool preset = o.given.count("--model") > 0;
    const DecoderConfig wanted = with_fields(family.fields, preset ? family.config(o.model) : model, o.fields);
    for (const ModelField& f : family.fields) {
        if (!family.has_flag(f)) continue;
        const bool given = o.given.count(f.flag()) > 0;
        CHECK_USAGE(f.get(wanted) == f.get(model) || !(given || (preset && f.in_preset)),
                    "{} {}: the model of --init-from has {}; leave the flag out to take it as it is",
                    given ? f.flag() : fmt::format("--model {} with {}", o.model, f.key), f.text(wanted),
                    f.text(model));
    }
}

DecoderConfig make_config(const ModelFamily& family, const Options& o, const DataSet& data) {
    DecoderConfig c;
    if (o.adopted) {
        c = o.adopted->config;
        check_agrees(family, o, c);
        CHECK_USAGE(o.seq_len <= c.max_T, "--seq-len {}: the model of --init-from has a context of {}", o.seq_len,
                    c.max_T);
        check_model_tokenizer(data, o.adopted->folder, c.V);
    } else {
        c = with_fields(family.fields, family.config(o.model), o.fields);
        const bool given = o.fields.contains("vocab_size");
        CHECK_USAGE(!given || c.V >= data.vocab_size,
                    "--vocab-size {}: the data's manifest.json says {}; leave the flag out to use that", c.V,
                    data.vocab_size);
        if (!given && data.vocab_size) c.V = data.vocab_size;
        c.max_T = o.seq_len;
    }
    validate(c);
    hf_config(family, c);  // which is what checkpoints are written with
    return c;
}

void open_data(Setup& s) {
    const Options& o = s.options;
    if (o.data.empty()) return;
    s.train = open_dataset(o.data, "train");
    if (!o.val_data.empty()) {
        s.val = open_dataset(o.val_data, "val");
    } else if (fs::is_directory(o.data)) {
        s.val = open_dataset(o.data, "val");
    }
    CHECK_USAGE(s.val.mixture.empty(), "--val-data {}: a mixture cannot be evaluated; name the sources without weights",
                o.val_data);
    check_same_tokenizer(s.train, s.val);
    check_disjoint(s.train, s.val);
    if (!o.plan_only)
        for (DataSet* data : {&s.train, &s.val}) identify(*data);
    for (const ShardInfo& shard : s.train.shards) s.data_tokens += shard.tokens;
}

int64_t windows_of(const std::vector<ShardInfo>& shards, int T) {
    int64_t n = 0;
    for (const ShardInfo& shard : shards) n += std::max<int64_t>(0, (shard.tokens - 1) / T);
    return n;
}

// Sizes the micro-batch and the recompute policy together: the cheapest policy that leaves room for a useful
// micro-batch (8192 tokens, or the rank's whole step if that is less), then the largest divisor of its sequences that
// fits. Where nothing does, the head computes fewer logits at a time.
void fit_to_memory(Setup& s, const DeviceLimits& limits, int64_t fixed_bytes) {
    const Options& o = s.options;
    const int64_t sequences = o.batch_tokens / o.seq_len / limits.ranks;
    const int64_t most_tokens = limits.is_gpu ? 65536 : 4096;  // beyond this, larger products are no faster
    const int64_t useful = std::min<int64_t>(8192, std::min(most_tokens, sequences * o.seq_len));
    const int64_t room = limits.memory_bytes - fixed_bytes;
    auto fits = [&](int B, Recompute policy) {
        DecoderRun trial = s.run;
        trial.B = B;
        trial.recompute = policy;
        return decoder_activations(s.config, trial).total_bytes() <= room;
    };
    std::vector<Recompute> policies = {Recompute::none, Recompute::cheap, Recompute::block};
    if (o.recompute != Recompute::automatic) policies = {o.recompute};
    std::vector<int> sizes;  // largest first
    if (o.micro_batch > 0) {
        sizes = {o.micro_batch};
    } else {
        for (int64_t B = std::min(sequences, std::max<int64_t>(1, most_tokens / o.seq_len)); B >= 1; --B)
            if (sequences % B == 0) sizes.push_back(static_cast<int>(B));
    }
    s.run.B = sizes.back();
    s.run.recompute = policies.back();
    for (Recompute policy : policies)
        for (int B : sizes) {
            if (!fits(B, policy)) continue;
            const bool last_choice = policy == policies.back() || B == sizes.front();
            if (!last_choice && static_cast<int64_t>(B) * o.seq_len < useful) break;
            s.run.B = B;
            s.run.recompute = policy;
            return;
        }
    if (s.run.head_rows > 0) {
        s.run.head_rows = 0;
        return fit_to_memory(s, limits, fixed_bytes);
    }
    DecoderRun smallest = s.run;
    const int64_t wanted = fixed_bytes + decoder_activations(s.config, smallest).total_bytes();
    std::vector<std::string> parts;
    for (const auto& [name, bytes] : s.memory) parts.push_back(name + " " + bytes_text(static_cast<double>(bytes)));
    throw UsageError(
        fmt::format("{} needs {} at --micro-batch {} --recompute {}, but {} are there ({}, the rest activations); {}",
                    o.model, bytes_text(static_cast<double>(wanted)), s.run.B, name_of(s.run.recompute),
                    bytes_text(static_cast<double>(limits.memory_bytes)), fmt::join(parts, ", "), memory_advice(s)));
}

// Flags have limits of their own; what they multiply to is counted in 64 bits, and rows in 32.
void check_countable(const Setup& s) {
    const Options& o = s.options;
    int64_t tokens = 0;
    CHECK_USAGE(!__builtin_mul_overflow(s.steps, o.batch_tokens, &tokens) && tokens <= INT64_MAX / 8,
                "--steps {} x --batch-tokens {}: more tokens than can be counted ({:.1e})", s.steps, o.batch_tokens,
                static_cast<double>(s.steps) * static_cast<double>(o.batch_tokens));
    const DecoderConfig& c = s.config;
    const double rows = static_cast<double>(std::max(1, o.micro_batch)) * o.seq_len;
    const double width = static_cast<double>(c.NH) * o.seq_len + 8.0 * (c.C + c.Fp() + c.qkv_width());
    const double bytes = 4 * rows * (c.L * width + c.Vp());
    CHECK_USAGE(rows <= INT_MAX && bytes <= 0x1p60,
                "--micro-batch {} x --seq-len {}: {:.1e} tokens with {:.1e} bytes of activations are more than can be "
                "counted; lower one of the two",
                std::max(1, o.micro_batch), o.seq_len, rows, bytes);
}

// --batch-tokens unless it is given: 524288, or on a CPU what 2e12 operations train, some seconds' work; rounded to
// whole sequences, as many on each rank.
int64_t default_batch_tokens(const Setup& s, const DeviceLimits& limits) {
    constexpr double kGpuTokens = 524288, kCpuOperations = 2e12;
    const double tokens = limits.is_gpu
                              ? kGpuTokens
                              : limits.ranks * kCpuOperations / decoder_flops_per_token(s.config, s.options.seq_len);
    const int64_t unit = int64_t{limits.ranks} * std::max(1, s.options.micro_batch) * s.options.seq_len;
    return std::max<int64_t>(1, static_cast<int64_t>(std::min(tokens, kGpuTokens)) / unit) * unit;
}

void check_shares(const Options& o, int ranks) {
    const int64_t sequences = o.batch_tokens / o.seq_len, each = o.micro_batch > 0 ? o.micro_batch : 1;
    CHECK_USAGE(sequences % (each * ranks) == 0,
                "--batch-tokens {}: its {} sequences are no multiple of {} ranks{}; {} tokens would be", o.batch_tokens,
                sequences, ranks, o.micro_batch > 0 ? fmt::format(" x --micro-batch {}", each) : "",
                (sequences / (each * ranks) + 1) * each * ranks * o.seq_len);
}

// Elements of what one product writes: a matrix, or several that are joined.
int64_t largest_gradient(const ParamTable& params) {
    int64_t largest = 0, joined = 0;
    for (const ParamRow& row : params.rows()) {
        joined = row.joined ? joined + row.size() : row.size();
        largest = std::max(largest, joined);
    }
    return largest;
}

void plan_length(Setup& s) {
    const Options& o = s.options;
    if (o.steps) {
        s.steps = o.steps;
    } else if (o.tokens) {
        s.steps = o.tokens / o.batch_tokens;
        CHECK_USAGE(s.steps > 0, "--tokens {}: less than one step of --batch-tokens {}", o.tokens, o.batch_tokens);
    } else if (!s.train.shards.empty()) {
        CHECK_USAGE(s.train.mixture.empty(),
                    "--epochs: the sources of a mixture have epochs of their own; give --steps or "
                    "--tokens");
        const double windows = static_cast<double>(windows_of(s.train.shards, o.seq_len));
        s.steps =
            static_cast<int64_t>(std::floor(o.epochs * windows * o.seq_len / static_cast<double>(o.batch_tokens)));
        CHECK_USAGE(s.steps > 0, "--epochs {}: the data's {} tokens are less than one step of --batch-tokens {}",
                    o.epochs, s.data_tokens, o.batch_tokens);
    }
    const auto [first, last] = o.profile_steps;
    CHECK_USAGE(last == 0 || s.steps == 0 || last <= s.steps, "--profile-steps {}:{}: the run has {} steps", first,
                last, s.steps);
    if (!s.val.shards.empty()) {
        const int64_t limit = o.eval_tokens ? o.eval_tokens : 10485760;
        s.eval_windows = std::min(windows_of(s.val.shards, o.seq_len), std::max<int64_t>(1, limit / o.seq_len));
        CHECK_USAGE(s.eval_windows > 0, "--val-data: {} has no window of --seq-len {} + 1 tokens", s.val.shards[0].path,
                    o.seq_len);
    }
}

// Of a GPU's context, the code of kernels, cuBLASLt and cuSOLVER with their workspaces, NCCL's buffers; of the program
// and its libraries on a CPU, and MPI. Measured on CPUs; of a GPU from what NVIDIA's libraries are known to take.
constexpr int64_t kGpuAllowance = int64_t{1} << 30, kNcclAllowance = int64_t{512} << 20,
                  kCpuAllowance = int64_t{128} << 20, kMpiAllowance = int64_t{64} << 20;

// What the process holds beside activations.
void plan_fixed_memory(Setup& s, const DeviceLimits& limits) {
    const Options& o = s.options;
    const int64_t P = s.params.size();
    const std::vector<int64_t>& state = s.placement.state_bytes;
    s.memory.push_back({"weights, float masters", 4 * P});
    if (s.run.dtype == DType::bf16) s.memory.push_back({"weights, bf16", 2 * P});
    s.memory.push_back({"gradients, float", 4 * P});
    s.memory.push_back({"optimizer state", *std::max_element(state.begin(), state.end())});
    s.memory.push_back({"optimizer scratch", s.optimizer_plan.scratch_bytes});
    if (o.autotune) s.memory.push_back({"algorithm search, for a moment", 4 * largest_gradient(s.params)});
    if (o.sample_every) s.memory.push_back({"samples", generator_bytes(s.config, 1, s.config.max_T, s.run.dtype)});
    // Rank 0's, of all ranks' state; and the largest tensor once more, in its file's order. On a CPU it is the same memory.
    const int64_t all_state = std::accumulate(state.begin(), state.end(), int64_t{0});
    (limits.is_gpu ? s.host_memory : s.memory)
        .push_back({"checkpoint being written", 4 * P + all_state + 4 * largest_gradient(s.params)});
    s.memory.push_back(limits.is_gpu ? std::pair{"CUDA and libraries, allowance", kGpuAllowance}
                                     : std::pair{"program, libraries, allowance", kCpuAllowance});
    if (limits.ranks > 1)
        s.memory.push_back(limits.is_gpu ? std::pair{"NCCL, allowance", kNcclAllowance}
                                         : std::pair{"MPI, allowance", kMpiAllowance});
}

}  // namespace

std::string memory_advice(const Setup& s) {
    std::vector<std::string> ways;
    if (s.run.B > 1) ways.push_back("lower --micro-batch");
    if (s.run.recompute != Recompute::block) ways.push_back("give --recompute block");
    if (s.run.T > 1) ways.push_back("lower --seq-len");
    if (s.options.optimizer.method == Method::adamw) ways.push_back("give --optimizer muon (half of AdamW's state)");
    return fmt::format("{} or use a smaller model", fmt::join(ways, ", "));
}

int64_t Setup::memory_bytes() const {
    int64_t sum = 0;
    for (const auto& [name, bytes] : memory) sum += bytes;
    return sum;
}

Setup make_setup(const ModelFamily& family, const Options& options, const DeviceLimits& limits) {
    Setup s;
    s.family = &family;
    s.options = options;
    if (options.adopted && !options.given.count("--seq-len"))
        s.options.seq_len = std::min(options.seq_len, options.adopted->config.max_T);
    check_batch(s.options);
    open_data(s);
    s.config = make_config(family, s.options, s.train);
    CHECK_USAGE(
        !options.document_mask || s.train.delimiter >= 0 || options.data.empty(),
        "--document-mask: {} has no manifest.json that names the delimiter; make the shards with scripts/prepare.py",
        options.data);
    if (s.options.batch_tokens == 0) s.options.batch_tokens = default_batch_tokens(s, limits);
    check_shares(s.options, limits.ranks);
    plan_length(s);
    check_countable(s);

    s.run.T = s.options.seq_len;
    const DTypeChoice dtype = choose_dtype(options.dtype);
    s.dtype_reason = dtype.reason;
    s.options.dtype = s.run.dtype = dtype.dtype;
    if (limits.is_gpu) s.run.head_rows = 8192;  // a CPU's caches are better served by the default
    s.run.gelu_fusion = options.gelu_fusion;
    s.run.one_pass_places = limits.one_pass_places;
    s.run.attention = options.attention;
    s.run.attention = resolve_attention(s.config, s.run);
    s.options.optimizer.ns_dtype = limits.is_gpu ? DType::f16 : DType::f32;
    s.params = decoder_params(s.config);
    s.optimizer_plan = plan_optimizer(s.params, s.options.optimizer);
    s.placement = place(s.params, s.optimizer_plan, s.options.optimizer, limits.ranks);

    plan_fixed_memory(s, limits);
    fit_to_memory(s, limits, s.memory_bytes());
    s.activations = decoder_activations(s.config, s.run);
    s.memory.push_back({"activations, saved", s.activations.saved_bytes()});
    s.memory.push_back({"activations, scratch", s.activations.scratch_bytes()});
    s.micro_steps = static_cast<int>(s.options.batch_tokens / s.options.seq_len / limits.ranks / s.run.B);
    s.options.micro_batch = s.run.B;
    return s;
}

namespace {

// What each policy holds and what it costs: "none (activations: none 3.1 GiB, cheap 2.2 GiB, block 0.9 GiB with 24%
// more arithmetic)".
std::string recompute_text(const Setup& s) {
    std::vector<std::string> policies;
    for (Recompute policy : {Recompute::none, Recompute::cheap, Recompute::block}) {
        DecoderRun run = s.run;
        run.recompute = policy;
        const double bytes = static_cast<double>(decoder_activations(s.config, run).total_bytes());
        const double more = 100 * recompute_flops_share(s.config, s.run.T, policy);
        policies.push_back(fmt::format("{} {}", name_of(policy), bytes_text(bytes)));
        if (more > 0) policies.back() += fmt::format(" with {:.0f}% more arithmetic", more);
    }
    return fmt::format("{} (activations: {})", name_of(s.run.recompute), fmt::join(policies, ", "));
}

}  // namespace

std::string setup_report(const Setup& s) {
    const DecoderConfig& c = s.config;
    const Options& o = s.options;
    std::string out;
    auto line = [&](std::string_view name, std::string value) { out += fmt::format("{:<12}{}\n", name, value); };
    line("model",
         fmt::format("{} {}: {} layers, {} channels, {} heads{}, MLP {}, vocabulary {}, context {}", c.family, c.preset,
                     c.L, c.C, c.NH, c.NKV == c.NH ? "" : fmt::format(" ({} key/value)", c.NKV), c.F, c.V, c.max_T));
    line("parameters", fmt::format("{} ({}), stored as {}", s.params.logical_size(),
                                   count_text(static_cast<double>(s.params.logical_size())), name_of(s.run.dtype)));
    if (!s.train.shards.empty())
        line("data", fmt::format("{} tokens in {} shard{}{}", count_text(static_cast<double>(s.data_tokens)),
                                 s.train.shards.size(), s.train.shards.size() == 1 ? "" : "s",
                                 s.val.shards.empty() ? ", no validation data"
                                                      : fmt::format(", {} validation windows", s.eval_windows)));
    for (size_t i = 0; i < s.train.mixture.size(); ++i) {
        int64_t windows = 0;
        for (const ShardInfo& shard : s.train.shards)
            if (shard.source == static_cast<int>(i)) windows += (shard.tokens - 1) / o.seq_len;
        const int64_t sequences = s.steps * (o.batch_tokens / o.seq_len);
        const double seen = s.train.mixture[i] * static_cast<double>(sequences);
        line("", fmt::format("{:.4g}% of {}: {:.2f} epochs", 100 * s.train.mixture[i], s.train.sources[i],
                             seen / static_cast<double>(windows)));
    }
    const int ranks = s.placement.ranks;
    line("step", fmt::format("{} tokens = {}{} x {} sequences of {}", o.batch_tokens,
                             ranks > 1 ? fmt::format("{} ranks x ", ranks) : "", s.micro_steps, s.run.B, o.seq_len));
    if (s.steps)
        line("length",
             fmt::format("{} steps = {} tokens{}", s.steps, count_text(static_cast<double>(s.steps * o.batch_tokens)),
                         s.data_tokens ? fmt::format(" = {:.2f} epochs", static_cast<double>(s.steps * o.batch_tokens) /
                                                                             static_cast<double>(s.data_tokens))
                                       : ""));
    line("checkpoints",
         fmt::format("at the end{}{}", o.checkpoint_every ? fmt::format(", every {} steps", o.checkpoint_every) : "",
                     o.checkpoint_minutes > 0
                         ? fmt::format(", after {:g} minutes without one (replaced by the next)", o.checkpoint_minutes)
                         : ""));
    line("dtype", fmt::format("{} ({})", name_of(s.run.dtype), s.dtype_reason));
    line("attention", std::string(name_of(s.run.attention)));
    if (s.run.gelu_fusion) line("GELU", "epilogue of the MLP's products");
    line("recompute", recompute_text(s));
    for (const ActivationRow& row : s.activations.rows())
        if (row.name == "logits chunk")
            line("head", fmt::format("{} rows of logits at a time, {}", row.bytes / (c.Vp() * size_of(s.run.dtype)),
                                     bytes_text(static_cast<double>(row.bytes))));
    out += "memory\n";
    for (const auto& [name, bytes] : s.memory)
        out += fmt::format("  {:<30}{:>12}\n", name, bytes_text(static_cast<double>(bytes)));
    out += fmt::format("  {:<30}{:>12}\n", "total", bytes_text(static_cast<double>(s.memory_bytes())));
    if (!s.host_memory.empty()) out += "memory of the host, pinned, of rank 0\n";
    for (const auto& [name, bytes] : s.host_memory)
        out += fmt::format("  {:<30}{:>12}\n", name, bytes_text(static_cast<double>(bytes)));
    out += plan_table(s.params, s.optimizer_plan, o.optimizer);
    if (ranks > 1) out += placement_table(s.params, s.placement, s.run.dtype, o.bandwidth);
    return out;
}

}  // namespace teon
