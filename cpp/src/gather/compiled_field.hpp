// A field, compiled once for all batches: its method, kernels and constants.
//
// Three methods, cheapest first:
//     strips   values are copied, in whole rows of the batch (or of a channel); NaN is replaced
//     rows     adjacent columns of a row-major matrix are converted as one stretch of values
//     columns  each column is converted into a tile in the first-level cache, and the tile is
//              interleaved into the batch
// The work is done in blocks of steps, which stay in the cache for all passes but the first. Short
// windows share a block.

#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gather/kernels/gather.hpp"
#include "windeck/gather/gather.hpp"

namespace windeck {

inline constexpr std::int64_t tile_values = 2048;  // a block, all its columns
inline constexpr std::int64_t group_columns = 64;  // columns in a tile
inline constexpr std::int64_t max_block_steps = 1024;
inline constexpr std::int64_t max_row_columns = 1024;  // columns the method `rows` takes

/// Windows located at a time, those of a task: enough to pay for the setting up, few enough for the
/// cache.
inline constexpr std::int64_t max_windows = 128;

enum class GatherMethod { strips, rows, columns };

/// The conversion from values of a column to values of the field.
enum class Conversion { copy, integer, real };

struct CompiledColumn {
    const Column* source;
    const std::byte* data;
    std::int64_t stride;  // bytes from one step to the next, dilation included
    int log2_in;
    Conversion conversion;
    bool find_nan;
    bool aligned;    // may be read in place
    bool fills_nan;  // the kernel puts the fill where NaN was
    bool fused;      // a kernel finds NaN and converts in one pass
    bool round_odd;  // a large integer to a narrow float
};

/// Adjacent memory of a window, for prefetching: addresses data + row * stride + i *
/// step.
struct PrefetchSpan {
    std::uintptr_t data;
    std::int64_t stride;
    std::int64_t step;
    std::int64_t lines;
};

struct CompiledField {
    const FieldSpec* spec;
    std::span<const std::int64_t> bounds;
    const GatherKernels* kernels;
    GatherMethod method;
    std::int64_t steps;  // of a window
    std::int64_t columns;
    int log2_out;
    std::array<std::byte, 8> fill;  // in the field's type
    std::vector<CompiledColumn> sources;
    std::int64_t block_steps;
    bool break_at_windows;  // a block holds steps of one window only
    bool inside;            // one step span on the window, which no window leaves its series with
    bool complete;          // has a mask, and only steps outside the series can be missing

    // Scale and shift; without them period is 0. For rows they are repeated to a longer period.
    bool scaled;
    std::vector<double> scale;
    std::vector<double> shift;
    std::int64_t period;

    std::vector<PrefetchSpan> spans;
    std::int64_t ahead;    // windows to prefetch before they are needed
    bool prefetch_spread;  // each column's span while that column of this window is at work

    /// The index of the first coefficient of a series.
    std::int64_t coefficients_of(std::int64_t series) const {
        return spec->scale.per_series || spec->shift.per_series ? series * columns : 0;
    }
    bool channels_first() const { return spec->layout == Layout::bct && columns > 1; }
};

/// Consecutive steps of a window in one step span: `lead` steps before the series, `body` steps
/// inside it from `row` on, `tail` steps after it.
struct StepRange {
    std::int64_t row;
    std::int64_t lead;
    std::int64_t body;
    std::int64_t tail;

    std::int64_t steps() const { return lead + body + tail; }
};

/// Walks the steps of one window.
class Cursor {
  public:
    Cursor(const CompiledField& compiled, std::int64_t series, std::int64_t start);

    bool done() const { return span_ == end_; }
    /// The next steps, at most `most` and at least one.
    StepRange next(std::int64_t most);

  private:
    void skip_empty();

    const StepSpan* span_;
    const StepSpan* end_;
    std::int64_t dilation_;
    std::int64_t anchor_;
    std::int64_t low_;
    std::int64_t high_;
    std::int64_t done_ = 0;  // steps of the step span so far
};

/// Validates the field against the series and compiles it.
CompiledField compile_field(const FieldSpec& spec, std::span<const std::int64_t> bounds,
                            const WindowIndex& index);

/// Windows [begin, end) of the batch, whose series and start rows are at series[0] and starts[0].
struct Task {
    std::int64_t begin;
    std::int64_t end;
    const std::int64_t* series;
    const std::int64_t* starts;

    std::int64_t size() const { return end - begin; }
};

/// The first row of the i-th window of the task, which may be outside its series.
inline std::int64_t first_row(const CompiledField& compiled, const Task& task, std::int64_t i) {
    const bool on_window = compiled.spec->anchor == Anchor::window;
    return (on_window ? task.starts[i]
                      : compiled.bounds[static_cast<std::size_t>(task.series[i])]) +
           compiled.spec->step_spans.front().offset;
}

/// Prefetches the span of a window from its first row on. Always inlined: GCC 12 treats a function
/// that only prefetches as without effect.
[[gnu::always_inline]] inline void prefetch(const PrefetchSpan& span, std::int64_t row) {
    // A hint may point anywhere, a pointer may not: hence the integers.
    std::uintptr_t address =
        span.data + static_cast<std::uintptr_t>(row) * static_cast<std::uintptr_t>(span.stride);
    for (std::int64_t line = 0; line < span.lines; ++line) {
        __builtin_prefetch(reinterpret_cast<const void*>(address));
        address += static_cast<std::uintptr_t>(span.step);
    }
}

/// Prefetches spans of a window of the task: windows come in random order, which the processor
/// cannot predict.
[[gnu::always_inline]] inline void prefetch(const CompiledField& compiled, const Task& task,
                                            std::int64_t window,
                                            std::span<const PrefetchSpan> spans) {
    const std::int64_t row = first_row(compiled, task, window - task.begin);
    for (const PrefetchSpan& span : spans)
        prefetch(span, row);
}

[[gnu::always_inline]] inline void prefetch_ahead(const CompiledField& compiled, const Task& task,
                                                  std::int64_t window) {
    if (window + compiled.ahead < task.end)
        prefetch(compiled, task, window + compiled.ahead, compiled.spans);
}

[[gnu::always_inline]] inline void prefetch_first(const CompiledField& compiled, const Task& task) {
    const std::int64_t end = std::min(task.begin + compiled.ahead, task.end);
    for (std::int64_t w = task.begin; w < end; ++w)
        prefetch(compiled, task, w, compiled.spans);
}

void gather_strips(const CompiledField& compiled, const Task& task, const FieldOut& out);
void gather_rows(const CompiledField& compiled, const Task& task, const FieldOut& out);
void gather_columns(const CompiledField& compiled, const Task& task, const FieldOut& out);

}  // namespace windeck
