#include "table/id_map.hpp"

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
        const Slot& slot = before[at];
        if (slot.number != 0) put(slot.id, slot.number, hash_id(slot.id));
    }
}

void IdMap::set(std::int64_t id, std::uint64_t number) noexcept {
    std::uint64_t at = home(hash_id(id));
    while (slots_[at].number != 0 && slots_[at].id != id)
        at = (at + 1) & mask_;
    size_ += slots_[at].number == 0 ? 1U : 0U;
    slots_[at] = {id, number + 1};
}

void IdMap::erase(std::int64_t id) noexcept {
    std::uint64_t hole = home(hash_id(id));
    while (slots_[hole].id != id || slots_[hole].number == 0)
        hole = (hole + 1) & mask_;
    // An entry moves back into the hole unless its own place is after the hole, cyclically.
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
