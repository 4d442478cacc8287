// Values copied as they are, except that NaN may be replaced.

#include <algorithm>
#include <cstring>

#include "gather/plan.hpp"

namespace windeck {
namespace {

/// `n` values, all `fill`.
void put_fill(const FieldPlan& plan, std::int64_t n, std::byte* to) {
    static constexpr std::uint8_t absent[64] = {};
    for (; n > 0; n -= 64, to += 64 << plan.log2_out) {
        const std::int64_t some = n < 64 ? n : 64;
        plan.kernels->patch[plan.log2_out](absent, some, plan.fill.data(), to);
    }
}

void put_mask(const StepRange& piece, std::int64_t width, std::uint8_t* mask) {
    std::memset(mask, 0, static_cast<std::size_t>(piece.lead * width));
    mask += piece.lead * width;
    std::memset(mask, 1, static_cast<std::size_t>(piece.body * width));
    std::memset(mask + piece.body * width, 0, static_cast<std::size_t>(piece.tail * width));
}

/// `n` rows of `width` bytes.
void copy_rows(const FieldPlan& plan, const std::byte* from, std::int64_t stride,
               std::int64_t width, std::int64_t n, std::byte* to) {
    if (stride == width || n == 1) {
        std::memcpy(to, from, static_cast<std::size_t>(n * width));
    } else if (width == std::int64_t{1} << plan.log2_out) {
        plan.kernels->pack[plan.log2_out](from, stride, n, to);
    } else {
        for (std::int64_t i = 0; i < n; ++i) {
            std::memcpy(to + i * width, from + i * stride, static_cast<std::size_t>(width));
        }
    }
}

/// The windows of a task. A strip is all columns of a window, or one where channels come first.
class StripCopier {
  public:
    StripCopier(const FieldPlan& plan, const Task& task, const FieldOut& out)
        : plan_(plan),
          task_(task),
          out_(out),
          strips_(plan.channels_first() ? plan.columns : 1),
          values_(plan.columns / strips_),
          width_(values_ << plan.log2_out),
          steps_values_(plan.steps * values_),
          bytes_(plan.steps * width_) {}

    /// Every window, most of them by one copy each. Their first rows are computed before the loop
    /// over copies.
    void copy_whole() const {
        std::int64_t rows[max_windows];
        const std::int64_t offset = plan_.spec->segments.front().offset;
        const std::int64_t* const starts = task_.starts;
        const std::int64_t count = task_.size();
        const bool inside = plan_.inside;
        for (std::int64_t i = 0; i < count; ++i)
            rows[i] = inside ? starts[i] + offset : first_row_if_inside(i);
        for (std::int64_t s = 0; s < strips_; ++s)
            copy_strip(s, rows);
    }

    void copy_pieces() const {
        for (std::int64_t w = task_.begin; w < task_.end; ++w) {
            for (std::int64_t s = 0; s < strips_; ++s)
                window(w, s);
        }
    }

    /// Whether a window inside its series is one stretch of memory in every strip, which the
    /// kernels can read.
    bool adjacent() const {
        return plan_.spec->segments.size() == 1 &&
               std::ranges::all_of(plan_.sources, [this](const ColumnPlan& column) {
                   return column.stride == width_ && (column.aligned || !column.find_nan);
               });
    }

  private:
    /// One strip of every window, from its first row; -1 for a window that leaves its series.
    void copy_strip(std::int64_t strip, const std::int64_t* rows) const {
        const ColumnPlan& column = source(strip);
        if (column.find_nan) {
            return for_whole(strip, rows, [&](auto* from, auto* to, auto* mask) {
                fill_nan(column, from, steps_values_, to, mask);
            });
        }
        const bool sets_mask = out_.mask != nullptr && !plan_.complete;
        const auto values = static_cast<std::size_t>(steps_values_);
        const auto bytes = static_cast<std::size_t>(bytes_);
        for_whole(strip, rows, [=](auto* from, auto* to, auto* mask) {
            std::memcpy(to, from, bytes);
            if (sets_mask) std::memset(mask, 1, values);
        });
    }

