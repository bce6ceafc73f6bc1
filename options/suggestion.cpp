#include "options/suggestion.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "options/option_table.h"

namespace teon {

namespace {

// Returns how many insertions, deletions, replacements and swaps of neighbours turn one text into the other.
size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
    for (size_t i = 0; i <= a.size(); ++i)
        for (size_t j = 0; j <= b.size(); ++j) {
            if (i == 0 || j == 0) {
                d[i][j] = i + j;
                continue;
            }
            d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
        }
    return d[a.size()][b.size()];
}

// Flags of other programs and their equivalents here.
struct Alias {
    std::string_view name, flag;   // the alias is for programs that have this flag
    std::string_view advice = "";  // empty: write the flag
};

constexpr Alias kAliases[] = {
    {"--learning-rate", "--lr"},
    {"--max-lr", "--lr"},
    {"--min-lr", "--min-lr-ratio", "write --min-lr-ratio X, a share of --lr"},
    {"--embedding-lr", "--adamw-lr"},
    {"--adam-beta1", "--beta1"},
    {"--adam-beta2", "--beta2"},
    {"--adam-epsilon", "--eps"},
    {"--wd", "--weight-decay"},
    {"--max-grad-norm", "--grad-clip"},
    {"--batch-size", "--batch-tokens", "write --batch-tokens N, tokens per step; --micro-batch N, sequences per pass"},
    {"--per-device-train-batch-size", "--micro-batch"},
    {"--gradient-accumulation-steps", "--batch-tokens",
     "write --batch-tokens N, tokens per step; how many passes that takes follows from --micro-batch"},
    {"--max-steps", "--steps"},
    {"--num-iterations", "--steps"},
    {"--max-iters", "--steps"},
    {"--train-iters", "--steps"},
    {"--num-epochs", "--epochs"},
    {"--max-tokens", "--tokens", "write --tokens N, training tokens; --sample-tokens N, tokens of a sample"},
    {"--num-train-epochs", "--epochs"},
    {"--warmup-iters", "--warmup-steps"},
    {"--num-warmup-steps", "--warmup-steps"},
    {"--warmup", "--warmup-ratio"},
    {"--lr-scheduler-type", "--schedule"},
    {"--accumulate-grad-batches", "--batch-tokens",
     "write --batch-tokens N, tokens per step; how many passes that takes follows from --micro-batch"},
    {"--lr-schedule", "--schedule"},
    {"--n-layer", "--layers"},
    {"--num-layers", "--layers"},
    {"--num-hidden-layers", "--layers"},
    {"--d-model", "--channels"},
    {"--intermediate-size", "--ffn"},
    {"--num-key-value-heads", "--kv-heads"},
    {"--num-attention-heads", "--heads"},
    {"--n-embd", "--channels"},
    {"--hidden-size", "--channels"},
    {"--n-head", "--heads"},
    {"--num-heads", "--heads"},
    {"--block-size", "--seq-len"},
    {"--context-length", "--seq-len"},
    {"--max-seq-len", "--seq-len"},
    {"--train-data", "--data"},
    {"--dataset", "--data"},
    {"--output-dir", "--out"},
    {"--out-dir", "--out"},
    {"--save-dir", "--out"},
    {"--save-every", "--checkpoint-every"},
    {"--save-steps", "--checkpoint-every"},
    {"--eval-interval", "--eval-every"},
    {"--log-interval", "--log-every"},
    {"--pretrained", "--init-from"},
    {"--load", "--init-from"},
    {"--load-checkpoint", "--resume", "write --resume --out FOLDER, the run's folder"},
    {"--resume-from-checkpoint", "--resume", "write --resume --out FOLDER, the run's folder"},
    {"--precision", "--dtype"},
    {"--bf16", "--dtype", "write --dtype bf16"},
    {"--fp32", "--dtype", "write --dtype float"},
    {"--fp16", "--dtype", "there is no fp16; write --dtype bf16"},
    {"--gradient-checkpointing", "--recompute", "write --recompute block"},
    {"--dry-run", "--plan-only"},
    {"--gpus", "--ranks", "start one process per GPU with python3 scripts/launch/local.py -n N"},
    {"--num-gpus", "--ranks", "start one process per GPU with python3 scripts/launch/local.py -n N"},
    {"--device", "--dtype", "the build decides: make BACKEND=cpu or BACKEND=cuda"},
    {"--wandb", "--log-every", "python3 scripts/follow.py runs/NAME --to wandb copies a run's log there"},
    {"--tensorboard", "--log-every", "python3 scripts/follow.py runs/NAME --to tensorboard copies a run's log there"},
    {"--max-new-tokens", "--sample-tokens"},
    {"--max-tokens", "--sample-tokens"},
    {"--model-path", "--checkpoint"},
};

}  // namespace

std::string suggestion(const OptionTable& table, std::string_view word) {
    std::string flag(word.substr(0, 64));  // longer words resemble no flag
    std::replace(flag.begin(), flag.end(), '_', '-');
    for (const Alias& alias : kAliases)
        for (const OptionRow& row : table.rows)
            if (alias.name == flag && alias.flag == row.flag)
                return alias.advice.empty() ? fmt::format("; write {} {}", row.flag, row.type)
                                            : fmt::format("; {}", alias.advice);
    const std::string_view letters = std::string_view(flag).substr(std::min(flag.find_first_not_of('-'), flag.size()));
    if (letters.empty()) return "";
    // Flags that begin with the word are nearest, as --heads to --he; then those with the smallest edit distance.
    const auto distance = [&](const OptionRow& row) {
        const std::string_view name = std::string_view(row.flag).substr(2);
        return std::pair(!name.starts_with(letters), edit_distance(letters, name));
    };
    const auto nearer = [&](const OptionRow& a, const OptionRow& b) { return distance(a) < distance(b); };
    const OptionRow& nearest = *std::min_element(table.rows.begin(), table.rows.end(), nearer);
    const auto [differs, edits] = distance(nearest);
    return differs && edits > letters.size() / 3 ? "" : fmt::format("; did you mean {}?", nearest.flag);
}

}  // namespace teon
