// Reading mapped memory whose file may be cut short meanwhile.
//
// A page of a mapping that no longer has a file behind it raises SIGBUS when it is touched, which
// ends the process. guarded(body) runs body() and returns true; when SIGBUS comes while it runs,
// the rest of the body is skipped and it returns false. A signal that is not this thread's own
// fault in a guarded body goes to the handler that was there before. Ours is installed only while
// some guarded call is in flight, in whatever thread, and the one before is put back afterwards,
// unless someone has installed another since.
//
// The body is left by a jump, so whatever it creates must have a trivial destructor, and it must
// take no locks and allocate nothing. It may throw, and may call guarded() again. What it wrote
// before the jump is unspecified.
//
// Costs a few system calls, some hundred nanoseconds: guard a loop, not a single read. Thread-safe;
// works in threads that block signals. Where there is no SIGBUS (Windows) it only runs the body.
//
// A file cut within its last page raises nothing: its missing bytes read as zeros. Whoever reads
// compares the file's size afterwards too, as TokenShard::reading() does.

#pragma once

#include <type_traits>

namespace windeck {

/// guarded() for a function and its argument.
bool run_guarded(void (*body)(void*), void* argument);

template <typename Body>
bool guarded(Body&& body) {
    using Held = std::remove_reference_t<Body>;
    return run_guarded([](void* held) { (*static_cast<Held*>(held))(); },
                       const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace windeck
