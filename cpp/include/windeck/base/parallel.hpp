// A parallel loop on a pool of threads.
//
// parallel_for(count, grain, threads, body) calls body(begin, end) for portions of at most `grain`
// that together are [0, count), each exactly once, on up to `threads` threads, the caller's among
// them. Threads take portions when they are free, so the order is not determined; a body must write
// only the results of its portion. The call returns when all portions are done. If a body throws,
// portions that have not begun are skipped, and the first exception is thrown to the caller.
//
// May be called from several threads at once and from inside a body: the caller takes portions
// itself when no other thread is free, so there is no deadlock. A child of fork starts its own
// threads at first use. The threads block all signals, and are not joined at the end of the
// process. They sleep between calls; where calls follow each other within 50 us, they look for the
// next one that long before they sleep, and yield to any other thread of their processor meanwhile.

#pragma once

#include <cstdint>
#include <functional>

namespace windeck {

using RangeBody = std::function<void(std::int64_t begin, std::int64_t end)>;

/// count >= 0, grain >= 1; threads < 2 runs in the caller alone.
void parallel_for(std::int64_t count, std::int64_t grain, int threads, const RangeBody& body);

/// The default number of threads: WINDECK_NUM_THREADS, or the number of processors. Throws
/// std::invalid_argument when the variable is not an integer from 1 to 1024.
int default_threads();

}  // namespace windeck
