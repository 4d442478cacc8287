// The map of ids against std::unordered_map.

#include <new>
#include <random>
#include <unordered_map>

#include "check.hpp"
#include "table/id_map.hpp"

namespace windeck {
namespace {

void equals_the_model(std::uint64_t seed, std::int64_t range) {
    std::mt19937_64 random(seed);
    IdMap map;
    std::unordered_map<std::int64_t, std::uint64_t> model;
    for (int step = 0; step < 30000; ++step) {
        const auto id =
            static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(range)) - range / 2;
        if (random() % 3 != 0) {
            map.reserve(map.size() + 1);
            const std::uint64_t number = random() >> 1;
            const auto known = model.find(id);
            if (random() % 2 == 0) {
                const std::uint64_t had = map.add(id, number, hash_id(id));
                check(had == (known == model.end() ? IdMap::absent : known->second), "another one");
                model.emplace(id, number);
            } else {
                map.set(id, number);
                model[id] = number;
            }
        } else if (model.erase(id) != 0) {
            map.erase(id);
        }
        check(map.size() == model.size());
        const auto found = model.find(id);
        check(map.find(id) == (found == model.end() ? IdMap::absent : found->second));
    }
    std::size_t visited = 0;
    map.each([&](std::int64_t id, std::uint64_t number) {
        ++visited;
        check(model.at(id) == number);
    });
    check(visited == model.size());
    const IdMap copy = map;
    std::size_t glanced = 0;
    for (const auto& [id, number] : model) {
        check(map.find(id) == number && copy.find(id) == number);
        const std::uint64_t find_in_first_line = map.find_in_first_line(id, hash_id(id));
        check(find_in_first_line == number || find_in_first_line == IdMap::absent);
        glanced += find_in_first_line == number ? 1U : 0U;
        const std::int64_t other = id + range;  // never put in
        check(map.find(other) == IdMap::absent &&
              map.find_in_first_line(other, hash_id(other)) == IdMap::absent);
    }
    check(glanced * 4 >= model.size() * 3, "searches end in their first line, but for some");
    map.clear();
    check(map.size() == 0 && map.find(0) == IdMap::absent && copy.size() == model.size());
}

}  // namespace
}  // namespace windeck

int main() {
    using namespace windeck;
    for (const std::int64_t range : {3, 40, 1000, 100000})
        equals_the_model(static_cast<std::uint64_t>(range), range);
    IdMap map;
    check(map.find(5) == IdMap::absent && map.bytes() == 0);
    check(map.find_in_first_line(5, hash_id(5)) == IdMap::absent);
    try {
        map.reserve(std::uint64_t{1} << 57);
        check(false, "room for 2^57 ids");
    } catch (const std::bad_alloc&) {
    }
    check(map.find(5) == IdMap::absent && map.bytes() == 0, "a failed reserve changes the map");
}
