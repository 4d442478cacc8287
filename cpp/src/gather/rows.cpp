// Adjacent columns of a matrix converted together: a row of the source is a row of the batch.

#include <numeric>

#include "gather/compiled_field.hpp"
#include "gather/convert.hpp"
#include "gather/step_block.hpp"

namespace windeck {
namespace {

/// The coefficients of the columns, repeated so that loops over them are long.
class RepeatedScaling {
  public:
    explicit RepeatedScaling(const CompiledField& compiled)
        : compiled_(compiled),
          period_(compiled.scaled ? compiled.columns * repeats(compiled.columns) : 0) {}

    Scaling of(std::int64_t series) {
        const std::int64_t wanted = compiled_.coefficients_of(series);
        if (compiled_.scaled && wanted != current_) {
            for (std::int64_t i = 0; i < period_; ++i) {
                const auto from = static_cast<std::size_t>(wanted + i % compiled_.columns);
                scale_[i] = compiled_.scale[from];
                shift_[i] = compiled_.shift[from];
            }
            current_ = wanted;
        }
        return {scale_, shift_, period_};
    }

  private:
    /// Whole vectors if they fit, some 128 values if those do.
    static std::int64_t repeats(std::int64_t columns) {
        const std::int64_t whole = 16 / std::gcd(columns, std::int64_t{16});
        const std::int64_t times = whole * (128 / (columns * whole) + 1);
        return columns * times <= max_row_columns ? times : 1;
    }

    const CompiledField& compiled_;
    std::int64_t period_;
    std::int64_t current_ = -1;
    double scale_[max_row_columns];  // written before they are read
    double shift_[max_row_columns];
};

}  // namespace

void gather_rows(const CompiledField& compiled, const Task& task, const FieldOut& out) {
    Scratch scratch;
    Converter converter(compiled, scratch);
    RepeatedScaling repeated(compiled);
    for_blocks(compiled, task, scratch.block, [&] {
        const StepBlock& block = scratch.block;
        const std::int64_t to = (block.window * compiled.steps + block.step) * compiled.columns;
        converter.run(compiled.sources.front(), compiled.columns, repeated.of(block.series),
                      out.values + (to << compiled.log2_out),
                      out.mask == nullptr ? scratch.masks : out.mask + to);
    });
}

}  // namespace windeck
