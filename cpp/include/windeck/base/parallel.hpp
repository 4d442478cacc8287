// One parallel loop, on threads that wait between calls.
//
// parallel_for(count, grain, threads, body) calls body(begin, end) for pieces of at most `grain`
// that together are [0, count), each exactly once, on up to `threads` threads, the caller's among
// them. Pieces are handed out as threads come free, so order and placement are not determined; a
// body must write only what belongs to its piece. It returns when all pieces are done. When a body
// throws, pieces not yet begun are dropped and the first exception is thrown to the caller.
//
// Callable from any number of threads at once and from inside a body: the caller works through
// the pieces itself when no other thread is free, so nothing can wait in a circle. After fork a
// child starts with no threads and gets its own when it first needs them. The threads block all
// signals, and are left alone at the end of the process.

#pragma once

#include <cstdint>
#include <functional>

namespace windeck {

using RangeBody = std::function<void(std::int64_t begin, std::int64_t end)>;

/// count >= 0, grain >= 1; threads < 2 runs in the caller alone.
void parallel_for(std::int64_t count, std::int64_t grain, int threads, const RangeBody& body);

/// The number of threads to use where the caller does not say: WINDECK_NUM_THREADS, or as many as
/// there are processors to run on. Throws std::invalid_argument when the variable is not an integer
/// from 1 to 1024.
int default_threads();

}  // namespace windeck