    /// Calls copy(from, to, mask) for a strip of every window in its series, and window() for the
    /// others. Uses variables in place of members, which would be read again after every copy.
    template <typename Copy>
    void for_whole(std::int64_t strip, const std::int64_t* rows, const Copy& copy) const {
        const PrefetchSpan span = plan_.spans[static_cast<std::size_t>(strip)];
        const std::byte* const data = source(strip).data;
        const std::int64_t stride = source(strip).source->stride;
        const std::int64_t count = task_.size();
        const std::int64_t ahead = std::min(plan_.ahead, count);
        const std::int64_t first = (task_.begin * strips_ + strip) * steps_values_;
        const std::int64_t apart = strips_ * steps_values_;
        const std::int64_t bytes_apart = apart << plan_.log2_out;
        std::byte* to = out_.values + (first << plan_.log2_out);
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
    void fill_nan(const ColumnPlan& source, const std::byte* from, std::int64_t n, std::byte* to,
                  std::uint8_t* mask) const {
        plan_.kernels->copy_or_fill[code(source.source->dtype)](from, n, plan_.fill.data(), to,
                                                                mask);
    }

    const ColumnPlan& source(std::int64_t strip) const {
        return plan_.sources[static_cast<std::size_t>(strip)];
    }

    /// The first row of the i-th window if all of its steps are inside its series, else -1.
    std::int64_t first_row_if_inside(std::int64_t i) const {
        const auto* const bounds = plan_.bounds.data() + task_.series[i];
        const std::int64_t row = first_row(plan_, task_, i);
        const std::int64_t last = row + (plan_.steps - 1) * plan_.spec->dilation;
        return row >= bounds[0] && last < bounds[1] ? row : -1;
    }

    /// Any window, piece by piece.
    void window(std::int64_t w, std::int64_t strip) const {
        const std::int64_t first = (w * strips_ + strip) * plan_.steps * values_;
        std::byte* to = out_.values + (first << plan_.log2_out);
        std::uint8_t* mask = out_.mask == nullptr ? nullptr : out_.mask + first;
        Cursor cursor(plan_, task_.series[w - task_.begin], task_.starts[w - task_.begin]);
        while (!cursor.done()) {
            const StepRange piece = cursor.next(plan_.steps);
            put_fill(plan_, piece.lead * values_, to);
            to += piece.lead * width_;
            if (piece.body > 0) {
                const std::byte* const from =
                    source(strip).data + piece.row * source(strip).source->stride;
                copy_rows(plan_, from, source(strip).stride, width_, piece.body, to);
            }
            const bool whole = plan_.complete && piece.body == piece.steps();
            if (mask != nullptr && !whole) put_mask(piece, values_, mask);
            if (source(strip).find_nan) {
                std::uint8_t* const inside =
                    mask == nullptr ? nullptr : mask + piece.lead * values_;
                fill_nan(source(strip), to, piece.body * values_, to, inside);
            }
            to += piece.body * width_;
            put_fill(plan_, piece.tail * values_, to);
            to += piece.tail * width_;
            if (mask != nullptr) mask += piece.steps() * values_;
        }
    }

    const FieldPlan& plan_;
    const Task& task_;
    const FieldOut& out_;
    std::int64_t strips_;
    std::int64_t values_;        // in a row of a strip
    std::int64_t width_;         // bytes of that row
    std::int64_t steps_values_;  // in a window of a strip
    std::int64_t bytes_;         // of them
};

}  // namespace

void gather_strips(const FieldPlan& plan, const Task& task, const FieldOut& out) {
    const StripCopier strips(plan, task, out);
    if (strips.adjacent()) {
        strips.copy_whole();
    } else {
        strips.copy_pieces();
    }
}

}  // namespace windeck
