#include "bindings.hpp"
#include "windeck/base/dispatch.hpp"

namespace windeck {

void bind_dispatch(py::module_& m) {
    m.def(
        "simd", [] { return std::string(name(simd())); },
        "Return the instruction set in use: 'baseline', 'avx2' or 'avx512' (see WINDECK_SIMD).");
}

}  // namespace windeck
