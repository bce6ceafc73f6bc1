// The owner of a file descriptor.
#pragma once

#include <unistd.h>

#include <utility>

namespace teon {

// Closed with its owner. Move-only; as an int it is the descriptor, -1 where there is none.
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
