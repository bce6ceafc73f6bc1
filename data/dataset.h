// The data of a run: its shards, what scripts/prepare.py recorded of them in manifest.json, and the shares of a
// mixture.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/shards.h"

namespace teon {

// What a manifest states of its tokens; the defaults if there is no manifest.
struct TokenInfo {
    int vocab_size = 0;
    int delimiter = -1;
    std::string tokenizer;     // equal for equal tokenizers: SHA-256 of the bytes of the tokens
    std::string described_by;  // path of the manifest, for messages
};

struct DataSet : TokenInfo {
    std::vector<ShardInfo> shards;     // by source, then by path
    std::vector<double> mixture;       // share of each source in the training windows; empty: one source
    std::vector<std::string> sources;  // as named by the user
    std::vector<std::pair<std::string, std::string>> sha256;  // of shards: path, digest
};

// The shards that `pattern` names (open_shards): a folder, a file, a glob or a list with commas. If each item has a
// weight, A:0.7,B:0.3, the items are the sources of a mixture in these shares (of any positive sum). In a folder with a
// manifest.json the "split" of each shard decides, elsewhere its name. Shards are compared with the manifests beside
// them: throws UsageError naming a file that is missing from a folder, is not listed, is listed twice or has another
// size, and naming two manifests of different tokenizers.
DataSet open_dataset(const std::string& pattern, const std::string& split);

// Throws UsageError naming both if they are known to be of different tokenizers.
void check_same_tokenizer(const TokenInfo& a, const TokenInfo& b);

// Throws UsageError naming both if the data are not of the model's tokenizer: `model` is its folder or file, V its
// vocabulary.
void check_model_tokenizer(const DataSet& data, const std::string& model, int V);

// Throws UsageError naming the first shard that both contain.
void check_disjoint(const DataSet& train, const DataSet& val);

// Reads all shards and throws Error naming the first whose SHA-256 differs from its manifest's.
void verify_content(const DataSet& data);

// Sets ShardInfo::content.
void identify(DataSet& data);

// A hash of the content and order of the shards of one source of a mixture, or of all (-1); their names do not matter.
// Call identify() first.
std::string content_of(const DataSet& data, int source = -1);

// Bytes of text of the targets of the first `windows` windows of T tokens (data/loader.h, unshuffled), 0 for
// delimiters. Reads tokens.bin in the folder `tokenizer`; nullopt if there is none.
std::optional<int64_t> text_bytes(const DataSet& data, const std::string& tokenizer, int T, int64_t windows);

// TokenInfo::tokenizer of a tokenizer's folder; empty if unknown.
std::string tokenizer_identity(const std::string& folder);

}  // namespace teon
