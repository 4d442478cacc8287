// Values copied as they are, except that NaN may be replaced.

#include <algorithm>
#include <cstring>

#include "gather/compiled_field.hpp"

namespace windeck {
namespace {

/// `n` values, all `fill`.
void put_fill(const CompiledField& compiled, std::int64_t n, std::byte* to) {
    static constexpr std::uint8_t absent[64] = {};
    for (; n > 0; n -= 64, to += 64 << compiled.log2_out) {
        const std::int64_t some = n < 64 ? n : 64;
        compiled.kernels->patch[compiled.log2_out](absent, some, compiled.fill.data(), to);
    }
}

void put_mask(const StepRange& range, std::int64_t width, std::uint8_t* mask) {
    std::memset(mask, 0, static_cast<std::size_t>(range.lead * width));
    mask += range.lead * width;
    std::memset(mask, 1, static_cast<std::size_t>(range.body * width));
    std::memset(mask + range.body * width, 0, static_cast<std::size_t>(range.tail * width));
}

/// `n` rows of `width` bytes.
void copy_rows(const CompiledField& compiled, const std::byte* from, std::int64_t stride,
               std::int64_t width, std::int64_t n, std::byte* to) {
    if (stride == width || n == 1) {
        std::memcpy(to, from, static_cast<std::size_t>(n * width));
    } else if (width == std::int64_t{1} << compiled.log2_out) {
        compiled.kernels->pack[compiled.log2_out](from, stride, n, to);
    } else {
        for (std::int64_t i = 0; i < n; ++i) {
            std::memcpy(to + i * width, from + i * stride, static_cast<std::size_t>(width));
        }
    }
}

/// The windows of a task. A strip is all columns of a window, or one where channels come first.
class StripCopier {
  public:
    StripCopier(const CompiledField& compiled, const Task& task, const FieldOut& out)
        : compiled_(compiled),
          task_(task),
          out_(out),
          strips_(compiled.channels_first() ? compiled.columns : 1),
          values_(compiled.columns / strips_),
          width_(values_ << compiled.log2_out),
          steps_values_(compiled.steps * values_),
          bytes_(compiled.steps * width_) {}

    /// Every window, most of them by one copy each. Their first rows are computed before the loop
    /// over copies.
    void copy_whole() const {
        std::int64_t rows[max_windows];
        const std::int64_t offset = compiled_.spec->step_spans.front().offset;
        const std::int64_t* const starts = task_.starts;
        const std::int64_t count = task_.size();
        const bool inside = compiled_.inside;
        for (std::int64_t i = 0; i < count; ++i)
            rows[i] = inside ? starts[i] + offset : first_row_if_inside(i);
        for (std::int64_t s = 0; s < strips_; ++s)
            copy_strip(s, rows);
    }

    void copy_ranges() const {
        for (std::int64_t w = task_.begin; w < task_.end; ++w) {
            for (std::int64_t s = 0; s < strips_; ++s)
                window(w, s);
        }
    }

    /// Whether a window inside its series is one stretch of memory in every strip, which the
    /// kernels can read.
    bool adjacent() const {
        return compiled_.spec->step_spans.size() == 1 &&
               std::ranges::all_of(compiled_.sources, [this](const CompiledColumn& column) {
                   return column.stride == width_ && (column.aligned || !column.find_nan);
               });
    }

  private:
    /// One strip of every window, from its first row; -1 for a window that leaves its series.
    void copy_strip(std::int64_t strip, const std::int64_t* rows) const {
        const CompiledColumn& column = source(strip);
        if (column.find_nan) {
            return for_whole(strip, rows, [&](auto* from, auto* to, auto* mask) {
                fill_nan(column, from, steps_values_, to, mask);
            });
        }
        const bool sets_mask = out_.mask != nullptr && !compiled_.complete;
        const auto values = static_cast<std::size_t>(steps_values_);
        const std::int64_t bytes = bytes_;
        auto* const copy = compiled_.kernels->copy;
        for_whole(strip, rows, [=](auto* from, auto* to, auto* mask) {
            copy(from, bytes, to);
            if (sets_mask) std::memset(mask, 1, values);
        });
    }

