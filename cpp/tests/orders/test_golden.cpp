// Published permutations, of tests/golden/orders_v1.json, on every machine that runs these tests.

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

#include "check.hpp"
#include "windeck/orders/permutation.hpp"

namespace {

using windeck::check;

/// Returns the integer after `key` in a line, and removes what it has read.
std::uint64_t number_after(std::string_view& line, std::string_view key) {
    const std::size_t found = line.find(key);
    check(found != std::string_view::npos, "a line has no such field");
    line.remove_prefix(found + key.size());
    std::uint64_t value = 0;
    const auto read = std::from_chars(line.data(), line.data() + line.size(), value);
    check(read.ec == std::errc{}, "a field is no integer");
    line.remove_prefix(static_cast<std::size_t>(read.ptr - line.data()));
    return value;
}

void test_first_samples(std::string_view line) {
    const std::uint64_t size = number_after(line, "\"size\": ");
    const std::uint64_t seed = number_after(line, "\"seed\": ");
    const std::uint64_t epoch = number_after(line, "\"epoch\": ");
    const windeck::Permutation order(size, seed, epoch);
    std::uint64_t position = 0;
    for (std::string_view before = "\"first\": ["; !line.starts_with(']'); before = ", ")
        check(order.at(position++) == number_after(line, before), "a published order changed");
    check(position == (size < 8 ? size : 8), "a line has another number of samples");
}

}  // namespace

int main() {
    std::ifstream file(WINDECK_GOLDEN "/orders_v1.json");
    int orders = 0;
    for (std::string line; std::getline(file, line);) {
        if (line.find("\"factory\": \"Permutation\"") == std::string::npos) continue;
        test_first_samples(line);
        ++orders;
    }
    check(orders > 100, "the golden file is missing or has another form");
}
