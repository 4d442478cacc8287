// Reads of mapped files that may be truncated at the same time.
//
// A read of a mapped page beyond the end of the file raises SIGBUS, which terminates the process.
// guarded(body) runs body() and returns true; if body() raises SIGBUS, the rest of it is skipped
// and guarded() returns false. Every other SIGBUS goes to the previous handler. Our handler is
// installed while any thread is in a guarded call. Afterwards the previous one is restored, unless
// another handler was installed in between.
//
// A fault leaves the body by a jump: its objects must have trivial destructors, and it must not
// lock or allocate. It may throw, and may call guarded() again. After a fault, the values that it
// wrote are unspecified.
//
// A call takes a few system calls, some hundred nanoseconds: guard a loop, not a single read.
// Thread-safe; works in threads that block signals. On systems without SIGBUS (Windows) it only
// runs the body.
//
// A file truncated within its last page raises no signal: the missing bytes read as zeros. Callers
// therefore also check the size of the file afterwards, as TokenShard::reading() does.

#pragma once

#include <type_traits>

namespace windeck {

/// guarded() for a function and its argument.
bool run_guarded(void (*body)(void*), void* argument);

template <typename Body>
bool guarded(Body&& body) {
    using Function = std::remove_reference_t<Body>;
    return run_guarded([](void* function) { (*static_cast<Function*>(function))(); },
                       const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace windeck
