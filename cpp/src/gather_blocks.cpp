// Values converted, block by block.

#include <algorithm>
#include <charconv>
#include <cstring>
#include <stdexcept>
#include <string>

#include "gather_plan.hpp"

namespace windeck {
namespace {

/// Steps of one window or of some short ones, in the order of the batch.
struct Block {
    std::int64_t window = 0;  // of the batch, the first one's
    std::int64_t series = 0;
    std::int64_t step = 0;  // of that window, where the block begins
    std::int64_t steps = 0;
    std::int64_t count = 0;         // pieces
    bool clipped = false;           // some steps lie outside their series
    Piece pieces[max_block_steps];  // the first `count`

    void begin(std::int64_t at_window, std::int64_t at_step, std::int64_t in_series) {
        window = at_window;
        step = at_step;
        series = in_series;
        steps = 0;
        count = 0;
        clipped = false;
    }
    void add(const Piece& piece) {
        pieces[count++] = piece;
        steps += piece.steps();
        clipped |= piece.lead + piece.tail > 0;
    }
    /// The row of a step that lies inside its series.
    std::int64_t row_of(std::int64_t wanted, std::int64_t dilation) const {
        const Piece* piece = pieces;
        for (; wanted >= piece->steps(); ++piece)
            wanted -= piece->steps();
        return piece->row + (wanted - piece->lead) * dilation;
    }
};

struct Scratch {
    alignas(64) std::byte tile[tile_values * 8];  // converted columns, one after the other
    alignas(64) std::byte raw[tile_values * 8];   // source values made contiguous
    alignas(64) std::byte wide[tile_values * 8];  // in 64 bits
    alignas(64) std::uint8_t masks[tile_values];
    Block block;
};

template <typename Flush>
void for_blocks(const FieldPlan& plan, const Task& task, Block& block, const Flush& flush) {
    block.begin(task.begin, 0, 0);
    for (std::int64_t w = task.begin; w < task.end; ++w) {
        const std::int64_t series = task.series[w - task.begin];
        Cursor cursor(plan, series, task.starts[w - task.begin]);
        std::int64_t step = 0;
        while (!cursor.done()) {
            if (block.steps == 0) block.begin(w, step, series);
            const Piece piece = cursor.next(plan.block_steps - block.steps);
            block.add(piece);
            step += piece.steps();
            if (block.steps == plan.block_steps) {
                flush();
                block.steps = 0;
            }
        }
        if (plan.break_at_windows && block.steps > 0) {
            flush();
            block.steps = 0;
        }
    }
    if (block.steps > 0) flush();
}

std::string text_of(const Column& column, std::int64_t row) {
    const std::byte* const from = column.data + row * column.stride;
    alignas(8) std::byte value[8] = {};
    std::memcpy(value, from, static_cast<std::size_t>(size_of(column.dtype)));
    char text[40];
    char* end = text;
    const auto type = static_cast<std::size_t>(column.dtype);
    if (is_float(column.dtype)) {
        double number = 0;
        gather_kernels().widen[type](value, 1, &number);
        end = std::to_chars(text, text + sizeof text, number).ptr;
    } else {
        std::int64_t number = 0;
        gather_kernels().widen_integer[type](value, 1, &number);
        end = column.dtype == DType::uint64
                  ? std::to_chars(text, text + sizeof text, static_cast<std::uint64_t>(number)).ptr
                  : std::to_chars(text, text + sizeof text, number).ptr;
    }
    return std::string(text, end);
}

/// The values of one column, or of one row of columns, of a block, on their way.
class Converter {
  public:
    Converter(const FieldPlan& plan, Scratch& scratch)
        : plan_(plan), kernels_(*plan.kernels), scratch_(scratch), block_(scratch.block) {}

    /// `width` values a step from `source` into `out`; presence into `present` where it is needed.
    /// Returns whether presence was written and there is a 0 in it.
    bool run(const ColumnPlan& source, std::int64_t width, const double* scale, const double* shift,
             std::int64_t period, std::byte* out, std::uint8_t* present) {
        const std::int64_t n = block_.steps * width;
        const std::byte* const in = contiguous(source, width);
        const bool missing = find_present(source, width, in, present);
        const std::uint8_t* const known = missing ? present : nullptr;
        cast(source, in, n, scale, shift, period, known, out);
        if (missing) kernels_.patch[plan_.log2_out](present, n, plan_.fill.data(), out);
        return missing;
    }

