#include "table_map.hpp"

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

namespace windeck {

void IdMap::reserve(std::uint64_t ids) {
    if (ids <= slots_.size() / 4 * 3) return;
    if (ids > std::uint64_t{1} << 58) throw std::bad_alloc();
    const std::uint64_t wanted = std::max<std::uint64_t>(16, std::bit_ceil(ids + ids / 3 + 1));
    BigArray<Slot> before = std::exchange(slots_, BigArray<Slot>(wanted));
    mask_ = wanted - 1;
    for (std::size_t at = 0; at < before.size(); ++at) {
        if (before[at].number != 0) place(before[at].id, before[at].number);
    }
}

void IdMap::place(std::int64_t id, std::uint64_t number) noexcept {
    std::uint64_t at = home(hash_id(id));
    while (slots_[at].number != 0 && slots_[at].id != id)
        at = (at + 1) & mask_;
    slots_[at] = {id, number};
}

void IdMap::set(std::int64_t id, std::uint64_t number) noexcept {
    if (find(id) == absent) ++size_;
    place(id, number + 1);
}

void IdMap::erase(std::int64_t id) noexcept {
    std::uint64_t hole = home(hash_id(id));
    while (slots_[hole].id != id || slots_[hole].number == 0)
        hole = (hole + 1) & mask_;
    // An entry moves back into the hole unless its own place lies behind the hole, cyclically.
    for (std::uint64_t at = hole;;) {
        at = (at + 1) & mask_;
        if (slots_[at].number == 0) break;
        const std::uint64_t from = home(hash_id(slots_[at].id));
        if (((at - from) & mask_) >= ((at - hole) & mask_)) {
            slots_[hole] = slots_[at];
            hole = at;
        }
    }
    slots_[hole].number = 0;
    --size_;
}

void IdMap::clear() noexcept {
    slots_ = BigArray<Slot>();
    mask_ = 0;
    size_ = 0;
}

}  // namespace windeck
