#include "bindings.hpp"

PYBIND11_MODULE(_core, m, py::mod_gil_not_used()) {
    m.doc() = "The native core of windeck: orders, windows, gather.";
    windeck::bind_dispatch(m);
    windeck::bind_lcg(m);
    windeck::bind_orders(m);
    windeck::bind_permutation(m);
    windeck::bind_gather(m);
    windeck::bind_pool(m);
    windeck::bind_rival(m);
    windeck::bind_windows(m);
}
