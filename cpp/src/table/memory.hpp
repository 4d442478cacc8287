// Aligned memory of tables, on huge pages if it is large: accesses are random, and each would
// otherwise miss the TLB.

#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

namespace windeck {

/// At least `bytes`, at a multiple of 64 bytes; not initialised. Throws std::bad_alloc.
std::byte* big_new(std::size_t bytes);
void big_delete(std::byte* data, std::size_t bytes) noexcept;

/// An array of zeroed plain values that may be large.
template <typename T>
class BigArray {
    static_assert(std::is_trivially_copyable_v<T>);

  public:
    BigArray() = default;
    explicit BigArray(std::size_t size) {
        if (size > PTRDIFF_MAX / sizeof(T)) throw std::bad_alloc();
        data_ = reinterpret_cast<T*>(big_new(size * sizeof(T)));
        size_ = size;
        std::memset(static_cast<void*>(data_), 0, size * sizeof(T));
    }
    BigArray(const BigArray& other) : BigArray(other.size_) {
        if (size_ != 0) std::memcpy(static_cast<void*>(data_), other.data_, size_ * sizeof(T));
    }
    BigArray(BigArray&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    BigArray& operator=(BigArray other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~BigArray() {
        if (data_ != nullptr) big_delete(reinterpret_cast<std::byte*>(data_), size_ * sizeof(T));
    }

    bool empty() const noexcept { return size_ == 0; }
    std::size_t size() const noexcept { return size_; }
    T& operator[](std::size_t i) noexcept { return data_[i]; }
    const T& operator[](std::size_t i) const noexcept { return data_[i]; }

  private:
    T* data_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace windeck
