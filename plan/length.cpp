#include <algorithm>
#include <bit>
#include <climits>
#include <cmath>

#include "base/text.h"
#include "plan/run_plan.h"

namespace teon {

namespace {

constexpr int64_t kFewSteps = 50;       // fewer teach a model almost nothing: the warmup alone takes some
constexpr int64_t kStepsOfEpoch = 200;  // at least, if --batch-tokens is not given
constexpr int64_t kMaxBatchTokens = 524288;

int64_t windows_of(const std::vector<ShardInfo>& shards, int T) {
    int64_t n = 0;
    for (const ShardInfo& shard : shards) n += std::max<int64_t>(0, (shard.tokens - 1) / T);
    return n;
}

// Returns the least tokens of a step: a sequence or --micro-batch for each rank.
int64_t batch_unit(const RunPlan& p) {
    return int64_t{p.ranks} * std::max(1, p.options.micro_batch) * p.options.seq_len;
}

// Returns the tokens of an epoch, or of the run if that is shorter; 0 if neither data nor flags say.
double tokens_to_divide(const RunPlan& p) {
    const Options& o = p.options;
    double tokens = INFINITY;
    if (!p.train.shards.empty()) tokens = static_cast<double>(windows_of(p.train.shards, o.seq_len) * o.seq_len);
    if (o.epochs > 0) tokens *= std::min(1.0, o.epochs);
    if (o.tokens > 0) tokens = std::min(tokens, static_cast<double>(o.tokens));
    return tokens;
}

// Returns n with its bits after the third cleared, so that many micro-batches divide it: 211 gives 192.
int64_t rounded_down(int64_t n) {
    const int dropped = std::max(0, static_cast<int>(std::bit_width(static_cast<uint64_t>(n))) - 3);
    return n >> dropped << dropped;
}

int64_t default_batch_tokens(const RunPlan& p) {
    constexpr double kCpuOperations = 2e12;
    double tokens = tokens_to_divide(p) / kStepsOfEpoch;
    if (!p.is_gpu)
        tokens = std::min(tokens, p.ranks * kCpuOperations / decoder_flops_per_token(p.config, p.options.seq_len));
    const int64_t unit = batch_unit(p), most = std::max<int64_t>(1, kMaxBatchTokens / unit);
    const double units = tokens / static_cast<double>(unit);
    return units < static_cast<double>(most) ? std::max<int64_t>(1, rounded_down(static_cast<int64_t>(units))) * unit
                                             : most * unit;
}

void check_shares(const RunPlan& p) {
    const Options& o = p.options;
    const int64_t sequences = o.batch_tokens / o.seq_len, each = std::max(1, o.micro_batch) * int64_t{p.ranks};
    CHECK_USAGE(sequences % each == 0,
                "--batch-tokens {}: its {} sequences are no multiple of {} ranks{}; {} tokens would be", o.batch_tokens,
                sequences, p.ranks, o.micro_batch > 0 ? fmt::format(" x --micro-batch {}", o.micro_batch) : "",
                (sequences / each + 1) * each * o.seq_len);
}

// Throws UsageError unless products of flags fit: tokens and bytes in 64 bits, rows and a step's sequences in 32.
void check_countable(const RunPlan& p) {
    const Options& o = p.options;
    int64_t tokens = 0;
    CHECK_USAGE(!__builtin_mul_overflow(p.steps, o.batch_tokens, &tokens) && tokens <= INT64_MAX / 8,
                "--steps {} x --batch-tokens {}: more tokens than can be counted ({:.1e})", p.steps, o.batch_tokens,
                static_cast<double>(p.steps) * static_cast<double>(o.batch_tokens));
    const int64_t sequences = o.batch_tokens / o.seq_len;
    CHECK_USAGE(sequences <= INT_MAX,
                "--batch-tokens {}: its {} sequences of --seq-len {} are more than can be counted", o.batch_tokens,
                sequences, o.seq_len);
    const DecoderConfig& c = p.config;
    const double rows = static_cast<double>(std::max(1, o.micro_batch)) * o.seq_len;
    const double width = static_cast<double>(c.NH) * o.seq_len + 8.0 * (c.C + c.Fp() + c.qkv_width());
    const double bytes = 4 * rows * (c.L * width + c.Vp());
    CHECK_USAGE(rows <= INT_MAX && bytes <= 0x1p60,
                "--micro-batch {} x --seq-len {}: {:.1e} tokens with {:.1e} bytes of activations are more than can be "
                "counted; lower one of the two",
                std::max(1, o.micro_batch), o.seq_len, rows, bytes);
}

int64_t steps_of_epochs(const RunPlan& p) {
    const Options& o = p.options;
    CHECK_USAGE(p.train.mixture.empty(),
                "--epochs: the sources of a mixture have epochs of their own; give --steps or --tokens");
    const int64_t windows = windows_of(p.train.shards, o.seq_len);
    CHECK_USAGE(windows > 0, "--data: its {} tokens are less than one sequence of --seq-len {} + 1; lower --seq-len",
                p.data_tokens, o.seq_len);
    const double tokens = o.epochs * static_cast<double>(windows * o.seq_len);
    const auto steps = static_cast<int64_t>(std::floor(tokens / static_cast<double>(o.batch_tokens)));
    CHECK_USAGE(steps > 0,
                "--epochs {}: the data's {} tokens are less than one step of --batch-tokens {}; give --batch-tokens {} "
                "or more epochs",
                o.epochs, p.data_tokens, o.batch_tokens, default_batch_tokens(p));
    return steps;
}

void warn_of_few_steps(RunPlan& p) {
    const Options& o = p.options;
    if (o.steps > 0 || p.steps == 0 || p.steps >= kFewSteps) return;  // --steps says what is wanted
    const int64_t smaller = default_batch_tokens(p);
    std::string advice;
    if (smaller < o.batch_tokens)
        advice =
            fmt::format("--batch-tokens {} makes {} of the same data", smaller, p.steps * o.batch_tokens / smaller);
    else if (o.tokens > 0)
        advice = fmt::format("--tokens {} makes {}", kStepsOfEpoch * o.batch_tokens, kStepsOfEpoch);
    else
        advice = fmt::format("--epochs {:.0f} makes at least {}",
                             std::ceil(o.epochs * kStepsOfEpoch / static_cast<double>(p.steps)), kStepsOfEpoch);
    p.notes.emplace_back("warning", fmt::format("{} step{} teach{} a model almost nothing; {}", p.steps,
                                                p.steps == 1 ? "" : "s", p.steps == 1 ? "es" : "", advice));
}

}  // namespace

void plan_batch(RunPlan& p) {
    Options& o = p.options;
    if (o.batch_tokens == 0) {
        o.batch_tokens = default_batch_tokens(p);
    } else if (o.batch_tokens % o.seq_len != 0) {
        CHECK_USAGE(o.batch_tokens > o.seq_len, "--batch-tokens {}: less than one sequence of --seq-len {}",
                    o.batch_tokens, o.seq_len);
        const int64_t given = o.batch_tokens, unit = given > batch_unit(p) ? batch_unit(p) : int64_t{o.seq_len};
        o.batch_tokens = given / unit * unit;
        p.notes.emplace_back("note", fmt::format("--batch-tokens {} is rounded down to {}, whole sequences of {}",
                                                 given, o.batch_tokens, o.seq_len));
    }
    check_shares(p);
}

void plan_length(RunPlan& p) {
    const Options& o = p.options;
    if (o.steps) {
        p.steps = o.steps;
    } else if (o.tokens) {
        p.steps = o.tokens / o.batch_tokens;
        CHECK_USAGE(p.steps > 0, "--tokens {}: less than one step of --batch-tokens {}", o.tokens, o.batch_tokens);
    } else if (!p.train.shards.empty()) {
        p.steps = steps_of_epochs(p);
    }
    const auto [first, last] = o.profile_steps;
    CHECK_USAGE(last == 0 || p.steps == 0 || last <= p.steps, "--profile-steps {}:{}: the run has {} steps", first,
                last, p.steps);
    if (!p.val.shards.empty()) {
        const int64_t limit = o.eval_tokens ? o.eval_tokens : 10485760;
        p.eval_windows = std::min(windows_of(p.val.shards, o.seq_len), std::max<int64_t>(1, limit / o.seq_len));
        CHECK_USAGE(p.eval_windows > 0, "--val-data: {} has no window of --seq-len {} + 1 tokens", p.val.shards[0].path,
                    o.seq_len);
    } else if (!p.train.shards.empty()) {
        p.notes.emplace_back("note",
                             "no validation data, so only the training loss is measured; give --val-data, or a --data "
                             "folder with a split \"val\"");
    }
    check_countable(p);
    warn_of_few_steps(p);
}

}  // namespace teon
