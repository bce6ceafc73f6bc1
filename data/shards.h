// Token shards on disk: finding them, checking them, reading tokens from them.
//
// A shard is a header of 256 little-endian int32 (magic, version, number of tokens, the rest unused) followed by the
// tokens: uint16 with magic 20240520 and version 1, uint32 with magic 20240801 and version 7. This is llm.c's layout
// (https://github.com/karpathy/llm.c, dev/data), in which pre-tokenized FineWeb is distributed.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "files/file.h"

namespace teon {

// A name of data to which no file and no folder belongs.
struct MissingData : UsageError {
    using UsageError::UsageError;
};

constexpr int kShardHeaderBytes = 1024;

// One shard file. Its header agrees with its size, which is checked on opening, before any token is read.
struct ShardInfo {
    std::string path;
    int64_t tokens = 0;
    int bytes_per_token = 2;   // 2: magic 20240520 version 1; 4: magic 20240801 version 7
    int source = 0;            // index of its source in a mixture (data/dataset.h)
    std::string content = {};  // sampled_hash (files/file.h), set by identify()
};

// Parses the first min(file_bytes, kShardHeaderBytes) bytes of a file of `file_bytes` bytes. Throws UsageError naming
// `path` and the fault: empty, shorter than a header, wrong magic or version, no tokens, or a size that does not match
// the number of tokens.
ShardInfo parse_shard_header(const std::string& path, std::span<const std::byte> header, int64_t file_bytes);

// Returns the items of a comma-separated list. A path that exists, with or without a weight (open_dataset), may have
// commas in it: the longest one counts.
std::vector<std::string> data_items(const std::string& pattern);

// Returns "train" or "val" according to the last "_train" or "_val" in a shard's file name that "_" or ".bin" follows:
// x_train_val_000000.bin, the validation shard of a text x_train, is "val", as is tiny_shakespeare_val.bin. Returns ""
// if the name has neither.
std::string split_in_name(const std::string& path);

// Returns the shards of a folder, file, glob or comma-separated list of these, each once, sorted by path. A folder
// contributes its files *.bin for which split_of(path) is `split`, "train" or "val", or all if it is ""; a named file
// is used for any split. Throws UsageError naming the file and the fault: those of parse_shard_header, not found, no
// shard, a directory, a name that is not UTF-8, or mixed token sizes. Throws ReadError if the system cannot read a
// file.
std::vector<ShardInfo> open_shards(const std::string& pattern, const std::string& split,
                                   const std::function<std::string(const std::string&)>& split_of = split_in_name);

// Returns the largest token of a shard, which is read to its end.
int largest_token(const ShardInfo& shard);

// How a ShardReader reads. Tests inject a failing pread.
struct ReadPolicy {
    ssize_t (*pread)(int file, void* out, size_t bytes, off_t offset) = ::pread;
    int attempts = 5;          // for transient errors: EIO, ESTALE, EAGAIN, ETIMEDOUT
    int first_pause_ms = 100;  // doubled after each attempt: 1.5 s in all
};

// Reads tokens at any position of any shard, from one thread at a time.
//
// It uses pread rather than a mapping. With a mapping, a file that shrinks or a disk that fails kills the process by
// SIGBUS; with pread this is an Error that names the file, and a checkpoint can still be written. Each window costs one
// system call and one copy from the page cache, which is negligible (bench/bench_loader.cu).
class ShardReader {
public:
    ShardReader(std::vector<ShardInfo> shards, int vocab_size, ReadPolicy policy = {});

    const std::vector<ShardInfo>& shards() const { return shards_; }

    // out (n) = tokens [first, first + n) of the shard, within its ShardInfo::tokens. Throws Error naming the file if
    // it vanished or changed its size, if a read failed (transient failures after `attempts` tries), or if a token is
    // outside [0, vocab_size). A file that was deleted while open here can still be read.
    void read(int* out, int shard, int64_t first, int64_t n);

    // Announces a read() of these tokens, so that the system fetches them from the disk in advance. Announcing all
    // shuffled windows of a batch before the first read made reading from a cold disk three times as fast.
    void will_need(int shard, int64_t first, int64_t n);

private:
    static constexpr int kMaxOpen = 256;  // files held open; well under the usual limit of 1024 per process
    struct OpenShard {
        int shard = -1;
        Descriptor file;
    };

    void read_with_retries(int shard, int64_t offset);  // fills raw_
    int try_read(int shard, int64_t offset);            // 0, or the errno of a failure
    int reopen(OpenShard& slot, int shard);             // 0, or the errno of a failure
    int64_t file_bytes(int shard) const;

    std::vector<ShardInfo> shards_;
    int vocab_size_;
    ReadPolicy policy_;
    std::vector<OpenShard> open_;  // shard s uses slot s mod kMaxOpen; the slot's last shard stays open
    std::vector<std::byte> raw_;
};

}  // namespace teon
