// The order of ids in snapshots: by bucket, then by id.

#pragma once

#include <cstdint>

#include "windeck/table/table.hpp"

namespace windeck {

inline bool before_by_bucket(std::int64_t a, std::int64_t b) {
    const std::int64_t first = bucket_of(a);
    const std::int64_t second = bucket_of(b);
    return first != second ? first < second : a < b;
}

}  // namespace windeck
