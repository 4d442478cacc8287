#include "gather/convert.hpp"

#include <charconv>
#include <cstring>
#include <stdexcept>
#include <string>

namespace windeck {
namespace {

std::size_t size(std::int64_t bytes) {
    return static_cast<std::size_t>(bytes);
}

std::string value_text(const Column& column, std::int64_t row) {
    alignas(8) std::byte value[8] = {};
    std::memcpy(value, column.data + row * column.stride, size(size_of(column.dtype)));
    char text[40];
    double real = 0;
    std::int64_t integer = 0;
    if (is_float(column.dtype)) {
        gather_kernels().widen[code(column.dtype)](value, 1, &real);
        return std::string(text, std::to_chars(text, text + sizeof text, real).ptr);
    }
    gather_kernels().widen_integer[code(column.dtype)](value, 1, &integer);
    if (column.dtype == DType::uint64) return std::to_string(static_cast<std::uint64_t>(integer));
    return std::to_string(integer);
}

}  // namespace

bool Converter::run(const CompiledColumn& source, std::int64_t width, const Scaling& scaling,
                    std::byte* out, std::uint8_t* present) {
    const std::int64_t n = block_.steps * width;
    const std::byte* const in = contiguous(source, width);
    const bool filtered = source.source->validity != nullptr || block_.clipped;
    bool missing = false;
    if (source.fused && !filtered) {
        float fill = 0;
        std::memcpy(&fill, compiled_.fill.data(), sizeof fill);
        return kernels_.convert_and_find_nan(reinterpret_cast<const double*>(in), n, scaling.scale,
                                             scaling.shift, scaling.period, fill,
                                             reinterpret_cast<float*>(out), present);
    }
    if (source.find_nan && source.conversion == Conversion::copy && !filtered) {
        return kernels_.copy_or_fill[code(source.source->dtype)](in, n, compiled_.fill.data(), out,
                                                                 present);
    }
    if (source.find_nan) {
        missing = kernels_.find_nan[code(source.source->dtype)](in, n, present);
    } else if (filtered || (compiled_.spec->mask && !compiled_.complete)) {
        std::memset(present, 1, size(n));
    }
    if (filtered) missing |= drop_filtered(source, width, present);

    // If only NaN can be missing, the kernel replaces it.
    const bool fills_in_kernel = missing && !filtered && source.fills_nan;
    const void* const fill = fills_in_kernel ? compiled_.fill.data() : nullptr;
    if (source.conversion == Conversion::copy && !fills_in_kernel) {
        std::memcpy(out, in, size(n << source.log2_in));
    } else if (is_float(compiled_.spec->dtype)) {
        to_float(source, in, n, scaling, fill, out);
    } else {
        to_integer(source, in, n, scaling, missing ? present : nullptr, out);
    }
    if (missing && !fills_in_kernel) {
        kernels_.patch[compiled_.log2_out](present, n, compiled_.fill.data(), out);
    }
    return missing;
}

/// The values of the block, contiguous: in the source itself, or copied.
const std::byte* Converter::contiguous(const CompiledColumn& source, std::int64_t width) {
    const std::int64_t bytes = width << source.log2_in;
    const StepRange& only = block_.ranges[0];
    if (block_.count == 1 && !block_.clipped && source.aligned &&
        (source.stride == bytes || only.body == 1)) {
        return source.data + only.row * source.source->stride;
    }
    std::byte* to = scratch_.raw;
    for (std::int64_t p = 0; p < block_.count; ++p) {
        const StepRange& range = block_.ranges[p];
        std::memset(to, 0, size(range.lead * bytes));
        to += range.lead * bytes;
        if (range.body > 0) pack(source, width, range, to);
        to += range.body * bytes;
        std::memset(to, 0, size(range.tail * bytes));
        to += range.tail * bytes;
    }
    return scratch_.raw;
}

void Converter::pack(const CompiledColumn& source, std::int64_t width, const StepRange& range,
                     std::byte* to) {
    const std::byte* const from = source.data + range.row * source.source->stride;
    const std::int64_t bytes = width << source.log2_in;
    if (width == 1) {
        kernels_.pack[source.log2_in](from, source.stride, range.body, to);
    } else if (source.stride == bytes) {
        std::memcpy(to, from, size(range.body * bytes));
    } else {
        for (std::int64_t i = 0; i < range.body; ++i) {
            std::memcpy(to + i * bytes, from + i * source.stride, size(bytes));
        }
    }
}

/// Clears the presence of steps outside their series and of values whose validity bit is 0.
bool Converter::drop_filtered(const CompiledColumn& source, std::int64_t width,
                              std::uint8_t* present) {
    const Column& column = *source.source;
    bool missing = block_.clipped;
    for (std::int64_t p = 0; p < block_.count; ++p) {
        const StepRange& range = block_.ranges[p];
        std::memset(present, 0, size(range.lead * width));
        present += range.lead * width;
        if (column.validity != nullptr && range.body > 0) {
            missing |= kernels_.apply_bits(column.validity, column.validity_offset + range.row,
                                           compiled_.spec->dilation, range.body, present);
        }
        present += range.body * width;
        std::memset(present, 0, size(range.tail * width));
        present += range.tail * width;
    }
    return missing;
}

void Converter::to_float(const CompiledColumn& source, const std::byte* in, std::int64_t n,
                         const Scaling& scaling, const void* fill, std::byte* out) {
    const DType from = source.source->dtype;
    const std::size_t to = code(compiled_.spec->dtype);
    auto* const wide = reinterpret_cast<double*>(scratch_.wide);
    if (from == DType::float32) {
        kernels_.convert32[to](in, n, scaling.scale, scaling.shift, scaling.period, fill, out);
        return;
    }
    if (source.round_odd && from == DType::int64) {
        kernels_.widen_odd_signed(in, n, wide);
    } else if (source.round_odd) {
        kernels_.widen_odd_unsigned(in, n, wide);
    } else if (from != DType::float64) {
        kernels_.widen[code(from)](in, n, wide);
    }
    const void* const values = from == DType::float64 ? static_cast<const void*>(in) : wide;
    kernels_.convert64[to](values, n, scaling.scale, scaling.shift, scaling.period, fill, out);
}

void Converter::to_integer(const CompiledColumn& source, const std::byte* in, std::int64_t n,
                           const Scaling& scaling, const std::uint8_t* present, std::byte* out) {
    const DType from = source.source->dtype;
    const std::size_t to = code(compiled_.spec->dtype);
    static constexpr std::int64_t zero = 0;  // a missing value need not fit
    std::int64_t fitting = 0;
    if (source.conversion == Conversion::integer && compiled_.spec->dtype == DType::int64 &&
        from != DType::uint64) {  // All values fit.
        kernels_.widen_integer[code(from)](in, n, reinterpret_cast<std::int64_t*>(out));
        return;
    }
    if (source.conversion == Conversion::integer) {
        auto* const wide = reinterpret_cast<std::int64_t*>(scratch_.wide);
        kernels_.widen_integer[code(from)](in, n, wide);
        if (present != nullptr) kernels_.patch[log2_size(DType::int64)](present, n, &zero, wide);
        fitting = kernels_.narrow_integer[to](wide, from == DType::uint64, n, out);
    } else {
        auto* const wide = reinterpret_cast<double*>(scratch_.wide);
        auto* const scaled = reinterpret_cast<double*>(scratch_.raw);  // `in` is read by then
        kernels_.widen[code(from)](in, n, wide);
        kernels_.convert64[code(DType::float64)](wide, n, scaling.scale, scaling.shift,
                                                 scaling.period, nullptr, scaled);
        if (present != nullptr) kernels_.patch[log2_size(DType::int64)](present, n, &zero, scaled);
        fitting = kernels_.round[to](scaled, n, out);
    }
    if (fitting != n) refuse(source, fitting);
}

void Converter::refuse(const CompiledColumn& source, std::int64_t step) const {
    const std::int64_t row = block_.row_of(step, compiled_.spec->dilation);
    throw std::invalid_argument("column '" + source.source->name + "' of field '" +
                                compiled_.spec->name + "' holds " +
                                value_text(*source.source, row) + " at row " + std::to_string(row) +
                                (compiled_.scaled ? ", scaled," : "") + ", which " +
                                name(compiled_.spec->dtype) + " cannot hold");
}

}  // namespace windeck
