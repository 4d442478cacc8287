#include "bindings.hpp"
#include "windeck/base/parallel.hpp"
#include "windeck/base/pool.hpp"

namespace windeck {

void bind_pool(py::module_& m) {
    m.def(
        "pool_stats",
        [] {
            const PoolStats stats = pool_stats();
            py::dict out;
            out["allocations"] = stats.allocations;
            out["takes"] = stats.takes;
            out["live"] = stats.live;
            out["live_bytes"] = stats.live_bytes;
            out["free"] = stats.free;
            out["free_bytes"] = stats.free_bytes;
            return out;
        },
        "Return the statistics of the memory pool of batches: slabs allocated and taken so far, "
        "and "
        "slabs and bytes in use (live) and free.");
    m.def("trim_pool", &trim_pool, "Return the free memory of the pool to the system.");
    m.def("default_threads", &default_threads,
          "Return the default number of threads: WINDECK_NUM_THREADS, or that of the processors.");
}

}  // namespace windeck
