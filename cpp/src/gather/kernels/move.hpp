// Loops that move values without looking at them.

#pragma once

#include <cstddef>
#include <cstdint>

namespace windeck::WINDECK_ISA {

/// Copies of some hundred bytes, of another number in every field: a loop takes less time than a
/// call of memcpy, which chooses among its own loops by the number of bytes. Long copies are left
/// to it.
inline void copy(const void* in, std::int64_t bytes, void* out) {
    constexpr std::int64_t vector = 32;
    constexpr std::int64_t longest = 4096;
    if (bytes < vector || bytes > longest) {
        __builtin_memcpy(out, in, static_cast<std::size_t>(bytes));
        return;
    }
    const char* const from = static_cast<const char*>(in);
    char* const to = static_cast<char*>(out);
    const std::int64_t last = bytes - vector;
    for (std::int64_t i = 0; i < last; i += vector)
        __builtin_memcpy(to + i, from + i, vector);
    __builtin_memcpy(to + last, from + last, vector);  // may overlap the one before
}

template <typename T>
void pack(const void* in, std::int64_t stride, std::int64_t n, void* out) {
    const char* from = static_cast<const char*>(in);
    T* const to = static_cast<T*>(out);
    if (stride == static_cast<std::int64_t>(sizeof(T))) {
        __builtin_memcpy(out, in, sizeof(T) * static_cast<std::size_t>(n));
        return;
    }
    for (std::int64_t i = 0; i < n; ++i)
        __builtin_memcpy(to + i, from + i * stride, sizeof(T));
}

template <typename T>
void patch(const std::uint8_t* present, std::int64_t n, const void* fill, void* out) {
    T value;
    __builtin_memcpy(&value, fill, sizeof(T));
    T* const to = static_cast<T*>(out);
    std::int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        std::uint64_t eight;
        __builtin_memcpy(&eight, present + i, 8);
        if (eight == 0x0101010101010101U) continue;
        for (int k = 0; k < 8; ++k)
            to[i + k] = present[i + k] != 0 ? to[i + k] : value;
    }
    for (; i < n; ++i)
        to[i] = present[i] != 0 ? to[i] : value;
}

/// 16 bytes of lanes, and the two halves of two such vectors interleaved.
template <typename T>
struct Lanes;

template <>
struct Lanes<std::uint8_t> {
    typedef std::uint8_t Vector __attribute__((vector_size(16)));
    static Vector low(Vector a, Vector b) {
        return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7,
                                       23);
    }
    static Vector high(Vector a, Vector b) {
        return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30,
                                       15, 31);
    }
};

template <>
struct Lanes<std::uint16_t> {
    typedef std::uint16_t Vector __attribute__((vector_size(16)));
    static Vector low(Vector a, Vector b) {
        return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
    }
    static Vector high(Vector a, Vector b) {
        return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
    }
};

template <>
struct Lanes<std::uint32_t> {
    typedef std::uint32_t Vector __attribute__((vector_size(16)));
    static Vector low(Vector a, Vector b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
    static Vector high(Vector a, Vector b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
};

template <>
struct Lanes<std::uint64_t> {
    typedef std::uint64_t Vector __attribute__((vector_size(16)));
    static Vector low(Vector a, Vector b) { return __builtin_shufflevector(a, b, 0, 2); }
    static Vector high(Vector a, Vector b) { return __builtin_shufflevector(a, b, 1, 3); }
};

/// G columns of 16 / sizeof(T) steps, by log2(G) perfect shuffles of G vectors: afterwards the
/// vectors, one after the other, hold the columns step by step.
template <typename T, int G>
inline void interleave_block(const T* in, std::int64_t in_stride, T* out, std::int64_t out_stride) {
    using Vector = typename Lanes<T>::Vector;
    constexpr int row = G * static_cast<int>(sizeof(T));  // bytes a step
    Vector v[G];
    for (int g = 0; g < G; ++g)
        __builtin_memcpy(&v[g], in + g * in_stride, 16);
    for (int stage = 1; stage < G; stage *= 2) {
        Vector w[G];
        for (int g = 0; g < G / 2; ++g) {
            w[2 * g] = Lanes<T>::low(v[g], v[g + G / 2]);
            w[2 * g + 1] = Lanes<T>::high(v[g], v[g + G / 2]);
        }
        for (int g = 0; g < G; ++g)
            v[g] = w[g];
    }
    if (row >= 16) {
        constexpr int per_row = row >= 16 ? row / 16 : 1;
        for (int g = 0; g < G; ++g) {
            T* const to = out + g / per_row * out_stride;
            __builtin_memcpy(reinterpret_cast<char*>(to) + g % per_row * 16, &v[g], 16);
        }
    } else if (out_stride == G) {
        for (int g = 0; g < G; ++g)
            __builtin_memcpy(reinterpret_cast<char*>(out) + g * 16, &v[g], 16);
    } else {
        constexpr int rows = row < 16 ? 16 / row : 1;  // steps in a vector
        for (int g = 0; g < G; ++g) {
            for (int r = 0; r < rows; ++r) {
                __builtin_memcpy(out + (g * rows + r) * out_stride,
                                 reinterpret_cast<const char*>(&v[g]) + r * row, row);
            }
        }
    }
}

template <typename T, int G>
void interleave_group(const T* in, std::int64_t in_stride, std::int64_t n, T* out,
                      std::int64_t out_stride) {
    constexpr std::int64_t lanes = 16 / sizeof(T);
    std::int64_t i = 0;
    if (G > 1) {
        for (; i + lanes <= n; i += lanes) {
            interleave_block<T, G>(in + i, in_stride, out + i * out_stride, out_stride);
        }
    }
    for (; i < n; ++i) {
        for (int g = 0; g < G; ++g)
            out[i * out_stride + g] = in[g * in_stride + i];
    }
}

template <typename T>
void interleave(const void* in, std::int64_t in_stride, std::int64_t columns, std::int64_t n,
                void* out, std::int64_t out_stride) {
    const T* from = static_cast<const T*>(in);
    T* to = static_cast<T*>(out);
    const auto advance = [&](std::int64_t group) {
        from += group * in_stride;
        to += group;
        columns -= group;
    };
    for (; columns >= 8; advance(8))
        interleave_group<T, 8>(from, in_stride, n, to, out_stride);
    for (; columns >= 4; advance(4))
        interleave_group<T, 4>(from, in_stride, n, to, out_stride);
    for (; columns >= 2; advance(2))
        interleave_group<T, 2>(from, in_stride, n, to, out_stride);
    for (; columns >= 1; advance(1))
        interleave_group<T, 1>(from, in_stride, n, to, out_stride);
}

}  // namespace windeck::WINDECK_ISA
