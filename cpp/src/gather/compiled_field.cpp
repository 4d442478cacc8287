#include "gather/compiled_field.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>

#include "windeck/base/dispatch.hpp"

namespace windeck {
namespace {

constexpr std::int64_t row_limit = std::int64_t{1} << 62;
constexpr std::int64_t value_limit = std::int64_t{1} << 40;  // values of one window

[[noreturn]] void refuse(const FieldSpec& spec, const std::string& what) {
    throw std::invalid_argument("field '" + spec.name + "' " + what);
}

std::int64_t count_steps(const FieldSpec& spec) {
    std::int64_t steps = 0;
    for (const StepSpan& span : spec.step_spans) {
        if (span.length < 0 || span.length > value_limit || (steps += span.length) > value_limit) {
            refuse(spec, "has a step span of length " + std::to_string(span.length) +
                             ", expected 0 to 2^40 steps altogether");
        }
    }
    if (steps == 0) refuse(spec, "has no steps, expected 1 or more");
    return steps;
}

void check_shape(const FieldSpec& spec, std::int64_t steps) {
    const std::size_t columns = spec.columns.size();
    if (columns == 0) refuse(spec, "has no columns, expected 1 or more");
    const std::string layout = spec.layout == Layout::bt   ? "bt"
                               : spec.layout == Layout::bc ? "bc"
                                                           : "b";
    if ((spec.layout == Layout::bt || spec.layout == Layout::b) && columns != 1) {
        refuse(spec, "has " + std::to_string(columns) + " columns, layout " + layout + " takes 1");
    }
    if ((spec.layout == Layout::bc || spec.layout == Layout::b) && steps != 1) {
        refuse(spec, "has " + std::to_string(steps) + " steps, layout " + layout + " takes 1");
    }
    if (steps > value_limit / static_cast<std::int64_t>(columns)) {
        refuse(spec, "has " + std::to_string(steps) + " steps of " + std::to_string(columns) +
                         " columns, expected at most 2^40 values a window");
    }
    if (spec.dilation < 1) {
        refuse(spec, "has dilation " + std::to_string(spec.dilation) + ", expected 1 or more");
    }
}

/// No row of any window leaves [-2^62, 2^62], so that no arithmetic on rows can overflow.
void check_rows(const FieldSpec& spec, std::span<const std::int64_t> bounds,
                const WindowIndex& index) {
    const bool on_window = spec.anchor == Anchor::window;
    const std::int64_t low = on_window ? index.min_row() : bounds.front();
    const std::int64_t high = on_window ? index.max_row() : bounds.back();
    const auto fits = [](std::int64_t anchor, std::int64_t offset, std::int64_t reach) {
        std::int64_t row = 0;
        return !__builtin_add_overflow(anchor, offset, &row) &&
               !__builtin_add_overflow(row, reach, &row) && row >= -row_limit && row <= row_limit;
    };
    for (const StepSpan& span : spec.step_spans) {
        std::int64_t reach = 0;
        if (__builtin_mul_overflow(span.length, spec.dilation, &reach) ||
            !fits(low, span.offset, 0) || !fits(high, span.offset, 0) ||
            !fits(high, span.offset, reach)) {
            refuse(spec, "has rows beyond 2^62 in a step span of offset " +
                             std::to_string(span.offset) + ", length " +
                             std::to_string(span.length) + " and dilation " +
                             std::to_string(spec.dilation));
        }
    }
}

void check_coefficients(const FieldSpec& spec, const Coefficients& found, const char* what,
                        std::size_t series) {
    const std::size_t expected =
        found.per_series ? series * spec.columns.size() : spec.columns.size();
    if (found.values.empty() || found.values.size() == expected) return;
    refuse(spec, "has " + std::to_string(found.values.size()) + " entries of " + what +
                     ", expected " + std::to_string(expected) +
                     (found.per_series ? ", one a series and column" : ", one a column"));
}

std::array<std::byte, 8> fill_bytes(const FieldSpec& spec, const GatherKernels& kernels) {
    std::array<std::byte, 8> bytes{};
    const auto type = code(spec.dtype);
    if (is_float(spec.dtype)) {
        kernels.convert64[type](&spec.fill, 1, nullptr, nullptr, 0, nullptr, bytes.data());
    } else if (std::nearbyint(spec.fill) != spec.fill ||
               kernels.round[type](&spec.fill, 1, bytes.data()) != 1) {
        refuse(spec, "has fill " + std::to_string(spec.fill) + ", which " + name(spec.dtype) +
                         " cannot hold");
    }
    return bytes;
}

CompiledColumn compile_column(const FieldSpec& spec, const Column& column, bool scaled) {
    CompiledColumn compiled{};
    compiled.source = &column;
    compiled.data = column.data;
    compiled.log2_in = log2_size(column.dtype);
    if (__builtin_mul_overflow(column.stride, spec.dilation, &compiled.stride)) {
        compiled.stride = 0;  // no series is long enough for a second step
    }
    if (column.dtype == spec.dtype && !scaled) {
        compiled.conversion = Conversion::copy;
    } else if (!is_float(column.dtype) && !is_float(spec.dtype) && !scaled) {
        compiled.conversion = Conversion::integer;
    } else {
        compiled.conversion = Conversion::real;
    }
    const bool wide = column.dtype == DType::int64 || column.dtype == DType::uint64;
    compiled.round_odd = wide && !scaled && spec.dtype != DType::float64;
    compiled.find_nan =
        (spec.mask || spec.fill_nan) && is_float(column.dtype) && column.nan_is_missing;
    const bool direct = column.dtype == DType::float64 || column.dtype == DType::float32;
    compiled.fills_nan = compiled.find_nan && direct && is_float(spec.dtype);
    compiled.fused =
        compiled.fills_nan && column.dtype == DType::float64 && spec.dtype == DType::float32;
    compiled.aligned = (reinterpret_cast<std::uintptr_t>(column.data) |
                        static_cast<std::uintptr_t>(compiled.stride)) %
                           static_cast<std::uintptr_t>(size_of(column.dtype)) ==
                       0;
    return compiled;
}

/// Whether the columns are adjacent in the rows of one matrix.
bool side_by_side(const std::vector<Column>& columns) {
    const Column& first = columns.front();
    for (std::size_t c = 0; c < columns.size(); ++c) {
        const auto offset = static_cast<std::int64_t>(c) * size_of(first.dtype);
        if (columns[c].dtype != first.dtype || columns[c].stride != first.stride ||
            columns[c].validity != nullptr || columns[c].nan_is_missing != first.nan_is_missing ||
            reinterpret_cast<std::intptr_t>(columns[c].data) !=
                reinterpret_cast<std::intptr_t>(first.data) + offset) {
            return false;
        }
    }
    return true;
}

GatherMethod choose_method(const CompiledField& compiled) {
    const bool plain = std::ranges::all_of(compiled.sources, [](const CompiledColumn& column) {
        return column.conversion == Conversion::copy && column.source->validity == nullptr;
    });
    if (compiled.channels_first()) return plain ? GatherMethod::strips : GatherMethod::columns;
    if (!side_by_side(compiled.spec->columns)) return GatherMethod::columns;
    if (plain) return GatherMethod::strips;
    const bool worth_it = compiled.columns > 1 && compiled.columns <= max_row_columns;
    return worth_it && is_float(compiled.spec->dtype) ? GatherMethod::rows : GatherMethod::columns;
}

/// Scale and shift of each column (of each series); a missing one is neutral: x * 1 and x + -0.
void set_coefficients(CompiledField& compiled) {
    const FieldSpec& spec = *compiled.spec;
    compiled.scaled = !spec.scale.values.empty() || !spec.shift.values.empty();
    compiled.period = compiled.scaled ? 1 : 0;
    if (!compiled.scaled) return;
    const bool per_series = spec.scale.per_series || spec.shift.per_series;
    const std::size_t columns = spec.columns.size();
    const std::size_t size = per_series ? columns * (compiled.bounds.size() - 1) : columns;
    const auto spread = [&](const Coefficients& from, double neutral) {
        if (from.values.empty()) return std::vector<double>(size, neutral);
        std::vector<double> all(size);
        for (std::size_t i = 0; i < size; ++i)
            all[i] = from.values[i % from.values.size()];
        return all;
    };
    compiled.scale = spread(spec.scale, 1.0);
    compiled.shift = spread(spec.shift, -0.0);
}

/// Sets what is prefetched of a window: a span for each strip, one for the rows of a matrix, one
/// for each column; columns in the cache lines of another one get an empty span. Without conversion
/// the processor itself prefetches the rest of a long window, and columns that its caches may hold
/// get empty spans: copies of several windows wait for them at the same time.
void set_prefetch_spans(CompiledField& compiled) {
    constexpr std::int64_t line = 64;
    constexpr std::int64_t cached_bytes = std::int64_t{4} << 20;
    const bool copies = compiled.method == GatherMethod::strips;
    const bool apart = compiled.method == GatherMethod::columns || compiled.channels_first();
    const std::int64_t spans = apart ? compiled.columns : 1;
    const std::int64_t width = compiled.columns / spans;
    const std::int64_t length = std::min(compiled.steps, compiled.block_steps);
    std::int64_t memory = 0;
    for (std::int64_t s = 0; s < spans; ++s) {
        const Column& column = *compiled.sources[static_cast<std::size_t>(s)].source;
        memory += column.rows * std::abs(column.stride);
    }
    const std::int64_t most = !copies ? 32 : memory > cached_bytes ? 12 : 0;
    std::int64_t bytes = 0;
    std::uintptr_t last = 0;
    for (std::int64_t s = 0; s < spans; ++s) {
        const CompiledColumn& source = compiled.sources[static_cast<std::size_t>(s)];
        const auto data = reinterpret_cast<std::uintptr_t>(source.data);
        const std::int64_t reach = std::abs(source.stride);
        const bool packed = reach <= line || source.stride == width << source.log2_in;
        const std::int64_t lines = packed ? length * reach / line + 2 : length;
        const bool seen = s > 0 && !packed && data - last < static_cast<std::uintptr_t>(line);
        compiled.spans.push_back({data, source.source->stride, packed ? line : source.stride,
                                  seen ? 0 : std::min(lines, most)});
        if (seen) continue;
        last = data;
        bytes += lines * line;
    }
    compiled.ahead = std::clamp<std::int64_t>(1536 / bytes, copies ? 1 : 2, 16);
    compiled.prefetch_spread =
        compiled.method == GatherMethod::columns && compiled.break_at_windows;
}

}  // namespace

const GatherKernels& gather_kernels() {
    switch (simd()) {
#ifdef WINDECK_X86
        case Simd::avx512:
            return avx512::gather_kernels;
        case Simd::avx2:
            return avx2::gather_kernels;
#endif
        default:
            return baseline::gather_kernels;
    }
}

CompiledField compile_field(const FieldSpec& spec, std::span<const std::int64_t> bounds,
                            const WindowIndex& index) {
    CompiledField compiled{};
    compiled.spec = &spec;
    compiled.bounds = bounds;
    compiled.kernels = &gather_kernels();
    compiled.steps = count_steps(spec);
    compiled.columns = static_cast<std::int64_t>(spec.columns.size());
    check_shape(spec, compiled.steps);
    check_rows(spec, bounds, index);
    check_coefficients(spec, spec.scale, "scale", bounds.size() - 1);
    check_coefficients(spec, spec.shift, "shift", bounds.size() - 1);
    for (const Column& column : spec.columns) {
        if (column.rows >= bounds.back()) continue;
        refuse(spec, "has column '" + column.name + "' of " + std::to_string(column.rows) +
                         " rows, expected " + std::to_string(bounds.back()) +
                         ", where the bounds end");
    }
    compiled.log2_out = log2_size(spec.dtype);
    compiled.fill = fill_bytes(spec, *compiled.kernels);
    set_coefficients(compiled);
    for (const Column& column : spec.columns) {
        compiled.sources.push_back(compile_column(spec, column, compiled.scaled));
    }
    compiled.complete =
        spec.mask && std::ranges::all_of(compiled.sources, [](const CompiledColumn& column) {
            return !column.find_nan && column.source->validity == nullptr;
        });
    compiled.inside =
        spec.step_spans.size() == 1 && spec.anchor == Anchor::window &&
        index.within(bounds, spec.step_spans.front().offset, (compiled.steps - 1) * spec.dilation);
    compiled.method = choose_method(compiled);

    // Few columns make long blocks; only short windows share a block.
    const std::int64_t columns_at_once = compiled.method == GatherMethod::rows
                                             ? compiled.columns
                                             : std::min(compiled.columns, group_columns);
    compiled.block_steps = std::min(tile_values / columns_at_once, max_block_steps);
    const bool per_series = spec.scale.per_series || spec.shift.per_series;
    compiled.break_at_windows =
        per_series || compiled.channels_first() || compiled.steps * 4 > compiled.block_steps;
    set_prefetch_spans(compiled);
    return compiled;
}

Cursor::Cursor(const CompiledField& compiled, std::int64_t series, std::int64_t start)
    : span_(compiled.spec->step_spans.data()),
      end_(span_ + compiled.spec->step_spans.size()),
      dilation_(compiled.spec->dilation),
      low_(compiled.bounds[static_cast<std::size_t>(series)]),
      high_(compiled.bounds[static_cast<std::size_t>(series) + 1]) {
    anchor_ = compiled.spec->anchor == Anchor::window ? start : low_;
    skip_empty();
}

void Cursor::skip_empty() {
    while (span_ != end_ && span_->length == 0)
        ++span_;
}

StepRange Cursor::next(std::int64_t most) {
    const std::int64_t steps = std::min(most, span_->length - done_);
    const std::int64_t row = anchor_ + span_->offset + done_ * dilation_;
    // The number of steps that lie before a row.
    const auto before = [&](std::int64_t limit) {
        if (limit <= row) return std::int64_t{0};
        if (dilation_ == 1) return std::min(limit - row, steps);
        return std::min((limit - row - 1) / dilation_ + 1, steps);
    };
    const std::int64_t lead = before(low_);
    const std::int64_t body = std::max(before(high_) - lead, std::int64_t{0});
    done_ += steps;
    if (done_ == span_->length) {
        ++span_;
        done_ = 0;
        skip_empty();
    }
    return {row + lead * dilation_, lead, body, steps - lead - body};
}

}  // namespace windeck
