// The data of a run: its shards, their description in scripts/prepare.py's manifest.json, the shares of a mixture.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "data/shards.h"

namespace teon {

// A manifest's description of its tokens. Without a manifest the members keep their defaults.
struct TokenInfo {
    int vocab_size = 0;
    int delimiter = -1;
    std::string tokenizer;     // hash of the tokens' bytes: equal for equal tokenizers
    std::string described_by;  // path of the manifest, for messages
};

struct DataSet : TokenInfo {
    std::vector<ShardInfo> shards;     // by source, then by path
    std::vector<double> mixture;       // share of each source in the training windows; empty: one source
    std::vector<std::string> sources;  // as named by the user
    std::set<std::string> corrected;   // paths of shards with a file of corrections (text_bytes)
    int counted = 0;                   // shards whose manifest counts the bytes of the source's text
    std::string text;                  // hash of the source's text, if the shards are all of a folder's split val
    int64_t unopened = 0;              // tokens of the other splits in the manifests of the folders named
    bool counts_text() const { return !shards.empty() && counted == static_cast<int>(shards.size()); }
};

// Opens the shards that `pattern` names (open_shards): a folder, a file, a glob or a comma-separated list. If each item
// has a weight, as in A:0.7,B:0.3, the items are the sources of a mixture with these shares (of any positive sum). In a
// folder with a manifest.json the manifest's "split" of each shard decides, elsewhere the shard's name; the split "" is
// all shards. Compares shards with the manifests beside them. Throws UsageError naming a file that is missing from a
// folder, is not listed, is listed twice or has another size, or naming two manifests of different tokenizers.
DataSet open_dataset(const std::string& pattern, const std::string& split);

// Throws UsageError naming both manifests if they are known to describe different tokenizers.
void check_same_tokenizer(const TokenInfo& a, const TokenInfo& b);

// Throws UsageError naming data and model if the data's tokenizer is not the model's. `model` is the model's folder or
// file, V its vocabulary size.
void check_model_tokenizer(const DataSet& data, const std::string& model, int V);

// Throws UsageError naming the first shard that both contain.
void check_disjoint(const DataSet& train, const DataSet& val);

// Sets ShardInfo::content of every shard.
void identify(DataSet& data);

// Returns a hash of the content and order of the shards of one source of a mixture, or of all sources (-1). Their names
// do not matter. Call identify() first.
std::string content_of(const DataSet& data, int source = -1);

struct TextSize {
    int64_t bytes = 0;
    int64_t words = 0;  // that begin there; ASCII white space and delimiters separate them, as wc -w counts
};
// Returns the size of the source's text in the targets of the first `windows` windows of T tokens (data/loader.h,
// unshuffled). Delimiters count as 0 bytes. Reads tokens.bin in the folder `tokenizer`; returns nullopt if there is
// none. Where the bytes of tokens differ from the source's, the file of corrections beside the shard says by how much
// (scripts/teon_data/source_bytes.py); without a manifest that counts them, the tokens' bytes are the result.
std::optional<TextSize> text_size(const DataSet& data, const std::string& tokenizer, int T, int64_t windows);

// Returns the TokenInfo::tokenizer of a tokenizer's folder; empty if it is unknown.
std::string tokenizer_identity(const std::string& folder);

}  // namespace teon