  private:
    /// Where the block's values lie one after the other: in the source itself, or copied.
    const std::byte* contiguous(const ColumnPlan& source, std::int64_t width) {
        const std::int64_t bytes = width << source.log2_in;
        const Piece& only = block_.pieces[0];
        const std::int64_t first = source.source->stride;
        if (block_.count == 1 && !block_.clipped && source.aligned &&
            (source.stride == bytes || only.body == 1)) {
            return source.data + only.row * first;
        }
        std::byte* to = scratch_.raw;
        for (std::int64_t p = 0; p < block_.count; ++p) {
            const Piece& piece = block_.pieces[p];
            std::memset(to, 0, static_cast<std::size_t>(piece.lead * bytes));
            to += piece.lead * bytes;
            if (piece.body > 0) {
                pack(source, source.data + piece.row * first, width, piece.body, to);
            }
            to += piece.body * bytes;
            std::memset(to, 0, static_cast<std::size_t>(piece.tail * bytes));
            to += piece.tail * bytes;
        }
        return scratch_.raw;
    }

    void pack(const ColumnPlan& source, const std::byte* from, std::int64_t width, std::int64_t n,
              std::byte* to) {
        const std::int64_t bytes = width << source.log2_in;
        if (width == 1) {
            kernels_.pack[source.log2_in](from, source.stride, n, to);
        } else if (source.stride == bytes) {
            std::memcpy(to, from, static_cast<std::size_t>(n * bytes));
        } else {
            for (std::int64_t i = 0; i < n; ++i) {
                std::memcpy(to + i * bytes, from + i * source.stride,
                            static_cast<std::size_t>(bytes));
            }
        }
    }

    bool find_present(const ColumnPlan& source, std::int64_t width, const std::byte* in,
                      std::uint8_t* present) {
        const bool filtered = source.source->validity != nullptr || block_.clipped;
        if (!plan_.spec->mask && !filtered) return false;
        const std::int64_t n = block_.steps * width;
        bool missing = false;
        if (source.find_nan) {
            const auto type = static_cast<std::size_t>(source.source->dtype);
            missing = kernels_.find_nan[type](in, n, present);
        } else {
            std::memset(present, 1, static_cast<std::size_t>(n));
        }
        if (!filtered) return missing;
        for (std::int64_t p = 0; p < block_.count; ++p) {
            const Piece& piece = block_.pieces[p];
            std::memset(present, 0, static_cast<std::size_t>(piece.lead * width));
            present += piece.lead * width;
            if (source.source->validity != nullptr && piece.body > 0) {
                missing |= kernels_.apply_bits(source.source->validity,
                                               source.source->validity_offset + piece.row,
                                               plan_.spec->dilation, piece.body, present);
            }
            present += piece.body * width;
            std::memset(present, 0, static_cast<std::size_t>(piece.tail * width));
            present += piece.tail * width;
        }
        return missing || block_.clipped;
    }

    void cast(const ColumnPlan& source, const std::byte* in, std::int64_t n, const double* scale,
              const double* shift, std::int64_t period, const std::uint8_t* present,
              std::byte* out) {
        const auto from = static_cast<std::size_t>(source.source->dtype);
        const auto to = static_cast<std::size_t>(plan_.spec->dtype);
        if (source.cast == Cast::copy) {
            std::memcpy(out, in, static_cast<std::size_t>(n << source.log2_in));
        } else if (source.cast == Cast::integer) {
            auto* const wide = reinterpret_cast<std::int64_t*>(scratch_.wide);
            kernels_.widen_integer[from](in, n, wide);
            clear_missing(present, n);
            const bool is_unsigned = source.source->dtype == DType::uint64;
            check_all(source, kernels_.narrow_integer[to](wide, is_unsigned, n, out), n);
        } else if (!is_float(plan_.spec->dtype)) {
            auto* const wide = reinterpret_cast<double*>(scratch_.wide);
            kernels_.widen[from](in, n, wide);
            kernels_.convert64[0](wide, n, scale, shift, period, wide);
            clear_missing(present, n);
            check_all(source, kernels_.round[to](wide, n, out), n);
        } else if (source.source->dtype == DType::float64) {
            kernels_.convert64[to](in, n, scale, shift, period, out);
        } else if (source.source->dtype == DType::float32) {
            kernels_.convert32[to](in, n, scale, shift, period, out);
        } else {
            widen(source, in, n);
            kernels_.convert64[to](scratch_.wide, n, scale, shift, period, out);
        }
    }

    void widen(const ColumnPlan& source, const std::byte* in, std::int64_t n) {
        auto* const wide = reinterpret_cast<double*>(scratch_.wide);
        if (!source.round_odd) {
            kernels_.widen[static_cast<std::size_t>(source.source->dtype)](in, n, wide);
        } else if (source.source->dtype == DType::int64) {
            kernels_.widen_odd_signed(in, n, wide);
        } else {
            kernels_.widen_odd_unsigned(in, n, wide);
        }
    }

