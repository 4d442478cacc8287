// Conversion of the values of a block, from one column, or a row of columns, to a field.

#pragma once

#include <cstddef>
#include <cstdint>

#include "gather/compiled_field.hpp"
#include "gather/step_block.hpp"

namespace windeck {

/// Factors and summands, repeated with a period; see GatherKernels.
struct Scaling {
    const double* scale;
    const double* shift;
    std::int64_t period;
};

class Converter {
  public:
    Converter(const CompiledField& compiled, Scratch& scratch)
        : compiled_(compiled),
          kernels_(*compiled.kernels),
          scratch_(scratch),
          block_(scratch.block) {}

    /// `width` values a step from `source` into `out`, and their presence into `present`, which is
    /// scratch where the field has no mask. Returns whether presence was written and holds a 0.
    bool run(const CompiledColumn& source, std::int64_t width, const Scaling& scaling,
             std::byte* out, std::uint8_t* present);

  private:
    const std::byte* contiguous(const CompiledColumn& source, std::int64_t width);
    void pack(const CompiledColumn& source, std::int64_t width, const StepRange& range,
              std::byte* to);
    bool drop_filtered(const CompiledColumn& source, std::int64_t width, std::uint8_t* present);
    void to_float(const CompiledColumn& source, const std::byte* in, std::int64_t n,
                  const Scaling& scaling, const void* fill, std::byte* out);
    void to_integer(const CompiledColumn& source, const std::byte* in, std::int64_t n,
                    const Scaling& scaling, const std::uint8_t* present, std::byte* out);
    [[noreturn]] void refuse(const CompiledColumn& source, std::int64_t step) const;

    const CompiledField& compiled_;
    const GatherKernels& kernels_;
    Scratch& scratch_;
    const StepBlock& block_;
};

}  // namespace windeck
