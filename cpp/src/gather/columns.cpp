// Columns converted one by one; through a tile where the batch interleaves them.

#include <algorithm>
#include <cstring>

#include "gather/compiled_field.hpp"
#include "gather/convert.hpp"
#include "gather/step_block.hpp"

namespace windeck {
namespace {

class ColumnGatherer {
  public:
    ColumnGatherer(const CompiledField& compiled, const Task& task, const FieldOut& out,
                   Scratch& scratch)
        : compiled_(compiled),
          task_(task),
          out_(out),
          scratch_(scratch),
          converter_(compiled, scratch) {}

    /// Each column straight to its place in the batch.
    void flush_apart() {
        const StepBlock& block = scratch_.block;
        for (std::int64_t c = 0; c < compiled_.columns; ++c) {
            const std::int64_t to =
                (block.window * compiled_.columns + c) * compiled_.steps + block.step;
            convert(c, out_.values + (to << compiled_.log2_out),
                    out_.mask == nullptr ? scratch_.masks : out_.mask + to);
        }
    }

    /// Some columns at a time into the tile, and from there step by step into the batch.
    void flush_interleaved() {
        const StepBlock& block = scratch_.block;
        const std::int64_t first =
            (block.window * compiled_.steps + block.step) * compiled_.columns;
        for (std::int64_t c = 0; c < compiled_.columns; c += group_columns) {
            const std::int64_t width = std::min(compiled_.columns - c, group_columns);
            bool missing = false;
            for (std::int64_t k = 0; k < width; ++k) {
                const std::int64_t place = k * block.steps;
                missing |= convert(c + k, scratch_.tile + (place << compiled_.log2_out),
                                   scratch_.masks + place);
            }
            std::byte* const to = out_.values + ((first + c) << compiled_.log2_out);
            compiled_.kernels->interleave[compiled_.log2_out](scratch_.tile, block.steps, width,
                                                              block.steps, to, compiled_.columns);
            if (out_.mask != nullptr) put_mask(first + c, width, missing);
        }
    }

  private:
    bool convert(std::int64_t c, std::byte* to, std::uint8_t* present) {
        const auto column = static_cast<std::size_t>(c);
        const std::int64_t next = scratch_.block.window + compiled_.ahead;
        if (compiled_.prefetch_spread && scratch_.block.step == 0 && next < task_.end) {
            prefetch(compiled_, task_, next, {&compiled_.spans[column], 1});
        }
        Scaling scaling{nullptr, nullptr, compiled_.period};
        if (compiled_.scaled) {
            const std::int64_t of = compiled_.coefficients_of(scratch_.block.series) + c;
            scaling.scale = compiled_.scale.data() + of;
            scaling.shift = compiled_.shift.data() + of;
        }
        return converter_.run(compiled_.sources[column], 1, scaling, to, present);
    }

    void put_mask(std::int64_t first, std::int64_t width, bool missing) {
        const std::int64_t steps = scratch_.block.steps;
        if (compiled_.complete && !missing) return;
        if (!missing && width == compiled_.columns) {
            std::memset(out_.mask + first, 1, static_cast<std::size_t>(steps * width));
        } else {
            compiled_.kernels->interleave[0](scratch_.masks, steps, width, steps, out_.mask + first,
                                             compiled_.columns);
        }
    }

    const CompiledField& compiled_;
    const Task& task_;
    const FieldOut& out_;
    Scratch& scratch_;
    Converter converter_;
};

}  // namespace

void gather_columns(const CompiledField& compiled, const Task& task, const FieldOut& out) {
    Scratch scratch;
    ColumnGatherer columns(compiled, task, out, scratch);
    if (compiled.columns == 1 || compiled.channels_first()) {
        for_blocks(compiled, task, scratch.block, [&] { columns.flush_apart(); });
    } else {
        for_blocks(compiled, task, scratch.block, [&] { columns.flush_interleaved(); });
    }
}

}  // namespace windeck
