#include "train/inputs.h"

#include "checkpoint/tokenizer_files.h"
#include "train/samples.h"

namespace teon {

LoaderOptions loader_options(const RunPlan& p, bool training, int rank) {
    LoaderOptions l;
    l.B = p.run.B;
    l.T = p.run.T;
    l.vocab_size = p.config.V;
    l.shuffle = training && p.options.shuffle;
    l.seed = p.options.seed;
    if (training) l.mixture = p.train.mixture;
    l.mixture_in_turn = p.options.mixture_in_turn;
    l.document_mask = p.options.document_mask;
    l.delimiter = p.train.delimiter;
    l.rank = rank;
    l.ranks = p.ranks;
    return l;
}

void check_inputs(const RunPlan& p) {
    if (p.train.shards.empty()) return;
    check_loadable(p.train.shards, loader_options(p, true, 0));
    if (!p.val.shards.empty()) check_loadable(p.val.shards, loader_options(p, false, 0));
    if (p.options.sample_every > 0)
        check_prompt(tokenizer_folder(p.train.shards.front().path), p.config, p.options.sampling, p.train.delimiter);
}

}  // namespace teon
