#include <cstdlib>
#include <stdexcept>

#include "check.hpp"
#include "windeck/base/dispatch.hpp"

int main() {
    using namespace windeck;
    setenv("WINDECK_SIMD", "mmx", 1);
    check_throws<std::invalid_argument>([] { simd(); }, "expected baseline, avx2 or avx512");
    setenv("WINDECK_SIMD", "baseline", 1);
    check(simd() == Simd::baseline, "the environment variable is honoured");
    setenv("WINDECK_SIMD", "mmx", 1);
    check(simd() == Simd::baseline, "the level is found once");
    check(name(Simd::avx512) == "avx512");
}
