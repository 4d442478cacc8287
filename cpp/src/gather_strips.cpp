// Bytes copied as they are.

#include <cstring>

#include "gather_plan.hpp"

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

void put_mask(const Piece& piece, std::int64_t width, std::uint8_t* mask) {
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

}  // namespace

void gather_strips(const FieldPlan& plan, const Task& task, const FieldOut& out) {
    // A strip is all columns of the steps, or one column where channels come first.
    const std::int64_t strips = plan.channels_first() ? plan.columns : 1;
    const std::int64_t values = plan.columns / strips;  // in a row of the strip
    const std::int64_t width = values << plan.log2_out;
    for (std::int64_t w = task.begin; w < task.end; ++w) {
        for (std::int64_t s = 0; s < strips; ++s) {
            const ColumnPlan& source = plan.sources[static_cast<std::size_t>(s)];
            const std::int64_t first = (w * strips + s) * plan.steps * values;
            std::byte* to = out.values + (first << plan.log2_out);
            std::uint8_t* mask = out.mask == nullptr ? nullptr : out.mask + first;
            Cursor cursor(plan, task.series[w - task.begin], task.starts[w - task.begin]);
            while (!cursor.done()) {
                const Piece piece = cursor.next(plan.steps);
                put_fill(plan, piece.lead * values, to);
                to += piece.lead * width;
                if (piece.body > 0) {
                    copy_rows(plan, source.data + piece.row * source.source->stride, source.stride,
                              width, piece.body, to);
                }
                to += piece.body * width;
                put_fill(plan, piece.tail * values, to);
                to += piece.tail * width;
                if (mask == nullptr) continue;
                put_mask(piece, values, mask);
                mask += piece.steps() * values;
            }
        }
    }
}

}  // namespace windeck
