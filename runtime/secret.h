// What the ranks of a run prove to each other before they talk: that they know 16 bytes which nobody else knows.
#pragma once

#include <unistd.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>

namespace teon {

using Secret = std::array<uint64_t, 2>;

// TEON_SECRET, 32 hexadecimal digits, or else what ~/.teon_secret holds; the first rank that looks for that file makes
// it. Throws UsageError if the file is not one that only its owner, this user, can read.
Secret find_secret();

// SipHash-2-4, a keyed hash that only who knows the key can compute (Aumasson and Bernstein, "SipHash: a fast
// short-input PRF", 2012).
uint64_t siphash(const Secret& key, const std::string& message);

std::string random_bytes(size_t n);  // of the system

// A file descriptor of one's own.
class Descriptor {
public:
    explicit Descriptor(int fd) : fd_(fd) {}
    Descriptor(Descriptor&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
    Descriptor& operator=(Descriptor&& o) noexcept {
        std::swap(fd_, o.fd_);
        return *this;
    }
    ~Descriptor() {
        if (fd_ >= 0) ::close(fd_);
    }
    operator int() const { return fd_; }

private:
    int fd_;
};

}  // namespace teon
