#include "runtime/secret.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "runtime/check.h"

namespace teon {

uint64_t siphash(const Secret& key, const std::string& message) {
    uint64_t v0 = key[0] ^ 0x736f6d6570736575, v1 = key[1] ^ 0x646f72616e646f6d;
    uint64_t v2 = key[0] ^ 0x6c7967656e657261, v3 = key[1] ^ 0x7465646279746573;
    auto rounds = [&](int n) {
        while (n-- > 0) {
            v0 += v1, v2 += v3, v1 = std::rotl(v1, 13) ^ v0, v3 = std::rotl(v3, 16) ^ v2, v0 = std::rotl(v0, 32);
            v2 += v1, v0 += v3, v1 = std::rotl(v1, 17) ^ v2, v3 = std::rotl(v3, 21) ^ v0, v2 = std::rotl(v2, 32);
        }
    };
    for (size_t at = 0; at <= message.size(); at += 8) {  // the last word holds the length in its highest byte
        const size_t n = std::min<size_t>(8, message.size() - at);
        uint64_t word = n < 8 ? static_cast<uint64_t>(message.size()) << 56 : 0;
        std::memcpy(&word, message.data() + at, n);
        v3 ^= word;
        rounds(2);
        v0 ^= word;
    }
    v2 ^= 0xff;
    rounds(4);
    return v0 ^ v1 ^ v2 ^ v3;
}

std::string random_bytes(size_t n) {
    std::string bytes(n, '\0');
    CHECK(::getrandom(bytes.data(), n, 0) == static_cast<ssize_t>(n), "the system has no random numbers: {}",
          std::strerror(errno));
    return bytes;
}

namespace {

Secret parse_secret(const std::string& text, const std::string& where) {
    CHECK_USAGE(text.size() == 32 && text.find_first_not_of("0123456789abcdefABCDEF") == text.npos,
                "{}: 32 hexadecimal digits are needed, the same on all ranks (openssl rand -hex 16)", where);
    return {std::strtoull(text.substr(0, 16).c_str(), nullptr, 16),
            std::strtoull(text.substr(16).c_str(), nullptr, 16)};
}

// Whole or not at all, and whoever is first wins: ranks do this at the same time.
void make_secret(const std::string& path) {
    std::string text;
    for (unsigned char c : random_bytes(16)) text += fmt::format("{:02x}", c);
    const std::string temporary =
        fmt::format("{}.{}.{:x}", path, ::getpid(), std::chrono::steady_clock::now().time_since_epoch().count());
    const Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    const bool written = file >= 0 && ::write(file, text.data(), text.size()) == std::ssize(text) &&
                         (::link(temporary.c_str(), path.c_str()) == 0 || errno == EEXIST);
    const int error = errno;
    ::unlink(temporary.c_str());
    CHECK(written, "{}: cannot be written: {}; set TEON_SECRET on all ranks instead", path, std::strerror(error));
}

}  // namespace

Secret find_secret() {
    if (const char* text = std::getenv("TEON_SECRET")) return parse_secret(text, "TEON_SECRET");
    const char* home = std::getenv("HOME");
    CHECK_USAGE(home && *home, "neither TEON_SECRET nor HOME is set: ranks must prove that they belong together");
    const std::string path = std::string(home) + "/.teon_secret";
    if (struct stat any; ::lstat(path.c_str(), &any) != 0) make_secret(path);
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat is = {};
    CHECK_USAGE(file >= 0 && ::fstat(file, &is) == 0 && S_ISREG(is.st_mode) && is.st_uid == ::geteuid() &&
                    (is.st_mode & 077) == 0,
                "{}: must be a file of yours that nobody else may read (chmod 600), not a link", path);
    char text[33];
    const ssize_t size = ::read(file, text, sizeof text);
    return parse_secret(std::string(text, static_cast<size_t>(std::max<ssize_t>(size, 0))), path);
}

}  // namespace teon
