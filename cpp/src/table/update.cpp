#include "table/update.hpp"

#include <cmath>

namespace windeck {
namespace {

/// base^exponent by squaring: the same bits everywhere, which the library's pow does not promise.
double power(double base, std::int64_t exponent) {
    double result = 1;
    for (; exponent > 0; exponent >>= 1) {
        if ((exponent & 1) != 0) result *= base;
        base *= base;
    }
    return result;
}

}  // namespace

RowUpdate::RowUpdate(const Update& update, std::int64_t clock, std::size_t dim)
    : kind_(update.kind),
      dim_(dim),
      decay_(static_cast<float>(update.weight_decay)),
      lr_(static_cast<float>(update.lr)),
      eps_(static_cast<float>(update.eps)) {
    if (kind_ != Update::Kind::adam) return;
    keep1_ = static_cast<float>(update.beta1);
    take1_ = static_cast<float>(1 - update.beta1);
    keep2_ = static_cast<float>(update.beta2);
    take2_ = static_cast<float>(1 - update.beta2);
    lr_ = static_cast<float>(update.lr / (1 - power(update.beta1, clock)));
    root_ = static_cast<float>(std::sqrt(1 - power(update.beta2, clock)));
}

void RowUpdate::operator()(const float* gradient, float* row) const noexcept {
    switch (kind_) {
        case Update::Kind::sgd:
            return sgd(gradient, row);
        case Update::Kind::adagrad:
            return adagrad(gradient, row);
        case Update::Kind::adam:
            return adam(gradient, row);
    }
}

// Without decay the gradient is taken as it is, for 0 * w is NaN where w is infinite.

void RowUpdate::sgd(const float* gradient, float* row) const noexcept {
    const bool decays = decay_ != 0;
    for (std::size_t j = 0; j < dim_; ++j) {
        const float g = decays ? gradient[j] + decay_ * row[j] : gradient[j];
        row[j] = row[j] - lr_ * g;
    }
}

void RowUpdate::adagrad(const float* gradient, float* row) const noexcept {
    const bool decays = decay_ != 0;
    float* const squares = row + dim_;
    for (std::size_t j = 0; j < dim_; ++j) {
        const float g = decays ? gradient[j] + decay_ * row[j] : gradient[j];
        squares[j] = squares[j] + g * g;
        row[j] = row[j] - lr_ * (g / (std::sqrt(squares[j]) + eps_));
    }
}

void RowUpdate::adam(const float* gradient, float* row) const noexcept {
    const bool decays = decay_ != 0;
    float* const means = row + dim_;
    float* const squares = means + dim_;
    for (std::size_t j = 0; j < dim_; ++j) {
        const float g = decays ? gradient[j] + decay_ * row[j] : gradient[j];
        means[j] = keep1_ * means[j] + take1_ * g;
        squares[j] = keep2_ * squares[j] + take2_ * (g * g);
        row[j] = row[j] - lr_ * (means[j] / (std::sqrt(squares[j]) / root_ + eps_));
    }
}

}  // namespace windeck
