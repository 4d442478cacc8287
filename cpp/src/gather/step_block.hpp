// Blocks of steps, the unit of work of the gather.

#pragma once

#include <cstddef>
#include <cstdint>

#include "gather/compiled_field.hpp"

namespace windeck {

/// Steps of one window or of some short ones, in the order of the batch.
struct StepBlock {
    std::int64_t window = 0;  // of the batch, the first one's
    std::int64_t step = 0;    // of that window, where the block begins
    std::int64_t series = 0;
    std::int64_t steps = 0;
    std::int64_t count = 0;             // step ranges
    bool clipped = false;               // some steps lie outside their series
    StepRange ranges[max_block_steps];  // the first `count`

    void begin(std::int64_t at_window, std::int64_t at_step, std::int64_t in_series) {
        window = at_window;
        step = at_step;
        series = in_series;
        steps = 0;
        count = 0;
        clipped = false;
    }

    void add(const StepRange& range) {
        ranges[count++] = range;
        steps += range.steps();
        clipped |= range.lead + range.tail > 0;
    }

    /// The row of a step that lies inside its series.
    std::int64_t row_of(std::int64_t wanted, std::int64_t dilation) const {
        const StepRange* range = ranges;
        for (; wanted >= range->steps(); ++range)
            wanted -= range->steps();
        return range->row + (wanted - range->lead) * dilation;
    }
};

/// Working memory of one thread, on its stack; written before it is read.
struct Scratch {
    alignas(64) std::byte tile[tile_values * 8];  // converted columns, one after the other
    alignas(64) std::byte raw[tile_values * 8];   // source values made contiguous
    alignas(64) std::byte wide[tile_values * 8];  // in 64 bits
    alignas(64) std::uint8_t masks[tile_values];
    StepBlock block;
};

/// Divides the windows of a task into blocks and calls flush() for each; prefetches later windows.
template <typename Flush>
void for_blocks(const CompiledField& compiled, const Task& task, StepBlock& block,
                const Flush& flush) {
    block.steps = 0;
    const auto finish = [&] {
        if (block.steps > 0) flush();
        block.steps = 0;
    };
    prefetch_first(compiled, task);
    for (std::int64_t w = task.begin; w < task.end; ++w) {
        if (!compiled.prefetch_spread) prefetch_ahead(compiled, task, w);
        const std::int64_t series = task.series[w - task.begin];
        Cursor cursor(compiled, series, task.starts[w - task.begin]);
        std::int64_t step = 0;
        while (!cursor.done()) {
            if (block.steps == 0) block.begin(w, step, series);
            const StepRange range = cursor.next(compiled.block_steps - block.steps);
            block.add(range);
            step += range.steps();
            if (block.steps == compiled.block_steps) finish();
        }
        if (compiled.break_at_windows) finish();
    }
    finish();
}

}  // namespace windeck
