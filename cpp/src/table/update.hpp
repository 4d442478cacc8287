// The step of an optimizer on one row; the formulas are at `Update` in table.hpp.

#pragma once

#include <cstddef>
#include <cstdint>

#include "windeck/table/table.hpp"

namespace windeck {

class RowUpdate {
  public:
    /// For the update that makes the clock `clock`.
    RowUpdate(const Update& update, std::int64_t clock, std::size_t dim);

    /// `row` is the embedding followed by the slots.
    void operator()(const float* gradient, float* row) const noexcept;

  private:
    void sgd(const float* gradient, float* row) const noexcept;
    void adagrad(const float* gradient, float* row) const noexcept;
    void adam(const float* gradient, float* row) const noexcept;

    Update::Kind kind_;
    std::size_t dim_;
    float decay_;
    float lr_;
    float eps_;
    float keep1_ = 0;  // beta1
    float take1_ = 0;  // 1 - beta1
    float keep2_ = 0;
    float take2_ = 0;
    float root_ = 1;  // sqrt(1 - beta2^t)
};

}  // namespace windeck
