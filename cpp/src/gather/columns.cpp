// Columns converted one by one; through a tile where the batch interleaves them.

#include <algorithm>
#include <cstring>

#include "gather/convert.hpp"
#include "gather/plan.hpp"
#include "gather/step_block.hpp"

namespace windeck {
namespace {

class ColumnGatherer {
  public:
    ColumnGatherer(const FieldPlan& plan, const Task& task, const FieldOut& out, Scratch& scratch)
        : plan_(plan), task_(task), out_(out), scratch_(scratch), converter_(plan, scratch) {}

    /// Each column straight to its place in the batch.
    void flush_apart() {
        const StepBlock& block = scratch_.block;
        for (std::int64_t c = 0; c < plan_.columns; ++c) {
            const std::int64_t to = (block.window * plan_.columns + c) * plan_.steps + block.step;
            convert(c, out_.values + (to << plan_.log2_out),
                    out_.mask == nullptr ? scratch_.masks : out_.mask + to);
        }
    }

    /// Some columns at a time into the tile, and from there step by step into the batch.
    void flush_interleaved() {
        const StepBlock& block = scratch_.block;
        const std::int64_t first = (block.window * plan_.steps + block.step) * plan_.columns;
        for (std::int64_t c = 0; c < plan_.columns; c += group_columns) {
            const std::int64_t width = std::min(plan_.columns - c, group_columns);
            bool missing = false;
            for (std::int64_t k = 0; k < width; ++k) {
                const std::int64_t place = k * block.steps;
                missing |= convert(c + k, scratch_.tile + (place << plan_.log2_out),
                                   scratch_.masks + place);
            }
            std::byte* const to = out_.values + ((first + c) << plan_.log2_out);
            plan_.kernels->interleave[plan_.log2_out](scratch_.tile, block.steps, width,
                                                      block.steps, to, plan_.columns);
            if (out_.mask != nullptr) put_mask(first + c, width, missing);
        }
    }

  private:
    bool convert(std::int64_t c, std::byte* to, std::uint8_t* present) {
        const auto column = static_cast<std::size_t>(c);
        const std::int64_t next = scratch_.block.window + plan_.ahead;
        if (plan_.prefetch_spread && scratch_.block.step == 0 && next < task_.end) {
            prefetch(plan_, task_, next, {&plan_.spans[column], 1});
        }
        Scaling scaling{nullptr, nullptr, plan_.period};
        if (plan_.scaled) {
            const std::int64_t of = plan_.coefficients_of(scratch_.block.series) + c;
            scaling.scale = plan_.scale.data() + of;
            scaling.shift = plan_.shift.data() + of;
        }
        return converter_.run(plan_.sources[column], 1, scaling, to, present);
    }

    void put_mask(std::int64_t first, std::int64_t width, bool missing) {
        const std::int64_t steps = scratch_.block.steps;
        if (plan_.complete && !missing) return;
        if (!missing && width == plan_.columns) {
            std::memset(out_.mask + first, 1, static_cast<std::size_t>(steps * width));
        } else {
            plan_.kernels->interleave[0](scratch_.masks, steps, width, steps, out_.mask + first,
                                         plan_.columns);
        }
    }

    const FieldPlan& plan_;
    const Task& task_;
    const FieldOut& out_;
    Scratch& scratch_;
    Converter converter_;
};

}  // namespace

void gather_columns(const FieldPlan& plan, const Task& task, const FieldOut& out) {
    Scratch scratch;
    ColumnGatherer columns(plan, task, out, scratch);
    if (plan.columns == 1 || plan.channels_first()) {
        for_blocks(plan, task, scratch.block, [&] { columns.flush_apart(); });
    } else {
        for_blocks(plan, task, scratch.block, [&] { columns.flush_interleaved(); });
    }
}

}  // namespace windeck
