// The data of a run: shards, what the manifest.json that scripts/prepare.py leaves beside them says, and in which
// shares several sources are mixed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/shards.h"

namespace teon {

struct DataSet {
    std::vector<ShardInfo> shards;     // by source, then by path
    std::vector<double> mixture;       // share of each source in the windows that are trained on; empty: one source
    std::vector<std::string> sources;  // as they were named
    // From the manifests; where there is none: 0, -1 and empty.
    int vocab_size = 0;
    int delimiter = -1;
    std::string tokenizer;     // the same for equal tokenizers: SHA-256 of the bytes of its tokens
    std::string described_by;  // path of the manifest, for messages
    std::vector<std::pair<std::string, std::string>> sha256;  // of shards: path, digest
};

// The shards that `pattern` names (open_shards): a folder, file, glob or a list with commas; where each item has a
// weight, A:0.7,B:0.3, the items are the sources of a mixture in these shares (of any positive sum). Of a folder with a
// manifest.json its "split" of each shard decides; elsewhere the shard's name does. Shards are compared with the
// manifests beside them: throws UsageError naming the file where one is missing from a folder, is not listed, is listed
// twice or has another size, and naming two manifests where they are of different tokenizers.
DataSet open_dataset(const std::string& pattern, const std::string& split);

// Throws UsageError naming both unless one tokenizer made them, as far as that is known.
void check_same_tokenizer(const DataSet& a, const DataSet& b);

// Throws UsageError naming both where the data are not of the tokenizer of a model: `model` is its folder or file, V its
// vocabulary.
void check_model_tokenizer(const DataSet& data, const std::string& model, int V);

// Throws UsageError naming the first shard that is in both.
void check_disjoint(const DataSet& train, const DataSet& val);

// Reads all shards and throws Error naming the first that is not what its manifest says, by SHA-256.
void verify_content(const DataSet& data);

// Sets ShardInfo::content.
void identify(DataSet& data);

// The same for equal shards in the same order, whatever they are called; of one source of a mixture, or of all (-1).
// After identify().
std::string content_of(const DataSet& data, int source = -1);

// Bytes of text that the targets of the first `windows` windows of T tokens stand for (data/loader.h, unshuffled), by the
// tokens.bin in `tokenizer`, a folder; delimiters are none. nullopt if there is no tokens.bin.
std::optional<int64_t> text_bytes(const DataSet& data, const std::string& tokenizer, int T, int64_t windows);

// What DataSet::tokenizer is of a tokenizer's folder; empty if that is not known.
std::string tokenizer_identity(const std::string& folder);

}  // namespace teon
