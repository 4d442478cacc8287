// The C++ test harness: a failed check prints its place and exits with status 1.

#pragma once

#include <cstdio>
#include <cstdlib>
#include <source_location>
#include <string_view>

namespace windeck {

inline void check(bool condition, const char* what = "check failed",
                  std::source_location where = std::source_location::current()) {
    if (condition) return;
    std::fprintf(stderr, "%s:%u: %s\n", where.file_name(), static_cast<unsigned>(where.line()),
                 what);
    std::exit(1);
}

/// Runs `action` and checks that it throws an Error whose message contains `part`.
template <typename Error, typename Action>
void check_throws(Action action, const char* part,
                  std::source_location where = std::source_location::current()) {
    try {
        action();
    } catch (const Error& error) {
        check(std::string_view(error.what()).find(part) != std::string_view::npos, error.what(),
              where);
        return;
    }
    check(false, "nothing was thrown", where);
}

}  // namespace windeck
