// Token shards on disk: finding them, checking them, reading tokens from them.
//
// A shard is a header of 256 little-endian int32 (magic, version, number of tokens, the rest unused) and then the
// tokens: uint16 where the magic is 20240520 and the version 1, uint32 where they are 20240801 and 7. This is llm.c's
// layout (https://github.com/karpathy/llm.c, dev/data), in which pre-tokenized FineWeb is distributed.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "files/file.h"

namespace teon {

constexpr int SHARD_HEADER_BYTES = 1024;

// One shard file: its header agrees with its size (CHECKed on opening, before any token is read).
struct ShardInfo {
    std::string path;
    int64_t tokens = 0;
    int bytes_per_token = 2;   // 2: magic 20240520 version 1; 4: magic 20240801 version 7
    int source = 0;            // of a mixture (data/dataset.h), from 0
    std::string content = {};  // sampled_hash (files/file.h), once identify() was called
};

// What the first bytes of a file of `file_bytes` bytes say; `header` holds min(file_bytes, SHARD_HEADER_BYTES) of them.
// Throws UsageError naming `path` and the fault: empty, shorter than a header, wrong magic or version, no tokens, or
// fewer or more bytes than that number of tokens takes.
ShardInfo parse_shard_header(const std::string& path, std::span<const std::byte> header, int64_t file_bytes);

// The split that a shard's file name states: "train" or "val", by the last "_train_" or "_val_" in it, so that
// x_train_val_000000.bin, the validation shard of a text x_train, is "val". Empty where the name has neither.
std::string split_in_name(const std::string& path);

// The shards that a folder, file, glob or comma-separated list of these names, each once, sorted by path. From a folder
// it takes the files *.bin whose `split_of` (of their path) is `split`, "train" or "val"; a file that is named is taken
// whatever its split. Throws UsageError naming the file and the fault: those of parse_shard_header, and not found, no
// shard, a directory, not readable, mixed token sizes.
std::vector<ShardInfo> open_shards(const std::string& pattern, const std::string& split,
                                   const std::function<std::string(const std::string&)>& split_of = split_in_name);

// How a ShardReader reads. Tests give it a failing pread; everyone else takes the defaults.
struct ReadPolicy {
    ssize_t (*pread)(int file, void* out, size_t bytes, off_t offset) = ::pread;
    int attempts = 5;                            // for errors that may pass: EIO, ESTALE, EAGAIN, ETIMEDOUT
    std::chrono::milliseconds first_pause{100};  // doubled after each attempt: 1.5 s in all
};

// Reads tokens from any place of any shard, from one thread at a time.
//
// It reads with pread, not through a mapping: under a mapping a file that shrinks or a disk that fails is a SIGBUS that
// kills the process, under pread it is an error with a name, after which a checkpoint can still be written. Per window
// this costs one system call and one copy within the cache, which the benchmark (bench/bench_loader.cpp) shows not to
// matter.
class ShardReader {
public:
    ShardReader(std::vector<ShardInfo> shards, int vocab_size, ReadPolicy policy = {});

    const std::vector<ShardInfo>& shards() const { return shards_; }

    // out (n) = tokens [first, first + n) of the shard, which must be there by its ShardInfo. Throws Error naming the
    // file: it vanished, shrank or is otherwise not what it was, a read failed (transient failures after `attempts`
    // tries), or a token is outside [0, vocab_size). A file deleted while open here is still read: its tokens are
    // there.
    void read(int* out, int shard, int64_t first, int64_t n);

    // Tells the system that read() of these tokens follows, so that it fetches them from the disk meanwhile: shuffled
    // windows of a batch, all announced before the first is read, came three times as fast from a cold disk.
    void will_need(int shard, int64_t first, int64_t n);

private:
    static constexpr int MAX_OPEN = 256;  // files held open; well under the usual limit of 1024 per process
    struct OpenShard {
        int shard = -1;
        Descriptor file;
    };

    void read_with_retries(int shard, int64_t offset);  // fills raw_
    int try_read(int shard, int64_t offset);            // 0, or the errno of a failure
    int reopen(OpenShard& slot, int shard);             // the same
    int64_t file_bytes(int shard) const;

    std::vector<ShardInfo> shards_;
    int vocab_size_;
    ReadPolicy policy_;
    std::vector<OpenShard> open_;  // shard s lives at s mod MAX_OPEN: the last one used there stays open
    std::vector<std::byte> raw_;
};

}  // namespace teon