    /// Calls copy(from, to, mask) for a strip of every window in its series, and window() for the
    /// others. Uses variables in place of members, which would be read again after every copy.
    template <typename Copy>
    void for_whole(std::int64_t strip, const std::int64_t* rows, const Copy& copy) const {
        const PrefetchSpan span = compiled_.spans[static_cast<std::size_t>(strip)];
        const std::byte* const data = source(strip).data;
        const std::int64_t stride = source(strip).source->stride;
        const std::int64_t count = task_.size();
        const std::int64_t ahead = std::min(compiled_.ahead, count);
        const std::int64_t first = (task_.begin * strips_ + strip) * steps_values_;
        const std::int64_t apart = strips_ * steps_values_;
        const std::int64_t bytes_apart = apart << compiled_.log2_out;
        std::byte* to = out_.values + (first << compiled_.log2_out);
        std::uint8_t* mask = out_.mask == nullptr ? nullptr : out_.mask + first;
        const std::int64_t mask_apart = mask == nullptr ? 0 : apart;
        for (std::int64_t i = 0; i < ahead; ++i)
            prefetch(span, rows[i]);
        for (std::int64_t i = 0; i < count; ++i) {
            prefetch(span, rows[std::min(i + ahead, count - 1)]);
            if (rows[i] < 0) {
                window(task_.begin + i, strip);
            } else {
                copy(data + rows[i] * stride, to, mask);
            }
            to += bytes_apart;
            mask += mask_apart;
        }
    }

    /// `n` values copied, with the fill where NaN was.
    void fill_nan(const CompiledColumn& source, const std::byte* from, std::int64_t n,
                  std::byte* to, std::uint8_t* mask) const {
        compiled_.kernels->copy_or_fill[code(source.source->dtype)](from, n, compiled_.fill.data(),
                                                                    to, mask);
    }

    const CompiledColumn& source(std::int64_t strip) const {
        return compiled_.sources[static_cast<std::size_t>(strip)];
    }

    /// The first row of the i-th window if all of its steps are inside its series, else -1.
    std::int64_t first_row_if_inside(std::int64_t i) const {
        const auto* const bounds = compiled_.bounds.data() + task_.series[i];
        const std::int64_t row = first_row(compiled_, task_, i);
        const std::int64_t last = row + (compiled_.steps - 1) * compiled_.spec->dilation;
        return row >= bounds[0] && last < bounds[1] ? row : -1;
    }

    /// Any window, step range by step range.
    void window(std::int64_t w, std::int64_t strip) const {
        const std::int64_t first = (w * strips_ + strip) * compiled_.steps * values_;
        std::byte* to = out_.values + (first << compiled_.log2_out);
        std::uint8_t* mask = out_.mask == nullptr ? nullptr : out_.mask + first;
        Cursor cursor(compiled_, task_.series[w - task_.begin], task_.starts[w - task_.begin]);
        while (!cursor.done()) {
            const StepRange range = cursor.next(compiled_.steps);
            put_fill(compiled_, range.lead * values_, to);
            to += range.lead * width_;
            if (range.body > 0) {
                const std::byte* const from =
                    source(strip).data + range.row * source(strip).source->stride;
                copy_rows(compiled_, from, source(strip).stride, width_, range.body, to);
            }
            const bool whole = compiled_.complete && range.body == range.steps();
            if (mask != nullptr && !whole) put_mask(range, values_, mask);
            if (source(strip).find_nan) {
                std::uint8_t* const inside =
                    mask == nullptr ? nullptr : mask + range.lead * values_;
                fill_nan(source(strip), to, range.body * values_, to, inside);
            }
            to += range.body * width_;
            put_fill(compiled_, range.tail * values_, to);
            to += range.tail * width_;
            if (mask != nullptr) mask += range.steps() * values_;
        }
    }

    const CompiledField& compiled_;
    const Task& task_;
    const FieldOut& out_;
    std::int64_t strips_;
    std::int64_t values_;        // in a row of a strip
    std::int64_t width_;         // bytes of that row
    std::int64_t steps_values_;  // in a window of a strip
    std::int64_t bytes_;         // of them
};

}  // namespace

void gather_strips(const CompiledField& compiled, const Task& task, const FieldOut& out) {
    const StripCopier strips(compiled, task, out);
    if (strips.adjacent()) {
        strips.copy_whole();
    } else {
        strips.copy_ranges();
    }
}

}  // namespace windeck