    /// A missing value need not fit.
    void clear_missing(const std::uint8_t* present, std::int64_t n) {
        static constexpr std::int64_t zero = 0;
        if (present != nullptr) kernels_.patch[3](present, n, &zero, scratch_.wide);
    }

    void check_all(const ColumnPlan& source, std::int64_t fitting, std::int64_t n) {
        if (fitting == n) return;
        const std::int64_t row = block_.row_of(fitting, plan_.spec->dilation);
        throw std::invalid_argument("column '" + source.source->name + "' of field '" +
                                    plan_.spec->name + "' holds " + text_of(*source.source, row) +
                                    " at row " + std::to_string(row) +
                                    (plan_.scaled ? ", scaled," : "") + ", which " +
                                    std::string(name(plan_.spec->dtype)) + " cannot hold");
    }

    const FieldPlan& plan_;
    const GatherKernels& kernels_;
    Scratch& scratch_;
    const Block& block_;
};

/// The coefficients of a block's series, all columns.
const double* of_series(const FieldPlan& plan, const std::vector<double>& all,
                        std::int64_t series) {
    if (!plan.scaled) return nullptr;
    const bool per_series = plan.spec->scale.per_series || plan.spec->shift.per_series;
    return all.data() + (per_series ? series * plan.columns : 0);
}

}  // namespace

void gather_columns(const FieldPlan& plan, const Task& task, const FieldOut& out) {
    Scratch scratch;  // not initialised: it is written before it is read
    Block& block = scratch.block;
    Converter converter(plan, scratch);
    const bool through_tile = plan.columns > 1 && !plan.channels_first();
    const auto flush = [&] {
        const double* const scale = of_series(plan, plan.scale, block.series);
        const double* const shift = of_series(plan, plan.shift, block.series);
        const std::int64_t first = block.window * plan.steps + block.step;
        for (std::int64_t group = 0; group < plan.columns; group += group_columns) {
            const std::int64_t end = std::min(plan.columns, group + group_columns);
            bool missing = false;
            for (std::int64_t c = group; c < end; ++c) {
                // In the batch, or in the tile.
                const std::int64_t place =
                    through_tile ? (c - group) * block.steps
                                 : (block.window * plan.columns + c) * plan.steps + block.step;
                std::byte* const to =
                    (through_tile ? scratch.tile : out.values) + (place << plan.log2_out);
                std::uint8_t* const present = out.mask == nullptr || through_tile
                                                  ? scratch.masks + (through_tile ? place : 0)
                                                  : out.mask + place;
                const double* const s = plan.scaled ? scale + c : nullptr;
                const double* const t = plan.scaled ? shift + c : nullptr;
                missing |= converter.run(plan.sources[static_cast<std::size_t>(c)], 1, s, t,
                                         plan.period, to, present);
            }
            if (!through_tile) continue;
            const std::int64_t to = first * plan.columns + group;
            plan.kernels->interleave[plan.log2_out](scratch.tile, block.steps, end - group,
                                                    block.steps, out.values + (to << plan.log2_out),
                                                    plan.columns);
            if (out.mask == nullptr) continue;
            if (!missing && end - group == plan.columns) {
                std::memset(out.mask + to, 1, static_cast<std::size_t>(block.steps * plan.columns));
            } else {
                plan.kernels->interleave[0](scratch.masks, block.steps, end - group, block.steps,
                                            out.mask + to, plan.columns);
            }
        }
    };
    for_blocks(plan, task, block, flush);
}

void gather_rows(const FieldPlan& plan, const Task& task, const FieldOut& out) {
    Scratch scratch;  // not initialised: it is written before it is read
    Block& block = scratch.block;
    Converter converter(plan, scratch);
    // Coefficients repeated, so that the inner loop runs over many values.
    double scale[max_row_columns];
    double shift[max_row_columns];
    const std::int64_t period =
        plan.scaled ? plan.columns * std::max<std::int64_t>(1, 128 / plan.columns) : 0;
    const double* repeated = nullptr;
    const auto repeat = [&](const double* from, double* to) {
        for (std::int64_t i = 0; i < period; ++i)
            to[i] = from[i % plan.columns];
    };
    const auto flush = [&] {
        const double* const wanted = of_series(plan, plan.scale, block.series);
        if (wanted != repeated) {
            repeat(wanted, scale);
            repeat(of_series(plan, plan.shift, block.series), shift);
            repeated = wanted;
        }
        const std::int64_t first = (block.window * plan.steps + block.step) * plan.columns;
        converter.run(plan.sources.front(), plan.columns, scale, shift, period,
                      out.values + (first << plan.log2_out),
                      out.mask == nullptr ? scratch.masks : out.mask + first);
    };
    for_blocks(plan, task, block, flush);
}

}  // namespace windeck
