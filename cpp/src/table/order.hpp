// The order ids are handed out in: by bucket, then by number.

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
