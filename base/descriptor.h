// The owner of a file descriptor.
#pragma once

#include <unistd.h>

#include <utility>

namespace teon {

// Owns a file descriptor and closes it. Move-only. Converts to the descriptor as an int, -1 if there is none.
class Descriptor {
public:
    Descriptor() = default;
    explicit Descriptor(int fd) : fd_(fd) {}
    ~Descriptor() {
        if (fd_ >= 0) ::close(fd_);
    }
    Descriptor(Descriptor&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
    Descriptor& operator=(Descriptor&& o) noexcept {
        std::swap(fd_, o.fd_);
        return *this;
    }
    operator int() const { return fd_; }

private:
    int fd_ = -1;
};

}  // namespace teon
