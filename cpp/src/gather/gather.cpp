#include "windeck/gather/gather.hpp"

#include <algorithm>
#include <cstring>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "gather/compiled_field.hpp"
#include "windeck/base/parallel.hpp"

namespace windeck {
namespace {

void check_bounds(std::span<const std::int64_t> bounds, const WindowIndex& index) {
    if (bounds.empty() || bounds.front() < 0) {
        throw std::invalid_argument(bounds.empty()
                                        ? "bounds are empty, expected one entry more than series"
                                        : "bounds begin at " + std::to_string(bounds.front()) +
                                              ", expected 0 or more");
    }
    const auto down = std::ranges::is_sorted_until(bounds);
    if (down != bounds.end()) {
        throw std::invalid_argument("bounds decrease from " + std::to_string(*(down - 1)) + " to " +
                                    std::to_string(*down) + " at series " +
                                    std::to_string(down - bounds.begin() - 1) +
                                    ", expected offsets that never decrease");
    }
    const auto series = static_cast<std::int64_t>(bounds.size()) - 1;
    if (index.max_series() >= series) {
        throw std::invalid_argument(
            "the index has windows of series " + std::to_string(index.max_series()) +
            ", expected fewer than the " + std::to_string(series) + " series of the bounds");
    }
}

void check_names(const std::vector<FieldSpec>& fields) {
    std::set<std::string> names{"series_id", "start"};
    const auto add = [&](const std::string& key) {
        if (names.insert(key).second) return;
        throw std::invalid_argument("two arrays of the batch are called '" + key +
                                    "', expected each name once");
    };
    for (const FieldSpec& field : fields) {
        add(field.name);
        if (field.mask) add(field.name + "_mask");
    }
}

void gather_field(const CompiledField& compiled, const Task& task, const FieldOut& out) {
    if (compiled.complete) {
        // All windows at once; those that leave their series clear the steps outside.
        const std::int64_t values = compiled.steps * compiled.columns;
        std::memset(out.mask + task.begin * values, 1,
                    static_cast<std::size_t>(task.size() * values));
    }
    switch (compiled.method) {
        case GatherMethod::strips:
            return gather_strips(compiled, task, out);
        case GatherMethod::rows:
            return gather_rows(compiled, task, out);
        case GatherMethod::columns:
            return gather_columns(compiled, task, out);
    }
}

}  // namespace

Gather::Gather(std::shared_ptr<const WindowIndex> index, std::vector<std::int64_t> bounds,
               std::vector<FieldSpec> fields)
    : index_(std::move(index)), bounds_(std::move(bounds)), fields_(std::move(fields)) {
    check_bounds(bounds_, *index_);
    check_names(fields_);
    for (const FieldSpec& field : fields_) {
        compiled_.push_back(
            std::make_unique<const CompiledField>(compile_field(field, bounds_, *index_)));
    }
}

Gather::~Gather() = default;

std::int64_t Gather::steps(std::size_t field) const noexcept {
    return compiled_[field]->steps;
}

void Gather::run(std::span<const std::int64_t> indices, std::span<const FieldOut> outs,
                 std::int64_t* series, std::int64_t* starts, int threads) const {
    index_->check(indices);
    const auto windows = static_cast<std::int64_t>(indices.size());
    const std::int64_t share = windows / (std::max(threads, 1) * std::int64_t{8}) + 1;
    const std::int64_t grain = std::min(share, max_windows);
    parallel_for(windows, grain, threads, [&](std::int64_t begin, std::int64_t end) {
        const auto some =
            indices.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
        std::int64_t located[2][max_windows];  // where the caller wants neither
        std::int64_t* const of_series = series == nullptr ? located[0] : series + begin;
        std::int64_t* const at_row = starts == nullptr ? located[1] : starts + begin;
        index_->locate(some, of_series, at_row);
        const Task task{begin, end, of_series, at_row};
        for (std::size_t f = 0; f < compiled_.size(); ++f)
            gather_field(*compiled_[f], task, outs[f]);
    });
}

}  // namespace windeck
