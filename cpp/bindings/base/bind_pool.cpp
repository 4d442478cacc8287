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
        "State of the pool of batch memory: slabs ever allocated and taken, slabs and bytes in use "
        "(live) and waiting (free).");
    m.def("trim_pool", &trim_pool, "Gives the waiting memory of the pool back to the system.");
    m.def("default_threads", &default_threads,
          "The number of threads where none is given: WINDECK_NUM_THREADS, or the processors.");
}

}  // namespace windeck
